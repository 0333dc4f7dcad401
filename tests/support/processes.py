"""Processes that a test started, and free ports for them."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
from pathlib import Path

_PORTS = range(20_000, 32_000)
"""Below those that systems give out by themselves: no connection of another program takes one before its server starts."""
_given: set[int] = set()
_PR_SET_PDEATHSIG = 1


def free_port(count: int = 1) -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago, and that this function has not returned before.

    Args:
        count: the first of so many neighbours that are all free.
    """
    while True:
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - count)
        wanted = range(first, first + count)
        if _given.isdisjoint(wanted) and all(map(_is_free, wanted)):
            _given.update(wanted)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def end_with_parent() -> None:
    """This process is killed when the process ends that has started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Pids of the processes that a thread of this number has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes_with(variable: str, value: str, folder: Path | None = None) -> dict[int, str]:
    """Processes that have the variable with this value in their environment: their ids and command lines.

    Args:
        folder: processes whose working directory is in it count, too.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if f"{variable}={value}".encode() in environment or (folder is not None and str(folder) in where):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def alive(pid: int) -> bool:
    """True while the process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
