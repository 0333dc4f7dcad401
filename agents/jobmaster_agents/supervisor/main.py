"""How a program becomes a supervisor: it replaces itself by a fresh, small interpreter.

Whoever starts a supervisor has checked the configuration first: it has imported the users' handlers, a YAML parser, two
database drivers. None of that may stay in the process that must be the last to be killed for its memory, so the plan is put
into an anonymous file and the program is replaced (same process id, same standard streams, same exit code to come).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from typing import NoReturn

import msgspec

from jobmaster_agents.event_log import configure
from jobmaster_agents.supervisor.supervisor import Plan, Supervisor


class SupervisionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the program that was replaced leaves to its successor."""

    plan: Plan
    log_level: str
    leave_with_stdin: bool = False
    """Stop at once when standard input ends: whoever holds its other end takes the servers along."""


def become_supervisor(order: SupervisionOrder) -> NoReturn:
    """Replace this program by the supervisor of ``order``; never returns."""
    data = msgspec.json.encode(order)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("jobmaster-plan", 0)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
            os.set_inheritable(fd, True)
    os.pwrite(fd, data, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # The name at the end is for people who look at the list of processes.
    command = [sys.executable, "-m", "jobmaster_agents.supervisor.main", str(fd), order.plan.name]
    os.execv(sys.executable, command)  # noqa: S606 - no shell, a fixed program


def supervise(fd: int) -> int:
    """Read the order and obey it; the exit code."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    order = msgspec.json.decode(data, type=SupervisionOrder)
    configure(order.log_level, order.plan.settings.observability.log_format)
    if order.leave_with_stdin:
        threading.Thread(target=_leave_with_stdin, name="jobmaster-stdin", daemon=True).start()
    return Supervisor(order.plan).run()


def _leave_with_stdin() -> None:
    """Nothing can complete without servers, so the stop is the quick one: two signals."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.5)


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1])))
