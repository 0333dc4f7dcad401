"""Programs for the supervisor's tests: a supervisor, its children with scripted behaviour, a writer of certificates.

Every event is appended as one JSON line to ``<directory>/events.jsonl``, in whole lines (O_APPEND), by the
process that it happens to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from jobmaster.clock import SystemClock
from jobmaster.settings.model import ClusterSettings, Leases
from jobmaster_agents import agent_main
from jobmaster_agents.event_log import configure
from jobmaster_agents.launch.launch_order import CertificateRequest, ChildConfig
from jobmaster_agents.launch.shared_deadline import AgentPhase, arm_kernel_timer
from jobmaster_agents.supervisor.supervisor import Supervisor, SupervisorPlan

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


def record(directory: Path, **line: object) -> None:
    """One line of the story."""
    data = json.dumps({"pid": os.getpid(), "at": time.clock_gettime(time.CLOCK_BOOTTIME), **line}).encode() + b"\n"
    fd = os.open(directory / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, data)
    os.close(fd)


class ScriptedAgent:
    """An agent that only keeps its lease, and ends as the test wants."""

    def __init__(self, directory: Path, behaviour: Behaviour, config: ChildConfig) -> None:
        self.directory = directory
        self.behaviour = behaviour
        self.config = config
        self.over = asyncio.Event()
        self.code = 0
        self.terms = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.on_term)
        control, deadline = self.config.control, self.config.deadline
        assert control is not None
        assert deadline is not None
        control.attach(loop, lambda word: record(self.directory, what="word", word=word), self.on_orphaned)
        if self.behaviour.child == "hopeless":
            return 78
        if (self.directory / "refuse").exists():
            return 77
        if self.behaviour.child == "unavailable":
            return 69
        deadline.phase = AgentPhase.REGISTERED
        self.renew()
        if self.behaviour.child == "forbidden":
            return 77
        worker = ""
        if self.behaviour.child == "parent":
            worker = str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
        record(
            self.directory, what="child", index=self.config.index, agent=self.config.agent_id.hex(),
            name=self.config.name, worker=worker,
        )  # fmt: skip
        if self.behaviour.child == "crash":
            os._exit(3)
        if self.behaviour.child == "crash once" and not (self.directory / "crashed").exists():
            (self.directory / "crashed").touch()
            return 75
        deadline.phase = AgentPhase.SERVING
        shown = None
        while not self.over.is_set():
            if (counters := deadline.counters) != shown:
                shown = counters
                record(self.directory, what="counters", index=self.config.index, counters=counters._asdict())
            if self.behaviour.child == "blocked":
                block_the_loop()
            self.renew()
            try:
                await asyncio.wait_for(self.over.wait(), 0.05)
            except TimeoutError:
                pass
        record(self.directory, what="leaving", code=self.code)
        return self.code

    def renew(self) -> None:
        assert self.config.deadline is not None
        seconds = self.behaviour.lease_seconds
        self.config.deadline.trusted_until = SystemClock().boottime() + seconds
        if self.behaviour.kernel_timer:
            arm_kernel_timer(seconds)

    def on_term(self) -> None:
        self.terms += 1
        record(self.directory, what="term", count=self.terms)
        needed = {"stubborn": 2, "deaf": 99}.get(self.behaviour.child, 1)
        if self.terms >= needed:
            self.over.set()

    def on_orphaned(self) -> None:
        record(self.directory, what="orphaned")
        if self.behaviour.child != "deaf":
            self.code = 76
            self.over.set()


def block_the_loop() -> None:
    """A handler that never gives the loop back."""
    time.sleep(600)


def main(role: str, directory: Path, rest: list[str]) -> int:
    behaviour = msgspec.json.decode((directory / "behaviour.json").read_bytes(), type=Behaviour)
    if role == "supervisor":
        configure("debug", "json")
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
        return Supervisor(plan).run()
    if role == "child":

        async def run_agent(config: ChildConfig) -> int:
            return await ScriptedAgent(directory, behaviour, config).run()

        return agent_main.run_child(rest, lambda: run_agent)
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
        agent_main.leave(exit_code)
    sys.exit(exit_code)
