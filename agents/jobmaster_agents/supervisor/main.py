"""The supervisor's main program, and the way into it: a program replaces itself by a fresh, small interpreter.

The program that starts a supervisor has checked the configuration first, and so has imported the users' handlers, a YAML
parser and two database drivers. The supervisor must stay small, because it must be the last process to be killed for its
memory. So the plan is written to an anonymous file and the program is replaced (same process id, same standard streams).
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
from jobmaster_agents.supervisor.service_manager import ServiceManager
from jobmaster_agents.supervisor.supervisor import Supervisor, SupervisorPlan


class SupervisorLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What the replaced program passes to the supervisor."""

    plan: SupervisorPlan
    log_level: str
    leave_with_stdin: bool = False
    """Stop at once when standard input ends: the program at its other end ends the servers too."""


def become_supervisor(order: SupervisorLaunch) -> NoReturn:
    """Replace this program by a supervisor; never returns."""
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
    # The name at the end is for readers of the process list.
    command = [sys.executable, "-m", "jobmaster_agents.supervisor.main", str(fd), order.plan.name]
    os.execv(sys.executable, command)  # noqa: S606 - no shell, a fixed program


def supervise(fd: int) -> int:
    """Read the launch from descriptor ``fd`` and run the supervisor; the exit code."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    order = msgspec.json.decode(data, type=SupervisorLaunch)
    configure(order.log_level, order.plan.settings.observability.log_format)
    if order.leave_with_stdin:
        threading.Thread(target=_leave_with_stdin, name="jobmaster-stdin", daemon=True).start()
    return Supervisor(order.plan, service_manager=ServiceManager.from_environment(os.environ)).run()


def _leave_with_stdin() -> None:
    """Send two signals when standard input ends. Two mean a quick stop: nothing can complete without servers."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.5)


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1])))
