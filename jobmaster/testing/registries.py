"""The handlers that a test runs with: those of the configuration, and the registry that a function is declared in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from jobmaster.handlers import Handler, Handlers
from jobmaster.model.errors import UnknownHandler

_HINT = (
    "the registries in the module of the function were looked at; give the right one, handlers=..., or name its module "
    "in the option jobmaster_handlers of pytest"
)


class FoundHandlers(Handlers):
    """Handlers by name as declared; a function that is not among them is looked up in the registries of its own module."""

    def of(self, function: Callable[..., Any]) -> Handler | None:
        """The handler of a function; its whole registry is taken over."""
        known = super().of(function)
        if known is None and (registry := declaring_registry(function)) is not None:
            self.merge(registry)
            known = super().of(function)
        return known


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
