"""A private cluster for a measurement: servers from wheels with durable settings, agents as real processes."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from jobmaster.embedded import EmbeddedCluster
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings

REPOSITORY = Path(__file__).parents[1]
HANDLERS = "benchmarks.handlers"


class Bench:
    """Servers, configuration and agents of one measurement."""

    def __init__(self, directory: Path, servers: EmbeddedCluster, overrides: dict[str, Any]) -> None:
        self.directory = directory
        self.servers = servers
        self.config = directory / "cluster.yaml"
        document: dict[str, Any] = {
            "cluster": "bench",
            "master": {"dsn": servers.dsn},
            "stores": {"default": {"url": servers.url}},
            "handlers": [HANDLERS],
            **overrides,
        }
        self.config.write_text(yaml.safe_dump(document))
        self.agents: list[subprocess.Popen[bytes]] = []
        self.command("db", "migrate")

    @property
    def settings(self) -> ClusterSettings:
        return load_settings(self.config, {}, []).settings

    def command(self, *arguments: str) -> None:
        subprocess.run(
            self._argv(*arguments), check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY, env=_environment()
        )

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "jobmaster.cli.main", *arguments, "--config", str(self.config)]

    def start_agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        """An agent, once it serves its buckets."""
        log = self.directory / f"agent-{len(self.agents)}.log"
        process = subprocess.Popen(
            self._argv("agent", "run", *arguments),
            stderr=log.open("wb"),
            stdout=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=_environment(),
        )
        self.agents.append(process)
        end = time.monotonic() + 30
        while b"agent_started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the agent did not start: {log.read_text()}")
            time.sleep(0.02)
        return process

    def stop_agents(self) -> None:
        for process in self.agents:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.agents:
            process.wait(60)
        self.agents.clear()

    def signal_agents(self, signum: signal.Signals) -> None:
        """To every supervisor and every agent process."""
        for agent in self.agents:
            for pid in _descendants(agent.pid):
                os.kill(pid, signum)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU used so far by agents' children and by the servers."""
        agents = sum(_cpu(pid) for agent in self.agents for pid in _descendants(agent.pid))
        status = self.servers.status()
        postgres = sum(_cpu(pid) for pid in _descendants(status.postgres.pid or 0))
        return {"agents": agents, "postgres": postgres, "store": _cpu(status.valkey.pid or 0)}


@contextlib.contextmanager
def bench(overrides: dict[str, Any] | None = None) -> Iterator[Bench]:
    """A fresh durable cluster, gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="jobmaster-bench-") as name,
        EmbeddedCluster(Path(name) / "data") as servers,
    ):
        made = Bench(Path(name), servers, overrides or {})
        try:
            yield made
        finally:
            made.stop_agents()


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def machine() -> dict[str, object]:
    """The line without which a figure means nothing."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.release()}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"}


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            found.extend(int(child) for child in children)
    return found
