"""The exceptions by which a handler decides how its run ends: ``Retry``, ``Snooze``, ``Fail``, ``Cancel``."""

from __future__ import annotations

from datetime import timedelta
from math import isfinite

from jobmaster.model.errors import InputError

PAUSE_SECONDS_MAX = 3660 * 86_400.0
"""Longest pause before a next attempt."""


class Decision(Exception):
    """Base of these exceptions. No retry rule of the handler is asked about one."""

    # Defaults of the class: a subclass may leave out ``super().__init__``.
    after_seconds: float | None = None
    reason: str = ""


class Retry(Decision):
    """Raised by a handler: this attempt failed, run the job again.

    Args:
        after: seconds (or a timedelta) until the next attempt, below 0: at once; ``None`` = the handler's own delays or
            back-off.
        reason: text for the attempt's record.

    Raises:
        InputError: ``after`` is no time, or more than 3660 days. (The attempt then has failed with that error.)
    """

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after_seconds = None if after is None else _pause("Retry", after)
        self.reason = _text(reason)

    def __str__(self) -> str:
        return self.reason or "the handler requested another attempt"


class Snooze(Decision):
    """Raised by a handler: not now, run the job again later. No attempt is used up.

    A job is snoozed at most ``jobs.max_snoozes`` times; the next time it ends as FAILED with the reason ``snoozed_out``.

    Args:
        after: seconds (or a timedelta) until the next run, below 0: at once.
        reason: text for the record of this run.

    Raises:
        InputError: ``after`` is no time, or more than 3660 days. (The attempt then has failed with that error.)
    """

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after_seconds = _pause("Snooze", after)
        self.reason = _text(reason)

    def __str__(self) -> str:
        return self.reason or "the handler put the job off"


class Fail(Decision):
    """Raised by a handler: the job has failed for good; it ends as FAILED and is not tried again.

    Args:
        reason: text for the job's record.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _text(reason)

    def __str__(self) -> str:
        return self.reason or "the handler failed its own job"


class Cancel(Decision):
    """Raised by a handler: the job has become pointless; it ends as CANCELLED and is not tried again."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _text(reason)

    def __str__(self) -> str:
        return self.reason or "the handler cancelled its own job"


def asked_seconds(decision: Decision) -> float | None:
    """The pause that a decision asks for; ``None``: none, or one that cannot be read. Raises nothing: a handler can set the
    attribute past the check, and a subclass can compute it."""
    try:
        return pause_seconds(decision.after_seconds)
    except BaseException:  # foreign code: its SystemExit must not end other jobs
        return None


def decision_in(error: BaseException) -> Decision | None:
    """The decision that was raised, alone or as the only error of a task group; ``None``: it is an error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, Decision) else None


def _pause(decision: str, after: object) -> float:
    seconds = pause_seconds(after)
    if seconds is None:
        others = ", or None for the handler's own back-off" if decision == "Retry" else ""
        raise InputError(
            f"{decision}(after={after!r}) is no time until the next run",
            hint=f"give seconds as a number, or a timedelta{others}",
        )
    if seconds > PAUSE_SECONDS_MAX:
        raise InputError(f"{decision}(after={after!r}) is more than {PAUSE_SECONDS_MAX / 86_400:g} days ahead")
    return seconds


def _text(reason: object) -> str:
    """A reason as text: handlers give errors, too."""
    if reason is None:
        return ""
    try:
        return str(reason) or (type(reason).__name__ if isinstance(reason, BaseException) else "")
    except Exception as broken:
        return f"<its text cannot be read: {type(broken).__name__}>"


def pause_seconds(value: object) -> float | None:
    """Seconds of a number or a timedelta, below zero: zero; ``None`` when it is no finite number."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        seconds = float(number)
    except OverflowError:
        return None
    return max(seconds, 0.0) if isfinite(seconds) else None
