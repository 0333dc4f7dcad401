"""What a job waits for before its first run: ``submit(..., wait_for=signal("order:17", timeout=3600))``."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from jobmaster.handlers import check_name
from jobmaster.model.errors import InputError
from jobmaster.model.flow.signal import OnTimeout
from jobmaster.model.job import Headers, SignalReceived, SignalWait

KEY_CHARS_MAX = 200
TIMEOUT_SECONDS_MAX = 316_224_000.0
"""Ten years, as far ahead as a due time can be."""
_UNFIT = '"\\'


class WaitFor(msgspec.Struct, frozen=True, kw_only=True):
    """The signal that a job waits for. Made by ``signal``."""

    key: str
    seconds: float | None = None
    """Time-out; ``None``: without one."""
    on_timeout: OnTimeout = OnTimeout.EXPIRE
    received: SignalReceived | None = None
    """Of the retry of a job that has received its signal: the new job has it, too."""


def signal(
    key: str,
    *,
    timeout: float | timedelta | None = None,
    on_timeout: OnTimeout | Literal["expire", "run"] = OnTimeout.EXPIRE,
) -> WaitFor:
    """The signal that a job waits for before its first run: ``submit(ship, wait_for=signal("order:17", timeout=3600))``.

    Args:
        key: 1 to 200 printable characters, no double quotes or backslashes. ``cluster.signals.send`` with it starts the job.
        timeout: seconds from the submit, by the master's clock, until the wait is over; ``None``: no limit but ``expires``.
        on_timeout: ``expire``: the job ends as EXPIRED then; ``run``: it runs, and ``ctx.signal`` is ``None``.

    Raises:
        InputError: one of these cannot be meant.
    """
    try:
        then = OnTimeout(on_timeout)
    except ValueError:
        raise InputError(f"'on_timeout' must be 'expire' or 'run', not {on_timeout!r}") from None
    seconds = None if timeout is None else positive_seconds(timeout, "'timeout' of a signal")
    if seconds is None and then is OnTimeout.RUN:
        raise InputError("'on_timeout' is 'run', and the wait has no time-out", hint="give signal() a timeout")
    return WaitFor(key=check_key(key), seconds=seconds, on_timeout=then)


def check_key(key: object) -> str:
    """The key of a signal; ``InputError`` when it cannot be one."""
    checked = check_name(key, "the key of a signal", KEY_CHARS_MAX)
    if found := next((char for char in checked if char in _UNFIT), None):
        raise InputError(
            f"the key of a signal contains {found!r}: {checked!r}",
            hint="leave double quotes and backslashes out, for example 'order:17'",
        )
    return checked


def positive_seconds(value: object, what: str) -> float:
    """Seconds, more than 0 and at most ten years; ``InputError`` for anything else."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        raise InputError(f"{what} must be more than 0 and at most {TIMEOUT_SECONDS_MAX:.0f} seconds, not {value!r}")
    return float(seconds)


def wait_header(wait_for: object) -> SignalWait | None:
    """The option ``wait_for`` of a submit, in the form of the headers.

    Raises:
        InputError: it was not made by ``signal``.
    """
    if wait_for is None:
        return None
    if not isinstance(wait_for, WaitFor):
        raise InputError(
            f"'wait_for' must be a signal, not {wait_for!r}", hint='write wait_for=signal("order:17"), from jobmaster'
        )
    return SignalWait(key=wait_for.key, seconds=wait_for.seconds, run=wait_for.on_timeout is OnTimeout.RUN)


def sql_wait(wait_for: WaitFor) -> dict[str, object]:
    """The option of the SQL function ``submit``."""
    fields: dict[str, object] = {"key": wait_for.key}
    if wait_for.seconds is not None:
        fields |= {"timeout": wait_for.seconds, "on_timeout": wait_for.on_timeout}
    return fields


def waits(headers: Headers) -> bool:
    """Whether a job of these headers has to wait for a signal."""
    return headers.signal is not None and headers.received is None


def wait_of(headers: Headers) -> WaitFor | None:
    """The wait of an earlier job, for its retry: with the signal, if it came."""
    if (wait := headers.signal) is None:
        return None
    then = OnTimeout.RUN if wait.run else OnTimeout.EXPIRE
    return WaitFor(key=wait.key, seconds=wait.seconds, on_timeout=then, received=headers.received)
