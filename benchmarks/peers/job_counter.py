"""Counts the jobs of a worker process of any peer, in a small file of its own that the driver reads.

Only the standard library: this runs inside the peers' environments.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

_FORM = struct.Struct("<qdd")
DIRECTORY = "BENCH_MARKS"
GATE = "gate"
"""Of the directory: jobs of kind ``hold`` run until this file exists."""
_STARTS = "starts"
_OPENING = threading.Lock()


class JobCounter:
    """Counts the calls of this process; opened at the first, because workers fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._counter = itertools.count(1)
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.mark"
        path.write_bytes(b"\0" * _FORM.size)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _FORM.size)
        self._first = time.monotonic()
        self._pid = os.getpid()  # last: now other threads may count, too

    def begin(self) -> None:
        """A job begins: the first moment of this process, when it is the first one."""
        if os.getpid() != self._pid:
            # The first jobs of several threads come at once; one that failed here would be retried by its system, half a
            # minute later, and be the end of the drain.
            with _OPENING:
                if os.getpid() != self._pid:
                    self._open()

    def hit(self) -> None:
        """One job has been run."""
        self.begin()
        with self._lock:
            _FORM.pack_into(self._memory, 0, next(self._counter), self._first, time.monotonic())


class Count(NamedTuple):
    """What all workers have written so far."""

    jobs: int
    first: float
    last: float
    processes: int
    """Those that have run a job."""


def read(directory: Path) -> Count:
    """Sum over the processes; times on the machine's monotonic clock."""
    data = [path.read_bytes() for path in directory.glob("*.mark")]
    found = [one for one in (_FORM.unpack(bytes_) for bytes_ in data if len(bytes_) == _FORM.size) if one[0]]
    if not found:
        return Count(0, 0.0, 0.0, 0)
    return Count(sum(one[0] for one in found), min(one[1] for one in found), max(one[2] for one in found), len(found))


class Start(NamedTuple):
    """One line of the file of starts."""

    text: str
    """The argument of the job."""
    pid: int
    at_us: int


def record_start(text: str) -> None:
    """One line, whole or not at all, however many processes write."""
    line = f"{text} {os.getpid()} {time.time_ns() // 1000}\n"
    fd = os.open(os.path.join(os.environ[DIRECTORY], _STARTS), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def starts(directory: Path) -> list[Start]:
    """Every recorded start so far."""
    path = directory / _STARTS
    if not path.exists():
        return []
    found = [line.split() for line in path.read_text().splitlines()]
    return [Start(text, int(pid), int(at_us)) for text, pid, at_us in found]
