"""``unique=`` of a handler or of a submit: no second job of a key while one holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from jobmaster.handlers.names import check_name
from jobmaster.model.errors import InputError
from jobmaster.model.flow.uniqueness import OnConflict, UniqueRule, UniqueTerm
from jobmaster.units import UnitError, parse_duration

KEY_CHARS_MAX = 200
"""A key that is made of arguments and is longer is replaced by its digest."""
SPAN_SECONDS_MIN = 0.001
SPAN_SECONDS_MAX = 3660 * 86_400
"""Ten years."""
_ENCODER = msgspec.json.Encoder(order="sorted")

Span = float | timedelta | str
"""Seconds, a timedelta, or a text such as ``1h30m``."""


class Unique(NamedTuple):
    """At most one job of a handler and a key at a time.

    Without ``window``, ``throttle`` and ``debounce`` the key is held while its job lives: from the submit until the job has
    ended, however. Keys belong to a handler. They are not idempotency keys: those are held for ever.

    Raises:
        InputError: by ``checked``, when two options contradict each other or a value is out of its range.
    """

    key: str | None = None
    """The key. Without it the key is made of the arguments."""
    args: Sequence[str] | None = None
    """Names of the arguments that make the key; default: all. An argument that is left out of the submit is ``null``."""
    window: Span | None = None
    """The key is held for this time from the submit on, whatever becomes of the job."""
    throttle: Span | None = None
    """One job in each window of this length. Windows begin at multiples of the length since 1970 (UTC), by the master's
    clock."""
    debounce: Span | None = None
    """The key is held until the job starts, and each further submit gives the job its own due time (``after=``), but none
    later than this time after the first submit. A submit after the start makes a new job."""
    on_conflict: OnConflict | Literal["existing", "reject", "replace"] = OnConflict.EXISTING
    """``existing``: the receipt is that of the holder. ``reject``: ``NotUnique`` with its id. ``replace``: the holder is
    cancelled, and the new job takes its place. Not with ``debounce``."""


KEY_SHOWS_HINT = "give 'unique' args=[...] without secret arguments, or key="
"""For a key that is made of a secret argument."""


class CheckedUnique(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same, checked. Agents publish it with the handler."""

    key: str | None = None
    args: tuple[str, ...] | None = None
    term: UniqueTerm = UniqueTerm.LIVE
    span_us: int = 0
    aligned: bool = False
    on_conflict: OnConflict = OnConflict.EXISTING

    def missing(self, schema: Mapping[str, Any]) -> list[str]:
        """Names that are no arguments of a handler with this JSON Schema."""
        known = schema.get("properties", {})
        return [name for name in self.args or () if name not in known]

    def secrets_in_key(self, secret: Sequence[str]) -> list[str]:
        """The secret arguments that the key would show: it is stored as text, and lists show it.

        Args:
            secret: names of the secret arguments of the handler.
        """
        return [] if self.key is not None else [name for name in secret if self.args is None or name in self.args]

    def rule(self, args: bytes) -> UniqueRule:
        """The uniqueness of a job with these arguments (a JSON object)."""
        key = self.key if self.key is not None else _key_of(args, self.args)
        return UniqueRule(key, self.term, self.span_us, self.aligned, self.on_conflict)


def checked_unique(value: object) -> CheckedUnique:
    """``unique=`` with its values checked.

    Raises:
        InputError: it is no ``Unique``, two options contradict each other, or a value is out of its range.
    """
    if not isinstance(value, Unique):
        raise InputError(f"'unique' must be a Unique, not {value!r:.80}", hint="such as Unique(key='customer 42')")
    spans = {"window": value.window, "throttle": value.throttle, "debounce": value.debounce}
    given = [name for name, span in spans.items() if span is not None]
    if len(given) > 1:
        raise InputError(f"'unique' has {' and '.join(given)}: a key is held in one way", hint="leave out all but one")
    if value.key is not None and value.args is not None:
        raise InputError("'unique' has key and args: the key is given, or made of arguments", hint="leave out one")
    try:
        on_conflict = OnConflict(value.on_conflict)
    except ValueError:
        on_conflict = OnConflict.DEBOUNCE
    if on_conflict is OnConflict.DEBOUNCE:
        raise InputError(
            f"on_conflict of 'unique' must be 'existing', 'reject' or 'replace', not {value.on_conflict!r:.80}",
            hint="debounce= moves the due time of the job that holds the key",
        )
    if value.debounce is not None and on_conflict is not OnConflict.EXISTING:
        raise InputError("'unique' has debounce and on_conflict: debounce moves the job that holds the key")
    span_us = _span_us(spans[given[0]], given[0]) if given else 0
    return CheckedUnique(
        key=None if value.key is None else check_name(value.key, "the key of 'unique'", KEY_CHARS_MAX),
        args=None if value.args is None else _names(value.args),
        term=UniqueTerm.LIVE if not given else UniqueTerm.WAITING if given == ["debounce"] else UniqueTerm.WINDOW,
        span_us=span_us,
        aligned=given == ["throttle"],
        on_conflict=OnConflict.DEBOUNCE if given == ["debounce"] else on_conflict,
    )


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InputError(f"args of 'unique' must be a list of argument names, not {value!r:.80}")
    names = tuple(check_name(name, "an argument of 'unique'", KEY_CHARS_MAX) for name in value)
    if len(set(names)) < len(names):
        raise InputError(f"args of 'unique' has a name twice: {', '.join(names)}")
    return names


def _span_us(value: object, name: str) -> int:
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, str):
        try:
            seconds = parse_duration(value)
        except UnitError as error:
            raise InputError(f"{name} of 'unique' is {value!r:.80}: {error}") from None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InputError(f"{name} of 'unique' must be seconds, a timedelta or a text such as '1h', not {value!r:.80}")
    if not SPAN_SECONDS_MIN <= seconds <= SPAN_SECONDS_MAX:
        raise InputError(
            f"{name} of 'unique' must be {SPAN_SECONDS_MIN} to {SPAN_SECONDS_MAX} seconds, not {value!r:.80}"
        )
    return round(seconds * 1_000_000)


def _key_of(args: bytes, names: tuple[str, ...] | None) -> str:
    """One text for equal arguments: their JSON with sorted names, or its digest when that is too long for a key."""
    given: dict[str, object] = msgspec.json.decode(args, type=dict[str, object])
    chosen = given if names is None else {name: given.get(name) for name in names}
    data = _ENCODER.encode(chosen)
    text = data.decode()
    return text if len(text) <= KEY_CHARS_MAX and text.isprintable() else f"sha256 {hashlib.sha256(data).hexdigest()}"
