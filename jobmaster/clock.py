"""The only reader of clocks, and the maker of time-ordered ids.

Leases are counted on ``boottime``: CLOCK_BOOTTIME goes on while the machine sleeps, CLOCK_MONOTONIC does not, and an
agent that wakes up must know that its lease is over. Wall time is only for what people and other machines read (due
times, ids).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol
from uuid import UUID

import uuid_utils

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """What the rest of the program may know about time; tests turn it by hand."""

    def boottime(self) -> float:
        """Seconds since some fixed moment; never goes back, goes on during suspend where the system can."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    # Read once per job: called without a frame of Python in between.
    boottime = staticmethod(time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME))

    def wall_us(self) -> int:
        return time.time_ns() // 1000


def monotonic_us() -> int:
    """Microseconds of CLOCK_MONOTONIC, which systemd compares with its own (``RELOADING=1``)."""
    return time.monotonic_ns() // 1000


def new_id() -> bytes:
    """16 bytes of a fresh UUIDv7; ids of one process only grow."""
    return uuid_utils.uuid7().bytes


def new_job_id() -> UUID:
    """A fresh UUIDv7 for ``submit(..., job_id=)``; ids of one process only grow."""
    return UUID(bytes=new_id())
