"""Binding writes lock the bucket: with another epoch, owner or state nothing is written and nothing is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, Fence
from tests.integration.postgres.fixture import ERROR, MasterFixture, entry, hold_row, in_flight_row, new_job

Act = Callable[[MasterFixture, Fence, bytes], Awaitable[object]]


async def _persist(db: MasterFixture, fence: Fence, job_id: bytes) -> object:
    return (await db.master.outcomes.persist(fence, [in_flight_row(job_id, 2), in_flight_row(new_id())])).bucket_ok


async def _retry_here(db: MasterFixture, fence: Fence, job_id: bytes) -> object:
    rows = [hold_row(job_id, 2, error=ERROR), hold_row(new_id(), error=ERROR)]
    return (await db.master.outcomes.retry_here(fence, rows)).bucket_ok


async def _onboard(db: MasterFixture, fence: Fence, _: bytes) -> object:
    return (await db.master.onboarding.onboard(fence, "default", 3, 60.0, 10)).bucket_ok


async def _insert_assigned(db: MasterFixture, fence: Fence, _: bytes) -> object:
    return (await db.master.intake.insert_assigned(fence.bucket_id, fence.epoch, [new_job(new_id())])).bucket_ok


async def _rescue_page(db: MasterFixture, fence: Fence, job_id: bytes) -> object:
    entries = [entry(job_id, 2), entry(new_id())]
    written = await db.master.rescue.rescue_page(fence, entries, "default", 3, claimed=True, max_rescues=3)
    return written.bucket_ok


async def _sweep(db: MasterFixture, fence: Fence, _: bytes) -> object:
    return (await db.master.rescue.sweep(fence, 100, max_rescues=3)).moved > 0


OWNER = {
    "persist": (_persist, {"ACTIVE", "COMPLETING"}),
    "retry_here": (_retry_here, {"ACTIVE", "COMPLETING"}),
    "onboard": (_onboard, {"ACTIVE"}),
    "insert_assigned": (_insert_assigned, {"ACTIVE"}),
    "rescue_page": (_rescue_page, {"DRAINING"}),
    "sweep": (_sweep, {"DRAINING"}),
}
every_act = pytest.mark.parametrize("name", OWNER)
STATES = ["ACTIVE", "COMPLETING", "LOST", "DRAINING", "READY_TO_DELETE", "FROZEN"]


async def _ready(db: MasterFixture, state: str) -> bytes:
    """One job ASSIGNED in the bucket, one HELD, the bucket in ``state``."""
    (job_id,) = await db.assigned()
    await db.master.intake.insert_held([new_job(new_id())])
    await db.sql.execute("UPDATE bucket SET state = $1", state)
    return job_id


@every_act
@pytest.mark.parametrize("state", STATES)
async def test_only_some_states_let_it_pass(db: MasterFixture, name: str, state: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(db, state)
    before = await db.jobs()
    assert await act(db, db.fence, job_id) is (state in allowed)
    assert (await db.jobs() != before) is (state in allowed)


@every_act
async def test_an_older_epoch_is_refused(db: MasterFixture, name: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(db, min(allowed))
    await db.sql.execute("UPDATE bucket SET epoch = 2")
    before = await db.jobs()
    assert not await act(db, db.fence, job_id)
    assert await db.jobs() == before


@pytest.mark.parametrize("name", [name for name in OWNER if name != "insert_assigned"])
async def test_another_owner_is_refused(db: MasterFixture, name: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(db, min(allowed))
    before = await db.jobs()
    assert not await act(db, db.fence._replace(owner=AgentId(new_id())), job_id)
    assert await db.jobs() == before


async def test_a_batch_refused_by_the_lock_settles_nothing(db: MasterFixture) -> None:
    (job_id,) = await db.assigned()
    await db.sql.execute("UPDATE bucket SET epoch = 2")
    written = await db.master.outcomes.persist(db.fence, [in_flight_row(job_id, 2)])
    assert not written.bucket_ok
    assert written[1:] == (frozenset(),) * 5


@every_act
async def test_a_write_that_waits_for_a_takeover_reads_the_bucket_again(db: MasterFixture, name: str) -> None:
    """READ COMMITTED: begin, take the bucket, see the write wait, commit. Only a row lock is read again after the wait."""
    act, allowed = OWNER[name]
    job_id = await _ready(db, min(allowed))
    before = await db.jobs()
    other = await db.connect()
    async with other.transaction():
        await other.execute("UPDATE bucket SET state = 'DRAINING', epoch = epoch + 1, owner = gen_random_uuid()")
        task = asyncio.ensure_future(act(db, db.fence, job_id))
        await db.waiting(f"/{name} ")
    assert not await task
    assert await db.jobs() == before
    await other.close()
