"""Store terms of an agent whose master does not answer: when they are requested, for how long, and what ends them."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.model.errors import OutcomeUnknown, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.ports import Renewal, ReplyStatus
from jobmaster.rules.lease import LeaseStatus
from jobmaster.settings.model import Leases, MasterDown
from tests.unit.agents.lease.store_lease_fixture import AWAY, DEAD, FINE, Bench


async def test_with_a_master_that_answers_no_store_term_is_requested() -> None:
    bench = Bench()
    await bench.live(60.0)
    assert not bench.store.terms
    assert bench.lease_status is LeaseStatus.TRUSTED


async def test_without_a_master_work_goes_on_while_there_are_store_terms() -> None:
    bench = Bench()
    bench.master.says = AWAY
    for _ in range(600):
        await bench.live(1.0)
        assert bench.may_start(), bench.clock.now
        assert not bench.ownership.fenced.is_set()
    assert bench.lease_status is LeaseStatus.SUSPENDED
    assert not bench.ownership.may_commit(bench.clock.now), "nothing is committed on the store's word"
    assert not bench.ownership.may_start(bench.clock.now), "what needs an accepted write does not start"
    assert bench.telemetry.suspensions == 1
    assert bench.telemetry.value("suspended") == 1


async def test_the_first_store_term_is_requested_when_half_of_the_lease_is_over() -> None:
    bench = Bench()
    began = bench.clock.now
    bench.master.says = AWAY
    await bench.live(4.5)
    assert not bench.store.terms
    await bench.live(1.5)
    assert bench.store.terms
    assert bench.clock.now < began + 10.0


async def test_the_supervisor_and_the_kernel_timer_get_the_end_of_every_term() -> None:
    """A process that is stopped during a store term must still be killed: at the end of the last term, from its sending."""
    bench = Bench()
    await bench.suspended()
    assert bench.trusts[-1] == bench.ownership.kill_at
    assert bench.clock.now < bench.trusts[-1] <= bench.clock.now + 10.0
    assert bench.trusts == sorted(bench.trusts)


async def test_a_store_term_counts_from_the_sending_of_its_request() -> None:
    bench = Bench()
    await bench.suspended()
    bench.store.takes = 1.0
    sent = bench.clock.now
    await bench.store_lease.tick()
    first = bench.buckets[0].store_term
    assert first is not None
    assert first.trusted_until == sent + 10.0


async def test_a_process_that_was_stopped_past_its_deadline_takes_no_store_term() -> None:
    """SIGSTOP, or a machine that slept: the deadline has passed, and no later answer moves it."""
    bench = Bench()
    await bench.suspended()
    bench.clock.now += 9.5
    assert not bench.may_start()
    asked = len(bench.store.terms)
    await bench.store_lease.tick()
    assert len(bench.store.terms) == asked
    assert bench.ownership.fenced.is_set()


async def test_an_answer_that_comes_after_the_deadline_moves_nothing() -> None:
    bench = Bench()
    await bench.suspended()
    bench.store.takes = 9.5
    before = bench.ownership.fence_at
    await bench.store_lease.tick()
    assert bench.ownership.fence_at == before
    assert not bench.may_start()


async def test_past_half_of_a_store_term_nothing_starts() -> None:
    bench = Bench()
    await bench.suspended()
    bench.clock.now += 5.5
    assert not bench.may_start()
    assert bench.lease_status is LeaseStatus.SUSPENDED
    assert not bench.ownership.fenced.is_set()


async def test_with_store_and_master_away_the_process_fences_itself_before_the_term_ends() -> None:
    bench = Bench()
    await bench.suspended()
    bench.store.away = True
    ends = bench.ownership.kill_at
    await bench.live(5.5)
    assert not bench.may_start()
    await bench.live(3.9)
    assert bench.ownership.fenced.is_set()
    assert bench.clock.now < ends


async def test_with_store_and_master_away_from_the_start_the_process_fences_itself() -> None:
    bench = Bench()
    began = bench.clock.now
    bench.master.says, bench.store.away = AWAY, True
    await bench.live(9.25)
    assert bench.ownership.fenced.is_set()
    assert not bench.ownership.suspended
    assert bench.clock.now < began + 10.0


@pytest.mark.parametrize(
    "status", [ReplyStatus.FENCED, ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.NO_BUCKET]
)
async def test_a_bucket_that_was_fenced_is_forgotten_at_once_and_alone(status: ReplyStatus) -> None:
    bench = Bench()
    await bench.suspended()
    mine, other = bench.buckets
    bench.store.words[other.fence.bucket_id] = status
    await bench.live(1.0)
    assert other.lost
    assert not bench.may_start(other)
    assert bench.may_start(mine)
    assert len(bench.lost) == 1


async def test_a_frozen_bucket_starts_nothing_and_is_not_given_up() -> None:
    bench = Bench()
    await bench.suspended()
    mine, frozen = bench.buckets
    bench.store.words[frozen.fence.bucket_id] = ReplyStatus.CLOSED
    await bench.live(20.0)
    assert not frozen.lost
    assert not bench.may_start(frozen)
    assert bench.may_start(mine)


async def test_a_bucket_whose_store_term_is_not_renewed_is_given_up() -> None:
    bench = Bench()
    await bench.suspended()
    mine, silent = bench.buckets
    grant_term = bench.store.grant_term

    async def half(fence: Fence, term_seconds: float) -> ReplyStatus:
        if fence == silent.fence:
            raise OutcomeUnknown("lost")
        return await grant_term(fence, term_seconds)

    bench.store.grant_term = half  # type: ignore[method-assign]
    await bench.live(5.5)
    assert not bench.may_start(silent)
    assert not silent.lost
    await bench.live(4.0)
    assert silent.lost
    assert bench.may_start(mine)


async def test_a_renewal_that_is_accepted_ends_it() -> None:
    bench = Bench()
    resumed: list[float] = []
    bench.ownership.on_resumed.append(lambda: resumed.append(bench.clock.now))
    await bench.suspended()
    await bench.live(120.0)
    bench.master.says = FINE
    await bench.live(3.0)
    assert bench.lease_status is LeaseStatus.TRUSTED
    assert bench.ownership.may_commit(bench.clock.now)
    assert len(resumed) == 1
    assert not bench.ownership.suspended
    assert bench.buckets[0].store_term is None
    assert bench.store.terms[-2:] == [0.0, 0.0], "a rescuer need not wait for a word nobody relies on"
    asked = len(bench.store.terms)
    await bench.live(30.0)
    assert len(bench.store.terms) == asked
    assert bench.trusts[-1] == bench.ownership.trusted_until


async def test_a_certificate_ends_the_process() -> None:
    bench = Bench()
    await bench.suspended()
    bench.master.says = DEAD
    await bench.live(2.0)
    assert bench.ownership.fenced.is_set()
    assert "certificate" in bench.ownership.fenced_why
    assert not bench.may_start()


async def test_a_renewal_that_is_answered_too_late_is_sent_again() -> None:
    bench = Bench()
    await bench.suspended()
    bench.master.says, bench.master.takes = FINE, 9.2
    await bench.heartbeat.tick()
    while not bench.telemetry.renewals["late"]:
        bench.clock.now += 0.05
        await bench.heartbeat.tick()
    assert not bench.ownership.fenced.is_set()
    assert bench.ownership.suspended


async def test_a_refusal_is_an_answer_and_does_not_suspend() -> None:
    bench = Bench()
    bench.master.says = Refused("no rights any more")
    await bench.live(9.25)
    assert not bench.store.terms
    assert bench.ownership.fenced.is_set()


async def test_a_refusal_during_a_store_term_lets_the_term_run_out() -> None:
    bench = Bench()
    await bench.suspended()
    bench.master.says = Refused("no rights any more")
    await bench.live(4.5)
    asked = len(bench.store.terms)
    await bench.live(6.0)
    assert len(bench.store.terms) <= asked
    assert bench.ownership.fenced.is_set()


async def test_a_process_that_makes_no_progress_has_no_store_lease() -> None:
    bench = Bench(silence_seconds=0.5)
    await bench.suspended()
    with bench.progress.expect("a claimer"):
        await bench.live(10.5)
    assert bench.ownership.fenced.is_set()


async def test_a_process_whose_beats_fail_has_no_store_lease() -> None:
    bench = Bench()
    bench.master.says = AWAY

    async def deaf(agent_id: bytes, ttl_seconds: float) -> None:
        raise Unavailable("no beat")

    bench.store.beat = deaf  # type: ignore[method-assign]
    await bench.live(9.25)
    assert not bench.store.terms
    assert bench.ownership.fenced.is_set()


async def test_the_operator_may_forbid_it() -> None:
    bench = Bench(leases=Leases(master_down=MasterDown.FENCE))
    bench.master.says = AWAY
    await bench.live(9.25)
    assert not bench.store.terms
    assert bench.ownership.fenced.is_set()


async def test_an_agent_without_buckets_waits_for_as_long_as_its_store_answers_beats() -> None:
    """Leaders, rescuers, and agents that are still opening their buckets: they have nothing to start."""
    bench = Bench(buckets=0)
    bench.master.says = AWAY
    await bench.live(300.0)
    assert not bench.ownership.fenced.is_set()
    bench.store.away = True
    await bench.live(10.0)
    assert bench.ownership.fenced.is_set()


async def test_a_renewal_that_hangs_counts_as_unanswered() -> None:
    """A frozen server neither refuses nor closes anything: half of the lease must not pass before that is noticed."""
    bench = Bench()
    await bench.live(2.75)
    hung = asyncio.Event()

    async def hang(agent_id: bytes, lease_seconds: float) -> Renewal:
        await hung.wait()
        return FINE

    bench.master.renew = hang  # type: ignore[method-assign]
    await asyncio.sleep(0)
    bench.clock.now += 0.5
    asking = asyncio.ensure_future(bench.heartbeat.tick())
    await asyncio.sleep(0)
    assert not bench.heartbeat.unanswered(bench.clock.now)
    bench.clock.now += 2.0
    await bench.beat.tick()
    await bench.store_lease.tick()
    assert bench.ownership.suspended
    hung.set()
    await asking
    assert not bench.ownership.suspended


async def test_between_two_renewals_too_failed_beats_prevent_a_store_term() -> None:
    bench = Bench()
    await bench.suspended()

    async def deaf(agent_id: bytes, ttl_seconds: float) -> None:
        raise Unavailable("no beat")

    bench.store.beat = deaf  # type: ignore[method-assign]
    await bench.beat.tick()
    asked = len(bench.store.terms)
    assert bench.heartbeat.unanswered(bench.clock.now)
    await bench.store_lease.tick()
    assert len(bench.store.terms) == asked


async def test_a_store_term_granted_after_the_renewal_does_not_suspend_again() -> None:
    bench = Bench()
    await bench.suspended()
    grant_term, asked, answered = bench.store.grant_term, asyncio.Event(), asyncio.Event()

    async def late(fence: Fence, term_seconds: float) -> ReplyStatus:
        asked.set()
        await answered.wait()
        return await grant_term(fence, term_seconds)

    bench.store.grant_term = late  # type: ignore[method-assign]
    asking = asyncio.ensure_future(bench.store_lease.tick())
    await asked.wait()
    bench.master.says = FINE
    bench.clock.now += 1.5
    await bench.heartbeat.tick()
    assert not bench.ownership.suspended
    answered.set()
    await asking
    assert not bench.ownership.suspended
    assert bench.lease_status is LeaseStatus.TRUSTED
    assert bench.trusts[-1] == bench.ownership.trusted_until
