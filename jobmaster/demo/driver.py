"""The steps of the demo: start, submit, terminate one agent, kill another, wait, compare, clean up.

The kill is not left to chance: the agent is stopped first, and killed only if it holds claimed jobs that have not ended.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from jobmaster.agentstore.store import AgentStore
from jobmaster.audit import AuditReport, AuditScope, audit
from jobmaster.client.cluster import Cluster
from jobmaster.clock import SystemClock
from jobmaster.demo.agents import DemoAgent, environment
from jobmaster.demo.handlers import handlers, index_file
from jobmaster.demo.indexing import standard_library_files
from jobmaster.demo.pipeline_steps import require_pipeline, run_pipeline
from jobmaster.demo.results import DemoSummary, plain_loop, read_results, summarise
from jobmaster.demo.viewer import Viewer
from jobmaster.embedded import EmbeddedCluster, EmbeddedError, EmbeddedOptions
from jobmaster.master.reports import Reader
from jobmaster.model.errors import WaitTimeout
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Priority
from jobmaster.rules.access import READING
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.web.process import WebProcess
from jobmaster.wiring import migrate_master, open_cluster, open_reader, open_stores

LEASE_SECONDS = 3.0
_READY_SECONDS = 60.0
_LEAVE_SECONDS = 60.0
_BATCH = 100
_RESERVE_BATCH = 40
_FREEZES = 8
_SETTLING_SECONDS = 0.05
"""Time for the master to commit what a stopped agent has already sent."""
_CLAIMS_MIN = 5
"""Least number of unfinished claimed jobs for a kill, as long as there are more jobs to submit."""
_LOOK_SECONDS = 0.1

DOCUMENT: dict[str, Any] = {
    "cluster": "demo",
    "handlers": ["jobmaster.demo.handlers"],
    "web": {"port": 0, "anonymous": sorted(READING)},
    # A short lease makes the rescue quick; the defaults are longer.
    "leases": {"lease": f"{LEASE_SECONDS}s", "renew": "0.9s", "store_beat": "0.3s", "grace": "15s"},
    # Due jobs leave the master late, so that the run sees many of them move.
    "thresholds": {"transient_threshold": "2s"},
    "agents": {
        "default": {
            "slots": 4,
            "bucket_buffer": 40,
            "max_running": 8,
            "threads": 4,
            "buckets": {"critical": 2, "high": 2, "medium": 1, "low": 1, "very_low": 1},
        }
    },
}


class DemoOptions(NamedTuple):
    """Options of the demo, and where its progress is shown."""

    jobs: int | None
    """At most so many files; ``None`` takes all."""
    spread_seconds: float
    """The held half is due over this time."""
    limit_seconds: float
    """Give up when not every job has ended by then."""
    log: Callable[[str], None]
    """Called with one sentence for each step."""
    progress: Callable[[int, int], None]
    """Called with the number of ended jobs, and of all jobs."""
    report: Path | None = None
    """Run the data pipeline over the history at the end, and write its page here."""
    viewer: Viewer | None = None
    """Asked before the kill and before the end; ``None``: the demo does not wait."""


def run_demo(options: DemoOptions) -> tuple[DemoSummary, AuditReport]:
    """The whole demo; leaves no process and no file behind, also when interrupted."""
    if options.report is not None:
        require_pipeline()
    started = SystemClock().boottime()
    files = standard_library_files()[: options.jobs]
    with ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, _interrupt)
        stack.callback(signal.signal, signal.SIGTERM, before)
        directory = Path(tempfile.mkdtemp(prefix="jobmaster-demo-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = stack.enter_context(EmbeddedCluster(directory / "data", EmbeddedOptions(durable=False)))
        for line in cluster.describe():
            options.log(line)
        config = directory / "cluster.yaml"
        config.write_text(json.dumps({**DOCUMENT, "data_dir": str(directory / "data")}), encoding="utf-8")
        settings = load_settings(config, {}, []).settings
        summary, report = asyncio.run(_run(options, settings, config, files, started))
        if options.report is not None:
            found = run_pipeline(settings, directory / "lake", options.report, options.log)
            seconds = round(SystemClock().boottime() - started, 1)
            summary = msgspec.structs.replace(summary, pipeline=found, seconds=seconds)
        return summary, report


def _interrupt(*_: int | FrameType | None) -> None:
    """SIGTERM is taken like Ctrl-C: inside the loop that cancels the main task. An exception raised here instead would
    come up wherever the interpreter is, which may be in the middle of a driver's compiled code.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:  # SIGINT is ignored, because a shell started this process in the background
        raise KeyboardInterrupt


async def _run(
    options: DemoOptions, settings: ClusterSettings, config: Path, files: list[str], started: float
) -> tuple[DemoSummary, AuditReport]:
    await migrate_master(settings)
    async with AsyncExitStack() as stack:
        reader = await open_reader(settings)
        stack.push_async_callback(reader.close)
        stores = await open_stores(settings)
        for store in stores.values():
            stack.push_async_callback(store.close)
        demo_run = DemoRun(options, config, reader, stores)
        stack.callback(demo_run.kill_all)
        await demo_run.start("one")
        await demo_run.start("two")
        await _adopt_generations(reader, stores)
        pages = WebProcess([f"--config={config}"], lambda line: options.log(f"pages: {line}"), environment())
        stack.callback(pages.close)
        cluster = await stack.enter_async_context(await open_cluster(settings, handlers))
        await demo_run.run(cluster, files)
        recorded = await read_results(reader)
        report = await audit(
            reader,
            stores,
            AuditScope(quiet_seconds=LEASE_SECONDS * 2, acknowledged=list(demo_run.acknowledged)),
        )
        options.log("comparing with a plain loop over the same files")
        expected = await asyncio.to_thread(plain_loop, files)
        seconds = SystemClock().boottime() - started
        summary = summarise(
            files, demo_run.acknowledged, recorded, expected, report.violations, demo_run.graceful_exits, seconds
        )
        return summary, report


async def _adopt_generations(reader: Reader, stores: dict[str, AgentStore]) -> None:
    """Give the store objects the generation that the agents have written, so that they may read claimed lists."""
    uid = (await reader.report("server"))[0]["cluster_uid"].bytes
    for row in await reader.report("stores"):
        await stores[row["name"]].initialise(uid, row["generation"].bytes)


class DemoRun:
    """The agents, and the steps while the jobs run."""

    def __init__(self, options: DemoOptions, config: Path, reader: Reader, stores: dict[str, AgentStore]) -> None:
        self.options = options
        self.acknowledged: dict[bytes, str] = {}
        """Job id -> path, of every receipt."""
        self.graceful_exits = 0
        self._config = config
        self._reader = reader
        self._store = next(iter(stores.values()))
        self._agents: dict[str, DemoAgent] = {}

    async def run(self, cluster: Cluster, files: list[str]) -> None:
        """From the first submit to the end of the last agent."""
        pending, held = files[::2], files[1::2]
        reserve = pending[-max(_RESERVE_BATCH, len(pending) // 3) :]
        first = pending[: len(pending) - len(reserve)]
        log, total = self.options.log, len(files)
        await self._submit_pending(cluster, first)
        await self._submit_held(cluster, held)
        await self._until_ended(total, share=0.1)
        log("SIGTERM to agent one; agent three takes its place")
        self._agents["one"].terminate()
        await self.start("three")
        await self._left("one")
        await self._viewer_ready("agent two is killed; the map of the pages (/map) shows its rescue by agent three")
        rest = await self._kill_with_work(cluster, "two", reserve)
        await self._submit_pending(cluster, rest)
        await self._until_ended(total, share=1.0)
        log("every job has ended")
        await self._viewer_ready("the pages and the cluster end")
        log("the last agent leaves")
        self._agents["three"].terminate()
        await self._left("three")

    async def _viewer_ready(self, step: str) -> None:
        if self.options.viewer is not None:
            await self.options.viewer.ready_for(step)

    # ------------------------------------------------------------ agents

    async def start(self, name: str) -> None:
        """Start an agent and wait until it owns buckets."""
        agent = self._agents[name] = DemoAgent(name, self._config, self._config.parent)
        ends = SystemClock().boottime() + _READY_SECONDS
        while SystemClock().boottime() < ends:
            if not agent.running:
                raise EmbeddedError(f"agent {name} ended while it was starting; its log ends with:\n{agent.tail()}")
            for row in await self._reader.report("agents", False):
                if row["name"] == name and row["buckets"] > 0:
                    agent.child_pid, agent.agent_id = row["pid"], row["id"].bytes
                    self.options.log(f"agent {name} is there with {row['buckets']} buckets (process {row['pid']})")
                    return
            await asyncio.sleep(_LOOK_SECONDS)
        raise EmbeddedError(f"agent {name} was not ready in {_READY_SECONDS:g} s; its log ends with:\n{agent.tail()}")

    async def _left(self, name: str) -> None:
        code = await self._agents[name].wait(_LEAVE_SECONDS)
        if code == 0:
            self.graceful_exits += 1
            self.options.log(f"agent {name} has left in order")
        else:
            self.options.log(
                f"agent {name} ended with exit code {code}; its log ends with:\n{self._agents[name].tail()}"
            )

    def kill_all(self) -> None:
        """Leave no process behind."""
        for agent in self._agents.values():
            if agent.running:
                agent.kill()

    # ------------------------------------------------------------ submitting

    async def _submit_pending(self, cluster: Cluster, files: list[str]) -> None:
        """SavePending: acknowledged by the store before the master has a row."""
        for start in range(0, len(files), _BATCH):
            part = files[start : start + _BATCH]
            receipts = await asyncio.gather(
                *(
                    cluster.submit(index_file, {"path": path}, priority=_priority(start + at), durability="store")
                    for at, path in enumerate(part)
                )
            )
            self.acknowledged.update((receipt.id_bytes, path) for receipt, path in zip(receipts, part, strict=True))

    async def _submit_held(self, cluster: Cluster, files: list[str]) -> None:
        """HELD on the master, due one after the other."""
        step = self.options.spread_seconds / max(len(files), 1)
        for start in range(0, len(files), _BATCH):
            part = files[start : start + _BATCH]
            receipts = await asyncio.gather(
                *(
                    cluster.submit(
                        index_file,
                        {"path": path},
                        priority=_priority(start + at),
                        durability="master",
                        after=1.0 + (start + at) * step,
                    )
                    for at, path in enumerate(part)
                )
            )
            self.acknowledged.update((receipt.id_bytes, path) for receipt, path in zip(receipts, part, strict=True))
        self.options.log(f"{len(self.acknowledged)} jobs are in, {len(files)} of them held for later")

    # ------------------------------------------------------------ the kill

    async def _kill_with_work(self, cluster: Cluster, name: str, reserve: list[str]) -> list[str]:
        """SIGKILL the agent and its supervisor while it holds unfinished claimed jobs; the rest of the reserve."""
        agent = self._agents[name]
        while True:
            batch, reserve = reserve[:_RESERVE_BATCH], reserve[_RESERVE_BATCH:]
            await self._submit_pending(cluster, batch)
            for _ in range(_FREEZES):
                agent.freeze()
                await asyncio.sleep(_SETTLING_SECONDS)
                held = await self._unfinished_claims(cluster, agent)
                if held >= (_CLAIMS_MIN if reserve else 1):
                    agent.kill()
                    self.options.log(
                        f"SIGKILL to agent {name} and its supervisor, with {held} claimed jobs in its hands"
                    )
                    return reserve
                agent.resume()
                await asyncio.sleep(_LOOK_SECONDS / 10)
            if not reserve and await self._ended() >= len(self.acknowledged):
                self.options.log(f"agent {name} was never found with work in its hands")
                return reserve

    async def _unfinished_claims(self, cluster: Cluster, agent: DemoAgent) -> int:
        """Number of jobs in the claimed lists of a stopped agent whose outcome the master does not have."""
        claimed: list[bytes] = []
        for row in await self._reader.report("buckets", False):
            if row["owner"].bytes == agent.agent_id:
                fence = Fence(BucketId(row["id"].bytes), row["epoch"], AgentId(agent.agent_id))
                _, names = await self._store.claimed_lists(fence)
                for list_name in names:
                    claimed += [entry.id for entry in (await self._store.read_claimed(fence, list_name)).entries]
        states = await cluster.master.queries.states(claimed) if claimed else {}
        return sum(1 for job_id in claimed if job_id not in states or not states[job_id].final)

    # ------------------------------------------------------------ waiting

    async def _ended(self) -> int:
        rows = await self._reader.report("counts", UUID(int=0))
        return sum(row["jobs"] for row in rows if row["state"] in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))

    async def _until_ended(self, total: int, share: float) -> None:
        """Wait until that share of all jobs has ended."""
        ends = SystemClock().boottime() + self.options.limit_seconds
        while (done := await self._ended()) < total * share:
            self.options.progress(done, total)
            if SystemClock().boottime() > ends:
                logs = "\n".join(f"--- {agent.name}\n{agent.tail()}" for agent in self._agents.values())
                raise WaitTimeout(f"{total - done} of {total} jobs have not ended within the time\n{logs}")
            await asyncio.sleep(_LOOK_SECONDS)
        self.options.progress(done, total)


def _priority(at: int) -> Priority:
    return Priority(at % len(Priority) + 1)
