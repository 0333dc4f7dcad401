"""The witness: what producers and handlers have done, in files of their own, independent of master and stores.

One JSON line per fact, appended in one ``write`` to a file of the process's own, so that a process may be killed at any
moment and what it had written stays whole. Times are the machine's wall clock, which no fault
changes: faults change the clocks of processes. Where they step the wall clock of a whole process, its witness counts on
CLOCK_TAI, which stays as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

VARIABLE = "CHAOS_WITNESS"
"""Environment variable: the directory of the files."""

TAI_AHEAD = "CHAOS_TAI_AHEAD"
"""Environment variable of a process whose wall clock can be stepped: seconds by which CLOCK_TAI is ahead of a right one."""

ANYWHERE = "anywhere"
"""In place of a bucket: the summary of many does not say which."""


class Phase(StrEnum):
    """What happened."""

    ATTEMPTED = "attempted"
    """A producer is about to submit the values from ``values[0]`` up to and with ``values[1]``."""
    ACKNOWLEDGED = "acknowledged"
    """It got receipts for ``jobs``."""
    UNKNOWN = "unknown"
    """Its submit had an unknown outcome."""
    REFUSED = "refused"
    """Its submit was refused: nothing was stored."""
    CANCELLED = "cancelled"
    """It asked to cancel a job that was due at ``due`` and got the state ``why``."""
    OBSERVED = "observed"
    """It read an outcome: the token in the recorded result."""
    ORDERED = "ordered"
    """It got receipts for ``jobs`` of one ordering key, one after the other."""
    SIGNALLED = "signalled"
    """It got the answers to a job that waits for a signal and to the signal, long before the time-out of the wait."""
    BATCH = "batch"
    """It has closed the batch ``job`` of ``token`` jobs, whose callback has ``value``."""
    WORKFLOW = "workflow"
    """It has started the workflow ``job``, which has to end in the state ``why``."""
    UNIQUE = "unique"
    """Its submits of one unique key were answered with ``jobs``."""
    BEGAN = "began"
    """A handler's first line."""
    ENDED = "ended"
    """A handler's last line (of those that take time)."""


class WitnessLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One fact."""

    phase: Phase
    pid: int = 0
    at: float = 0.0
    """Seconds since 1970."""
    level: str = ""
    values: tuple[int, int] | None = None
    jobs: list[str] = []
    """Ids as 32 hexadecimal digits."""
    job: str = ""
    value: int = -1
    token: int = 0
    attempt: int = 0
    rescues: int = 0
    handler: str = ""
    bucket: str = ""
    """Where the receipt says that it lies, as 32 hexadecimal digits; empty: in the master."""
    due: float = 0.0
    """Seconds since 1970."""
    why: str = ""


def tai_ahead_seconds() -> int:
    """Leap seconds that the kernel knows of; 0 where no time service has told it."""
    return round(time.clock_gettime(time.CLOCK_TAI) - time.time())


class WitnessWriter:
    """Appends lines of this process to one file."""

    def __init__(self, directory: Path, role: str) -> None:
        self._pid = os.getpid()
        self._ahead = os.environ.get(TAI_AHEAD)
        self._encode = msgspec.json.Encoder().encode
        name = directory / f"{role}-{self._pid}-{time.time_ns()}.jsonl"
        self._fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @property
    def pid(self) -> int:
        return self._pid

    def write(self, line: WitnessLine) -> None:
        """One line in one call; pid and time are filled in."""
        at = time.time() if self._ahead is None else time.clock_gettime(time.CLOCK_TAI) - int(self._ahead)
        whole = msgspec.structs.replace(line, pid=self._pid, at=at)
        os.write(self._fd, self._encode(whole) + b"\n")


def read(directory: Path) -> Iterator[WitnessLine]:
    """Every whole line of every file. A last line without its end was cut by a full disk or a crash of the machine."""
    decode = msgspec.json.Decoder(WitnessLine).decode
    for path in sorted(directory.glob("*.jsonl")):
        with path.open("rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    yield decode(raw)
