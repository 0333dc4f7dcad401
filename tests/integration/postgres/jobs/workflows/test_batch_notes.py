"""Jobs of batches that no agent ends are noted by the statement that ends them, whichever it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_error, encode_headers
from jobmaster.model.flow.batch import NewBatch, range_of
from jobmaster.model.ids import Identity
from jobmaster.model.job import ErrorInfo, Headers
from jobmaster.ports import UnstorableEntry
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, entry, final_row, in_flight_row, new_job

MARK = encode_headers(Headers(batch=True))
_LAST = encode_error(ErrorInfo(type="Unconfirmed", message="no", reason="unconfirmed"))


async def _running(db: MasterFixture, job_id: bytes) -> None:
    await db.master.outcomes.persist(db.fence, [in_flight_row(job_id)._replace(headers=MARK)])


async def _cancelled(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await db.master.intake.insert_held([new_job(job_id, headers=MARK)])
    await db.master.requests.cancel(job_id, tombstone=None, actor="test")
    await db.master.requests.cancel(job_id, tombstone=None, actor="test")


async def _cancelled_without_a_row(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    for _ in range(2):
        await db.master.requests.cancel(job_id, tombstone=new_job(job_id, headers=MARK), actor="test")


async def _expired(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    headers = encode_headers(Headers(batch=True, expires_us=1))
    await db.master.intake.insert_held([new_job(job_id, headers=headers)])
    assert await db.master.maintenance.expire_held(10) == 1


async def _confirmed_while_it_runs(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await _running(db, job_id)
    given = Identity(1, db.fence.bucket_id, db.fence.epoch)
    assert (await db.master.requests.confirm(job_id, given, None, "test"))[0]


async def _confirmed(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await _running(db, job_id)
    row = final_row(job_id, db.fence)._replace(attempt=1)
    assert await db.master.outcomes.await_confirmation(row, 60.0, 7.0, None)
    given = Identity(1, db.fence.bucket_id, db.fence.epoch)
    assert (await db.master.requests.confirm(job_id, given, None, "test"))[0]


async def _not_confirmed(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await _running(db, job_id)
    row = final_row(job_id, db.fence)._replace(attempt=1)
    assert await db.master.outcomes.await_confirmation(row, -1.0, 7.0, _LAST)
    assert await db.master.maintenance.expire_unconfirmed(10) == 1


async def _cancelled_when_it_returns(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await _running(db, job_id)
    await db.master.requests.cancel(job_id, tombstone=None, actor="test")
    row = final_row(job_id, db.fence)._replace(attempt=1)
    assert await db.master.outcomes.await_confirmation(row, 60.0, 7.0, None)


async def _given_up_by_a_rescue(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await _running(db, job_id)
    await db.lost()
    taken = await db.take(rescuer)
    assert (await db.master.rescue.sweep(taken, 10, max_rescues=1)).failed == 1


async def _given_up_without_a_row(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await db.lost()
    taken = await db.take(rescuer)
    copies = [msgspec.structs.replace(entry(job_id), headers=MARK)]
    page = await db.master.rescue.rescue_page(taken, copies, LANE, PRIORITY, claimed=True, max_rescues=1)
    assert page.failed == {job_id}


async def _quarantined(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    unfit = UnstorableEntry(job_id, "pending", b"x", "cannot be stored")
    for _ in range(2):
        await db.master.outcomes.quarantine(db.fence.bucket_id, [unfit])


@pytest.mark.parametrize(
    "end",
    [
        _cancelled, _cancelled_without_a_row, _expired, _confirmed, _confirmed_while_it_runs, _not_confirmed,
        _cancelled_when_it_returns,
        _given_up_by_a_rescue, _given_up_without_a_row, _quarantined,
    ],
)  # fmt: skip
async def test_a_job_that_no_agent_ends_is_noted_once(
    db: MasterFixture, rescuer: bytes, end: Callable[[MasterFixture, bytes, bytes], Awaitable[None]]
) -> None:
    batch_id = range_of(new_id())
    assert await db.master.batches.open(NewBatch(batch_id, None, None, "images", "", None, 60.0, ()))
    assert await db.master.batches.close(batch_id, 1)
    await end(db, batch_id[:12] + (1).to_bytes(4, "big"), rescuer)
    assert await db.master.batches.full([batch_id]) == []
    assert await db.master.batches.take_notes(rescuer, 10) == ([batch_id], 1)
    assert await db.master.batches.full([batch_id]) == [batch_id]
    assert await db.master.batches.take_notes(rescuer, 10) == ([], 0), "a note is taken once"


async def test_what_agents_end_and_what_is_in_no_batch_is_not_noted(db: MasterFixture) -> None:
    copied, updated, plain, held = (new_id() for _ in range(4))
    assert await db.master.outcomes.copy_final([final_row(copied, db.fence)._replace(headers=MARK)])
    await _running(db, updated)
    await db.master.outcomes.record_final([final_row(updated, db.fence)._replace(headers=MARK)])
    await db.master.intake.insert_held([new_job(plain), new_job(held, headers=MARK)])
    await db.master.requests.cancel(plain, tombstone=None, actor="test")
    assert await db.sql.fetch("SELECT * FROM batch_note") == []


async def test_the_leader_is_told_of_notes_and_takes_as_many_as_it_asks_for(db: MasterFixture) -> None:
    jobs = [new_id() for _ in range(3)]
    await db.master.intake.insert_held([new_job(each, headers=MARK) for each in jobs])
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    assert not (await db.master.leadership.tick(db.owner, 1, 60.0, 0.0)).batches
    for each in jobs:
        await db.master.requests.cancel(each, tombstone=None, actor="test")
    assert (await db.master.leadership.tick(db.owner, 1, 60.0, 0.0)).batches
    assert [(await db.master.batches.take_notes(db.owner, 2))[1] for _ in range(3)] == [2, 1, 0]
    assert not (await db.master.leadership.tick(db.owner, 1, 60.0, 0.0)).batches
