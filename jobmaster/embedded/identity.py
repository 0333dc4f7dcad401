"""A process named so that a recycled pid is never mistaken for it: the pid together with its start time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    """``started`` is opaque text: clock ticks since boot on Linux, the answer of ``ps`` elsewhere."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        return identify(self.pid) == self


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; ``None`` when there is none or it is a zombie."""
    if not sys.platform.startswith("linux"):
        answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        started = answer.stdout.strip()
        return ProcessIdentity(pid, started) if started else None
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The program's name stands in parentheses and may itself hold spaces and parentheses: count from the last one.
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else ProcessIdentity(pid, fields[19])
