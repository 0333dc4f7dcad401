"""Heartbeat, store beat and suspension of one agent, with a clock turned by hand and ports written down here."""

from __future__ import annotations

import asyncio
import math

from jobmaster.clock import new_id
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.ports import Renewal, ReplyStatus
from jobmaster.rules.lease import LeaseStatus
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.lease.heartbeat import Heartbeat, StoreBeat, attestation
from jobmaster_agents.lease.store_lease import StoreLease
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress
from tests.support.hand_clock import HandClock

FINE = Renewal(alive=True, drain_requested=False, leader=None, lost_stores=[], cancel_requested=[])
DEAD = FINE._replace(alive=False)
AWAY = Unavailable("away")


class Master:
    """Answers renewals with ``answer``."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.answer: Renewal | JobMasterError = FINE
        self.takes = 0.0
        self.calls = 0

    async def renew(self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        self.calls += 1
        self.clock.now += self.takes
        if isinstance(self.answer, JobMasterError):
            raise self.answer
        return self.answer


class Store:
    """Beats, and grants terms."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.away = False
        self.takes = 0.0
        self.words: dict[bytes, ReplyStatus] = {}
        self.terms: list[float] = []

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None:
        if self.away:
            raise Unavailable("store away")

    async def grant_term(self, fence: Fence, term_seconds: float) -> ReplyStatus:
        self.terms.append(term_seconds)
        self.clock.now += self.takes
        if self.away:
            raise Unavailable("store away")
        return self.words.get(fence.bucket_id, ReplyStatus.OK)


class StoreLeaseHarness:
    """Heartbeat, store beat and suspension of one agent with some buckets."""

    def __init__(self, buckets: int = 2, leases: Leases | None = None, silence_seconds: float = math.inf) -> None:
        leases = leases or Leases()
        self.clock = HandClock()
        self.master, self.store = Master(self.clock), Store(self.clock)
        self.telemetry = Telemetry()
        self.ownership = Ownership(new_id())
        self.progress = Progress(self.clock.boottime, silence_seconds)
        self.trusts: list[float] = []
        self.lost: list[str] = []
        log = EventLog()
        self.beat = StoreBeat(self.ownership.agent_id, self.store, leases, self.clock, self.telemetry, log)
        self.heartbeat = Heartbeat(
            self.ownership, self.master, leases, self.clock, attestation(self.beat, self.progress),
            lambda renewal: None, self.trusts.append, self.telemetry, log,
        )  # fmt: skip
        self.store_lease = StoreLease(
            self.ownership, self.store, leases, self.clock, self.heartbeat.unanswered, lambda: self.beat.answered_at,
            self.trusts.append, self._forget, self.telemetry, log,
        )  # fmt: skip
        self.buckets = [
            OwnedBucket(Fence(BucketId(new_id()), 1, AgentId(self.ownership.agent_id)), "default", 3, "default")
            for _ in range(buckets)
        ]
        for owned in self.buckets:
            self.ownership.add(owned)
        self.heartbeat.registered(self.clock.now)

    def _forget(self, bucket_id: bytes, why: str, reply: ReplyStatus | None = None) -> None:
        self.lost.append(why)
        self.ownership.lose(bucket_id, why, reply)

    @property
    def lease_status(self) -> LeaseStatus:
        return self.ownership.lease_status(self.clock.now)

    def may_start(self, owned: OwnedBucket | None = None) -> bool:
        return self.ownership.may_start_in(owned or self.buckets[0], self.clock.now)

    async def live(self, seconds: float, step: float = 0.25) -> None:
        """Everything ticks for so long."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            await asyncio.sleep(0)
            self.clock.now += step
            await self.beat.tick()
            await self.heartbeat.tick()
            await self.store_lease.tick()

    async def suspended(self) -> None:
        """The master has been away until the store stood for the agent, and its lease is over."""
        self.master.answer = AWAY
        await self.live(12.0)
        assert self.ownership.suspended
