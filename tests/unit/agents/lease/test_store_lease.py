"""Store terms of an agent whose master does not answer: when they are requested, for how long, and what ends them."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.model.errors import OutcomeUnknown, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.ports import Renewal, ReplyStatus
from jobmaster.rules.lease import LeaseStatus
from jobmaster.settings.model import Leases, MasterDown
from tests.unit.agents.lease.store_lease_fixture import AWAY, DEAD, FINE, StoreLeaseHarness


async def test_with_a_master_that_answers_no_store_term_is_requested() -> None:
    harness = StoreLeaseHarness()
    await harness.live(60.0)
    assert not harness.store.terms
    assert harness.lease_status is LeaseStatus.TRUSTED


async def test_without_a_master_work_goes_on_while_there_are_store_terms() -> None:
    harness = StoreLeaseHarness()
    harness.master.answer = AWAY
    for _ in range(600):
        await harness.live(1.0)
        assert harness.may_start(), harness.clock.now
        assert not harness.ownership.fenced.is_set()
    assert harness.lease_status is LeaseStatus.SUSPENDED
    assert not harness.ownership.may_commit(harness.clock.now), "nothing is committed on the store's word"
    assert not harness.ownership.may_start(harness.clock.now), "what needs an accepted write does not start"
    assert harness.telemetry.suspensions == 1
    assert harness.telemetry.value("suspended") == 1


async def test_the_first_store_term_is_requested_when_half_of_the_lease_is_over() -> None:
    harness = StoreLeaseHarness()
    began = harness.clock.now
    harness.master.answer = AWAY
    await harness.live(4.5)
    assert not harness.store.terms
    await harness.live(1.5)
    assert harness.store.terms
    assert harness.clock.now < began + 10.0


async def test_the_supervisor_and_the_kernel_timer_get_the_end_of_every_term() -> None:
    """A process that is stopped during a store term must still be killed: at the end of the last term, from its sending."""
    harness = StoreLeaseHarness()
    await harness.suspended()
    assert harness.trusts[-1] == harness.ownership.kill_at
    assert harness.clock.now < harness.trusts[-1] <= harness.clock.now + 10.0
    assert harness.trusts == sorted(harness.trusts)


async def test_a_store_term_counts_from_the_sending_of_its_request() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.store.takes = 1.0
    sent = harness.clock.now
    await harness.store_lease.tick()
    first = harness.buckets[0].store_term
    assert first is not None
    assert first.trusted_until == sent + 10.0


async def test_a_process_that_was_stopped_past_its_deadline_takes_no_store_term() -> None:
    """SIGSTOP, or a machine that slept: the deadline has passed, and no later answer moves it."""
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.clock.now += 9.5
    assert not harness.may_start()
    requested = len(harness.store.terms)
    await harness.store_lease.tick()
    assert len(harness.store.terms) == requested
    assert harness.ownership.fenced.is_set()


async def test_an_answer_that_comes_after_the_deadline_moves_nothing() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.store.takes = 9.5
    before = harness.ownership.fence_at
    await harness.store_lease.tick()
    assert harness.ownership.fence_at == before
    assert not harness.may_start()


async def test_past_half_of_a_store_term_nothing_starts() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.clock.now += 5.5
    assert not harness.may_start()
    assert harness.lease_status is LeaseStatus.SUSPENDED
    assert not harness.ownership.fenced.is_set()


async def test_with_store_and_master_away_the_process_fences_itself_before_the_term_ends() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.store.away = True
    ends = harness.ownership.kill_at
    await harness.live(5.5)
    assert not harness.may_start()
    await harness.live(3.9)
    assert harness.ownership.fenced.is_set()
    assert harness.clock.now < ends


async def test_with_store_and_master_away_from_the_start_the_process_fences_itself() -> None:
    harness = StoreLeaseHarness()
    began = harness.clock.now
    harness.master.answer, harness.store.away = AWAY, True
    await harness.live(9.25)
    assert harness.ownership.fenced.is_set()
    assert not harness.ownership.suspended
    assert harness.clock.now < began + 10.0


@pytest.mark.parametrize(
    "status", [ReplyStatus.FENCED, ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.NO_BUCKET]
)
async def test_a_bucket_that_was_fenced_is_forgotten_at_once_and_alone(status: ReplyStatus) -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    mine, other = harness.buckets
    harness.store.words[other.fence.bucket_id] = status
    await harness.live(1.0)
    assert other.lost
    assert not harness.may_start(other)
    assert harness.may_start(mine)
    assert len(harness.lost) == 1


async def test_a_frozen_bucket_starts_nothing_and_is_not_given_up() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    mine, frozen = harness.buckets
    harness.store.words[frozen.fence.bucket_id] = ReplyStatus.CLOSED
    await harness.live(20.0)
    assert not frozen.lost
    assert not harness.may_start(frozen)
    assert harness.may_start(mine)


async def test_a_bucket_whose_store_term_is_not_renewed_is_given_up() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    mine, silent = harness.buckets
    grant_term = harness.store.grant_term

    async def half(fence: Fence, term_seconds: float) -> ReplyStatus:
        if fence == silent.fence:
            raise OutcomeUnknown("lost")
        return await grant_term(fence, term_seconds)

    harness.store.grant_term = half  # type: ignore[method-assign]
    await harness.live(5.5)
    assert not harness.may_start(silent)
    assert not silent.lost
    await harness.live(4.0)
    assert silent.lost
    assert harness.may_start(mine)


async def test_a_renewal_that_is_accepted_ends_it() -> None:
    harness = StoreLeaseHarness()
    resumed: list[float] = []
    harness.ownership.on_resumed.append(lambda: resumed.append(harness.clock.now))
    await harness.suspended()
    await harness.live(120.0)
    harness.master.answer = FINE
    await harness.live(3.0)
    assert harness.lease_status is LeaseStatus.TRUSTED
    assert harness.ownership.may_commit(harness.clock.now)
    assert len(resumed) == 1
    assert not harness.ownership.suspended
    assert harness.buckets[0].store_term is None
    assert harness.store.terms[-2:] == [0.0, 0.0], "a rescuer need not wait for a term that is not used"
    requested = len(harness.store.terms)
    await harness.live(30.0)
    assert len(harness.store.terms) == requested
    assert harness.trusts[-1] == harness.ownership.trusted_until


async def test_a_certificate_ends_the_process() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.master.answer = DEAD
    await harness.live(2.0)
    assert harness.ownership.fenced.is_set()
    assert "certificate" in harness.ownership.fenced_why
    assert not harness.may_start()


async def test_a_renewal_that_is_answered_too_late_is_sent_again() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.master.answer, harness.master.takes = FINE, 9.2
    await harness.heartbeat.tick()
    while not harness.telemetry.renewals["late"]:
        harness.clock.now += 0.05
        await harness.heartbeat.tick()
    assert not harness.ownership.fenced.is_set()
    assert harness.ownership.suspended


async def test_a_refusal_is_an_answer_and_does_not_suspend() -> None:
    harness = StoreLeaseHarness()
    harness.master.answer = Refused("no rights any more")
    await harness.live(9.25)
    assert not harness.store.terms
    assert harness.ownership.fenced.is_set()


async def test_a_refusal_during_a_store_term_lets_the_term_run_out() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    harness.master.answer = Refused("no rights any more")
    await harness.live(4.5)
    requested = len(harness.store.terms)
    await harness.live(6.0)
    assert len(harness.store.terms) <= requested
    assert harness.ownership.fenced.is_set()


async def test_a_process_that_makes_no_progress_has_no_store_lease() -> None:
    harness = StoreLeaseHarness(silence_seconds=0.5)
    await harness.suspended()
    with harness.progress.expect("a claimer"):
        await harness.live(10.5)
    assert harness.ownership.fenced.is_set()


async def test_a_process_whose_beats_fail_has_no_store_lease() -> None:
    harness = StoreLeaseHarness()
    harness.master.answer = AWAY

    async def deaf(agent_id: bytes, ttl_seconds: float) -> None:
        raise Unavailable("no beat")

    harness.store.beat = deaf  # type: ignore[method-assign]
    await harness.live(9.25)
    assert not harness.store.terms
    assert harness.ownership.fenced.is_set()


async def test_the_operator_may_forbid_it() -> None:
    harness = StoreLeaseHarness(leases=Leases(master_down=MasterDown.FENCE))
    harness.master.answer = AWAY
    await harness.live(9.25)
    assert not harness.store.terms
    assert harness.ownership.fenced.is_set()


async def test_an_agent_without_buckets_waits_for_as_long_as_its_store_answers_beats() -> None:
    """Leaders, rescuers, and agents that are still opening their buckets: they have nothing to start."""
    harness = StoreLeaseHarness(buckets=0)
    harness.master.answer = AWAY
    await harness.live(300.0)
    assert not harness.ownership.fenced.is_set()
    harness.store.away = True
    await harness.live(10.0)
    assert harness.ownership.fenced.is_set()


async def test_a_renewal_that_hangs_counts_as_unanswered() -> None:
    """A frozen server neither refuses nor closes anything: half of the lease must not pass before that is noticed."""
    harness = StoreLeaseHarness()
    await harness.live(2.75)
    hung = asyncio.Event()

    async def hang(agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        await hung.wait()
        return FINE

    harness.master.renew = hang  # type: ignore[method-assign]
    await asyncio.sleep(0)
    harness.clock.now += 0.5
    asking = asyncio.ensure_future(harness.heartbeat.tick())
    await asyncio.sleep(0)
    assert not harness.heartbeat.unanswered(harness.clock.now)
    harness.clock.now += 2.0
    await harness.beat.tick()
    await harness.store_lease.tick()
    assert harness.ownership.suspended
    hung.set()
    await asking
    assert not harness.ownership.suspended


async def test_between_two_renewals_too_failed_beats_prevent_a_store_term() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()

    async def deaf(agent_id: bytes, ttl_seconds: float) -> None:
        raise Unavailable("no beat")

    harness.store.beat = deaf  # type: ignore[method-assign]
    await harness.beat.tick()
    requested = len(harness.store.terms)
    assert harness.heartbeat.unanswered(harness.clock.now)
    await harness.store_lease.tick()
    assert len(harness.store.terms) == requested


async def test_a_store_term_granted_after_the_renewal_does_not_suspend_again() -> None:
    harness = StoreLeaseHarness()
    await harness.suspended()
    grant_term, requested, answered = harness.store.grant_term, asyncio.Event(), asyncio.Event()

    async def late(fence: Fence, term_seconds: float) -> ReplyStatus:
        requested.set()
        await answered.wait()
        return await grant_term(fence, term_seconds)

    harness.store.grant_term = late  # type: ignore[method-assign]
    asking = asyncio.ensure_future(harness.store_lease.tick())
    await requested.wait()
    harness.master.answer = FINE
    harness.clock.now += 1.5
    await harness.heartbeat.tick()
    assert not harness.ownership.suspended
    answered.set()
    await asking
    assert not harness.ownership.suspended
    assert harness.lease_status is LeaseStatus.TRUSTED
    assert harness.trusts[-1] == harness.ownership.trusted_until
