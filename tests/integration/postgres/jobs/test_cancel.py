"""A cancel is never forgotten: the next statement that would hold or assign the job makes it CANCELLED instead."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import BucketId
from jobmaster.model.job import JobState
from tests.integration.postgres.fixture import (
    ERROR,
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
)


async def _flagged(db: MasterFixture, *, processing: bool = False) -> tuple[bytes, int]:
    """A job in flight with a cancel request, and its token."""
    (job_id,) = await (db.processing() if processing else db.assigned())
    state = await db.master.requests.cancel(job_id, tombstone=None, actor="test")
    assert state is (JobState.PROCESSING if processing else JobState.ASSIGNED), "in flight it is only asked for"
    return job_id, 1 if processing else 2


async def test_a_job_that_waits_is_cancelled_at_once(db: MasterFixture) -> None:
    job_id = new_id()
    await db.master.intake.insert_held([new_job(job_id)])
    assert await db.master.requests.cancel(job_id, tombstone=None, actor="ann") is JobState.CANCELLED
    assert await db.state(job_id) == "CANCELLED"
    assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).entries == []
    assert await db.sql.fetchval("SELECT actor FROM operator_log WHERE action = 'job cancel'") == "ann"


async def test_the_heartbeat_brings_the_request_to_the_owner(db: MasterFixture) -> None:
    job_id, _ = await _flagged(db)
    await db.assigned()
    assert (await db.master.members.renew(db.owner, 10.0)).cancel_requested == [job_id]


async def test_a_job_that_waits_in_its_bucket_ends_at_once(db: MasterFixture) -> None:
    job_id, token = await _flagged(db)
    (unasked,) = await db.assigned()
    running, _ = await _flagged(db, processing=True)
    asked = [job_id, unasked, running, new_id()]
    for ended in (True, False):  # a repeat, as after an answer that was lost, says the same
        (row,) = await db.master.outcomes.cancel_waiting([db.fence], asked)
        assert (row.id, row.bucket_id, row.ended) == (job_id, db.fence.bucket_id, ended)
        view = await db.view(job_id)
        assert (view.state, view.token, view.bucket_id) == ("CANCELLED", token, db.fence.bucket_id)
        assert row.due_us == (view.due_us or 0), "where its copy lies in the bucket"
    assert [await db.state(each) for each in (unasked, running)] == ["ASSIGNED", "PROCESSING"]
    assert await db.lines(job_id) == []
    assert (await db.master.members.renew(db.owner, 10.0)).cancel_requested == [running]
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, token)])).refused == {job_id}


async def test_a_job_in_a_bucket_of_another_owner_or_epoch_is_left_to_it(db: MasterFixture) -> None:
    job_id, _ = await _flagged(db)
    others = [db.fence._replace(epoch=db.fence.epoch + 1), db.fence._replace(bucket_id=BucketId(new_id()))]
    assert await db.master.outcomes.cancel_waiting(others, [job_id]) == []
    assert await db.state(job_id) == "ASSIGNED"


async def test_requests_for_jobs_that_wait_do_not_keep_back_those_for_jobs_that_run(db: MasterFixture) -> None:
    """A renewal brings a thousand of them at most."""
    for _ in range(13):
        await db.assigned(100)
    await db.sql.execute("UPDATE job SET cancel_requested = true")
    running = [(await _flagged(db, processing=True))[0] for _ in range(2)]
    asked = (await db.master.members.renew(db.owner, 10.0)).cancel_requested
    assert len(asked) == 1000
    assert asked[:2] == sorted(running)


async def test_a_final_job_is_left_alone(db: MasterFixture) -> None:
    (job_id,) = await db.assigned()
    await db.master.outcomes.record_final([final_row(job_id, db.fence, 2)])
    before = await db.jobs()
    assert await db.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.SUCCEEDED
    assert await db.jobs() == before


async def test_a_job_the_master_has_not_seen_is_refused_later(db: MasterFixture) -> None:
    job_id = new_id()
    assert await db.master.requests.cancel(job_id, tombstone=None, actor="test") is None
    assert await db.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.CANCELLED
    assert await db.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.CANCELLED
    before = (await db.view(job_id)).changed_us
    assert not await db.master.outcomes.copy_final([final_row(job_id, db.fence)])
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence)])).refused == {job_id}
    assert (await db.master.outcomes.persist(db.fence, [in_flight_row(job_id)])).refused == {job_id}
    assert (await db.master.outcomes.hold(db.fence, [hold_row(job_id)])).refused == {job_id}
    assert (await db.master.outcomes.retry_here(db.fence, [hold_row(job_id)])).refused == {job_id}
    assert (await db.master.intake.insert_held([new_job(job_id)])).refused == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.changed_us) == ("CANCELLED", before)


@pytest.mark.parametrize("with_tombstone", [False, True])
async def test_a_row_that_appears_while_it_is_asked_for_gets_the_request(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch, with_tombstone: bool
) -> None:
    """A flush inserts the row and another bucket takes it, between the update that finds no row and the look for it."""
    job = new_job(new_id())
    update = db.master._data.write
    missed: list[Any] = []

    async def late(name: str, *arguments: Any, **options: Any) -> Any:
        rows = await update(name, *arguments, **options)
        if name == "requests/cancel" and not missed:
            missed.append(rows)
            await db.master.intake.insert_held([job])
            assert [e.id for e in (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).entries] == [
                job.id
            ]
        return rows

    monkeypatch.setattr(db.master._data, "write", late)
    state = await db.master.requests.cancel(job.id, tombstone=job if with_tombstone else None, actor="test")
    assert missed == [[]]
    assert state is JobState.ASSIGNED
    assert (await db.master.members.renew(db.owner, 10.0)).cancel_requested == [job.id]


@pytest.mark.parametrize("processing", [False, True])
async def test_an_in_flight_write_returns_the_cancel_and_does_not_start_the_job(
    db: MasterFixture, processing: bool
) -> None:
    job_id, token = await _flagged(db, processing=processing)
    before = await db.view(job_id)
    written = await db.master.outcomes.persist(db.fence, [in_flight_row(job_id, token)])
    assert written.cancelled == {job_id}
    assert not written.accepted
    assert not written.refused
    assert await db.view(job_id) == before


async def test_an_outcome_that_happened_stays_the_outcome(db: MasterFixture) -> None:
    job_id, token = await _flagged(db)
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, token)])).accepted == {job_id}
    assert await db.state(job_id) == "SUCCEEDED"


async def test_hold_makes_it_cancelled(db: MasterFixture) -> None:
    job_id, token = await _flagged(db)
    for _ in range(2):  # a repeat gives the same answer
        written = await db.master.outcomes.hold(db.fence, [hold_row(job_id, token, error=ERROR)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id) == ("CANCELLED", token, db.fence.bucket_id)
    assert view.error is not None
    assert await db.lines(job_id) == [], "the concluding line is the row: one identity has one line"


async def test_retry_here_makes_it_cancelled(db: MasterFixture) -> None:
    job_id, token = await _flagged(db)
    for _ in range(2):
        written = await db.master.outcomes.retry_here(db.fence, [hold_row(job_id, token, error=ERROR)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token) == ("CANCELLED", token)
    assert await db.lines(job_id) == []


async def test_release_makes_it_cancelled(db: MasterFixture) -> None:
    job_id, token = await _flagged(db)
    for _ in range(2):
        written = await db.master.onboarding.release(db.fence, [(job_id, token)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    assert await db.state(job_id) == "CANCELLED"


@pytest.mark.parametrize("by_sweep", [False, True])
async def test_a_rescue_makes_it_cancelled(db: MasterFixture, rescuer: bytes, by_sweep: bool) -> None:
    job_id, token = await _flagged(db, processing=True)
    await db.lost()
    taken = await db.take(rescuer)
    if by_sweep:
        assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (1, 1, 0)
    else:
        page = [entry(job_id, token)]
        written = await db.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=True, max_rescues=3)
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token) == ("CANCELLED", token)
    assert await db.lines(job_id) == []


async def test_an_orphan_becomes_cancelled(db: MasterFixture) -> None:
    job_id, _ = await _flagged(db)
    await db.sql.execute("DELETE FROM bucket")
    assert (await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 1
    assert await db.state(job_id) == "CANCELLED"
