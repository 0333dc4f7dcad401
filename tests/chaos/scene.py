"""The servers, the proxy, the agents and the producers of one run: set up, started, drained, torn down."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import migrate_master
from tests.chaos import collect
from tests.chaos.fleet import Fleet
from tests.chaos.ground import private_mounts, time_namespaces
from tests.chaos.hit import LEASE_SECONDS, Stage
from tests.chaos.servers import STORES, Servers
from tests.chaos.witness import VARIABLE
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.tcp_proxy import WireProtocol

AGENTS = {"a": "default", "b": "synced", "c": "synced", "d": "default"}
"""Member -> kind. The last one runs through a main program of ours, whose clock can be turned."""
THREADS = 2
STOP_SECONDS = 300.0


class Form(StrEnum):
    """What is done to the cluster."""

    MIXED = "mixed"
    """All kinds of faults, from one seed."""
    KILLS = "kills"
    """Rounds of SIGKILL at random moments."""
    ROLLING = "rolling"
    """Agents are asked to leave and started again, one after the other; nothing else happens."""


class Course(NamedTuple):
    """What to run."""

    seconds: float
    seed: int
    rate: float
    """Jobs a second, offered."""
    bound_seconds: float
    """Every acknowledged job must be over so long after the last fault is healed."""
    kinds: tuple[str, ...] = ()
    """Only these faults; empty: all that are possible."""
    mutant: str = ""
    producers: int = 2
    disks: bool = True
    keep: bool = False
    """The directory with all logs stays also after a good run."""
    form: Form = Form.MIXED
    rounds: int = 0
    """Kills, or restarts."""
    long_faults: bool = False
    """Faults that last several leases strike beside the short ones."""


def document(form: Form) -> dict[str, Any]:
    """The configuration of a run, without addresses."""
    short = {"lease": f"{LEASE_SECONDS:g}s", "renew": f"{LEASE_SECONDS * 0.3:g}s", "store_beat": "0.5s", "grace": "10s"}
    return {
        "cluster": "chaos",
        "handlers": ["tests.chaos.jobs"],
        "leases": {} if form is Form.ROLLING else short,
        # Under these faults an innocent job may be in the hands of a dying agent many times.
        "jobs": {"max_rescues": 1000},
        "observability": {"log_format": "json"},
        # Few threads: at-most-once jobs wait for one, and must not be taken for started ones.
        "agents": {
            name: {"store": name, "threads": THREADS, "isolated_processes": 1} for name in ("default", "synced")
        },
    }


class Scene:
    """Everything that runs, set up and torn down."""

    def __init__(self, course: Course, stack: ExitStack, tell: Any) -> None:
        self.course = course
        self.tell = tell
        self.root = Path(tempfile.mkdtemp(prefix="jobmaster-chaos-"))
        self.keep = False
        """Kept when it has something to tell; not when the run was interrupted."""
        stack.callback(self._clear)
        no_mounts = private_mounts() if course.disks else "not asked for"
        self.servers = Servers(self.root, disks=no_mounts is None)
        if no_mounts is not None:
            self.servers.no_disks = no_mounts
        stack.callback(self.servers.close)
        self.servers.start()
        self.witness = self.root / "witness"
        self.witness.mkdir()
        self.logs = self.root / "logs"
        self.logs.mkdir()
        self.proxy = ProxyProcess(course.seed)
        stack.callback(self.proxy.close)
        self.fleet = Fleet(self.logs, document(course.form), {VARIABLE: str(self.witness)}, course.mutant)
        stack.callback(self.fleet.close)
        self.direct = self._settings("direct", lambda name: self.servers.places[name].server.address)
        asyncio.run(migrate_master(self.direct))
        collect.set_trap(self.servers, self.schema)
        self.producers = [f"p{number}" for number in range(course.producers)]
        for name in (*AGENTS, *self.producers):
            self._route(name)

    def preserve(self) -> None:
        """Keep the directory, with the servers' logs, which go with their file systems."""
        self.keep = True
        for log in self.root.glob("*/*/*.log*"):
            shutil.copy(log, self.logs / f"{log.parts[-3]}-{log.parts[-2]}-{log.name}")
        for image in self.root.glob("*.img"):
            image.unlink()  # gigabytes that nobody will look into

    def _clear(self) -> None:
        if not self.keep:
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def schema(self) -> str:
        return self.fleet.schema

    def _settings(self, name: str, address: Any) -> ClusterSettings:
        config = self.fleet.config(name, address("master"), {store: address(store) for store in STORES})
        return load_settings(config, {}, []).settings

    def direct_settings(self) -> ClusterSettings:
        """Straight to whoever is the server now."""
        return self._settings("direct", lambda name: self.servers.places[name].server.address)

    def _route(self, member: str) -> None:
        def address(server: str) -> str:
            place = self.servers.places[server]
            protocol = WireProtocol.POSTGRES if server == "master" else WireProtocol.REDIS
            port = self.proxy.add(f"{member}.{server}", protocol, place.upstream)
            if server == "master":
                return f"postgresql://jobmaster@127.0.0.1:{port}/jobmaster?sslmode=disable"
            return f"redis://127.0.0.1:{port}/0"

        self._settings(member, address)

    def start(self) -> Stage:
        """Agents, then producers; returns when the agents serve."""
        for name, kind in AGENTS.items():
            self.fleet.start_agent(name, kind, own=name == list(AGENTS)[-1])
        for name in AGENTS:
            self.fleet.wait_started(name)
        share = self.course.rate / len(self.producers)
        for number, name in enumerate(self.producers):
            self.fleet.start_producer(name, number + 1, share, self.course.seed)
        stage = Stage(
            servers=self.servers,
            fleet=self.fleet,
            proxy=self.proxy,
            producers=self.producers,
            no_freezer=None,
            no_time_namespaces=time_namespaces(),
            restart=lambda *_: None,
        )
        probe = stage.freezer(f"probe-{os.getpid()}")
        stage.no_freezer = probe.make()
        if stage.no_freezer is None:
            probe.close()
        return stage

    # ------------------------------------------------------------ the end

    def stop_producers(self) -> None:
        for name in self.producers:
            self.fleet.members[name].terminate()
        for name in self.producers:
            if self.fleet.members[name].wait(STOP_SECONDS) is None:
                self.tell(f"producer {name} did not end; killed")
                self.fleet.members[name].kill()

    def drain(self, turn: Any) -> tuple[float, dict[str, int]]:
        """Until nothing waits any more, at most as long as the bound; seconds, and what is left."""
        began = time.monotonic()
        left: dict[str, int] = {"unknown": 1}
        while time.monotonic() - began < self.course.bound_seconds:
            turn()
            try:
                left = collect.waiting(self.servers, self.schema)
            except collect.TRANSIENT as error:
                self.tell(f"cannot look yet: {error}")
            if not any(left.values()):
                break
            time.sleep(0.5)
        return time.monotonic() - began, {name: count for name, count in left.items() if count}

    def stop_agents(self) -> dict[str, int | None]:
        """SIGTERM to all; exit codes."""
        for name in AGENTS:
            self.fleet.members[name].terminate()
        return {name: self.fleet.members[name].wait(STOP_SECONDS) for name in AGENTS}
