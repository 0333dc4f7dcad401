"""What the sampler reads of a cluster, and what the overview makes of the last samples."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, cast

from jobmaster.clock import Clock
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.errors import JobMasterError
from jobmaster.ports import FinishedStore
from jobmaster.web.pages.map_state import AgentSample, BucketSample

HELD_REST_RATIO = 9.0
"""The count of the held jobs passes over all of them, so it takes at most a tenth of the time of one connection."""
HELD_SECONDS = 2.0
"""How often held jobs are counted, where that is fast."""
OVERDUE_SECONDS = 5.0


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
    recorded: int
    """Jobs that have got a row or an outcome since the first sample, as agents publish them."""
    unreachable: tuple[str, ...]
    """Stores that did not answer."""
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


class ReportReader(Protocol):
    """Reports of the master."""

    async def report(self, name: str, *values: object) -> list[dict[str, Any]]:
        """Rows of one report."""
        ...

    async def close(self) -> None:
        """Give the connection back."""
        ...


class SampledStore(FinishedStore, Protocol):
    """What a sample needs of a store."""

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        """What lies in each bucket; ``None`` where the store has no such bucket."""
        ...


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
    """Reads samples on one connection of its own, which is closed when nothing is watched.

    Args:
        open_reader: connects to the master.
        stores: the stores of this program's configuration.
    """

    def __init__(
        self,
        open_reader: Callable[[], Awaitable[ReportReader]],
        stores: Mapping[str, SampledStore],
        clock: Clock,
    ) -> None:
        self._open_reader = open_reader
        self._stores = stores
        self._clock = clock
        self._finished = FinishedJobs(stores)
        self._reader: ReportReader | None = None
        self._held: list[dict[str, Any]] = []
        self._held_next = 0.0

    async def read(self) -> Sample:
        """One sample.

        Raises:
            Unavailable: the master does not answer.
        """
        self._finished.listen()
        try:
            return await self._sample(await self._connected())
        except JobMasterError:
            await self._disconnect()
            raise

    async def rest(self) -> None:
        """Give the connection and the subscriptions back."""
        await self._finished.stop()
        await self._disconnect()

    async def _connected(self) -> ReportReader:
        if self._reader is None:
            self._reader = await self._open_reader()
        return self._reader

    async def _disconnect(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _sample(self, reader: ReportReader) -> Sample:
        server = (await reader.report("server"))[0]
        agents = await reader.report("agents", False)
        buckets = await reader.report("buckets", False)
        flying = {row["bucket_id"]: row["processing"] for row in await reader.report("in_flight")}
        if self._clock.boottime() >= self._held_next:
            began = self._clock.boottime()
            self._held = await reader.report("held", OVERDUE_SECONDS)
            ended = self._clock.boottime()
            self._held_next = ended + max(HELD_SECONDS, (ended - began) * HELD_REST_RATIO)
        depths, unreachable = await self._depths(buckets)
        now_us = int(server["now_us"])
        cells = tuple(_bucket_sample(row, depths.get(row["id"].bytes), flying.get(row["id"], 0)) for row in buckets)
        lines = _agent_samples(agents, buckets, now_us)
        totals = Totals(
            at_us=now_us,
            groups=_groups(cells, self._held),
            agents=len(agents),
            leased=sum(row["lease_left_seconds"] > 0 for row in agents),
            leader=next((row["name"] for row in agents if row["id"] == server["leader"]), None),
            recorded=self._finished.count,
            unreachable=unreachable,
            troubled=sum(cell.state in ("LOST", "DRAINING", "FROZEN") for cell in cells),
        )
        return Sample(totals, lines, cells)

    async def _depths(self, buckets: Sequence[Mapping[str, Any]]) -> tuple[dict[bytes, BucketDepth], tuple[str, ...]]:
        """Depths by bucket, and the stores that did not answer."""
        by_store: dict[str, list[bytes]] = {}
        for row in buckets:
            by_store.setdefault(row["store"], []).append(row["id"].bytes)

        async def ask(name: str, ids: list[bytes]) -> list[BucketDepth | None] | None:
            try:
                return await self._stores[name].depths(ids) if name in self._stores else None
            except JobMasterError:
                return None

        answers = await asyncio.gather(*(ask(name, ids) for name, ids in by_store.items()))
        depths = {
            id_: depth
            for ids, answer in zip(by_store.values(), answers, strict=True)
            for id_, depth in zip(ids, answer or (), strict=False)
            if depth is not None
        }
        return depths, tuple(name for name, answer in zip(by_store, answers, strict=True) if answer is None)


def _bucket_sample(row: Mapping[str, Any], depth: BucketDepth | None, processing: int) -> BucketSample:
    return BucketSample(
        id=str(row["id"]),
        lane=row["lane"],
        priority=row["priority"],
        store=row["store"],
        owner=str(row["owner"]),
        epoch=row["epoch"],
        state=row["state"],
        waiting=-1 if depth is None else depth.pending + depth.assigned,
        running=max(processing, 0 if depth is None else depth.claimed_lists),
    )


def _agent_samples(
    agents: Sequence[Mapping[str, Any]], buckets: Sequence[Mapping[str, Any]], now_us: int
) -> tuple[AgentSample, ...]:
    lines = {
        str(row["id"]): AgentSample(
            id=str(row["id"]),
            name=row["name"],
            host=row["host"],
            store=row["store"] or "",
            mode=row["mode"],
            state="DRAINING" if row["drain_requested"] else row["state"],
            version=row["version"],
            lease_until_ms=(now_us + int(row["lease_left_seconds"] * 1e6)) // 1000,
            lease_seconds=row["lease_seconds"],
        )
        for row in agents
    }
    for row in buckets:
        owner = str(row["owner"])
        if owner not in lines:
            name = row["owner_name"] or owner[:8]
            lines[owner] = AgentSample(owner, name, "", row["store"], "", row["owner_state"] or "DEAD", "", 0, 0.0)
    return tuple(lines.values())


def _groups(buckets: Sequence[BucketSample], held: Sequence[Mapping[str, Any]]) -> tuple[GroupSample, ...]:
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
        before = group(row["lane"], row["priority"])
        groups[row["lane"], row["priority"]] = before._replace(
            held=row["held"], due=row["due"], overdue=row["overdue"], oldest_us=row["oldest_us"]
        )
    return tuple(groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1])))
