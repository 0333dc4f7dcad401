"""A deployment for a test: real servers, agents as real processes under their supervisors, and their configuration.

Every wait has a condition and a limit; no test sleeps for a fixed time and hopes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import yaml

from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from tests.support.forked_commands import ForkedProcess, run_command
from tests.support.forked_programs import NEW_PROGRAMS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import children_of
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
LEASE_SECONDS, SHORT_LEASE_SECONDS = 20, 6
"""An agent that a loaded machine holds up for as long as its lease is replaced, and its jobs run again. So the lease of a
test is long, unless the test waits for the end of one."""
RUN_AGENT = [sys.executable, "-m", "jobmaster.cli.main", "agent", "run"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'agents'}"}


class AgentProcess:
    """One ``jobmaster agent run`` with its children, in a process group of its own.

    Args:
        new_programs: the command, the supervisor and the agents are new interpreters, not forks (``forked_programs``). So
            they are everywhere where ``NEW_PROGRAMS`` is set.
    """

    process: ForkedProcess | subprocess.Popen[bytes]

    def __init__(self, config: Path, log: Path, *arguments: str, new_programs: bool = False) -> None:
        self.log = log
        # With our end of its standard input it notices when this process dies, however that happens.
        options = ["--config", str(config), "--leave-with-stdin", *arguments]
        with log.open("wb") as out:
            self.process = (
                subprocess.Popen(
                    [*RUN_AGENT, *options],
                    env=ENVIRONMENT,
                    cwd=REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                if new_programs or os.environ.get(NEW_PROGRAMS)
                else ForkedProcess(["agent", "run", *options], env=ENVIRONMENT, cwd=REPOSITORY, out=out)
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log so far, line by line."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def count(self, event: str) -> int:
        return sum(1 for line in self.events if line.get("event") == event)

    def warnings(self, most: int = 30) -> str:
        """The newest lines of its log that are a warning or an error, or no event at all."""
        lines = [line for line in self.log.read_text().splitlines() if '"level": "info"' not in line]
        return "\n".join(lines[-most:])

    async def wait_event(self, event: str, times: int = 1, seconds: float = 20) -> dict[str, Any]:
        async def seen() -> bool:
            assert self.process.poll() is None or self.count(event) >= times, self.log.read_text()
            return self.count(event) >= times

        await eventually(seen, seconds, lambda: f"{event} in {self.log.read_text()}")
        return [line for line in self.events if line.get("event") == event][times - 1]

    def children(self) -> list[int]:
        """Pids of the agents under this supervisor."""
        return children_of(self.process.pid)

    def kill_all(self) -> None:
        """SIGKILL to the supervisor and its children at once: none of them is left to report it."""
        # One that has ended is waited for at once, and its number may be another program's by now.
        if self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids = (self.process.pid, *self.children())
                # Stopped first: one that lives a moment longer than the other would write its certificate.
                for signum in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signum)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Our end of its standard input."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def terminate(self, seconds: float = 40) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.wait_exit(seconds)

    async def wait_exit(self, seconds: float = 40) -> int:
        async def ended() -> bool:
            return self.process.poll() is not None

        await eventually(ended, seconds, lambda: f"the end of the agent:\n{self.log.read_text()}")
        return self.process.wait()


class Deployment:
    """Servers, configuration, agents and a client of one test."""

    def __init__(self, directory: Path, dsn: str, url: str, cluster: str) -> None:
        self.directory = directory
        self.dsn = dsn
        self.config = directory / "cluster.yaml"
        self.agents: list[AgentProcess] = []
        self._reader: asyncpg.Connection[asyncpg.Record] | None = None
        self._reading = asyncio.Lock()
        self.document: dict[str, Any] = {
            "cluster": cluster,
            "master": {"dsn": dsn},
            "stores": {"default": {"url": url}},
            "handlers": ["tests.system.jobs"],
            "leases": {"lease": f"{LEASE_SECONDS}s", "renew": "0.8s", "grace": "10s"},
            "observability": {"log_format": "json"},
            "agents": {
                "default": {
                    "buckets": {"critical": 1, "high": 1, "medium": 2, "low": 1, "very_low": 1},
                    "isolated_warm": 0,  # most tests need no worker process
                }
            },
        }

    def shorten_lease(self) -> None:
        """For a test that waits for the end of a lease, of agents that start from now on."""
        self.document["leases"]["lease"] = f"{SHORT_LEASE_SECONDS}s"

    @property
    def settings(self) -> ClusterSettings:
        # Never half a file: an agent that was just started may be reading it.
        written = self.config.with_suffix(".new")
        written.write_text(yaml.safe_dump(self.document))
        written.replace(self.config)
        return load_settings(self.config, {}, []).settings

    def path(self, name: str) -> Path:
        return self.directory / name

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One ``jobmaster`` command."""
        _ = self.settings
        return run_command(
            [*arguments, "--config", str(self.config)], env=ENVIRONMENT, cwd=REPOSITORY, seconds=PATIENCE_SECONDS
        )

    async def start_agent(self, *arguments: str, processes: int = 1, new_programs: bool = False) -> AgentProcess:
        _ = self.settings
        log = self.path(f"agent-{len(self.agents)}.log")
        agent = AgentProcess(self.config, log, *arguments, new_programs=new_programs)
        self.agents.append(agent)
        await agent.wait_event("agent_started", processes)
        return agent

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Read the master through a connection of the test's own; one that broke is opened again."""
        async with self._reading:
            try:
                return await (await self._connected()).fetch(query, *arguments)
            except asyncpg.ConnectionDoesNotExistError:
                return await (await self._connected()).fetch(query, *arguments)

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._reader is None or self._reader.is_closed():
            schema = f'"{self.settings.schema_name()}"'
            # Tests migrate under this connection, so it keeps no statement.
            self._reader = await asyncpg.connect(
                self.dsn, server_settings={"search_path": schema}, statement_cache_size=0
            )
        return self._reader

    async def close(self) -> None:
        """Kill the agents that still run, and close the test's own connection."""
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.kill_all()
            agent.close()
        if self._reader is not None:
            self._reader.terminate()

    async def states(self) -> dict[str, int]:
        rows = await self.fetch("SELECT state::text, count(*) FROM job GROUP BY 1")
        return {row["state"]: row["count"] for row in rows}

    async def bucket_events(self, state: str) -> int:
        return int((await self.fetch("SELECT count(*) FROM bucket_event WHERE to_state = $1", state))[0][0])

    def witnessed(self, name: str) -> list[list[str]]:
        path = self.path(name)
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
