"""The process between an agent and the driver of a Spark application: the driver never outlives its agent.

Runs as a program of its own (standard library only, started with ``-I -S``), because nothing inside the agent survives the
agent's SIGKILL. It notices the agent's end by the end of its standard input, and by another parent. It is the reaper of the
driver's processes (PR_SET_CHILD_SUBREAPER), so that it finds those whose parents have ended and those that have left the
process group, as Spark's Python workers do. Its own SIGKILL is covered by the kernel (PR_SET_PDEATHSIG of the driver) and by
the agent, which kills the process group.

Protocol: on standard input the order, its length as eight digits and JSON; then the end of file means that the agent is
gone, and everything is killed at once. SIGTERM means an ordered end: SIGTERM for the driver, SIGKILL after ``grace`` seconds.
The exit status is that of the driver, 128 and the number of a signal, or 125 when the driver did not start.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_MS = 1000
_END_LOOK_MS = 50
NOT_STARTED, CANNOT_START = 125, "the driver of a Spark application cannot be started"


def main() -> int:
    owner = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    ends: list[int] = []
    # Functions, not SIG_IGN: an ignored signal stays ignored across exec, and the driver needs its own handlers.
    for quiet in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(quiet, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    try:
        order = _read_order()
    except ValueError:
        return NOT_STARTED  # the agent has ended before the order was whole
    _reap_orphans()
    try:
        driver = _start(order)
    except OSError as error:
        print(f"{CANNOT_START}: {error}", file=sys.stderr)  # noqa: T201 - the agent reads it
        return NOT_STARTED
    owner_lives = _watch(owner, driver, wake_read, ends)
    if owner_lives and ends and driver.poll() is None:
        driver.send_signal(signal.SIGTERM)
    _end_all(driver, order["grace"] if owner_lives else 0.0)
    if not owner_lives:
        shutil.rmtree(order["scratch"], ignore_errors=True)
    code = driver.wait()
    return 128 - code if code < 0 else code


def _read_order() -> dict[str, Any]:
    length = int(_exactly(8))
    order: dict[str, Any] = json.loads(_exactly(length))
    return order


def _exactly(count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = os.read(0, count - len(found))
        if not part:
            raise ValueError("the order is not whole")
        found += part
    return found


def _reap_orphans() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    # A file without a name: the order has passwords, and a pipe would block on a driver that does not read.
    with tempfile.TemporaryFile() as given:
        given.write(order["input"].encode())
        given.seek(0)
        return subprocess.Popen(order["argv"], stdin=given, preexec_fn=_die_with_me())  # noqa: PLW1509 - one thread


def _die_with_me() -> Callable[[], None] | None:
    """For the driver: have the kernel kill it when this process ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    guard = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os.kill(os.getpid(), signal.SIGKILL)

    return arm


def _watch(owner: int, driver: subprocess.Popen[bytes], wake: int, ends: list[int]) -> bool:
    """Return when the driver has ended, an order to end came, or the agent is gone; ``False``: it is gone."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while driver.poll() is None and not ends:
        if os.getppid() != owner:
            return False
        ready = dict(poller.poll(_LOOK_MS))
        if 0 in ready:
            return False
        if wake in ready:
            os.read(wake, 512)
    return True


def _end_all(driver: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Wait for the end of the driver and all of its processes, and kill those that are left after the grace time."""
    over: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: over.append(number))
    signal.setitimer(signal.ITIMER_REAL, grace_seconds)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while grace_seconds and not over and _descendants(driver):
        if poller.poll(_END_LOOK_MS):
            break  # the agent has ended meanwhile
    while left := _descendants(driver):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        select.poll().poll(_END_LOOK_MS)


def _descendants(driver: subprocess.Popen[bytes]) -> list[int]:
    """Processes below this one that run. Ended children are reaped."""
    driver.poll()
    if not os.path.isdir("/proc/self"):
        return [driver.pid] if driver.returncode is None else []
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, parent, *_ = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        pid = int(entry)
        if state == b"Z" and int(parent) == os.getpid() and pid != driver.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        elif state != b"Z":
            parents[pid] = int(parent)
    return [pid for pid in parents if _is_below(pid, parents)]


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    me = os.getpid()
    while pid in parents:
        pid = parents[pid]
        if pid == me:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
