"""The handlers that a test runs with: those of the configuration, and the registry that a function is declared in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from jobmaster.handlers import Handler, Handlers
from jobmaster.handlers.schedules import DeclaredSchedule
from jobmaster.model.errors import UnknownHandler

_HINT = (
    "the registries in the module of the function were looked at; give the right one, handlers=..., or name its module "
    "in the option jobmaster_handlers of pytest"
)


class FoundHandlers(Handlers):
    """The handlers of several registries, as they are at the time of each look-up: what is declared later is found too, and
    no registry is changed. A function that is in none of them is looked up in the registries of its own module.

    Args:
        registries: those to begin with; ``merge`` adds another.
    """

    def __init__(self, *registries: Handlers) -> None:
        super().__init__()
        self._registries: list[Handlers] = []
        for registry in registries:
            self.merge(registry)

    def merge(self, other: Handlers) -> None:
        """Look through another registry too; ``ConfigError`` when a name means different functions."""
        if other is self or any(other is known for known in self._registries):
            return
        both = Handlers()
        for registry in (self, other):
            both.merge(registry)
        self._registries.append(other)

    def get(self, name: str) -> Handler | None:
        """Handler of that name, if it is declared in one of them."""
        found = super().get(name)
        return found or next((one for registry in self._registries if (one := registry.get(name)) is not None), None)

    def of(self, function: Callable[..., Any]) -> Handler | None:
        """Handler declared from that function; the registry of its module is looked through from then on."""
        known = self._of(function)
        if known is None and (registry := declaring_registry(function)) is not None:
            self.merge(registry)
            known = registry.of(function)
        return known

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({handler.name for handler in self})

    @property
    def schedules(self) -> list[DeclaredSchedule]:
        """The schedules of all of them, by name."""
        found = {one.name: one for registry in self._registries for one in registry.schedules}
        found.update((one.name, one) for one in super().schedules)
        return [found[name] for name in sorted(found)]

    def _of(self, function: Callable[..., Any]) -> Handler | None:
        found = super().of(function)
        return found or next((one for registry in self._registries if (one := registry.of(function)) is not None), None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[Handler]:
        handlers = {handler.name: handler for registry in reversed(self._registries) for handler in registry}
        handlers.update((handler.name, handler) for handler in super().__iter__())
        return iter(list(handlers.values()))

    def __len__(self) -> int:
        return len(list(iter(self)))


def declaring_registry(function: Callable[..., Any]) -> Handlers | None:
    """The registry that the module of a function uses and that declares the function; ``None``: there is none."""
    scope = getattr(function, "__globals__", {})
    return next((registry for registry in _registries(scope) if registry.of(function) is not None), None)


def handler_of(handler: Callable[..., Any] | str, handlers: Handlers | None) -> tuple[Handlers, Handler]:
    """A declared handler and its registry.

    Raises:
        UnknownHandler: it is declared in none that is known.
    """
    registry = handlers
    if registry is None and not isinstance(handler, str):
        registry = declaring_registry(handler)
    if registry is not None:
        found = registry.get(handler) if isinstance(handler, str) else registry.of(handler)
        if found is not None:
            return registry, found
    name = handler if isinstance(handler, str) else getattr(handler, "__qualname__", repr(handler))
    hint = "a handler by name needs its registry: handlers=..." if isinstance(handler, str) and not handlers else _HINT
    raise UnknownHandler(f"{name!r} is not declared as a handler", hint=hint)


def _registries(scope: dict[str, Any]) -> Iterator[Handlers]:
    """Registries among the names of a module, in its clusters, and among the names of modules that it has imported."""
    modules: list[ModuleType] = []
    for value in list(scope.values()):
        if (registry := _registry_in(value)) is not None:
            yield registry
        elif isinstance(value, ModuleType) and not value.__name__.startswith("jobmaster."):
            modules.append(value)
    for module in modules:
        for value in list(vars(module).values()):
            if (registry := _registry_in(value)) is not None:
                yield registry


def _registry_in(value: object) -> Handlers | None:
    if isinstance(value, Handlers):
        return value
    if type(value).__module__.startswith("jobmaster."):
        inner = vars(value).get("handlers") if hasattr(value, "__dict__") else None
        return inner if isinstance(inner, Handlers) else None
    return None
