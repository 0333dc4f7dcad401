"""Binding writes lock the bucket: with another epoch, owner or state nothing is written and nothing is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, Fence
from tests.integration.postgres.fixture import ERROR, World, entry, hold_row, in_flight_row, new_job

Act = Callable[[World, Fence, bytes], Awaitable[object]]


async def _persist(world: World, fence: Fence, job_id: bytes) -> object:
    return (await world.master.outcomes.persist(fence, [in_flight_row(job_id, 2), in_flight_row(new_id())])).bucket_ok


async def _retry_here(world: World, fence: Fence, job_id: bytes) -> object:
    rows = [hold_row(job_id, 2, error=ERROR), hold_row(new_id(), error=ERROR)]
    return (await world.master.outcomes.retry_here(fence, rows)).bucket_ok


async def _onboard(world: World, fence: Fence, _: bytes) -> object:
    return (await world.master.onboarding.onboard(fence, "default", 3, 60.0, 10)).bucket_ok


async def _insert_assigned(world: World, fence: Fence, _: bytes) -> object:
    return (await world.master.intake.insert_assigned(fence.bucket_id, fence.epoch, [new_job(new_id())])).bucket_ok


async def _rescue_page(world: World, fence: Fence, job_id: bytes) -> object:
    entries = [entry(job_id, 2), entry(new_id())]
    written = await world.master.rescue.rescue_page(fence, entries, "default", 3, claimed=True, max_rescues=3)
    return written.bucket_ok


async def _sweep(world: World, fence: Fence, _: bytes) -> object:
    return (await world.master.rescue.sweep(fence, 100, max_rescues=3)).moved > 0


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


async def _ready(world: World, state: str) -> bytes:
    """One job ASSIGNED in the bucket, one HELD, the bucket in ``state``."""
    (job_id,) = await world.assigned()
    await world.master.intake.insert_held([new_job(new_id())])
    await world.sql.execute("UPDATE bucket SET state = $1", state)
    return job_id


@every_act
@pytest.mark.parametrize("state", STATES)
async def test_only_some_states_let_it_pass(world: World, name: str, state: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(world, state)
    before = await world.jobs()
    assert await act(world, world.fence, job_id) is (state in allowed)
    assert (await world.jobs() != before) is (state in allowed)


@every_act
async def test_an_older_epoch_is_refused(world: World, name: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(world, min(allowed))
    await world.sql.execute("UPDATE bucket SET epoch = 2")
    before = await world.jobs()
    assert not await act(world, world.fence, job_id)
    assert await world.jobs() == before


@pytest.mark.parametrize("name", [name for name in OWNER if name != "insert_assigned"])
async def test_another_owner_is_refused(world: World, name: str) -> None:
    act, allowed = OWNER[name]
    job_id = await _ready(world, min(allowed))
    before = await world.jobs()
    assert not await act(world, world.fence._replace(owner=AgentId(new_id())), job_id)
    assert await world.jobs() == before


async def test_a_batch_refused_by_the_lock_settles_nothing(world: World) -> None:
    (job_id,) = await world.assigned()
    await world.sql.execute("UPDATE bucket SET epoch = 2")
    written = await world.master.outcomes.persist(world.fence, [in_flight_row(job_id, 2)])
    assert not written.bucket_ok
    assert written[1:] == (frozenset(),) * 5


@every_act
async def test_a_write_that_waits_for_a_takeover_reads_the_bucket_again(world: World, name: str) -> None:
    """READ COMMITTED: begin, take the bucket, see the write wait, commit. Only a row lock is read again after the wait."""
    act, allowed = OWNER[name]
    job_id = await _ready(world, min(allowed))
    before = await world.jobs()
    other = await world.connect()
    async with other.transaction():
        await other.execute("UPDATE bucket SET state = 'DRAINING', epoch = epoch + 1, owner = gen_random_uuid()")
        task = asyncio.ensure_future(act(world, world.fence, job_id))
        await world.waiting(f"/{name} ")
    assert not await task
    assert await world.jobs() == before
    await other.close()
