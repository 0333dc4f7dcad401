"""One live copy per id in an agent, and whose list waits for whom (written interleavings)."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.model.job import Entry, JobState
from tests.support.bucket_worker_fixture import Gate, Row, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import go, job, ran

pytestmark = pytest.mark.usefixtures("no_delays")


def state_of(harness: WorkerHarness, entry: Entry) -> str:
    row = harness.master.rows.get(entry.id)
    return row.state if row is not None else "none"


async def test_the_list_of_a_second_copy_goes_only_after_the_first_has_settled(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    entry = job("wait")
    harness.submit(one, [entry])
    await until(lambda: ran)
    harness.submit(two, [entry])
    await until(lambda: harness.lists(two))
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    await until(lambda: not harness.lists(one))
    assert harness.lists(two), "the row in flight protects the first copy, not the second one's list"
    go.set()
    await harness.settled()
    assert not harness.lists(two)
    assert len(ran) == 1


async def test_a_copy_that_was_onboarded_while_the_answer_was_on_its_way_has_its_turn(
    harness: WorkerHarness,
) -> None:
    """Given back, onboarded again to the same agent, claimed: all before the answer to the first write came."""
    one, two = harness.bucket(), harness.bucket()
    entry = Entry(new_id(), 1, "nobody", b"{}")
    held = Gate(late=True)
    harness.master.script["hold"].append(held)
    harness.submit(one, [entry])
    await held.reached.wait()
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, two.fence.bucket_id, 1)
    harness.store.buckets[two.fence.bucket_id].assigned.append((0, Entry(entry.id, 2, "note", b"{}")))
    harness.bucket_worker.claimers[two.fence.bucket_id].wake()
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    held.opened.set()
    await until(lambda: ran)
    await harness.settled()
    assert state_of(harness, entry) == JobState.SUCCEEDED


async def test_a_copy_of_the_same_refused_identity_does_not_run(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("wait")
    harness.submit(bucket, [entry, entry])
    await until(lambda: ran)
    harness.master.rows[entry.id] = Row("CANCELLED", 1, b"x" * 16, 1)
    go.set()
    await harness.settled()
    assert len(ran) == 1
    assert not harness.lists(bucket)


async def test_a_job_claimed_after_its_bucket_was_lost_is_not_adopted(harness: WorkerHarness) -> None:
    """Else its id would stay live for ever, and a good copy elsewhere would wait behind it for ever."""
    one, two = harness.bucket(), harness.bucket()
    entry = job()
    await until(lambda: len(harness.store.of("claim")) >= 2)
    claim = Gate()
    harness.store.script["claim"].append(claim)
    harness.submit(one, [entry])
    await claim.reached.wait()
    claimed_for = harness.store.of("claim")[-1][0].bucket_id
    assert claimed_for == one.fence.bucket_id
    harness.bucket_worker.forget(one.fence.bucket_id, "on request of the test")
    claim.opened.set()
    await turns()
    assert len(harness.bucket_worker.job_table) == 0
    assert harness.lists(one)
    harness.submit(two, [entry])
    await until(lambda: ran)
    await harness.settled()


async def test_a_second_copy_with_another_payload_is_counted_and_does_not_run(harness: WorkerHarness) -> None:
    """One id sent with two payloads to two buckets, which no store can see."""
    one, two = harness.bucket(), harness.bucket()
    entry = job("wait")
    harness.submit(one, [entry])
    await until(lambda: ran)
    harness.submit(two, [Entry(entry.id, 1, "note", b'{"x":1}')])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    await turns()
    assert harness.bucket_worker._telemetry.value("jobs_conflicting") == 1
    assert not harness.bucket_worker.job_table.conflicts
    go.set()
    await harness.settled()
    assert ran == ["wait"]
    assert state_of(harness, entry) == "SUCCEEDED"
