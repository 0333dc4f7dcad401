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
from tests.chaos.checks import collect
from tests.chaos.cluster.fleet import Fleet
from tests.chaos.cluster.machine import private_mounts, time_namespaces
from tests.chaos.cluster.replicated_store import StoreForm
from tests.chaos.cluster.servers import STORES, Servers
from tests.chaos.faults.targets import LEASE_SECONDS, Targets
from tests.chaos.processes.witness import VARIABLE
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.tcp_proxy import WireProtocol

AGENTS = {"a": "default", "b": "synced", "c": "synced", "d": "default"}
"""Member -> kind. The last one runs through a main program of ours, whose clock can be turned."""
THREADS = 2
STOP_SECONDS = 300.0


class RunForm(StrEnum):
    """The faults that a run injects."""

    MIXED = "mixed"
    """All kinds of faults, from one seed."""
    KILLS = "kills"
    """Rounds of SIGKILL at random moments."""
    ROLLING = "rolling"
    """Agents are asked to leave and started again, one after the other; nothing else happens."""


class RunOptions(NamedTuple):
    """Options of one run."""

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
    form: RunForm = RunForm.MIXED
    rounds: int = 0
    """Kills, or restarts."""
    stores: StoreForm = StoreForm.SINGLE
    """What the store ``default`` is."""
    long_faults: bool = False
    """Inject faults that last several leases beside the short ones."""


def document(form: RunForm) -> dict[str, Any]:
    """The configuration of a run, without addresses."""
    short = {"lease": f"{LEASE_SECONDS:g}s", "renew": f"{LEASE_SECONDS * 0.3:g}s", "store_beat": "0.5s", "grace": "10s"}
    return {
        "cluster": "chaos",
        "handlers": ["tests.chaos.processes.flow_jobs"],
        "leases": {} if form is RunForm.ROLLING else short,
        # Under these faults an innocent job may be claimed by a dying agent many times.
        "jobs": {"max_rescues": 1000},
        "observability": {"log_format": "json"},
        # Few threads: at-most-once jobs wait for one, and must not be taken for started ones.
        "agents": {
            name: {"store": name, "threads": THREADS, "isolated_processes": 1} for name in ("default", "synced")
        },
    }


class ChaosCluster:
    """Everything that runs: set up, started, drained, torn down."""

    def __init__(self, options: RunOptions, stack: ExitStack, log_line: Any) -> None:
        self.options = options
        self.log_line = log_line
        self.root = Path(tempfile.mkdtemp(prefix="jobmaster-chaos-"))
        self.keep = False
        """Keep the directory: after a violation, not after an interrupt."""
        stack.callback(self._clear)
        no_mounts = private_mounts() if options.disks else "not asked for"
        self.servers = self._make_servers(no_mounts is None, stack)
        if no_mounts is not None:
            self.servers.no_disks = no_mounts
        stack.callback(self.servers.close)
        self.servers.start()
        self.witness = self.root / "witness"
        self.witness.mkdir()
        self.logs = self.root / "logs"
        self.logs.mkdir()
        self.proxy = ProxyProcess(options.seed)
        stack.callback(self.proxy.close)
        self.fleet = Fleet(self.logs, document(options.form), {VARIABLE: str(self.witness)}, options.mutant)
        stack.callback(self.fleet.close)
        self.direct = self.direct_settings()
        asyncio.run(migrate_master(self.direct))
        collect.set_trap(self.servers, self.schema)
        self.producers = [f"p{number}" for number in range(options.producers)]
        for name in (*AGENTS, *self.producers):
            self._route(name)

    def _make_servers(self, disks: bool, stack: ExitStack) -> Servers:
        return Servers(self.root, disks, self.options.stores)

    def preserve(self) -> None:
        """Keep the directory, with the servers' logs, which go with their file systems."""
        self.keep = True
        for log in self.root.glob("*/*/*.log*"):
            shutil.copy(log, self.logs / f"{log.parts[-3]}-{log.parts[-2]}-{log.name}")
        for image in self.root.glob("*.img"):
            image.unlink()  # gigabytes without use

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
        """Addresses of the present servers, without the proxy."""
        roles, replicated = self.servers.roles, self.servers.replicated

        def address(server: str) -> str:
            return replicated.url if replicated is not None and server not in roles else roles[server].server.address

        return self._settings("direct", address)

    def _route(self, member: str) -> None:
        def address(server: str) -> str:
            if self.servers.replicated is not None and server not in self.servers.roles:
                return self.servers.replicated.url
            role = self.servers.roles[server]
            protocol = WireProtocol.POSTGRES if server == "master" else WireProtocol.REDIS
            port = self.proxy.add(f"{member}.{server}", protocol, role.upstream)
            if server == "master":
                return f"postgresql://jobmaster@127.0.0.1:{port}/jobmaster?sslmode=disable"
            return f"redis://127.0.0.1:{port}/0"

        self._settings(member, address)

    def start(self) -> Targets:
        """Agents, then producers; returns when the agents serve."""
        self._start_members()
        targets = self._targets()
        probe = targets.freezer(f"probe-{os.getpid()}")
        targets.no_freezer = probe.make()
        if targets.no_freezer is None:
            probe.close()
        return targets

    def _start_members(self) -> None:
        for name, kind in AGENTS.items():
            self.fleet.start_agent(name, kind, own=name == list(AGENTS)[-1])
        for name in AGENTS:
            self.fleet.wait_started(name)
        share = self.options.rate / len(self.producers)
        for number, name in enumerate(self.producers):
            self.fleet.start_producer(name, number + 1, share, self.options.seed)

    def _targets(self) -> Targets:
        return Targets(
            servers=self.servers,
            fleet=self.fleet,
            proxy=self.proxy,
            producers=self.producers,
            no_freezer=None,
            no_time_namespaces=time_namespaces(),
            restart=lambda *_: None,
        )

    # ------------------------------------------------------------ the end

    def stop_producers(self) -> None:
        for name in self.producers:
            self.fleet.members[name].terminate()
        for name in self.producers:
            if self.fleet.members[name].wait(STOP_SECONDS) is None:
                self.log_line(f"producer {name} did not end; killed")
                self.fleet.members[name].kill()

    def drain(self, turn: Any) -> tuple[float, dict[str, int]]:
        """Wait until no job waits, at most as long as the bound; seconds, and what is left."""
        began = time.monotonic()
        left: dict[str, int] = {"unknown": 1}
        while time.monotonic() - began < self.options.bound_seconds:
            turn()
            try:
                left = collect.waiting(self.servers, self.schema)
            except collect.TRANSIENT as error:
                self.log_line(f"cannot look yet: {error}")
            if not any(left.values()):
                break
            time.sleep(0.5)
        return time.monotonic() - began, {name: count for name, count in left.items() if count}

    def stop_agents(self) -> dict[str, int | None]:
        """SIGTERM to all; exit codes."""
        for name in AGENTS:
            self.fleet.members[name].terminate()
        return {name: self.fleet.members[name].wait(STOP_SECONDS) for name in AGENTS}
