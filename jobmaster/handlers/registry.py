"""The registry of handlers: name -> handler, function -> handler. An object that the user makes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from jobmaster.handlers.flow.limits import check_same_numbers
from jobmaster.handlers.flow.unique import KEY_SHOWS_HINT
from jobmaster.handlers.handler import Handler
from jobmaster.handlers.lifespan import Lifespan, LifespanFunction
from jobmaster.handlers.middleware import Around, check_around
from jobmaster.handlers.names import check_name
from jobmaster.handlers.once import OnceAction, once_action
from jobmaster.handlers.options import JobOptions, checked_options
from jobmaster.handlers.outbox import check_parameters, handler_of
from jobmaster.handlers.schedules import DeclaredSchedule, ScheduleOptions, When, declare
from jobmaster.handlers.signature import read_signature
from jobmaster.model.errors import ConfigError, InputError, UnknownHandler
from jobmaster.model.suggestion import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Around)
N = TypeVar("N", bound=Callable[[], Any])


class Handlers:
    """Handlers of one application (or one part of it; ``merge`` joins several).

    ::

        handlers = Handlers()

        @handlers.job(name="images.resize", priority="high", timeout=30)
        async def resize(path: str, width: int = 800) -> Size: ...

    The function stays what it was: it can be called, tested and type-checked as before.

    Args:
        lifespan: a function without parameters that returns an async context manager, such as one that is decorated with
            ``contextlib.asynccontextmanager``. Every process that runs these handlers enters it before the first job and
            leaves it after the last one; what it yields is ``ctx.resources``.

    Raises:
        ConfigError: ``lifespan`` is no such function.
    """

    def __init__(self, *, lifespan: LifespanFunction | None = None) -> None:
        self._lifespan = None if lifespan is None else Lifespan(lifespan)
        self._around: tuple[Around, ...] = ()
        self._declared: list[Handler] = []
        """Handlers that were declared here, not merged."""
        self._by_name: dict[str, Handler] = {}
        self._by_function: dict[Callable[..., Any], Handler] = {}
        self._once: dict[str, OnceAction] = {}
        self._schedules: dict[str, DeclaredSchedule] = {}
        self._bare: set[Callable[..., Any]] = set()
        """Functions that ``every`` alone has declared."""

    # ------------------------------------------------------------ declaring

    @overload
    def job(self, function: F, /) -> F: ...

    @overload
    def job(self, /, **options: Unpack[JobOptions]) -> Callable[[F], F]: ...

    def job(self, function: F | None = None, /, **options: Unpack[JobOptions]) -> F | Callable[[F], F]:
        """Declare a handler, bare (``@handlers.job``) or with options (``@handlers.job(priority="high")``).

        Raises:
            ConfigError: the signature, an option or the name cannot work, or the name is taken.
        """
        if function is not None:
            self.add(function)
            return function

        def declare(function: F) -> F:
            self.add(function, **options)
            return function

        return declare

    def outbox(self, destination: str, /, **options: Unpack[JobOptions]) -> Callable[[F], F]:
        """Declare the handler that sends the messages of a destination (``ctx.outbox.send``, ``cluster.outbox.send``):
        ``async def webhooks(key: str, payload: dict)``. It runs at least once for each message; ``key`` is the same each
        time, for the receiver to ignore a second one.

        Args:
            options: as of ``job``, without ``name``.

        Raises:
            ConfigError: as ``job``; or the function does not take ``key`` and ``payload``.
        """

        if "name" in options:
            raise ConfigError("the handler of an outbox is named after its destination", hint="leave 'name' out")

        def declare(function: F) -> F:
            check_parameters(function, destination)
            options["name"] = handler_of(destination)
            self.add(function, **options)
            return function

        return declare

    def add(
        self,
        function: Callable[..., Any],
        *,
        stands_for: Callable[..., Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> Handler:
        """Declare a handler without decorator syntax; see ``job``.

        Args:
            stands_for: the function by which ``every`` and ``of`` find this handler; the handler does not run it.
        """
        name = default_name(function) if (given := options.get("name")) is None else given
        try:
            check_name(name, f"the name of handler {name!r}")
        except InputError as error:
            raise ConfigError(error.message, hint=error.hint) from None
        _refuse_uncallable(function, name)
        if function in self._bare:
            raise ConfigError(
                f"{_place(function)} is declared as a handler by @handlers.every already",
                hint="write @handlers.every above @handlers.job, so that it finds the handler",
            )
        taken = self._by_name.get(name)
        if taken is not None and taken.function is not function:
            raise ConfigError(
                f"two functions are declared as handler {name!r}: {_place(taken.function)} and {_place(function)}",
                hint="give one of them another name",
            )
        checked = checked_options(options, handler=name, is_async=inspect.iscoroutinefunction(function))
        signature = read_signature(function, name)
        if checked.unique is not None and (missing := checked.unique.missing(signature.schema)):
            raise ConfigError(
                f"handler {name!r}: args of 'unique' names {', '.join(map(repr, missing))}, and it has no such argument"
            )
        check_same_numbers(name, checked.limits, self)
        try:
            handler = Handler(name, function, checked, signature, self._lifespan, self._around)
        except ValueError as error:
            raise ConfigError(f"handler {name!r}: {error}") from None
        if checked.unique is not None and (shown := checked.unique.secrets_in_key(checked.secret)):
            raise ConfigError(
                f"handler {name!r}: the key of 'unique' would show the secret argument {shown[0]!r}",
                hint=KEY_SHOWS_HINT,
            )
        self._declared.append(handler)
        self._by_name[name] = handler
        self._by_function[function] = handler
        if stands_for is not None:
            self._by_function[stands_for] = handler
        return handler

    def every(
        self,
        when: When,
        /,
        *,
        name: str | None = None,
        args: Mapping[str, object] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[F], F]:
        """Declare a schedule: the handler runs at these times, one job each, as long as an agent declares it.

        ::

            @handlers.every("0 3 * * *", zone="Europe/Berlin", misfire="last")
            @handlers.job(name="reports.nightly")
            async def nightly() -> None: ...

        A function that is no handler yet becomes one, as with a bare ``@handlers.job``.

        Args:
            when: a cron expression of 5 fields, or of 6 with the second first; or an interval (``"5m"``, a timedelta,
                seconds).
            name: of the schedule in the cluster; the handler's name without it. Two schedules need two names.
            args: the handler's arguments by name, checked here.
            options: see ``ScheduleOptions``.

        Raises:
            ConfigError: the time, the arguments or an option cannot work, or the name is taken.
        """

        def scheduled(function: F) -> F:
            handler = self._by_function.get(function)
            if handler is None:
                handler = self.add(function)
                self._bare.add(function)
            own = handler.name if name is None else name
            try:
                declared = declare(own, when, handler, args, options)
            except InputError as error:
                raise ConfigError(f"schedule {own!r}: {error.message}", hint=error.hint) from None
            self._take_schedule(declared)
            return function

        return scheduled

    def _take_schedule(self, declared: DeclaredSchedule) -> None:
        taken = self._schedules.get(declared.name)
        if taken is not None and taken != declared:
            raise ConfigError(
                f"two schedules are called {declared.name!r}: of handler {taken.handler!r} ({taken.expression}) and of "
                f"handler {declared.handler!r} ({declared.expression})",
                hint="give one of them another name: @handlers.every(..., name=...)",
            )
        self._schedules[declared.name] = declared

    def around(self, function: A) -> A:
        """Declare middleware: ``async def timed(ctx, run)``, which is run in place of each handler of this registry, and
        awaits ``run()`` for the handler's result. What it returns is the job's result, what it raises is the job's error.

        The first one that is declared is the outermost. Handlers of merged registries keep the middleware of their own.

        Raises:
            ConfigError: it is no ``async def``, or cannot be called with ``(ctx, run)``.
        """
        check_around(function)
        self._around = (*self._around, function)
        for handler in self._declared:
            handler.surround(self._around)
        return function

    def once(self, name: str, *, version: str) -> Callable[[N], N]:
        """Declare a start-up action: ``@handlers.once("load-rates", version="3")``. The first agent that starts runs it
        before it takes jobs, and the others wait for it; a new version runs again. It has no parameters, is ``async def`` or
        a plain function, and must be repeatable: that of a process that dies while it runs is run by another agent.

        Raises:
            ConfigError: name, version or function cannot work, or the name is taken.
        """

        def declare(function: N) -> N:
            try:
                action = once_action(name, version, function)
            except InputError as error:
                raise ConfigError(error.message, hint=error.hint) from None
            self._add_once(action)
            return function

        return declare

    def _add_once(self, action: OnceAction) -> None:
        taken = self._once.get(action.name)
        if taken is not None and taken != action:
            raise ConfigError(
                f"two start-up actions are named {action.name!r}: {_place(taken.function)} (version {taken.version}) and "
                f"{_place(action.function)} (version {action.version})",
                hint="give one of them another name",
            )
        self._once[action.name] = action

    def merge(self, other: Handlers) -> None:
        """Take over another registry's handlers, each with the lifespan and the middleware of the registry that declared it,
        its start-up actions and its schedules; ``ConfigError`` when a name means different functions or schedules."""
        for handler in other:
            taken = self._by_name.get(handler.name)
            if taken is not None and taken.function is not handler.function:
                raise ConfigError(
                    f"two functions are declared as handler {handler.name!r}: {_place(taken.function)} and "
                    f"{_place(handler.function)}",
                    hint="give one of them another name",
                )
            self._by_name[handler.name] = handler
        self._by_function.update(other._by_function)
        for action in other.once_actions:
            self._add_once(action)
        for declared in other.schedules:
            self._take_schedule(declared)

    def served_by(self, provided: Collection[str]) -> Handlers:
        """The handlers that an agent can run that provides this, each with its lifespan. Start-up actions and schedules
        are not among them: every agent declares those."""
        served = Handlers(lifespan=None)
        for handler in self:
            if set(handler.options.needs) <= set(provided):
                served._by_name[handler.name] = handler
                served._by_function[handler.function] = handler
        return served

    # ------------------------------------------------------------ looking up

    @property
    def once_actions(self) -> list[OnceAction]:
        """Start-up actions in the order of their declaration."""
        return list(self._once.values())

    def get(self, name: str) -> Handler | None:
        """Handler of that name, if it is declared here."""
        return self._by_name.get(name)

    def of(self, function: Callable[..., Any]) -> Handler | None:
        """Handler declared from that function."""
        try:
            return self._by_function.get(function)
        except TypeError:  # not hashable: certainly no handler
            return None

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    @property
    def schedules(self) -> list[DeclaredSchedule]:
        """The schedules that are declared here, by name."""
        return [self._schedules[name] for name in sorted(self._schedules)]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Handler]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"<Handlers {', '.join(self.names()) or '(none)'}>"


def unknown_handler(name: str, known: Iterable[str], hint: str) -> UnknownHandler:
    """The error for an unknown name, with the nearest known one."""
    near = did_you_mean(name, known)
    return UnknownHandler(f"there is no handler {name!r}", hint=f"{near} {hint}" if near else hint)


def default_name(function: Callable[..., Any]) -> str:
    """``module.qualname``. For a script run as ``__main__`` the module is its file's stem, so that the program that
    submits and the agent that imports the same file agree."""
    qualname = getattr(function, "__qualname__", None)
    if not isinstance(qualname, str) or "<lambda>" in qualname:
        raise ConfigError(f"{function!r} has no name of its own", hint="use @handlers.job(name=...)")
    module = str(getattr(function, "__module__", "") or "")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        path = getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    return f"{module}.{qualname}" if module else qualname


def _refuse_uncallable(function: object, name: str) -> None:
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"handler {name!r}: {function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"handler {name!r} is a generator; a job has one result", hint="return a list instead")


def _place(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
