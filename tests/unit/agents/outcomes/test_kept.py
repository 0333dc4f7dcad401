"""Outcomes kept in the store when the lease is in doubt: whose list may go, and that they count once."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.model.errors import CodeError, Refused
from jobmaster.model.job import Entry, FinalRow, JobState
from jobmaster.ports import Written
from jobmaster_agents.outcomes.kept_codec import decode_kept
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import go, job, ran

pytestmark = pytest.mark.usefixtures("no_delays")


def in_store(harness: WorkerHarness, bucket: OwnedBucket) -> list[bytes]:
    return harness.store.buckets[bucket.fence.bucket_id].kept


async def cut_off(harness: WorkerHarness, entries: list[Entry]) -> tuple[OwnedBucket, Gate]:
    """The master does not answer while these jobs run, and the lease is half over."""
    bucket = harness.bucket()
    gate = Gate(DOWN)
    harness.master.script["copy_final"].append(gate)
    harness.master.script["retry_here"].append(gate)
    harness.submit(bucket, entries)
    await gate.reached.wait()
    await turns()
    harness.clock.now = harness.ownership.soft_until + 1.0
    return bucket, gate


async def test_an_outcome_that_waits_when_its_bucket_is_unfrozen_is_kept_under_its_own_identity(
    harness: WorkerHarness,
) -> None:
    """A copy without a row goes on under the new epoch; its outcome was made under the old one."""
    entries = [job(), job("fail")]
    bucket, gate = await cut_off(harness, entries)
    old = bucket.fence
    harness.store.buckets[old.bucket_id].fence = old._replace(epoch=2)
    harness.bucket_worker.unfreeze(bucket, 2)
    await harness.bucket_worker.kept_outcomes.keep()
    kept = {outcome.id: outcome for outcome in map(decode_kept, in_store(harness, bucket))}
    assert set(kept) == {entry.id for entry in entries}
    final = kept[entries[0].id]
    assert final.final is not None
    assert final.fence == old
    assert (final.final.bucket_id, final.final.bucket_epoch) == (old.bucket_id, old.epoch)
    harness.trust()
    gate.opened.set()
    await harness.settled()
    assert [row.id for row in harness.master.finals] == [entries[0].id]


async def test_finished_jobs_are_kept_and_their_list_goes_in_the_same_step(harness: WorkerHarness) -> None:
    entries = [job(), job("fail")]
    bucket, gate = await cut_off(harness, entries)
    await harness.bucket_worker.kept_outcomes.keep()
    assert {decode_kept(raw).id for raw in in_store(harness, bucket)} == {entry.id for entry in entries}
    assert not harness.lists(bucket)
    assert len(harness.store.of("keep_outcomes")) == 1
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(harness.store.of("keep_outcomes")) == 1, "kept once"
    gate.opened.set()


async def test_the_list_of_a_job_that_still_runs_stays(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job(), job("wait")])
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(in_store(harness, bucket)) == 1
    assert harness.lists(bucket), "one of its jobs is nowhere else"
    go.set()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(in_store(harness, bucket)) == 2
    assert not harness.lists(bucket)
    gate.opened.set()


async def test_a_second_copy_keeps_its_list(harness: WorkerHarness) -> None:
    entry = job()
    bucket, gate = await cut_off(harness, [entry, entry])
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(in_store(harness, bucket)) == 1
    assert harness.lists(bucket)
    gate.opened.set()


async def test_a_failed_call_to_keep_deletes_nothing_and_is_tried_again(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job()])
    harness.store.script["keep_outcomes"] += [DOWN, Refused("NOPERM"), LOST]
    for _ in range(2):
        await harness.bucket_worker.kept_outcomes.keep()
        assert harness.lists(bucket)
    await harness.bucket_worker.kept_outcomes.keep()
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(in_store(harness, bucket)) == 2, (
        "there twice after a lost answer; the second is recognised by its identity"
    )
    assert not harness.lists(bucket)
    gate.opened.set()


async def test_nothing_is_kept_while_the_lease_is_in_good_order(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    gate = Gate(DOWN)
    harness.master.script["copy_final"].append(gate)
    harness.submit(bucket, [job()])
    await gate.reached.wait()
    await turns()
    assert not harness.store.of("keep_outcomes")
    gate.opened.set()
    await harness.settled()


async def test_nothing_is_kept_after_the_hard_deadline_or_of_a_lost_bucket(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job()])
    harness.expire()
    await harness.bucket_worker.kept_outcomes.keep()
    assert not harness.store.of("keep_outcomes")
    harness.trust()
    harness.rescue(bucket)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    await harness.bucket_worker.kept_outcomes.keep()
    assert not harness.store.of("keep_outcomes")
    gate.opened.set()


async def test_a_fenced_call_to_keep_shows_the_loss_of_the_bucket(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job()])
    harness.rescue(bucket)
    await harness.bucket_worker.kept_outcomes.keep()
    assert bucket.lost
    assert harness.lists(bucket)
    gate.opened.set()


async def test_if_the_master_comes_back_in_time_every_outcome_counts_once(harness: WorkerHarness) -> None:
    entries = [job(), job()]
    bucket, gate = await cut_off(harness, entries)
    await harness.bucket_worker.kept_outcomes.keep()
    harness.trust()
    gate.opened.set()
    await harness.settled()
    assert len(harness.master.finals) == 2
    left = await harness.bucket_worker.complete([bucket.fence.bucket_id], 10.0, "on request of the test")
    assert left == []
    assert not in_store(harness, bucket)
    assert len(harness.master.finals) == 2


async def test_kept_outcomes_are_written_before_the_bucket_is_retired(harness: WorkerHarness) -> None:
    """The process that kept it is gone, or its own write never came through."""
    entries = [job(), job("fail")]
    bucket, gate = await cut_off(harness, entries)
    await harness.bucket_worker.kept_outcomes.keep()
    kept = list(in_store(harness, bucket))
    gate.opened.set()
    harness.trust()
    await harness.settled()
    await until(lambda: not in_store(harness, bucket), "the owner to apply it, too")
    harness.master.rows.clear()
    harness.master.finals.clear()
    harness.store.buckets[bucket.fence.bucket_id].assigned.clear()
    in_store(harness, bucket).extend(kept)
    told: list[FinalRow] = []
    harness.bucket_worker.outcome_writer.on_ended = told.extend
    hold = Gate(LOST)
    harness.master.script["hold"].append(hold)
    leaving = asyncio.ensure_future(
        harness.bucket_worker.complete([bucket.fence.bucket_id], 10.0, "on request of the test")
    )
    await hold.reached.wait()
    await turns()
    assert in_store(harness, bucket) == kept, "removed only after the commit is known"
    hold.opened.set()
    assert await leaving == []
    assert harness.master.rows[entries[0].id].state == JobState.SUCCEEDED
    assert harness.master.rows[entries[1].id].state == "HELD"
    assert [row.id for row in told] == [entries[0].id], "batches count it"


async def test_a_kept_outcome_of_a_superseded_job_is_refused_by_its_row(harness: WorkerHarness) -> None:
    entry = job()
    bucket, gate = await cut_off(harness, [entry])
    await harness.bucket_worker.kept_outcomes.keep()
    harness.master.rows[entry.id] = Row("ASSIGNED", 3, b"x" * 16, 1)
    assert not await harness.bucket_worker.kept_replay.apply(bucket, in_store(harness, bucket)), "none goes back"
    assert harness.master.rows[entry.id].token == 3
    assert not harness.master.finals
    gate.opened.set()


async def test_an_answer_that_leaves_out_an_outcome_removes_nothing(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job()])
    await harness.bucket_worker.kept_outcomes.keep()
    harness.master.script["record_final"].append(Written(True, frozenset()))
    harness.master.script["copy_final"].append(False)
    with pytest.raises(CodeError):
        await harness.bucket_worker.kept_replay.apply(bucket, in_store(harness, bucket))
    assert in_store(harness, bucket)
    gate.opened.set()


async def test_an_unreadable_or_refused_outcome_stays_and_delays_no_other(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job(), job()])
    await harness.bucket_worker.kept_outcomes.keep()
    bad, good = in_store(harness, bucket)
    harness.master.script["copy_final"] += [False, False, False]
    harness.master.script["record_final"] += [Refused("a value"), Refused("a value")]
    back = await harness.bucket_worker.kept_replay.apply(bucket, [b"no outcome", bad, good])
    assert back == [b"no outcome", bad]
    assert [row.id for row in harness.master.finals] == [decode_kept(good).id]
    gate.opened.set()


async def test_an_outcome_that_the_master_refuses_is_not_kept(harness: WorkerHarness) -> None:
    bucket, gate = await cut_off(harness, [job()])
    for live in harness.bucket_worker.job_table:
        live.unwritable = True
    await harness.bucket_worker.kept_outcomes.keep()
    assert not harness.store.of("keep_outcomes")
    assert harness.lists(bucket)
    gate.opened.set()


async def test_outcomes_kept_in_doubt_alone_are_written_with_the_next_renewal(harness: WorkerHarness) -> None:
    """Never suspended: renewals were withheld, or the operator forbids it. Else it would lie there for ever."""
    bucket = harness.bucket()
    gate = Gate(DOWN)
    harness.master.script["copy_final"].append(gate)
    harness.submit(bucket, [job()])
    await gate.reached.wait()
    await turns()
    harness.clock.now = harness.ownership.soft_until + 1.0
    await harness.bucket_worker.kept_outcomes.keep()
    assert len(in_store(harness, bucket)) == bucket.kept == 1
    harness.trust()
    gate.opened.set()
    await until(lambda: not in_store(harness, bucket) and not bucket.kept, "the store to be empty")
    await harness.settled()
    assert len(harness.master.finals) == 1


async def test_outcomes_kept_in_a_second_outage_are_written_too(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    first, second = job(), job()
    harness.submit(bucket, [first])
    await until(lambda: len(in_store(harness, bucket)) == 1 and not len(harness.bucket_worker.job_table))
    gate = Gate(DOWN)
    harness.master.script["copy_final"].append(gate)
    harness.trust()
    await gate.reached.wait()
    harness.suspend()
    harness.submit(bucket, [second])
    await until(lambda: len(in_store(harness, bucket)) == 2 and not len(harness.bucket_worker.job_table))
    gate.opened.set()
    harness.trust()
    await until(lambda: not in_store(harness, bucket), "the store to be empty")
    assert sorted(row.id for row in harness.master.finals) == sorted([first.id, second.id])
    await until(lambda: bucket.kept == 0, "the count")


async def test_a_second_copy_of_a_job_whose_start_was_written_does_not_start_while_its_outcome_is_kept(
    harness: WorkerHarness,
) -> None:
    """The row is PROCESSING under the same identity: the master would take the second start for the first one, repeated."""
    bucket = harness.bucket()
    entry = job("wait", rescues=1)
    harness.submit(bucket, [entry])
    await until(lambda: ran == ["wait"], "the start")
    harness.suspend()
    go.set()
    await until(lambda: len(in_store(harness, bucket)) == 1, "its outcome to be kept")
    await harness.bucket_worker.kept_outcomes.keep()
    harness.submit(bucket, [entry])
    await until(lambda: not harness.store.buckets[bucket.fence.bucket_id].pending, "the claim of the second copy")
    gates = [Gate(), Gate()]
    harness.master.script["copy_final"].append(gates[0])
    harness.master.script["record_final"].append(gates[1])
    harness.trust()
    await until(lambda: any(gate.reached.is_set() for gate in gates), "a write of the outcome")
    await turns()
    assert ran == ["wait"], "the outcome of the first copy is not written yet"
    for gate in gates:
        gate.opened.set()
    await harness.settled()
    await until(lambda: not in_store(harness, bucket), "the store to be empty")
    assert ran == ["wait"]


async def test_a_leaving_agent_claims_nothing_while_the_master_is_away(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    bucket.closed = True
    harness.suspend()
    harness.submit(bucket, [job()])
    await turns()
    assert not ran
