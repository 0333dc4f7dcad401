"""What a ``drain`` has done, of jobs in memory and of a real cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.units import parse_duration


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What ``drain`` has done: jobs that ended in it, by their state."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    left: int = 0
    """Jobs that have not ended: due later, waiting for a confirmation, or of a handler or lane that is not served."""


def seconds_of(value: float | timedelta | str, what: str) -> float:
    """A duration that is not negative."""
    seconds: Any = value
    if isinstance(value, str):
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise InputError(f"{what!r}: {error}") from None
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InputError(f"{what!r} must be a duration of at least 0 seconds, not {value!r}")
    return float(seconds)
