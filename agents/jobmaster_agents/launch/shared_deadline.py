"""The lease deadline of an agent process: a page of memory shared with its supervisor, and the kernel's timer.

A process whose lease has ended must do nothing more. Three guards enforce it, each where the one before cannot act:

* the heartbeat fences the process from inside, a margin before the deadline (needs an event loop that turns);
* the supervisor kills it from outside at the deadline (needs a supervisor that runs);
* the kernel's interval timer, armed anew by every renewal, kills it a little later (needs no other process: a stopped
  process that is continued dies before its next instruction, also while C code holds the interpreter's lock).
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from enum import IntEnum
from typing import NamedTuple

SIZE = mmap.PAGESIZE
_COUNTERS_AT = 8
KERNEL_SLACK_SECONDS = 0.5
"""Time from the deadline to the kernel's timer. The supervisor kills first, because it logs the reason."""


class AgentPhase(IntEnum):
    """How far the child process has come."""

    STARTING = 0
    REGISTERED = 1
    """The agent may have a row in the master: its death needs a certificate."""
    STOPPING = 2
    ENDED = 3
    """Nothing of the agent is left in the master or its store."""
    SERVING = 4
    """Registered, and its buckets are open."""


class ChildCounters(NamedTuple):
    """What the supervisor counted for one child slot, over all processes that ran in it."""

    deaths: int = 0
    """Processes that did not exit gracefully."""
    kills: int = 0
    """Of these: killed by the supervisor."""
    refusals: int = 0
    """Of these: refused before they served."""
    crash_loops: int = 0
    """Of these: the third or a later one in a row."""
    deaths_in_a_row: int = 0
    certificates: int = 0
    """Death certificates written."""
    certificates_failed: int = 0
    """Death certificates given up."""


class Deadline:
    """A page of memory shared by one child and its supervisor. The child writes deadline and phase, the supervisor writes the
    counters.

    Each field is one aligned machine word, so no reader sees a half-written value.
    """

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, SIZE)
        self._words = memoryview(self._page).cast("d")
        self._numbers = memoryview(self._page).cast("q")

    @classmethod
    def create(cls) -> tuple[Deadline, int]:
        """A new page, and the descriptor to pass to the child (not inherited by other processes)."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("jobmaster-deadline", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, SIZE)
        return cls(fd), fd

    @property
    def trusted_until(self) -> float:
        """CLOCK_BOOTTIME seconds at which the child's lease ends; 0 before its first lease."""
        return self._words[0]

    @trusted_until.setter
    def trusted_until(self, value: float) -> None:
        self._words[0] = value

    @property
    def phase(self) -> AgentPhase:
        """How far the child process has come."""
        return AgentPhase(self._numbers[1])

    @phase.setter
    def phase(self, value: AgentPhase) -> None:
        self._numbers[1] = value

    @property
    def counters(self) -> ChildCounters:
        """Counters of the child slot; written by the supervisor."""
        return ChildCounters(*self._numbers[_COUNTERS_AT : _COUNTERS_AT + len(ChildCounters._fields)])

    @counters.setter
    def counters(self, value: ChildCounters) -> None:
        for place, number in enumerate(value, start=_COUNTERS_AT):
            self._numbers[place] = number

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._numbers.release()
        self._page.close()


def arm_kernel_timer(seconds: float) -> None:
    """Have the kernel end this process (SIGALRM, default action) unless the timer is armed again within ``seconds``.

    For child processes of a supervisor only: it uses the process's one interval timer, which handlers must not touch.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001) + KERNEL_SLACK_SECONDS)


def disarm_kernel_timer() -> None:
    """Stop the timer, for the last steps of an exit that has given everything back."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
