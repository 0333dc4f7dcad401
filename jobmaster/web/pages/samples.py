"""What the sampler reads of a cluster, and what the overview makes of the last samples."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, cast

from jobmaster.client.cluster import Cluster
from jobmaster.client.inspect.inspection import COUNTED_MAX, OVERDUE_SECONDS
from jobmaster.clock import Clock
from jobmaster.model.agent import AgentState
from jobmaster.model.errors import JobMasterError
from jobmaster.model.inspection.views import AgentView, Buckets, BucketView
from jobmaster.ports import FinishedStore
from jobmaster.ports.inspection import HeldGroup
from jobmaster.web.pages.map_state import AgentSample, BucketSample

HELD_REST_RATIO = 9.0
"""The count of the held jobs takes at most a tenth of the time of one connection."""
HELD_SECONDS = 2.0
"""How often held jobs are counted, where that is fast."""


class GroupSample(NamedTuple):
    """Jobs of one lane and priority."""

    lane: str
    priority: int
    buckets: int
    """ACTIVE ones."""
    waiting: int
    """Jobs that lie in buckets and are not claimed."""
    running: int
    held: int
    due: int
    """Held jobs that are due."""
    overdue: int
    oldest_us: int | None
    """Due time of the first held job."""

    @property
    def backlog(self) -> int:
        """Jobs that could run now."""
        return self.waiting + self.due


class Totals(NamedTuple):
    """What is kept of a sample."""

    at_us: int
    groups: tuple[GroupSample, ...]
    agents: int
    leased: int
    """Agents whose lease has not ended."""
    leader: str | None
    """Name of the leader."""
    slots: int | None
    """Jobs that the agents may run at once; ``None``: not known."""
    recorded: int
    """Jobs that have got a row or an outcome since the first sample, as agents publish them."""
    silent: tuple[str, ...]
    """A sentence for each store that did not answer."""
    troubled: int
    """Buckets that are LOST, DRAINING or FROZEN."""

    def total(self, name: str) -> int:
        """Sum of one figure of all groups."""
        return sum(int(getattr(group, name)) for group in self.groups)


class Sample(NamedTuple):
    """The cluster at one moment."""

    totals: Totals
    agents: tuple[AgentSample, ...]
    buckets: tuple[BucketSample, ...]
    read_agents: Sequence[AgentView]
    """What the samples of agents and buckets were made of."""
    read_buckets: Buckets


class FinishedJobs:
    """Counts the jobs that agents publish in their stores as recorded, while the cluster is watched."""

    def __init__(self, stores: Mapping[str, FinishedStore]) -> None:
        self.count = 0
        self._stores = stores
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def listen(self) -> None:
        """Subscribe where that is not done; a subscription that broke is made again."""
        for name, store in self._stores.items():
            task = self._tasks.get(name)
            if task is None or task.done():
                self._tasks[name] = asyncio.get_running_loop().create_task(self._count(store))

    async def stop(self) -> None:
        """End the subscriptions."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _count(self, store: FinishedStore) -> None:
        # The port promises an iterator; generators must be closed where they are abandoned.
        with contextlib.suppress(JobMasterError):
            async with aclosing(cast(AsyncGenerator[bytes, None], store.finished())) as news:
                async for job_id in news:
                    self.count += bool(job_id)


class SampleReader:
    """Reads samples. While nothing is watched it holds no subscription."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._finished = FinishedJobs(cluster.stores)
        self._held: list[HeldGroup] = []
        self._held_next = 0.0

    async def read(self) -> Sample:
        """One sample.

        Raises:
            Unavailable: the master does not answer.
        """
        self._finished.listen()
        reads, inspect = self._cluster.master.inspection, self._cluster.inspect
        now_us = (await reads.now()).now_us
        agents = await inspect.agents()
        found = await inspect.buckets()
        began = self._clock.boottime()
        if began >= self._held_next:
            self._held = await reads.held(OVERDUE_SECONDS, COUNTED_MAX)
            ended = self._clock.boottime()
            self._held_next = ended + max(HELD_SECONDS, (ended - began) * HELD_REST_RATIO)
        cells = tuple(map(_bucket_sample, found.buckets))
        statistics = [agent.statistics for agent in agents if agent.alive and agent.statistics is not None]
        totals = Totals(
            at_us=now_us,
            groups=_groups(cells, self._held),
            agents=len(agents),
            leased=sum(agent.alive for agent in agents),
            leader=next((agent.name for agent in agents if agent.leads), None),
            slots=sum(each.slots for each in statistics) or None,
            recorded=self._finished.count,
            silent=found.silent,
            troubled=sum(cell.state in ("LOST", "DRAINING", "FROZEN") for cell in cells),
        )
        return Sample(totals, _agent_samples(agents, found.buckets, now_us), cells, agents, found)

    async def rest(self) -> None:
        """End the subscriptions."""
        await self._finished.stop()


def _bucket_sample(bucket: BucketView) -> BucketSample:
    known = bucket.pending is not None and bucket.assigned is not None
    return BucketSample(
        id=str(bucket.id),
        lane=bucket.lane,
        priority=int(bucket.priority),
        store=bucket.store,
        owner=str(bucket.owner),
        epoch=bucket.epoch,
        state=bucket.state.value,
        waiting=(bucket.pending or 0) + (bucket.assigned or 0) if known else -1,
        running=max(bucket.rows_processing, bucket.claimed_lists or 0),
    )


def _agent_samples(agents: Sequence[AgentView], buckets: Sequence[BucketView], now_us: int) -> tuple[AgentSample, ...]:
    lines = {
        agent.id: AgentSample(
            id=str(agent.id),
            name=agent.name,
            host=agent.host,
            store=agent.store,
            mode=agent.mode,
            state="DRAINING" if agent.drain_requested else agent.state.value,
            version=agent.version,
            lease_until_ms=(now_us + int((agent.lease_left_seconds or 0.0) * 1e6)) // 1000,
            lease_seconds=agent.lease_seconds,
        )
        for agent in agents
    }
    for bucket in buckets:
        if bucket.owner not in lines:
            name, state = bucket.owner_name or str(bucket.owner)[:8], bucket.owner_state or AgentState.DEAD
            lines[bucket.owner] = AgentSample(str(bucket.owner), name, "", bucket.store, "", state.value, "", 0, 0.0)
    return tuple(lines.values())


def _groups(buckets: Sequence[BucketSample], held: Sequence[HeldGroup]) -> tuple[GroupSample, ...]:
    groups: dict[tuple[str, int], GroupSample] = {}

    def group(lane: str, priority: int) -> GroupSample:
        return groups.get((lane, priority)) or GroupSample(lane, priority, 0, 0, 0, 0, 0, 0, None)

    for cell in buckets:
        before = group(cell.lane, cell.priority)
        groups[cell.lane, cell.priority] = before._replace(
            buckets=before.buckets + (cell.state == "ACTIVE"),
            waiting=before.waiting + max(cell.waiting, 0),
            running=before.running + cell.running,
        )
    for row in held:
        groups[row.lane, row.priority] = group(row.lane, row.priority)._replace(
            held=row.held, due=row.due, overdue=row.overdue, oldest_us=row.oldest_us
        )
    return tuple(groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1])))
