"""Jobs that run longer than their ``complete_time``: given to another agent, and what the slow run can still write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.driver.job_errors import TOO_SLOW
from jobmaster.model.job import Headers
from tests.integration.postgres.fixture import (
    ERROR,
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    uuids,
)

ONCE = encode_headers(Headers(at_most_once=True))


async def running(db: MasterFixture, late_seconds: float | None = 0.0, *, headers: bytes = b"") -> bytes:
    """A job whose start was written, and how long its run may last from now on."""
    job_id = new_id()
    row = in_flight_row(job_id)._replace(late_seconds=late_seconds, headers=headers)
    assert (await db.master.outcomes.persist(db.fence, [row])).accepted == {job_id}
    return job_id


async def deadline(db: MasterFixture, job_id: bytes) -> datetime | None:
    found: datetime | None = await db.sql.fetchval("SELECT expires_at FROM job WHERE id = $1", *uuids([job_id]))
    return found


async def reassign(db: MasterFixture, most: int = 3) -> tuple[int, int]:
    moved, failed = await db.master.maintenance.reassign_late(100, max_reassigns=most)
    return moved, failed


async def test_the_first_processing_write_sets_the_deadline_and_no_later_one_moves_it(db: MasterFixture) -> None:
    row = in_flight_row(job_id := new_id())
    waits = row._replace(state="ASSIGNED", late_seconds=60.0)
    assert (await db.master.outcomes.persist(db.fence, [waits])).accepted == {job_id}
    assert await deadline(db, job_id) is None, "a job that waits has no deadline of its run"
    await db.master.outcomes.persist(db.fence, [row._replace(late_seconds=60.0)])
    first = await deadline(db, job_id)
    assert first is not None
    for later in (row._replace(late_seconds=600.0), row._replace(late_seconds=None), waits):
        assert (await db.master.outcomes.persist(db.fence, [later])).accepted == {job_id}
        assert await deadline(db, job_id) == first


async def test_a_job_without_the_option_has_no_deadline(db: MasterFixture) -> None:
    assert await deadline(db, await running(db, None)) is None
    assert await reassign(db) == (0, 0)


async def test_a_limit_beyond_the_times_of_postgresql_is_cut_and_stops_no_batch(db: MasterFixture) -> None:
    """Headers that were stored before the limit had a greatest value."""
    found = await deadline(db, await running(db, 1e14))
    assert found is not None
    assert found.year > datetime.now(UTC).year + 8


async def test_a_run_that_ends_takes_its_deadline_along(db: MasterFixture) -> None:
    ends, again, given_back = [await running(db, 60.0) for _ in range(3)]
    await db.master.outcomes.record_final([final_row(ends, db.fence)])
    await db.master.outcomes.retry_here(db.fence, [hold_row(again, error=ERROR, due_us=1, attempt=1)])
    await db.master.outcomes.hold(db.fence, [hold_row(given_back)])
    assert [await deadline(db, job_id) for job_id in (ends, again, given_back)] == [None] * 3


async def test_a_late_job_is_held_with_the_next_token_and_no_attempt_is_used_up(db: MasterFixture) -> None:
    late, patient = await running(db), await running(db, 60.0)
    assert await reassign(db) == (1, 0)
    view = await db.view(late)
    assert (view.state, view.token, view.bucket_id, view.attempt, view.rescues) == ("HELD", 2, None, 0, 0)
    assert await deadline(db, late) is None
    assert await db.lines(late) == [(1, "reassigned")]
    assert await db.state(patient) == "PROCESSING"
    assert await reassign(db) == (0, 0)


async def test_the_expiry_of_the_job_counts_again_while_it_waits(db: MasterFixture) -> None:
    headers = encode_headers(Headers(expires_us=1_900_000_000_000_000))
    job_id = await running(db, headers=headers)
    await reassign(db)
    found = await deadline(db, job_id)
    assert found is not None
    assert found.timestamp() == 1_900_000_000


async def test_whatever_the_slow_run_writes_is_refused(db: MasterFixture) -> None:
    """Its return, its failure, its retry here, its row again. Without the next token the row of a job given back would look
    like one that the owner itself has given back."""
    ended, failed, again, asks = [await running(db) for _ in range(4)]
    assert await reassign(db) == (4, 0)
    assert (await db.master.outcomes.record_final([final_row(ended, db.fence)])).refused == {ended}
    assert (await db.master.outcomes.hold(db.fence, [hold_row(failed, error=ERROR, attempt=1)])).refused == {failed}
    late = hold_row(again, error=ERROR, due_us=1, attempt=1)
    assert (await db.master.outcomes.retry_here(db.fence, [late])).refused == {again}
    assert (await db.master.outcomes.persist(db.fence, [in_flight_row(asks)])).refused == {asks}
    for job_id in (ended, failed, again, asks):
        view = await db.view(job_id)
        assert (view.state, view.attempt) == ("HELD", 0)


async def test_one_outcome_counts_however_the_two_runs_end(db: MasterFixture) -> None:
    job_id = await running(db)
    await reassign(db)
    other = await db.bucket()
    (got,) = (await db.master.onboarding.onboard(other, LANE, PRIORITY, 60.0, 1)).entries
    assert (got.id, got.token) == (job_id, 3)
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence)])).refused == {job_id}
    assert (await db.master.outcomes.record_final([final_row(job_id, other, 3)])).accepted == {job_id}
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, state="FAILED")])).refused == {job_id}
    assert await db.state(job_id) == "SUCCEEDED"
    concluding = await db.sql.fetch("SELECT 1 FROM ledger WHERE job_id = $1 AND concluding", *uuids([job_id]))
    assert len(concluding) == 1


async def test_a_job_that_may_be_started_once_is_left_to_its_run(db: MasterFixture) -> None:
    job_id = await running(db, headers=ONCE)
    assert await reassign(db) == (0, 0)
    assert await db.state(job_id) == "PROCESSING"
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence)])).accepted == {job_id}


async def test_a_job_that_is_always_too_slow_fails_in_the_end(db: MasterFixture) -> None:
    job_id, fence = await running(db), db.fence
    for token in (1, 3):
        assert await reassign(db, 2) == (1, 0)
        (got,) = (await db.master.onboarding.onboard(fence, LANE, PRIORITY, 60.0, 1)).entries
        assert got.token == token + 2
        row = in_flight_row(job_id, got.token)._replace(late_seconds=0.0)
        assert (await db.master.outcomes.persist(fence, [row])).accepted == {job_id}
    assert await reassign(db, 2) == (1, 1)
    view = await db.view(job_id)
    assert view.error is not None
    assert (view.state, view.token, view.bucket_id, view.error.reason) == ("FAILED", 5, fence.bucket_id, "too_slow")
    assert await db.lines(job_id) == [(1, "reassigned"), (3, "reassigned")]
    assert (await db.master.outcomes.record_final([final_row(job_id, fence, 5)])).refused == {job_id}
    assert await db.state(job_id) == "FAILED"


async def test_a_cancel_request_goes_first(db: MasterFixture) -> None:
    job_id = await running(db)
    await db.sql.execute("UPDATE job SET cancel_requested = true WHERE id = $1", *uuids([job_id]))
    assert await reassign(db) == (1, 0)
    assert await db.state(job_id) == "CANCELLED"
    assert await db.lines(job_id) == []


async def test_an_outcome_that_is_being_written_is_passed_by(db: MasterFixture) -> None:
    job_id = await running(db)
    (uuid,) = uuids([job_id])
    connection = await db.connect()
    await connection.execute("BEGIN")
    await connection.execute("UPDATE job SET changed_at = changed_at WHERE id = $1", uuid)
    assert await reassign(db) == (0, 0)
    await connection.close()
    assert await reassign(db) == (1, 0)


async def test_an_outcome_that_waits_for_the_reassignment_comes_too_late(db: MasterFixture) -> None:
    job_id = await running(db)
    async with db.open_transaction("maintenance/reassign_late", 10, 3, TOO_SLOW) as commit:
        late = db.master.outcomes.record_final([final_row(job_id, db.fence)])
        assert (await db.after_lock("outcomes/record_final", late, commit)).refused == {job_id}
    assert await db.state(job_id) == "HELD"


async def test_a_rescue_after_it_leaves_the_job_alone(db: MasterFixture, rescuer: bytes) -> None:
    """The copy of the slow run is still in the claimed list of its agent, which dies."""
    job_id = await running(db)
    await reassign(db)
    await db.lost()
    taken = await db.take(rescuer)
    page = await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert page.refused == {job_id}
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (0, 0, 0)
    view = await db.view(job_id)
    assert (view.state, view.token, view.rescues) == ("HELD", 2, 0)


async def test_the_leaders_tick_finds_late_jobs(db: MasterFixture) -> None:
    await db.master.leadership.acquire(db.owner, 1, 10.0)
    await running(db, 60.0)
    assert not (await db.master.leadership.tick(db.owner, 1, 10.0, 60.0)).late
    await running(db)
    assert (await db.master.leadership.tick(db.owner, 1, 10.0, 60.0)).late
    await reassign(db)
    assert not (await db.master.leadership.tick(db.owner, 1, 10.0, 60.0)).late


async def register_with(db: MasterFixture, handlers: list[str], **columns: object) -> bytes:
    agent = await db.agent(new_id())
    await db.sql.execute("UPDATE agent SET handlers = $2 WHERE id = $1", uuids([agent])[0], handlers)
    for name, value in columns.items():
        await db.sql.execute(f"UPDATE agent SET {name} = $2 WHERE id = $1", uuids([agent])[0], value)
    return agent


@pytest.mark.parametrize(
    ("columns", "lane", "found"),
    [
        ({}, LANE, {"resize"}),
        ({}, "other", set()),
        ({"drain_requested": True}, LANE, set()),
        ({"lease_until": datetime.fromisoformat("2020-01-01T00:00:00Z")}, LANE, set()),
        ({"state": "STOPPING"}, LANE, set()),
    ],
    ids=["able", "another lane", "draining", "silent", "leaving"],
)
async def test_only_agents_that_can_run_a_job_are_other_owners(
    db: MasterFixture, columns: dict[str, object], lane: str, found: set[str]
) -> None:
    other = await register_with(db, ["resize", "pay"], **columns)
    assert await db.master.queries.other_owners(db.owner, LANE, PRIORITY, ["resize"]) == set(), "it owns no bucket"
    await db.sql.execute("UPDATE agent SET state = 'ACTIVE' WHERE id = $1", *uuids([other]))
    await db.bucket(other, lane=lane)
    for name, value in columns.items():
        await db.sql.execute(f"UPDATE agent SET {name} = $2 WHERE id = $1", uuids([other])[0], value)
    assert await db.master.queries.other_owners(db.owner, LANE, PRIORITY, ["resize", "none"]) == found
    assert await db.master.queries.other_owners(other, LANE, PRIORITY, ["resize"]) == set(), "not of itself"
