"""Jobs that are done when they are confirmed: waiting, confirmed, too late."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_error
from jobmaster.master.driver.job_errors import UNCONFIRMED
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import ErrorInfo, JobState
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, entry, final_row, uuids

LAST = encode_error(ErrorInfo(type="Unconfirmed", message="no", reason="unconfirmed"))


def identity(fence: Fence, token: int = 1) -> Identity:
    return Identity(token, fence.bucket_id, fence.epoch)


async def waiting(db: MasterFixture, within: float = 60.0, *, last: bool = False) -> bytes:
    """A job whose handler has returned."""
    (job_id,) = await db.processing()
    row = final_row(job_id, db.fence)._replace(attempt=1)
    for _ in range(2):
        assert await db.master.outcomes.await_confirmation(row, within, 7.0, LAST if last else None), "also asked again"
    return job_id


@pytest.mark.parametrize("ended", [False, True], ids=["while it runs", "after it has returned"])
async def test_it_is_confirmed_once_and_the_same_again_changes_nothing(db: MasterFixture, ended: bool) -> None:
    job_id = await waiting(db) if ended else (await db.processing())[0]
    assert await db.state(job_id) == ("WAITING" if ended else "PROCESSING")
    for result in (b'"done"', b'"again"'):
        answer = await db.master.requests.confirm(job_id, identity(db.fence), result, "test")
        assert answer == (True, JobState.SUCCEEDED)
    view = await db.view(job_id)
    assert (view.state, view.result_json, view.attempt, view.error) == ("SUCCEEDED", b'"done"', 1, None)
    # What the handler still writes about itself finds it done.
    assert await db.master.outcomes.await_confirmation(final_row(job_id, db.fence), 60.0, 0.0, None)
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, state="FAILED")])).refused == {job_id}
    concluding = await db.sql.fetch("SELECT 1 FROM ledger WHERE job_id = $1 AND concluding", *uuids([job_id]))
    assert len(concluding) == 1


async def test_only_the_very_run_that_waits_can_be_confirmed(db: MasterFixture) -> None:
    job_id = await waiting(db)
    other = await db.bucket()
    for wrong in (identity(db.fence, 2), identity(other), Identity(1, db.fence.bucket_id, 9)):
        assert await db.master.requests.confirm(job_id, wrong, None, "test") == (False, JobState.WAITING)
    assert await db.master.requests.confirm(new_id(), identity(db.fence), None, "test") == (False, None)


async def test_it_outlives_its_agent_and_its_bucket(db: MasterFixture, rescuer: bytes) -> None:
    job_id = await waiting(db)
    await db.lost()
    taken = await db.take(rescuer)
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (0, 0, 0)
    page = await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert page.refused == {job_id}, "a copy that was still in its list changes nothing"
    assert (await db.master.requests.confirm(job_id, identity(db.fence), b"1", "test"))[0]


async def test_a_run_that_was_rescued_cannot_be_confirmed(db: MasterFixture, rescuer: bytes) -> None:
    (job_id,) = await db.processing()
    await db.lost()
    await db.master.rescue.sweep(await db.take(rescuer), 10, max_rescues=3)
    assert await db.master.requests.confirm(job_id, identity(db.fence), None, "test") == (False, JobState.HELD)
    assert not await db.master.outcomes.await_confirmation(final_row(job_id, db.fence), 60.0, 0.0, None)


@pytest.mark.parametrize("last", [False, True])
async def test_too_late_is_another_attempt_or_the_end(db: MasterFixture, last: bool) -> None:
    job_id, patient = await waiting(db, 0.0, last=last), await waiting(db, 60.0)
    assert await db.master.maintenance.expire_unconfirmed(10) == 1
    assert await db.state(patient) == "WAITING"
    view = await db.view(job_id)
    if last:
        assert (view.state, view.token, view.bucket_id) == ("FAILED", 1, db.fence.bucket_id)
        assert view.error is not None
        assert view.error.reason == "unconfirmed"
        assert await db.lines(job_id) == []
    else:
        assert (view.state, view.token, view.bucket_id, view.attempt) == ("HELD", 2, None, 1)
        assert await db.lines(job_id) == [(1, "unconfirmed")]
        said = await db.sql.fetchval("SELECT error FROM attempt WHERE job_id = $1", *uuids([job_id]))
        assert said == UNCONFIRMED
    assert (await db.master.requests.confirm(job_id, identity(db.fence), None, "test"))[0] is False


async def test_a_confirmation_that_comes_first_is_seen_by_the_expiry_that_waits(db: MasterFixture) -> None:
    job_id = await waiting(db, 0.0)
    bucket = uuids([db.fence.bucket_id])[0]
    args = (uuids([job_id])[0], 1, bucket, db.fence.epoch, b"1", "test")
    async with db.open_transaction("requests/confirm", *args) as commit:
        assert await db.master.maintenance.expire_unconfirmed(10) == 0, "locked: another transaction is at work on it"
        await commit()
    assert await db.master.maintenance.expire_unconfirmed(10) == 0
    assert await db.state(job_id) == "SUCCEEDED"


async def test_a_confirmation_that_waits_for_the_expiry_comes_too_late(db: MasterFixture) -> None:
    job_id = await waiting(db, 0.0)
    async with db.open_transaction("maintenance/expire_unconfirmed", 10, UNCONFIRMED) as commit:
        late = db.master.requests.confirm(job_id, identity(db.fence), b"1", "test")
        assert await db.after_lock("requests/confirm", late, commit) == (False, JobState.HELD)


async def test_a_cancel_request_is_obeyed_before_and_after(db: MasterFixture) -> None:
    (job_id,) = await db.processing()
    await db.master.requests.cancel(job_id, tombstone=None, actor="test")
    assert await db.master.outcomes.await_confirmation(final_row(job_id, db.fence), 60.0, 0.0, None)
    assert await db.state(job_id) == "CANCELLED"
    waits = await waiting(db)
    assert await db.master.requests.cancel(waits, tombstone=None, actor="test") is JobState.CANCELLED
    assert (await db.master.requests.confirm(waits, identity(db.fence), None, "test"))[0] is False
