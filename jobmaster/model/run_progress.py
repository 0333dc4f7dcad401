"""How far a handler is, as it reports that itself: ``ctx.progress(done, total, text)``."""

from __future__ import annotations

from datetime import datetime
from math import isfinite

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.model.stored_text import stored_text

TEXT_CHARS_MAX = 200
"""Characters of a report's text; a longer one is cut."""


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One report of a handler. Units are the handler's own: rows, bytes, steps."""

    done: float
    total: float | None = None
    """``None``: not known."""
    text: str = ""
    at: datetime | None = None
    """When the master stored it (aware, UTC); ``None`` before that."""

    @property
    def share(self) -> float | None:
        """Share that is done, from 0 to 1; ``None`` without a total."""
        return None if self.total is None else min(self.done / self.total, 1.0)


def checked_progress(done: object, total: object, text: object) -> RunProgress:
    """A report from what a handler has given.

    Raises:
        InputError: a number that is none, is infinite, is below 0, or a total of 0; a text that is none.
    """
    number = _number(done, "done")
    whole = None if total is None else _number(total, "total")
    if whole == 0.0:
        raise InputError("ctx.progress: total is 0", hint="leave it out while it is not known")
    if not isinstance(text, str):
        raise InputError(f"ctx.progress: text must be text, not {type(text).__name__}")
    return RunProgress(done=number, total=whole, text=stored_text(text, TEXT_CHARS_MAX))


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"ctx.progress: {what} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number) or number < 0.0:
        raise InputError(f"ctx.progress: {what} must be 0 or more and finite, not {value!r:.40}")
    return number
