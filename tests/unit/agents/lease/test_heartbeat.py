"""The two beats, with a clock turned by hand and ports written down in the test."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import cast

import pytest

from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.clock import new_id
from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Unavailable
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.ports import Renewal
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.lease.heartbeat import Heartbeat, StoreBeat, attestation
from jobmaster_agents.lease.process_statistics import ProcessStatistics
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.progress import Progress
from tests.support.hand_clock import HandClock

LEASES = Leases()
FINE = Renewal(alive=True, drain_requested=False, leader=None, lost_stores=[], cancel_requested=[])
DEAD = FINE._replace(alive=False)


class Master:
    """Answers renewals by a script; an entry may move the clock before it answers."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.answers: list[Renewal | JobMasterError] = []
        self.takes = 0.0
        self.calls: list[float] = []
        self.promised: list[float] = []

    async def renew(self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        self.promised.append(lease_seconds)
        self.calls.append(self.clock.now)
        self.clock.now += self.takes
        answer = self.answers.pop(0) if self.answers else FINE
        if isinstance(answer, JobMasterError):
            raise answer
        return answer


class Store:
    def __init__(self) -> None:
        self.failure: JobMasterError | None = None
        self.beats: list[float] = []

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None:
        if self.failure is not None:
            raise self.failure
        self.beats.append(ttl_seconds)


class HeartbeatHarness:
    """The heartbeat of one agent."""

    def __init__(self, silence_seconds: float = math.inf) -> None:
        self.clock = HandClock()
        self.master = Master(self.clock)
        self.store = Store()
        self.telemetry = Telemetry()
        self.ownership = Ownership(new_id())
        self.progress = Progress(self.clock.boottime, silence_seconds)
        self.renewals: list[Renewal] = []
        self.trusts: list[float] = []
        log = EventLog()
        self.beat = StoreBeat(self.ownership.agent_id, self.store, LEASES, self.clock, self.telemetry, log)
        self.attest: Callable[[float], str | None] = attestation(self.beat, self.progress)
        self.heartbeat = Heartbeat(
            self.ownership, self.master, LEASES, self.clock, self.attest, self.renewals.append,
            self.trusts.append, self.telemetry, log,
        )  # fmt: skip
        self.heartbeat.registered(self.clock.now)

    async def after(self, seconds: float) -> float:
        """Let the loop turn, then tick ``seconds`` later."""
        await asyncio.sleep(0)
        self.clock.now += seconds
        return await self.heartbeat.tick()


async def test_registration_gives_trust_from_its_sending() -> None:
    harness = HeartbeatHarness()
    assert harness.ownership.trusted_until == 1010.0
    assert harness.trusts == [1010.0]


async def test_the_refusal_of_a_full_store_counts_as_an_answer() -> None:
    """Its agents are the only ones that can empty it: they must not end because it is full."""
    harness = HeartbeatHarness()
    harness.store.failure = OutOfMemory("maxmemory")
    for _ in range(30):
        await harness.beat.tick()
        await harness.after(1.0)
    assert harness.beat.healthy
    assert harness.beat.answered_at is not None
    assert not harness.ownership.fenced.is_set()
    assert harness.telemetry.renewals["withheld"] == 0


async def test_it_renews_every_three_seconds_with_one_query_each() -> None:
    harness = HeartbeatHarness()
    for _ in range(60):
        await harness.after(0.5)
    assert len(harness.master.calls) == 10
    assert harness.telemetry.renewals["ok"] == 10
    assert len(harness.renewals) == 10
    assert harness.ownership.trusted_until == harness.master.calls[-1] + 10.0
    assert set(harness.master.promised) == {10.0}


async def test_statistics_take_no_time_of_the_lease_and_cost_no_renewal() -> None:
    harness = HeartbeatHarness()

    class Statistics:
        def due(self, now: float, lag_seconds: float) -> AgentStatistics | None:
            harness.clock.now += 0.5  # the kernel is slow
            if len(harness.renewals) == 1:
                raise ValueError("no number")
            return AgentStatistics()

    harness.heartbeat.statistics = cast(ProcessStatistics, Statistics())
    await harness.after(3.0)
    assert harness.ownership.trusted_until == harness.master.calls[-1] + 10.0
    await harness.after(3.0)
    assert harness.telemetry.renewals["ok"] == len(harness.master.calls) == 2
    assert harness.telemetry.periodic_task_failures["process-statistics"] == 1
    assert harness.ownership.trusted_until == harness.master.calls[-1] + 10.0


async def test_the_delay_it_asks_for_reaches_the_next_renewal_exactly() -> None:
    harness = HeartbeatHarness()
    assert await harness.after(1.0) == pytest.approx(2.0)
    assert await harness.after(2.0) == pytest.approx(3.0)


async def test_trust_counts_from_the_moment_of_sending() -> None:
    harness = HeartbeatHarness()
    harness.master.takes = 2.0
    await harness.after(3.0)
    assert harness.ownership.trusted_until == 1003.0 + 10.0


async def test_an_answer_after_the_deadline_does_not_extend_it() -> None:
    """The lease is half gone, the master takes 5 s to answer: the answer is fine, but it comes after the hard deadline."""
    harness = HeartbeatHarness()
    harness.master.takes = 5.0
    await harness.after(4.5)
    assert harness.ownership.fenced.is_set()
    assert harness.ownership.trusted_until == 1010.0
    assert harness.telemetry.renewals["late"] == 1
    assert harness.renewals == []


async def test_after_a_suspend_nothing_is_sent_and_the_process_fences_itself() -> None:
    """CLOCK_BOOTTIME went on while the machine slept: the master would still accept, and no renewal may be sent."""
    harness = HeartbeatHarness()
    await harness.after(3600.0)
    assert harness.master.calls == []
    assert harness.ownership.fenced.is_set()


async def test_it_fences_before_the_lease_ends_when_no_renewal_succeeds() -> None:
    harness = HeartbeatHarness()
    harness.master.answers = [Unavailable("away")] * 50
    while not harness.ownership.fenced.is_set():
        assert harness.clock.now < 1010.0
        await harness.after(0.25)
    assert 1009.0 <= harness.clock.now < 1010.0


async def test_failures_are_tried_again_sooner_and_one_success_mends_all() -> None:
    harness = HeartbeatHarness()
    harness.master.answers = [Unavailable("away"), OutcomeUnknown("cut"), FINE]
    for _ in range(60):
        await harness.after(0.1)
    assert harness.master.calls[0] == pytest.approx(1003.0, abs=0.15)
    assert harness.master.calls[1] == pytest.approx(1004.0, abs=0.25)
    assert harness.master.calls[2] == pytest.approx(1005.0, abs=0.35)
    assert not harness.ownership.fenced.is_set()
    assert harness.ownership.trusted_until == harness.master.calls[2] + 10.0


async def test_a_death_certificate_fences_at_once() -> None:
    harness = HeartbeatHarness()
    harness.master.answers = [DEAD]
    await harness.after(3.0)
    assert harness.ownership.fenced.is_set()
    assert "certificate" in harness.ownership.fenced_why
    assert harness.renewals == []
    before = len(harness.master.calls)
    await harness.after(3.0)
    assert len(harness.master.calls) == before  # a dead agent asks nothing more


async def test_no_renewal_while_the_store_does_not_answer() -> None:
    harness = HeartbeatHarness()
    harness.store.failure = Unavailable("store away")
    await harness.beat.tick()
    await harness.after(3.0)
    assert harness.master.calls == []
    assert harness.telemetry.renewals["withheld"] == 1
    harness.store.failure = None
    await harness.beat.tick()
    await harness.after(1.0)
    assert len(harness.master.calls) == 1


async def test_no_renewal_while_the_loop_has_not_turned() -> None:
    harness = HeartbeatHarness()
    await harness.after(3.0)
    harness.clock.now += 3.0
    await harness.heartbeat.tick()  # no turn of the loop between: the callback could not run
    assert len(harness.master.calls) == 1
    assert harness.telemetry.loop_stalls == 1
    await harness.after(1.0)
    assert len(harness.master.calls) == 2


async def test_no_renewal_while_a_task_that_promised_progress_is_silent() -> None:
    harness = HeartbeatHarness(silence_seconds=5.0)
    with harness.progress.expect("a claimer"):
        await harness.after(3.0)
        assert len(harness.master.calls) == 1
        await harness.after(3.0)
        assert len(harness.master.calls) == 1
        harness.progress.note()
        await harness.after(1.0)
        assert len(harness.master.calls) == 2
    await harness.after(7.0)
    assert len(harness.master.calls) == 3


async def test_the_beat_in_the_store_lives_longer_than_the_next_beat() -> None:
    harness = HeartbeatHarness()
    assert await harness.beat.tick() == LEASES.store_beat_seconds
    assert harness.store.beats == [LEASES.store_beat_seconds * 3]
    assert harness.beat.healthy


async def test_the_contents_of_a_renewal_are_passed_on() -> None:
    harness = HeartbeatHarness()
    news = FINE._replace(drain_requested=True, lost_stores=["default"], leader=new_id(), cancel_requested=[new_id()])
    harness.master.answers = [news]
    await harness.after(3.0)
    assert harness.renewals == [news]


async def test_an_agent_that_ends_its_own_row_takes_that_for_no_certificate() -> None:
    """The answer about its end may be lost, and requested again after the row is RETIRED."""
    harness = HeartbeatHarness()
    harness.heartbeat.retire()
    harness.master.answers = [DEAD]
    assert await harness.after(4.0) == pytest.approx(harness.ownership.hard_until - harness.clock.now)
    assert not harness.master.calls
    assert not harness.ownership.fenced.is_set()
    await harness.after(20.0)
    assert harness.ownership.fenced.is_set(), "the deadline stands"


async def test_a_renewal_that_was_under_way_when_the_row_was_ended_fences_no_agent() -> None:
    harness = HeartbeatHarness()

    class Ending(Master):
        async def renew(
            self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None
        ) -> Renewal:
            harness.heartbeat.retire()
            return DEAD

    harness.heartbeat._members = Ending(harness.clock)
    await harness.after(4.0)
    assert not harness.ownership.fenced.is_set()


async def test_in_a_large_cluster_it_renews_less_often_with_a_longer_lease() -> None:
    harness = HeartbeatHarness()
    harness.master.answers = [FINE._replace(agents=600)] * 50
    for _ in range(60):
        await harness.after(0.5)
    assert harness.master.promised == [10.0] + [20.0] * 5, "twice as many agents as the budget bears"
    assert [later - before for before, later in itertools.pairwise(harness.master.calls)] == [3.0] + [6.0] * 4
    assert harness.ownership.trusted_until == harness.master.calls[-1] + 20.0
    assert harness.ownership.stretch == 2.0


async def test_when_the_cluster_shrinks_it_trusts_the_shorter_promise_before_the_master_can_count_by_it() -> None:
    harness = HeartbeatHarness()
    harness.master.answers = [FINE._replace(agents=6000), FINE, OutcomeUnknown("the answer was lost")]
    await harness.after(3.0)
    await harness.after(3.0)
    assert harness.master.promised == [10.0, 200.0]
    assert harness.ownership.trusted_until == harness.clock.now + 200.0
    await harness.after(3.0)
    assert harness.master.promised == [10.0, 200.0]
    await harness.after(57.0)
    assert harness.master.promised == [10.0, 200.0, 10.0], "unanswered, and perhaps written"
    assert harness.ownership.trusted_until == harness.master.calls[-1] + 10.0
    assert harness.trusts[-1] == harness.ownership.trusted_until
