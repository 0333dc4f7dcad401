"""Limits that a handler declares: how many of its jobs may run at once or start in a time, in the whole cluster."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from jobmaster.handlers.signature import readable
from jobmaster.model.errors import ConfigError, InputError, InvalidArguments
from jobmaster.model.flow.limit import LimitUse, LimitValues

RUNNING_MAX = 1_000_000
RATE_MAX = 1_000_000.0
NAME_CHARS_MAX = 100
KEY_CHARS_MAX = 200
LIMITS_MAX = 8
"""Limits that one handler may have."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:/\s*([0-9]+(?:\.[0-9]+)?)?\s*(s|m|h|d))?\s*")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Key = str | Callable[[dict[str, Any]], object]
Weight = int | Callable[[dict[str, Any]], int]


class Limit:
    """One limit: ``Limit("stripe", 100)``, ``Limit("mail", 5, key="{tenant}")``, ``Limit("api", rate="50/s")``.

    Handlers that name the same limit share it, and must give it the same numbers.

    Args:
        name: 1 to 100 letters, digits and ``. _ : / -``, the first a letter or digit.
        running: jobs that may run at once in the whole cluster, 1 to 1,000,000; of each key, when there is one.
        key: a template over the arguments (``"{tenant}"``), or a function of a dictionary of them. Each key has permits and
            a rate of its own. At most 200 characters.
        rate: starts in a time: ``"50/s"``, ``"600/m"``, ``"10/5s"``, or a number of starts a second; of each key.
        burst: starts that may come at once after a pause. Default: those of one second, at least 1.
        weight: permits (and starts of the rate) that one job takes, or a function of the arguments. A job that is heavier
            than the limit takes all of it, and runs alone.

    Raises:
        InputError: a value out of its range, or neither ``running`` nor ``rate``.
    """

    __slots__ = ("burst", "key", "name", "rate", "running", "weight")

    def __init__(
        self,
        name: str,
        running: int | None = None,
        *,
        key: Key | None = None,
        rate: str | float | None = None,
        burst: float | None = None,
        weight: Weight = 1,
    ) -> None:
        values = checked_values(name, running, rate, burst)
        self.name = values.name
        self.running = values.running
        self.rate = values.rate
        self.burst = values.burst
        if isinstance(key, str):
            _template(name, key)
        elif key is not None and not callable(key):
            raise InputError(f"limit {name!r}: key must be a template or a function, not {key!r}")
        self.key = key
        given: object = weight
        if isinstance(given, bool) or not (callable(given) or (isinstance(given, int) and given >= 1)):
            raise InputError(
                f"limit {name!r}: weight must be a whole number of at least 1 or a function, not {weight!r}"
            )
        if isinstance(weight, int) and running is not None and weight > running:
            raise InputError(f"limit {name!r}: weight {weight} is more than the limit, {running}")
        self.weight = weight

    def __repr__(self) -> str:
        return f"<Limit {self.name}>"

    @property
    def values(self) -> LimitValues:
        """Its numbers."""
        return LimitValues(self.name, self.running, self.rate, self.burst)

    def check_parameters(self, parameters: Sequence[str]) -> None:
        """Check the template against the parameters of the handler; ``ValueError`` names one that it does not have."""
        if isinstance(self.key, str):
            for field in _template(self.name, self.key):
                if field not in parameters:
                    raise ValueError(
                        f"limit {self.name!r}: the key {self.key!r} names {field!r}, and the handler takes "
                        f"({', '.join(parameters)})"
                    )

    def use(self, arguments: dict[str, Any], missing: Mapping[str, Any]) -> LimitUse:
        """What a job with these arguments takes.

        Args:
            missing: defaults of arguments that were not sent.

        Raises:
            InvalidArguments: the key or the weight cannot be computed from them, or is out of range.
        """
        given = {**missing, **arguments}
        key: object = ""
        weight: object = self.weight
        what = "key"
        try:
            if isinstance(self.key, str):
                key = self.key.format_map(given)
            elif self.key is not None:
                key = self.key(given)
            what = "weight"
            if callable(self.weight):
                weight = self.weight(given)
        except Exception as error:
            text = f"{type(error).__name__}: {readable(error)}"
            raise InvalidArguments(f"the {what} of limit {self.name!r} cannot be computed: {text}") from None
        if not isinstance(key, str):
            raise InvalidArguments(f"the key of limit {self.name!r} must be text, not {type(key).__name__}")
        if len(key) > KEY_CHARS_MAX or not key.isprintable():
            wrong = "has unprintable characters" if len(key) <= KEY_CHARS_MAX else f"has {len(key)} characters"
            raise InvalidArguments(f"the key of limit {self.name!r} {wrong}; at most {KEY_CHARS_MAX} printable ones")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= RUNNING_MAX:
            raise InvalidArguments(
                f"the weight of limit {self.name!r} must be a whole number of 1 to {RUNNING_MAX}, not {weight!r:.100}"
            )
        return LimitUse(self.name, key, weight)


def checked_limits(value: object) -> tuple[Limit, ...]:
    """The limits of a handler; ``ValueError`` when there is another thing among them, too many, or one twice."""
    if value is None:
        return ()
    given: list[Limit] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, Limit):
            raise ValueError(f"limit must be a Limit or a list of them, not {one!r:.200}")
        given.append(one)
    if len(given) > LIMITS_MAX:
        raise ValueError(f"a handler may have {LIMITS_MAX} limits, and {len(given)} are given")
    names = [one.name for one in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"limit {twice!r} is given twice; one job takes a limit once")
    return tuple(given)


class _Declared(Protocol):
    """A handler, as this module uses it."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Any: ...


def check_same_numbers(name: str, limits: Sequence[Limit], others: Iterable[_Declared]) -> None:
    """Check the limits of a handler against those of others.

    Raises:
        ConfigError: another handler gives one of them different numbers.
    """
    for limit in limits:
        for other in others:
            for same in other.options.limits:
                if same.name == limit.name and same.values != limit.values and other.name != name:
                    raise ConfigError(
                        f"limit {limit.name!r} has different numbers in handlers {other.name!r} and {name!r}",
                        hint="make one Limit for both, or give them different names",
                    )


def checked_values(name: object, running: object, rate: object, burst: object) -> LimitValues:
    """The numbers of a limit.

    Raises:
        InputError: which one is out of its range, and what is valid.
    """
    name = checked_limit_name(name)
    where = f"limit {name!r}"
    if running is None and rate is None:
        raise InputError(f"{where}: give how many jobs may run at once, or a rate", hint=f"Limit({name!r}, 10)")
    if running is not None and (
        isinstance(running, bool) or not isinstance(running, int) or not 1 <= running <= RUNNING_MAX
    ):
        raise InputError(
            f"{where}: {running!r} is not a number of jobs that may run at once",
            hint=f"a whole number of 1 to {RUNNING_MAX}; to stop the jobs of a handler, pause it",
        )
    per_second = None if rate is None else _per_second(where, rate)
    if burst is None:
        return LimitValues(name, running, per_second, None if per_second is None else max(per_second, 1.0))
    if per_second is None:
        raise InputError(f"{where}: burst goes with a rate", hint='rate="50/s"')
    if isinstance(burst, bool) or not isinstance(burst, int | float) or not 1 <= burst <= RATE_MAX:
        raise InputError(f"{where}: burst must be a number of 1 to {RATE_MAX:g}, not {burst!r}")
    return LimitValues(name, running, per_second, float(burst))


def checked_limit_name(name: object) -> str:
    """The name of a limit; ``InputError`` when it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r:.200} is not the name of a limit",
            hint=f"1 to {NAME_CHARS_MAX} letters, digits and . _ : / -, the first a letter or digit",
        )
    return name


def _per_second(where: str, rate: object) -> float:
    expected = 'rate must be like "50/s", "600/m", "10/5s", or a number of starts a second'
    if isinstance(rate, str):
        found = _RATE.fullmatch(rate)
        if found is None:
            raise InputError(f"{where}: {expected}, not {rate!r:.100}")
        over = float(found[2] or 1) * _UNIT_SECONDS[found[3] or "s"]
        number = float(found[1]) / over if over else 0.0
    elif isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InputError(f"{where}: {expected}, not {rate!r:.100}")
    else:
        number = float(rate)
    if not 1 / 86400 / 366 <= number <= RATE_MAX:
        raise InputError(
            f"{where}: a rate must be at least one start a year and at most {RATE_MAX:g}/s, not {rate!r:.100}"
        )
    return number


def _template(name: str, key: str) -> list[str]:
    """Parameters that a template names."""
    try:
        parts = list(string.Formatter().parse(key))
    except ValueError as error:
        raise InputError(f"limit {name!r}: the key {key!r} is no template: {error}") from None
    fields = [field for _, field, _, _ in parts if field is not None]
    for field in fields:
        if not field.isidentifier():
            raise InputError(
                f"limit {name!r}: the key {key!r} may only name arguments", hint='"{tenant}"; else give a function'
            )
    if not fields:
        raise InputError(
            f"limit {name!r}: the key {key!r} names no argument, so every job would have the same one",
            hint='"{tenant}", or leave the key out',
        )
    return fields
