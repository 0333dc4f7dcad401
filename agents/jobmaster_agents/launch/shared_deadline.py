"""Signs of life that others can check: the lease deadline in memory shared with the supervisor, and the kernel's timer.

Three guards stand behind "a process whose lease has ended does nothing more", each where the one before cannot act:

* the heartbeat fences the process from inside, a margin before the deadline (needs a loop that turns);
* the supervisor kills it from outside at the deadline (needs a living supervisor);
* the kernel's interval timer, armed anew by every renewal, kills it a little later (needs nobody; a stopped process that
  is continued dies before its next instruction, and it works while C code holds the interpreter's lock).
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from enum import IntEnum
from typing import NamedTuple

SIZE = mmap.PAGESIZE
_FIGURES_AT = 8
KERNEL_SLACK_SECONDS = 0.5
"""How long after the deadline the kernel's timer fires: the supervisor, who can tell the story, goes first."""


class AgentPhase(IntEnum):
    """How far the child has come."""

    STARTING = 0
    REGISTERED = 1
    """It may have a row in the master: its death needs a certificate."""
    STOPPING = 2
    ENDED = 3
    """Nothing of it is left in the master or its store."""
    SERVING = 4
    """Registered, and its buckets were opened."""


class PlaceFigures(NamedTuple):
    """What the supervisor has counted for one place among its children, over all processes that were in it."""

    deaths: int = 0
    """Processes that did not leave in order."""
    kills: int = 0
    """Of these: killed by the supervisor."""
    refusals: int = 0
    """Of these: refused before they were registered."""
    crash_loops: int = 0
    """Of these: the third or a later one in a row."""
    deaths_in_a_row: int = 0
    certificates: int = 0
    """Death certificates written."""
    certificates_failed: int = 0
    """Death certificates given up."""


class Deadline:
    """A page shared by one child and its supervisor. The child writes, the supervisor reads; the supervisor's figures go the
    other way.

    Each field is one aligned machine word, so no reader sees half of a value.
    """

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, SIZE)
        self._words = memoryview(self._page).cast("d")
        self._numbers = memoryview(self._page).cast("q")

    @classmethod
    def create(cls) -> tuple[Deadline, int]:
        """A fresh page and the descriptor to pass to the child (not inheritable by others)."""
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
        """How far the child has come."""
        return AgentPhase(self._numbers[1])

    @phase.setter
    def phase(self, value: AgentPhase) -> None:
        self._numbers[1] = value

    @property
    def figures(self) -> PlaceFigures:
        """What the supervisor has counted; written by the supervisor."""
        return PlaceFigures(*self._numbers[_FIGURES_AT : _FIGURES_AT + len(PlaceFigures._fields)])

    @figures.setter
    def figures(self, value: PlaceFigures) -> None:
        for place, number in enumerate(value, start=_FIGURES_AT):
            self._numbers[place] = number

    def close(self) -> None:
        """Give the page back."""
        self._words.release()
        self._numbers.release()
        self._page.close()


def arm_kernel_timer(seconds: float) -> None:
    """The kernel ends this process (SIGALRM, default action) unless it is armed again within ``seconds``.

    For child processes of a supervisor only: it takes the process's one interval timer, which handlers must leave alone.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001) + KERNEL_SLACK_SECONDS)


def disarm_kernel_timer() -> None:
    """For the last steps of an exit that has given everything back."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
