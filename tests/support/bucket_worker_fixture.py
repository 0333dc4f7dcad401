"""The working half of an agent over small scripted stores, for written interleavings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress
from tests.support.fakes.fake_master import FakeMaster, Row
from tests.support.fakes.fake_store import FakeStore
from tests.support.fakes.scripted import DOWN, LOST, Gate, turns
from tests.support.hand_clock import HandClock
from tests.support.idle import is_idle
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

__all__ = ["DOWN", "LOST", "Gate", "Row", "WorkerHarness", "turns", "until"]

ME = AgentId(b"me" * 8)
SILENCE_SECONDS = 60.0


class WorkerHarness:
    """The working half of an agent over small stores."""

    def __init__(self, handlers: Handlers, agent: AgentSettings | None = None) -> None:
        self.clock = HandClock()
        self.master = FakeMaster()
        self.master.now_us = self.clock.wall_us()
        self.store = FakeStore(self.clock)
        self.ownership = Ownership(ME)
        self.trust()
        self.progress = Progress(self.clock.boottime, SILENCE_SECONDS)
        self.bucket_worker = BucketWorker(
            ClusterSettings(),
            agent or AgentSettings(),
            self.master,  # type: ignore[arg-type]  # the part of the port that working uses
            self.store,
            self.ownership,
            handlers,
            self.clock,
            Telemetry(),
            EventLog(),
            "me",
            progress=self.progress,
        )
        self._run: asyncio.Task[None] | None = None

    def trust(self, lease_seconds: float = 1e6) -> None:
        """A renewal of the lease, now."""
        self.ownership.trust(term(self.clock.now, lease_seconds))

    def suspend(self, term_seconds: float = 1e6) -> None:
        """The lease is over, the master does not answer, and every bucket has a store term."""
        self.clock.now = max(self.clock.now, self.ownership.hard_until + 1.0)
        granted = term(self.clock.now, term_seconds)
        self.ownership.trust_store(granted)
        for owned in self.ownership.buckets.values():
            self.ownership.trust_store(granted, owned)

    def expire(self) -> None:
        """The lease is past its hard deadline, and not yet fenced."""
        self.clock.now = self.ownership.hard_until + 1.0

    def bucket(self, priority: int = 3) -> OwnedBucket:
        """One more bucket, with nothing in it."""
        owned = OwnedBucket(Fence(BucketId(new_id()), 1, ME), "default", priority, "default")
        self.store.buckets[owned.fence.bucket_id].fence = owned.fence
        self.bucket_worker.open(owned)
        return owned

    def submit(self, owned: OwnedBucket, entries: Iterable[Entry]) -> None:
        """A producer's submit."""
        self.store.buckets[owned.fence.bucket_id].pending.extend(entries)
        self.store.tokens.put_nowait(owned.fence.bucket_id)

    def lists(self, owned: OwnedBucket) -> dict[str, list[Entry]]:
        """Claimed lists that lie in the store."""
        return self.store.buckets[owned.fence.bucket_id].claimed

    def rescue(self, owned: OwnedBucket) -> None:
        """Another agent takes the bucket: mark in the master, fence in the store."""
        self.master.others.add(owned.fence.bucket_id)
        bucket = self.store.buckets[owned.fence.bucket_id]
        bucket.fence = Fence(owned.fence.bucket_id, owned.fence.epoch + 1, AgentId(b"other-rescuer..."))

    async def settled(self) -> None:
        """Until everything submitted to our buckets is over and the claimed lists are gone."""
        await until(lambda: not any(map(self._busy, self.ownership.buckets)), "the end of all jobs")
        await until(lambda: is_idle(self.bucket_worker), "the end of all writes")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.bucket_worker.outcome_writer.wait_settled()

    def _busy(self, bucket_id: bytes) -> bool:
        bucket = self.store.buckets[bucket_id]
        return bool(bucket.pending or bucket.claimed)

    async def __aenter__(self) -> WorkerHarness:
        self._run = asyncio.ensure_future(self.bucket_worker.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._run is not None
        failure = self._run.exception() if self._run.done() and not self._run.cancelled() else None
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.bucket_worker.aclose()
        if failure is not None:
            raise failure
