"""A supervisor's child with scripted behaviour."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobmaster.clock import SystemClock
from jobmaster_agents import agent_main
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.launch.shared_deadline import AgentPhase, arm_kernel_timer
from tests.unit.agents.supervisor.supervised_programs import Behaviour, record


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


def run_child(directory: Path, behaviour: Behaviour, rest: list[str]) -> int:
    """The program of a child."""

    async def run_agent(config: ChildConfig) -> int:
        return await ScriptedAgent(directory, behaviour, config).run()

    return agent_main.run_child(rest, lambda: run_agent)
