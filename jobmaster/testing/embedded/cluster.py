"""The object of the fixture ``jobmaster_cluster``: a real cluster with an agent that runs what a test submits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import msgspec

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.handlers import Handlers
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.model.errors import InputError, JobMasterError, WaitTimeout
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.drained import Drained, seconds_of
from jobmaster.testing.embedded.agents import START_SECONDS, AgentProcess, AgentTask
from jobmaster.wiring import open_master, open_reader, open_stores

DRAIN_SECONDS = 30.0
"""Longest wait of ``drain``."""
_LOOK_SECONDS = 0.01
_AT_ONCE = 0.0
_EVER = 1e9


class RealCluster(Cluster):
    """A producer's cluster on embedded servers, whose agents belong to the test. Use it as ``Cluster``; ``drain`` waits until
    the agents have run what was submitted.

    Attributes:
        settings: the cluster's settings, for ``jobmaster.connect(settings)`` in the tested code.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        master: Master,
        stores: dict[str, AgentStore],
        reader: Reader,
        *,
        handlers: Handlers,
        directory: Path,
    ) -> None:
        super().__init__(settings, master, stores, handlers=handlers)
        self._closing = (master.close, reader.close, *(store.close for store in stores.values()))
        self._agent_stores = stores
        self._reader = reader
        self._directory = directory
        self._tasks: list[AgentTask] = []
        self._processes: list[AgentProcess] = []
        self._counted: Counter[str] = Counter()

    @classmethod
    async def open(cls, settings: ClusterSettings, handlers: Handlers, directory: Path) -> Self:
        """Connect, and start an agent of each kind of the settings on the running event loop."""
        master = await open_master(settings, application_name="jobmaster-testing")
        stores = await open_stores(settings)
        reader = await open_reader(settings)
        cluster = cls(settings, master, stores, reader, handlers=handlers, directory=directory)
        try:
            await cluster.start_agent()
        except BaseException:
            await cluster.shut_down()
            raise
        return cluster

    # ------------------------------------------------------------ agents

    async def start_agent(self) -> None:
        """Start an agent of each kind on the event loop of the test; one runs already when the test begins."""
        for kind in self.settings.agents:
            task = AgentTask(self.settings, kind, self.handlers)
            await task.start()
            self._tasks.append(task)

    async def use_agent_process(self) -> None:
        """End the agents on the event loop, and start real agent processes in their place, as ``jobmaster agent run`` does.
        They import the handlers by the names in the option ``jobmaster_handlers``.

        Raises:
            InputError: the option names no module.
            JobMasterError: an agent does not start; with the end of its log.
        """
        if not self.settings.handlers:
            raise InputError(
                "an agent process imports its handlers, and no module is named",
                hint="set jobmaster_handlers = myapp.jobs in the configuration of pytest",
            )
        await self._stop_tasks()
        for kind in self.settings.agents:
            process = AgentProcess(self.settings, kind, self._directory)
            self._processes.append(process)
            await self._until_served(process)

    async def kill_agent(self) -> None:
        """SIGKILL to one agent process. Its supervisor reports the death and starts another agent, which rescues the jobs;
        ``drain`` waits for them.

        Raises:
            InputError: there is no agent process; ``use_agent_process`` starts one.
        """
        pids = [row["pid"] for row in await self._agents()]
        if not pids:
            raise InputError(
                "there is no agent process to be killed",
                hint="call `await jobmaster_cluster.use_agent_process()` first",
            )
        os.kill(pids[0], signal.SIGKILL)

    async def _agents(self) -> list[dict[str, Any]]:
        """Agents with buckets that are processes."""
        rows = await self._reader.report("agents", False)
        return [row for row in rows if row["pid"] != os.getpid() and row["buckets"]]

    async def _until_served(self, process: AgentProcess) -> None:
        for _ in range(round(START_SECONDS / _LOOK_SECONDS)):
            if process.ended:
                raise JobMasterError(f"the agent has ended at once; its log ends with:\n{process.tail()}")
            if len(await self._agents()) >= len(self._processes):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        raise JobMasterError(f"the agent has no bucket after {START_SECONDS:g} s; its log ends with:\n{process.tail()}")

    # ------------------------------------------------------------ waiting for them

    async def drain(
        self,
        *,
        due_within: float | timedelta | str = 0.0,
        held: bool = False,
        timeout: float = DRAIN_SECONDS,
    ) -> Drained:
        """Wait until the agents have run every job that is due, also those that handlers submit meanwhile.

        Args:
            due_within: also jobs and further attempts that are due within this time; they are waited for.
            held: all jobs and further attempts, however far ahead they are due.
            timeout: seconds.

        Returns: numbers of jobs that ended since the last call.

        Raises:
            WaitTimeout: jobs are left that are due.
            JobMasterError: an agent on the event loop of the test has failed; with its cause.
        """
        ahead = seconds_of(due_within, "due_within")
        if ahead and held:
            raise InputError("'held' means all jobs, and 'due_within' some", hint="give one of them")
        ends = self._clock.boottime() + timeout
        horizon = self._clock.boottime() + ahead
        while True:
            for task in self._tasks:
                task.raise_failure()
            left = _EVER if held else max(horizon - self._clock.boottime(), _AT_ONCE)
            in_stores = await self._in_stores()
            row = (await self._reader.report("unended", left))[0]
            if not in_stores and not row["due"]:
                return await self._drained(row["jobs"])
            if self._clock.boottime() >= ends:
                raise WaitTimeout(
                    f"{max(row['due'], in_stores)} jobs that are due have not ended within {timeout:g} s",
                    hint="is an agent there that has their handlers? `drain(timeout=...)` waits longer",
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _in_stores(self) -> int:
        """Jobs that may lie in a store alone. What is onboarded has a row."""
        buckets = [bucket for bucket in await self.master.queries.list_buckets() if bucket.store in self._agent_stores]
        count = 0
        for name, store in self._agent_stores.items():
            ids = [bucket.id for bucket in buckets if bucket.store == name]
            for depth in await store.depths(ids):
                count += 0 if depth is None else depth.pending + depth.claimed_lists + depth.kept
        return count

    async def _drained(self, left: int) -> Drained:
        rows = await self._reader.report("counts", UUID(int=0))
        counts = Counter({row["state"].lower(): row["jobs"] for row in rows})
        new, self._counted = counts - self._counted, counts
        fields = {name: new[name] for name in Drained.__struct_fields__ if name != "left"}
        return msgspec.convert({**fields, "left": left}, Drained)

    # ------------------------------------------------------------ the end

    async def shut_down(self) -> None:
        """End the agents at once, and every connection."""
        for process in self._processes:
            await process.stop()
        await self._stop_tasks()
        await self.close()
        for close in self._closing:
            await close()

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await task.stop()
