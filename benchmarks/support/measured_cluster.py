"""A private cluster for a measurement: servers with durable settings, agents as real processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import redis.asyncio
import yaml

from benchmarks.support.report import REPOSITORY
from jobmaster.agentstore.keys import Keys
from jobmaster.embedded.cluster import EmbeddedCluster, EmbeddedOptions
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings

HANDLERS = "benchmarks.support.handlers"
POSTGRES_SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    "wal_compression": "off",
    "max_connections": "600",
}
"""Room, so that fifty agents find connections, and no checkpoint falls into one run and misses the next. Durability stays
as it is: fsync and synchronous_commit are on."""
_SHOWN = (
    "server_version", "synchronous_commit", "fsync", "full_page_writes", "shared_buffers", "max_wal_size", "wal_level",
)  # fmt: skip
MEDIUM_ONLY = {"critical": 0, "high": 0, "low": 0, "very_low": 0}
_START_SECONDS = 60


class MeasuredCluster:
    """Servers, configuration and agents of one measurement."""

    def __init__(
        self,
        directory: Path,
        servers: EmbeddedCluster,
        addresses: tuple[str, str],
        overrides: dict[str, Any],
        *,
        defaults: bool = False,
    ) -> None:
        self.directory = directory
        self.servers = servers
        self.dsn, self.url = addresses
        self.transport = "unix sockets" if self.dsn == servers.dsn else "TCP on the loopback"
        self.config = directory / "cluster.yaml"
        high_water = {} if defaults else {"high_water_jobs": 10_000_000, "high_water": "8GiB"}
        document: dict[str, Any] = {
            "cluster": "bench",
            "master": {"dsn": self.dsn},
            "stores": {"default": {"url": self.url, **high_water}},
            "handlers": [HANDLERS],
            **overrides,
        }
        self.config.write_text(yaml.safe_dump(document))
        self.agents: list[subprocess.Popen[bytes]] = []
        self._logs = 0
        self.command("db", "migrate")

    @property
    def settings(self) -> ClusterSettings:
        return load_settings(self.config, {}, []).settings

    def command(self, *arguments: str) -> None:
        done = subprocess.run(
            self._argv(*arguments), check=False, capture_output=True, text=True, cwd=REPOSITORY, env=environment()
        )
        if done.returncode:
            raise RuntimeError(f"jobmaster {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "jobmaster.cli.main", *arguments, "--config", str(self.config)]

    # ------------------------------------------------------------ agents

    def start_agent(self, *arguments: str, python_path: str | None = None) -> subprocess.Popen[bytes]:
        """An agent, once it serves its buckets.

        Args:
            python_path: run another tree than this one.
        """
        log = self.directory / f"agent-{self._logs}.log"
        self._logs += 1
        variables = environment() if python_path is None else {**os.environ, "PYTHONPATH": python_path}
        process = subprocess.Popen(
            self._argv("agent", "run", *arguments),
            stderr=log.open("wb"),
            stdout=subprocess.DEVNULL,
            cwd=REPOSITORY if python_path is None else python_path.split(":")[0],
            env=variables,
        )
        self.agents.append(process)
        end = time.monotonic() + _START_SECONDS
        while b"agent_started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the agent did not start: {log.read_text()}")
            time.sleep(0.02)
        return process

    def stop_agents(self) -> None:
        """In order: buckets are completed, nothing is left."""
        for process in self.agents:
            if process.poll() is None:
                self.signal_agents(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.agents:
            process.wait(60)
        self.agents.clear()

    def kill_agents(self) -> None:
        """At once: the cluster is thrown away."""
        for agent in self.agents:
            for pid in descendants(agent.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            agent.wait(30)
        self.agents.clear()

    def signal_agents(self, signum: signal.Signals) -> None:
        """To every supervisor and every agent process."""
        for agent in self.agents:
            for pid in descendants(agent.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)

    def empty_buckets(self) -> None:
        """The keys of all buckets go, for a run whose agents are dead and forgotten by the master."""
        with redis.Redis.from_url(self.url) as store:
            while keys := list(itertools.islice(store.scan_iter(Keys("bench").every_bucket, count=1000), 1000)):
                store.unlink(*keys)

    # ------------------------------------------------------------ looking

    def cpu_seconds(self) -> dict[str, float]:
        """CPU used so far by agents' children and by the servers."""
        agents = sum(cpu_of(pid) for agent in self.agents for pid in descendants(agent.pid))
        status = self.servers.status()
        main = status.postgres.pid or 0  # with the sessions that have ended, which their parent has waited for
        postgres = sum(cpu_of(pid) for pid in descendants(main)) + cpu_of(main, waited_for=True)
        return {"agents": agents, "postgres": postgres, "store": cpu_of(status.valkey.pid or 0)}

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection to the master whose search path is the cluster's schema."""
        return await asyncpg.connect(self.dsn, server_settings={"search_path": f'"{self.settings.schema_name()}"'})

    async def described(self) -> dict[str, Any]:
        """Versions and settings, read from the servers."""
        connection = await self.connect()
        store = redis.asyncio.from_url(self.url)
        try:
            postgres = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in _SHOWN}
            info = await store.info("server")
            log = await store.config_get("append*")
        finally:
            await connection.close()
            await store.aclose()
        kind = "valkey" if "valkey_version" in info else "redis"
        return {
            "postgres": postgres,
            "store": {
                "server": f"{kind} {info.get('valkey_version', info['redis_version'])}",
                "appendonly": log["appendonly"],
                "appendfsync": log["appendfsync"],
            },
            "transport": self.transport,
        }


@contextlib.contextmanager
def measured_cluster(
    overrides: dict[str, Any] | None = None,
    *,
    valkey_settings: dict[str, str] | None = None,
    tcp: bool = False,
    defaults: bool = False,
) -> Iterator[MeasuredCluster]:
    """A fresh durable cluster, gone afterwards.

    Args:
        overrides: parts of the configuration.
        tcp: reach the servers over the loopback instead of sockets, as some peers must.
        defaults: PostgreSQL and the store's marks have no settings of the measurement's, for what these decide.
    """
    ports = (free_port(), free_port()) if tcp else (None, None)
    options = EmbeddedOptions(
        postgres_settings={} if defaults else POSTGRES_SETTINGS,
        valkey_settings=valkey_settings or {},
        postgres_port=ports[0],
        valkey_port=ports[1],
    )
    with (
        tempfile.TemporaryDirectory(prefix="jobmaster-bench-", ignore_cleanup_errors=True) as name,
        EmbeddedCluster(Path(name) / "data", options) as servers,
    ):
        addresses = (servers.postgres.tcp_dsn, servers.valkey.tcp_url) if tcp else (servers.dsn, servers.url)
        made = MeasuredCluster(Path(name), servers, addresses, overrides or {}, defaults=defaults)
        try:
            yield made
        finally:
            made.kill_agents()


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    """For processes that run this tree."""
    return {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"}


def cpu_of(pid: int, *, waited_for: bool = False) -> float:
    """User and system seconds of a process, or of the children it has waited for; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    first = 13 if waited_for else 11
    return (int(fields[first]) + int(fields[first + 1])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all below it. Each thread has children of its own: Spark starts Python from a thread of a task."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(OSError):
                    found.extend(map(int, (thread / "children").read_text().split()))
    return found
