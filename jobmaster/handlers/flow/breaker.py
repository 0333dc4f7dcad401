"""Circuit breakers as handlers declare them: which resource, and when it counts as failing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from jobmaster.handlers.names import check_name
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.flow.breaker import BreakerRule

WINDOW_SECONDS_MAX = 3600.0
OPEN_SECONDS_MAX = 7 * 86400.0
CALLS_MAX = 1_000_000
TRIALS_MAX = 1000
_NAMES_MAX = 1000
_RUN = frozenset({"error", "given_up", "retry", "failed"})
"""Reasons of errors that the handler has raised."""


class Breaker:
    """A circuit breaker: while a resource fails, jobs that need it wait in the master and use up no attempt.

    ::

        stripe = Breaker("stripe", failures=0.5, window=30, min_calls=20, open_for=60, half_open=5)

        @handlers.job(breaker=stripe)
        async def charge(order: int) -> None: ...

    Handlers that name one resource share its breaker, in the whole cluster.

    Args:
        resource: name of the breaker.
        failures: share of failed runs, above 0 and at most 1, from which it opens.
        window: seconds over which runs count, 1 to 3600.
        min_calls: least number of runs in the window.
        open_for: seconds for which it stays open; after that it is half-open.
        half_open: how many jobs may try the resource then, at most. A failure opens it again.
        on: errors that count as failures of the resource (subclasses, too). A run that exceeds its timeout is a
            ``TimeoutError``.
        ignore: errors that do not, though ``on`` has them: the run counts as a success.

    ``Cancel`` and ``Snooze`` never count, and neither do runs that the agent has stopped.

    Raises:
        ConfigError: a value is out of its range.
    """

    def __init__(
        self,
        resource: str,
        *,
        failures: float = 0.5,
        window: float | timedelta = 30.0,
        min_calls: int = 20,
        open_for: float | timedelta = 60.0,
        half_open: int = 5,
        on: type[BaseException] | Sequence[type[BaseException]] = Exception,
        ignore: type[BaseException] | Sequence[type[BaseException]] = (),
    ) -> None:
        try:
            check_name(resource, "the name of a breaker")
        except InputError as error:
            raise ConfigError(error.message, hint=error.hint) from None
        self.rule: Final = BreakerRule(
            name=resource,
            failures=_number(resource, "failures", failures, 0.0, 1.0),
            window_seconds=_number(resource, "window", window, 0.999, WINDOW_SECONDS_MAX),
            min_calls=_count(resource, "min_calls", min_calls, CALLS_MAX),
            open_seconds=_number(resource, "open_for", open_for, 0.0, OPEN_SECONDS_MAX),
            half_open=_count(resource, "half_open", half_open, TRIALS_MAX),
        )
        self._on = _types(resource, "on", on)
        self._ignore = _types(resource, "ignore", ignore)
        self._known: dict[str, bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Breaker) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"Breaker({self.rule.name!r})"

    def _values(self) -> tuple[object, ...]:
        return self.rule, self._on, self._ignore

    def is_failure(self, reason: str, error_type: str) -> bool | None:
        """Whether a failed run is a failure of the resource; ``None``: it says nothing about it.

        Args:
            reason: ``ErrorInfo.reason``.
            error_type: ``ErrorInfo.type``, the name of the error's class. (An error may come from a worker process, as text.)
        """
        if reason == "crashed":
            return True
        if reason == "timeout":
            error_type = TimeoutError.__name__
        elif reason not in _RUN:
            return None
        counts = self._known.get(error_type)
        if counts is None:
            counts = _is_among(error_type, self._on) and not _is_among(error_type, self._ignore)
            if len(self._known) < _NAMES_MAX:
                self._known[error_type] = counts
        return counts


def checked_breaker(given: object, handler: str) -> Breaker | None:
    """The option ``breaker`` of a handler: a name alone has the defaults."""
    if given is None or isinstance(given, Breaker):
        return given
    if isinstance(given, str):
        return Breaker(given)
    raise ConfigError(
        f"handler {handler!r}: 'breaker' must be a Breaker or the name of a resource, not {given!r}",
        hint='breaker="stripe", or breaker=Breaker("stripe", failures=0.5)',
    )


def _is_among(name: str, types: Sequence[type[BaseException]]) -> bool:
    return any(name == _named(each) for type_ in types for each in _with_subclasses(type_))


def _named(type_: type[BaseException]) -> str:
    return type_.__qualname__ if type_.__module__ == "builtins" else f"{type_.__module__}.{type_.__qualname__}"


def _with_subclasses(type_: type[BaseException]) -> Iterator[type[BaseException]]:
    seen, left = {type_}, [type_]
    while left:
        each = left.pop()
        yield each
        for sub in type.__subclasses__(each):
            if sub not in seen:
                seen.add(sub)
                left.append(sub)


def _number(resource: str, name: str, given: object, above: float, most: float) -> float:
    seconds: Any = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not above < seconds <= most:
        raise ConfigError(
            f"breaker {resource!r}: {name!r} must be above {above:.3g} and at most {most:g}, not {given!r}"
        )
    return float(seconds)


def _count(resource: str, name: str, given: object, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= most:
        raise ConfigError(f"breaker {resource!r}: {name!r} must be a whole number from 1 to {most}, not {given!r}")
    return given


def _types(resource: str, name: str, given: object) -> tuple[type[BaseException], ...]:
    listed = (given,) if isinstance(given, type) else given
    if not isinstance(listed, list | tuple) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in listed
    ):
        raise ConfigError(f"breaker {resource!r}: {name!r} must be one or several types of errors, not {given!r}")
    return tuple(listed)
