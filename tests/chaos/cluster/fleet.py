"""Agents and producers as real processes, each with its own addresses of the servers, and their faults."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.support.measured_cluster import descendants
from tests.chaos.cluster.servers import send

REPOSITORY = Path(__file__).parents[3]
AGENT = ("-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin")
OWN_AGENT = ("-m", "tests.chaos.processes.agent")
PRODUCER = ("-m", "tests.chaos.processes.producer")


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without settings of some other cluster."""
    kept = ("JOBMASTER_POSTGRES_BIN", "JOBMASTER_VALKEY_SERVER")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_") or name in kept}
    return {**plain, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'agents'}", **extra}


class Member:
    """One started program and everything below it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, extra: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,  # with our end of it it notices when we die
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env=environment(extra),
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def pids(self) -> list[int]:
        """All processes, the program itself first."""
        return descendants(self.process.pid) if self.running else []

    def children(self) -> list[int]:
        """Agents below a supervisor (below ``unshare``, if it was started by that)."""
        if not self.running:
            return []
        found = []
        for pid in self.pids[1:]:
            with contextlib.suppress(OSError):
                if b"jobmaster_agents.agent_main" in (line := Path(f"/proc/{pid}/cmdline").read_bytes()) or (
                    b"tests.chaos.processes.child" in line
                ):
                    found.append(pid)
        return found

    def kill(self) -> list[int]:
        """SIGKILL to all processes at once: none is left to report it. The processes that died."""
        pids = self.pids
        send(pids, signal.SIGKILL)
        self.process.wait()
        self._close()
        return pids

    def terminate(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; ``None`` when it does not end in time."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        return code

    def count(self, event: str) -> int:
        """Lines of the log with this event."""
        return self.log.read_bytes().count(f'"event":"{event}"'.encode()) + self.log.read_bytes().count(
            f'"event": "{event}"'.encode()
        )

    def _close(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Fleet:
    """Agents and producers of one run.

    Args:
        document: the configuration without addresses.
        mutant: a guard to leave out in every agent; empty: real, unchanged agents.
    """

    def __init__(self, directory: Path, document: dict[str, Any], extra: Mapping[str, str], mutant: str = "") -> None:
        self._directory = directory
        self._document = document
        self._extra = dict(extra)
        self.mutant = mutant
        self.schema = "jobmaster_" + str(document["cluster"]).replace("-", "_")
        self.members: dict[str, Member] = {}
        self.prefixes: dict[str, tuple[str, ...]] = {}
        """Member -> command to put before its own at every start."""
        self._agents: dict[str, str] = {}
        """Member -> kind of agent."""
        self._own: set[str] = set()
        self._producers: dict[str, tuple[int, float, int]] = {}
        self._configs: dict[str, Path] = {}

    def config(self, name: str, dsn: str, urls: Mapping[str, str]) -> Path:
        """The configuration of one member, with its own ways to the servers."""
        path = self._directory / f"{name}.yaml"
        document = {
            **self._document,
            "master": {**self._document.get("master", {}), "dsn": dsn},
            "stores": {
                store: {**self._document.get("stores", {}).get(store, {}), "url": url} for store, url in urls.items()
            },
        }
        path.write_text(yaml.safe_dump(document))
        self._configs[name] = path
        return path

    def start_agent(self, name: str, kind: str, *, prefix: Sequence[str] = (), own: bool = False) -> Member:
        """``jobmaster agent run``; ``own``: through the tests' own main program, whose wall clock can be turned."""
        self._agents[name] = kind
        if own:
            self._own.add(name)
        config = str(self._configs[name])
        extra = {**self._extra, "CHAOS_MUTANT": self.mutant, "CHAOS_CLOCK": str(self.clock(name))}
        if self.mutant or own:
            command = [sys.executable, *OWN_AGENT, config, kind]
        else:
            command = [sys.executable, *AGENT, f"--config={config}", f"--name={kind}"]
        member = Member(name, [*self.prefixes.get(name, ()), *prefix, *command], self._directory / f"{name}.log", extra)
        self.members[name] = member
        return member

    def clock(self, name: str) -> Path:
        """File with the seconds by which the wall clock of an agent of our own is off."""
        return self._directory / f"{name}.clock"

    def start_producer(self, name: str, number: int, rate: float, seed: int) -> Member:
        self._producers[name] = number, rate, seed
        command = [sys.executable, *PRODUCER, str(self._configs[name]), str(number), str(rate), str(seed)]
        command = [*self.prefixes.get(name, ()), *command]
        member = Member(name, command, self._directory / f"{name}.log", self._extra)
        self.members[name] = member
        return member

    def again(self, name: str, prefix: Sequence[str] = ()) -> Member:
        """A new start of an agent or producer that ended."""
        if name in self._agents:
            return self.start_agent(name, self._agents[name], prefix=prefix, own=name in self._own)
        number, rate, seed = self._producers[name]
        return self.start_producer(name, number, rate, seed)

    @property
    def agents(self) -> list[str]:
        return list(self._agents)

    def wait_started(self, name: str, times: int = 1, seconds: float = 60) -> None:
        """Until the agent serves its buckets."""
        end = time.monotonic() + seconds
        while (member := self.members[name]).count("agent_started") < times:
            if not member.running or time.monotonic() > end:
                raise RuntimeError(f"agent {name} did not start:\n{member.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """Kill whatever is left."""
        for member in self.members.values():
            if member.running:
                send(member.pids, signal.SIGCONT)
                member.kill()
