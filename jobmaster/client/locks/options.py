"""What a lock is called with, checked before anything is sent."""

from __future__ import annotations

import math
import os
import socket
from datetime import timedelta
from typing import NamedTuple

from jobmaster.handlers import check_name
from jobmaster.model.errors import InputError

TTL_SECONDS = 30.0
TTL_SECONDS_MIN = 1.0
TTL_SECONDS_MAX = 86_400.0
LOCK_CHARS_MAX = 200
LABEL_CHARS_MAX = 100
LISTED_MAX = 1000
ONCE_PREFIX = "once/"
"""Names of the locks of actions that run once."""

Seconds = float | timedelta


class LockOptions(NamedTuple):
    """A lock that is to be taken."""

    name: str
    label: str
    """Host, process and label of the holder."""
    ttl_seconds: float
    wait_seconds: float | None
    """``None``: without a limit."""


def lock_options(name: object, ttl: object, wait: object, label: object) -> LockOptions:
    """Checked options of a lock of a user.

    Raises:
        InputError: one of them cannot be meant.
    """
    checked = check_lock_name(name)
    if checked.startswith(ONCE_PREFIX):
        raise InputError(
            f"the name of a lock may not begin with {ONCE_PREFIX!r}: such locks belong to actions that run once",
            hint="choose another name, or use cluster.once()",
        )
    ttl_seconds = _seconds(ttl, "ttl")
    if not TTL_SECONDS_MIN <= ttl_seconds <= TTL_SECONDS_MAX:
        raise InputError(
            f"'ttl' must be {TTL_SECONDS_MIN:g} to {TTL_SECONDS_MAX:g} seconds, not {ttl!r}",
            hint="a lock is renewed while it is held: ttl is the time for which a dead holder blocks the others",
        )
    return LockOptions(checked, holder_label(label), ttl_seconds, wait_seconds(wait))


def check_lock_name(name: object) -> str:
    """The name of a lock; ``InputError`` when it cannot be one."""
    return check_name(name, f"the name of lock {name!r}", LOCK_CHARS_MAX)


def wait_seconds(wait: object) -> float | None:
    """Seconds to wait; ``None`` for no limit."""
    if wait is None:
        return None
    seconds = _seconds(wait, "wait")
    if seconds < 0:
        raise InputError(f"'wait' must be 0 seconds or more, not {wait!r}", hint="None waits without a limit")
    return None if math.isinf(seconds) else seconds


def holder_label(label: object) -> str:
    """``host pid 123: label`` of this process."""
    own = f"{socket.gethostname()} pid {os.getpid()}"
    return own if label in (None, "") else f"{own}: {check_name(label, f'label {label!r}', LABEL_CHARS_MAX)}"


def _seconds(value: object, what: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise InputError(f"{what!r} must be seconds or a timedelta, not {value!r}")
    return float(seconds)
