"""Changes of jobs that wait, against the writers that may come first: two sessions, step by step, under READ COMMITTED."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry
from jobmaster.model.job_change import NewValues
from tests.integration.postgres.fixture import (
    DUE,
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    in_flight_row,
    new_job,
    uuids,
)


async def test_a_change_that_waits_for_an_onboarding_leaves_the_assignment_alone(db: MasterFixture) -> None:
    """The claim comes first: the row is read again after the wait, and no change in the master is allowed."""
    job_id = new_id()
    await db.master.intake.insert_held([new_job(job_id)])
    bucket, owner = uuids([db.fence.bucket_id, db.fence.owner])
    args = (bucket, 1, owner, LANE, PRIORITY, 60.0, 12, 0, None, 10**6, None, None, None, None, False)
    async with db.open_transaction("onboarding/onboard", *args) as commit:
        change = db.master.changes.change_held(job_id, NewValues(DUE), "test")
        assert await db.after_lock("changes/change_held", change, commit) is None
    view = await db.view(job_id)
    assert (view.state, view.bucket_id, view.token) == ("ASSIGNED", db.fence.bucket_id, 2)
    assert view.due_us != DUE


async def test_an_onboarding_skips_a_job_that_is_being_changed_and_finds_it_later(db: MasterFixture) -> None:
    job_id = new_id()
    await db.master.intake.insert_held([new_job(job_id)])
    (uuid,) = uuids([job_id])
    async with db.open_transaction("changes/change_held", uuid, None, 5, None, "test", "job reprioritise") as commit:
        assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 12)).entries == []
        await commit()
    assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 12)).entries == []
    other = await db.bucket(priority=5)
    (taken,) = (await db.master.onboarding.onboard(other, LANE, 5, 60.0, 12)).entries
    assert taken.id == job_id


async def test_a_recalled_job_that_was_given_back_meanwhile_is_refused_to_the_client(db: MasterFixture) -> None:
    """Anti-entropy comes first, and the job is assigned anew: the identity of the recall is an old one."""
    (job_id,) = await db.assigned()
    identity = Identity(2, db.fence.bucket_id, 1)
    bucket, uuid = uuids([db.fence.bucket_id, job_id])
    async with db.open_transaction("onboarding/give_back", bucket, [uuid], [2], [1], uuid, uuid, b"{}") as commit:
        held = db.master.changes.hold_recalled(job_id, identity, NewValues(DUE), "test")
        assert await db.after_lock("changes/hold_recalled", held, commit) is None
    assert (await db.view(job_id)).token == 3
    await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 1)
    assert await db.master.changes.hold_recalled(job_id, identity, NewValues(DUE), "test") is None
    view = await db.view(job_id)
    assert (view.state, view.token) == ("ASSIGNED", 4)


async def test_an_outcome_that_waits_for_a_change_is_refused_by_the_row(db: MasterFixture) -> None:
    """A second copy of a recalled job ran all the same: the row names no bucket any more."""
    (job_id,) = await db.assigned()
    bucket, uuid = uuids([db.fence.bucket_id, job_id])
    args = (uuid, 2, bucket, 1, DUE, None, None, "test", "job reschedule")
    async with db.open_transaction("changes/hold_recalled", *args) as commit:
        task = db.master.outcomes.record_final([final_row(job_id, db.fence, 2)])
        written = await db.after_lock("outcomes/record_final", task, commit)
    assert written.refused == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.due_us) == ("HELD", DUE)


async def test_a_row_for_a_copy_waits_for_a_takeover_and_is_not_written(db: MasterFixture) -> None:
    job_id = new_id()
    holder = await db.connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("UPDATE bucket SET state = 'LOST' WHERE id = $1", uuids([db.fence.bucket_id])[0])
    made = db.master.changes.assign_copy(db.fence.bucket_id, 1, PRIORITY, LANE, entry(job_id))
    assert await db.after_lock("changes/assign_copy", made, transaction.commit) is False
    await holder.close()
    assert await db.master.queries.get(job_id) is None


async def test_a_row_for_a_copy_that_waits_for_its_outcome_leaves_that_row_unchanged(db: MasterFixture) -> None:
    job_id = new_id()
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, args)"
        " VALUES ($1, 'SUCCEEDED', 3, 'default', 'handler', 1, $2, 1, '{}')",
        *uuids([job_id, db.fence.bucket_id]),
    )
    made = db.master.changes.assign_copy(db.fence.bucket_id, 1, PRIORITY, LANE, entry(job_id))
    assert await db.after_lock("changes/assign_copy", made, transaction.commit) is False
    await other.close()
    assert await db.state(job_id) == "SUCCEEDED"


@pytest.mark.parametrize("wrong", ["token", "bucket", "epoch", "state"])
async def test_a_row_of_another_assignment_or_of_a_job_that_runs_is_not_held(db: MasterFixture, wrong: str) -> None:
    (job_id,) = await db.assigned()
    identity = {
        "token": Identity(3, db.fence.bucket_id, 1),
        "bucket": Identity(2, (await db.bucket()).bucket_id, 1),
        "epoch": Identity(2, db.fence.bucket_id, 2),
        "state": Identity(2, db.fence.bucket_id, 1),
    }[wrong]
    if wrong == "state":
        assert (await db.master.outcomes.persist(db.fence, [in_flight_row(job_id, 2)])).accepted == {job_id}
    before = await db.view(job_id)
    assert await db.master.changes.hold_recalled(job_id, identity, NewValues(DUE), "test") is None
    assert await db.view(job_id) == before


@pytest.mark.parametrize("wrong", ["epoch", "bucket", "frozen"])
async def test_a_row_for_a_copy_needs_its_bucket(db: MasterFixture, wrong: str) -> None:
    job_id, epoch = new_id(), 1
    bucket_id: bytes = db.fence.bucket_id
    if wrong == "frozen":
        await db.sql.execute("UPDATE bucket SET state = 'FROZEN' WHERE id = $1", uuids([bucket_id])[0])
    elif wrong == "epoch":
        epoch = 2
    else:
        bucket_id = new_id()
    assert not await db.master.changes.assign_copy(bucket_id, epoch, PRIORITY, LANE, entry(job_id))
    assert await db.master.queries.get(job_id) is None


async def test_a_row_for_a_copy_has_its_identity_and_values(db: MasterFixture) -> None:
    copy = Entry(new_id(), 4, "handler", b'{"a":1}', DUE, b'{"tags":["t"]}', 2, 1)
    assert await db.master.changes.assign_copy(db.fence.bucket_id, 1, PRIORITY, LANE, copy)
    assert not await db.master.changes.assign_copy(db.fence.bucket_id, 1, PRIORITY, LANE, copy), "asked again"
    view = await db.view(copy.id)
    assert (view.state, view.token, view.bucket_id, view.bucket_epoch) == ("ASSIGNED", 4, db.fence.bucket_id, 1)
    assert (view.due_us, view.attempt, view.rescues, view.arguments, view.tags) == (DUE, 2, 1, {"a": 1}, ("t",))
    written = await db.master.outcomes.record_final([final_row(copy.id, db.fence, 4)])
    assert written.accepted == {copy.id}, "an agent that claimed it all the same records its outcome"
