"""A cancel is never forgotten: whoever would hold or assign the job next makes it CANCELLED instead."""

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
    World,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
)


async def _flagged(world: World, *, processing: bool = False) -> tuple[bytes, int]:
    """A job in flight that somebody wants cancelled, and its token."""
    (job_id,) = await (world.processing() if processing else world.assigned())
    state = await world.master.requests.cancel(job_id, tombstone=None, actor="test")
    assert state is (JobState.PROCESSING if processing else JobState.ASSIGNED), "in flight it is only asked for"
    return job_id, 1 if processing else 2


async def test_a_job_that_waits_is_cancelled_at_once(world: World) -> None:
    job_id = new_id()
    await world.master.intake.insert_held([new_job(job_id)])
    assert await world.master.requests.cancel(job_id, tombstone=None, actor="ann") is JobState.CANCELLED
    assert await world.state(job_id) == "CANCELLED"
    assert (await world.master.onboarding.onboard(world.fence, LANE, PRIORITY, 60.0, 10)).entries == []
    assert await world.sql.fetchval("SELECT actor FROM operator_log WHERE action = 'job cancel'") == "ann"


async def test_the_heartbeat_brings_the_request_to_the_owner(world: World) -> None:
    job_id, _ = await _flagged(world)
    await world.assigned()
    assert (await world.master.members.renew(world.owner, 10.0)).cancel_requested == [job_id]


async def test_a_job_that_waits_in_its_bucket_ends_at_once(world: World) -> None:
    job_id, token = await _flagged(world)
    (unasked,) = await world.assigned()
    running, _ = await _flagged(world, processing=True)
    asked = [job_id, unasked, running, new_id()]
    for ended in (True, False):  # a repeat, as after an answer that was lost, says the same
        (row,) = await world.master.outcomes.cancel_waiting([world.fence], asked)
        assert (row.id, row.bucket_id, row.ended) == (job_id, world.fence.bucket_id, ended)
        view = await world.view(job_id)
        assert (view.state, view.token, view.bucket_id) == ("CANCELLED", token, world.fence.bucket_id)
        assert row.due_us == (view.due_us or 0), "where its copy lies in the bucket"
    assert [await world.state(each) for each in (unasked, running)] == ["ASSIGNED", "PROCESSING"]
    assert await world.lines(job_id) == []
    assert (await world.master.members.renew(world.owner, 10.0)).cancel_requested == [running]
    assert (await world.master.outcomes.record_final([final_row(job_id, world.fence, token)])).refused == {job_id}


async def test_a_job_in_a_bucket_of_another_owner_or_epoch_is_left_to_it(world: World) -> None:
    job_id, _ = await _flagged(world)
    others = [world.fence._replace(epoch=world.fence.epoch + 1), world.fence._replace(bucket_id=BucketId(new_id()))]
    assert await world.master.outcomes.cancel_waiting(others, [job_id]) == []
    assert await world.state(job_id) == "ASSIGNED"


async def test_requests_for_jobs_that_wait_do_not_keep_back_those_for_jobs_that_run(world: World) -> None:
    """A renewal brings a thousand of them at most."""
    for _ in range(13):
        await world.assigned(100)
    await world.sql.execute("UPDATE job SET cancel_requested = true")
    running = [(await _flagged(world, processing=True))[0] for _ in range(2)]
    asked = (await world.master.members.renew(world.owner, 10.0)).cancel_requested
    assert len(asked) == 1000
    assert asked[:2] == sorted(running)


async def test_a_final_job_is_left_alone(world: World) -> None:
    (job_id,) = await world.assigned()
    await world.master.outcomes.record_final([final_row(job_id, world.fence, 2)])
    before = await world.jobs()
    assert await world.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.SUCCEEDED
    assert await world.jobs() == before


async def test_a_job_the_master_has_not_seen_is_refused_later(world: World) -> None:
    job_id = new_id()
    assert await world.master.requests.cancel(job_id, tombstone=None, actor="test") is None
    assert await world.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.CANCELLED
    assert await world.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test") is JobState.CANCELLED
    before = (await world.view(job_id)).changed_us
    assert not await world.master.outcomes.copy_final([final_row(job_id, world.fence)])
    assert (await world.master.outcomes.record_final([final_row(job_id, world.fence)])).refused == {job_id}
    assert (await world.master.outcomes.persist(world.fence, [in_flight_row(job_id)])).refused == {job_id}
    assert (await world.master.outcomes.hold(world.fence, [hold_row(job_id)])).refused == {job_id}
    assert (await world.master.outcomes.retry_here(world.fence, [hold_row(job_id)])).refused == {job_id}
    assert (await world.master.intake.insert_held([new_job(job_id)])).refused == {job_id}
    view = await world.view(job_id)
    assert (view.state, view.changed_us) == ("CANCELLED", before)


@pytest.mark.parametrize("with_tombstone", [False, True])
async def test_a_row_that_appears_while_it_is_asked_for_gets_the_request(
    world: World, monkeypatch: pytest.MonkeyPatch, with_tombstone: bool
) -> None:
    """A flush inserts the row and another bucket takes it, between the update that finds no row and the look for it."""
    job = new_job(new_id())
    update = world.master._data.write
    missed: list[Any] = []

    async def late(name: str, *arguments: Any, **options: Any) -> Any:
        rows = await update(name, *arguments, **options)
        if name == "requests/cancel" and not missed:
            missed.append(rows)
            await world.master.intake.insert_held([job])
            assert [
                e.id for e in (await world.master.onboarding.onboard(world.fence, LANE, PRIORITY, 60.0, 10)).entries
            ] == [job.id]
        return rows

    monkeypatch.setattr(world.master._data, "write", late)
    state = await world.master.requests.cancel(job.id, tombstone=job if with_tombstone else None, actor="test")
    assert missed == [[]]
    assert state is JobState.ASSIGNED
    assert (await world.master.members.renew(world.owner, 10.0)).cancel_requested == [job.id]


@pytest.mark.parametrize("processing", [False, True])
async def test_an_in_flight_write_says_so_and_does_not_start_it(world: World, processing: bool) -> None:
    job_id, token = await _flagged(world, processing=processing)
    before = await world.view(job_id)
    written = await world.master.outcomes.persist(world.fence, [in_flight_row(job_id, token)])
    assert written.cancelled == {job_id}
    assert not written.accepted
    assert not written.refused
    assert await world.view(job_id) == before


async def test_an_outcome_that_happened_stays_the_outcome(world: World) -> None:
    job_id, token = await _flagged(world)
    assert (await world.master.outcomes.record_final([final_row(job_id, world.fence, token)])).accepted == {job_id}
    assert await world.state(job_id) == "SUCCEEDED"


async def test_hold_makes_it_cancelled(world: World) -> None:
    job_id, token = await _flagged(world)
    for _ in range(2):  # a repeat gives the same answer
        written = await world.master.outcomes.hold(world.fence, [hold_row(job_id, token, error=ERROR)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await world.view(job_id)
    assert (view.state, view.token, view.bucket_id) == ("CANCELLED", token, world.fence.bucket_id)
    assert view.error is not None
    assert await world.lines(job_id) == [], "the concluding line is the row: one identity has one line"


async def test_retry_here_makes_it_cancelled(world: World) -> None:
    job_id, token = await _flagged(world)
    for _ in range(2):
        written = await world.master.outcomes.retry_here(world.fence, [hold_row(job_id, token, error=ERROR)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await world.view(job_id)
    assert (view.state, view.token) == ("CANCELLED", token)
    assert await world.lines(job_id) == []


async def test_release_makes_it_cancelled(world: World) -> None:
    job_id, token = await _flagged(world)
    for _ in range(2):
        written = await world.master.onboarding.release(world.fence, [(job_id, token)])
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    assert await world.state(job_id) == "CANCELLED"


@pytest.mark.parametrize("by_sweep", [False, True])
async def test_a_rescue_makes_it_cancelled(world: World, rescuer: bytes, by_sweep: bool) -> None:
    job_id, token = await _flagged(world, processing=True)
    await world.lost()
    taken = await world.take(rescuer)
    if by_sweep:
        assert await world.master.rescue.sweep(taken, 10, max_rescues=3) == (1, 1, 0)
    else:
        page = [entry(job_id, token)]
        written = await world.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=True, max_rescues=3)
        assert written.accepted == {job_id}
        assert written.cancelled == {job_id}
    view = await world.view(job_id)
    assert (view.state, view.token) == ("CANCELLED", token)
    assert await world.lines(job_id) == []


async def test_an_orphan_becomes_cancelled(world: World) -> None:
    job_id, _ = await _flagged(world)
    await world.sql.execute("DELETE FROM bucket")
    assert (await world.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 1
    assert await world.state(job_id) == "CANCELLED"
