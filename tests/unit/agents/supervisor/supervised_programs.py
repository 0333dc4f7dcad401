"""Programs for the supervisor's tests: a supervisor, its children with scripted behaviour, a writer of certificates.

Every event is appended as one JSON line to ``<directory>/events.jsonl``, in whole lines (O_APPEND), by the
process that it happens to. Each program imports what it needs and no more: tests start hundreds of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec

HERE = str(Path(__file__).resolve())


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What one test wants."""

    processes: int = 1
    lease_seconds: float = 3.0
    grace_seconds: float = 5.0
    child: str = "steady"
    reloaded: str = ""
    """What the command that reads the configuration again prints; empty: there is no such command."""
    certificates_fail: int = 0
    kernel_timer: bool = False
    unkillable: bool = False
    """Children outlive SIGKILL, as a process does that waits for a disk."""


def record(directory: Path, **line: object) -> None:
    """One line of the story."""
    data = json.dumps({"pid": os.getpid(), "at": time.clock_gettime(time.CLOCK_BOOTTIME), **line}).encode() + b"\n"
    fd = os.open(directory / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, data)
    os.close(fd)


def main(role: str, directory: Path, rest: list[str]) -> int:
    behaviour = msgspec.json.decode((directory / "behaviour.json").read_bytes(), type=Behaviour)
    if role == "supervisor":
        from jobmaster.settings.model import ClusterSettings, Leases
        from jobmaster_agents.event_log import configure
        from jobmaster_agents.supervisor.child_process import ChildProcess
        from jobmaster_agents.supervisor.service_manager import ServiceManager
        from jobmaster_agents.supervisor.supervisor import Supervisor, SupervisorPlan

        configure("debug", "json")
        if behaviour.unkillable:
            ChildProcess.kill = lambda self: None  # type: ignore[method-assign]
        leases = Leases(
            lease_seconds=behaviour.lease_seconds,
            renew_seconds=behaviour.lease_seconds / 4,
            grace_seconds=behaviour.grace_seconds,
        )
        plan = SupervisorPlan(
            settings=ClusterSettings(leases=leases),
            agent="default",
            name="worker",
            processes=behaviour.processes,
            child_command=(sys.executable, HERE, "child", str(directory)),
            certificate_command=(sys.executable, HERE, "certificate", str(directory)),
            reload_command=(sys.executable, "-c", f"print({behaviour.reloaded!r})") if behaviour.reloaded else (),
        )
        return Supervisor(plan, service_manager=ServiceManager.from_environment(os.environ)).run()
    if role == "child":
        from tests.unit.agents.supervisor.scripted_agent import run_child

        return run_child(directory, behaviour, rest)
    from jobmaster_agents.launch.launch_order import CertificateRequest

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=CertificateRequest)
    tries = directory / "tries"
    tries.write_text(str(count := int(tries.read_text() if tries.exists() else 0) + 1))
    if count <= behaviour.certificates_fail:
        return 69
    record(directory, what="certificate", agent=order.agent_id.hex(), reason=order.reason)
    return 0


if __name__ == "__main__":
    exit_code = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    if sys.argv[1] == "child":
        from jobmaster_agents import agent_main

        agent_main.leave(exit_code)
    sys.exit(exit_code)
