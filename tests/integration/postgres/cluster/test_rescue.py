"""What a rescuer does with the jobs of a lost bucket."""

from __future__ import annotations

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import ValueRefused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import UnstorableEntry
from tests.integration.postgres.fixture import (
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    uuids,
)


@pytest.fixture
async def taken(db: MasterFixture, rescuer: bytes) -> Fence:
    """The rescuer's fence on the world's bucket. Made before the jobs: their rows are written past the lock by hand."""
    await db.lost()
    return await db.take(rescuer)


async def _row(
    db: MasterFixture, state: str, *, token: int = 2, rescues: int = 0, bucket: bytes | None = None
) -> bytes:
    job_id = new_id()
    await db.sql.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, rescues, args)"
        " VALUES ($1, $2, 3, 'default', 'handler', $3, $4, 1, $5, '{}')",
        *uuids([job_id]), state, token, *uuids([bucket or db.fence.bucket_id]), rescues,
    )  # fmt: skip
    return job_id


async def test_a_takeover_raises_the_epoch_above_master_and_store(db: MasterFixture, rescuer: bytes) -> None:
    await db.lost()
    bucket = await db.master.rescue.take_lost(rescuer, ["store"], {db.fence.bucket_id: 7})
    assert bucket is not None
    assert (bucket.epoch, bucket.owner, bucket.state) == (8, rescuer, BucketState.DRAINING)


async def test_buckets_of_other_stores_are_left_to_others(db: MasterFixture, rescuer: bytes) -> None:
    await db.lost()
    assert await db.master.rescue.take_lost(rescuer, ["another"], {}) is None


async def test_the_dead_take_nothing(db: MasterFixture, rescuer: bytes) -> None:
    await db.lost()
    await db.master.members.end_agent(rescuer, dead=True, reason="test")
    assert await db.master.rescue.take_lost(rescuer, ["store"], {}) is None


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_job_without_a_row_is_held_above_the_copys_token(
    db: MasterFixture, taken: Fence, claimed: bool
) -> None:
    job_id = new_id()
    for again in (False, True):
        written = await db.master.rescue.rescue_page(
            taken, [entry(job_id)], LANE, PRIORITY, claimed=claimed, max_rescues=3
        )
        assert (written.refused if again else written.accepted) == {job_id}, "a repeat finds it settled"
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id, view.rescues) == ("HELD", 2, None, int(claimed))
    # What the old owner still writes about its copy is refused.
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence)])).refused == {job_id}


@pytest.mark.parametrize(
    ("state", "claimed", "rescues", "lines"),
    [("ASSIGNED", False, 0, []), ("ASSIGNED", True, 1, []), ("PROCESSING", False, 1, [(2, "lost")]),
     ("PROCESSING", True, 1, [(2, "lost")])],
)  # fmt: skip
async def test_an_in_flight_row_of_this_bucket_is_held_with_a_higher_token(
    db: MasterFixture, taken: Fence, state: str, claimed: bool, rescues: int, lines: list[tuple[int, str]]
) -> None:
    job_id = await _row(db, state)
    written = await db.master.rescue.rescue_page(
        taken, [entry(job_id, 2)], LANE, PRIORITY, claimed=claimed, max_rescues=3
    )
    assert written.accepted == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id, view.bucket_epoch) == ("HELD", 3, None, None)
    assert view.rescues == rescues
    assert view.due_us is not None
    assert await db.lines(job_id) == lines


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"])
async def test_a_final_row_is_left_alone(db: MasterFixture, taken: Fence, state: str) -> None:
    job_id = await _row(db, state)
    before = await db.jobs()
    written = await db.master.rescue.rescue_page(taken, [entry(job_id, 2)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert written.refused == {job_id}
    assert await db.jobs() == before


async def test_a_job_of_another_bucket_is_left_alone(db: MasterFixture, taken: Fence) -> None:
    job_id = await _row(db, "PROCESSING", bucket=new_id())
    before = await db.jobs()
    written = await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert written.refused == {job_id}
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (0, 0, 0)
    assert await db.jobs() == before


async def test_a_held_row_is_left_alone(db: MasterFixture, taken: Fence) -> None:
    job_id = new_id()
    await db.master.outcomes.hold(db.fence, [hold_row(job_id)])
    before = await db.jobs()
    written = await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert written.refused == {job_id}
    assert await db.jobs() == before


async def test_the_culprit_fails_at_its_last_rescue(db: MasterFixture, taken: Fence) -> None:
    known = await _row(db, "PROCESSING", rescues=2)
    page = [entry(known, 2, rescues=2)]
    written = await db.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=True, max_rescues=3)
    assert written.accepted == {known}
    view = await db.view(known)
    assert (view.state, view.rescues, view.token) == ("FAILED", 3, 2)
    assert view.error is not None
    assert view.error.reason == "agent_lost"
    assert await db.lines(known) == [], "the row is the concluding line of this identity"


async def test_a_job_that_was_rescued_before_and_has_not_started_since_is_not_counted(
    db: MasterFixture, taken: Fence
) -> None:
    """A rescued job is PROCESSING before it starts: any other row of it, or none, proves that it only waited."""
    queued, rowless = await _row(db, "ASSIGNED", rescues=2), new_id()
    page = [entry(queued, 2, rescues=2), entry(rowless, rescues=2)]
    written = await db.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=True, max_rescues=3)
    assert written.accepted == {queued, rowless}
    for job_id in (queued, rowless):
        view = await db.view(job_id)
        assert (view.state, view.rescues) == ("HELD", 2)


async def test_a_page_of_a_single_rescue_is_the_last_where_one_is_allowed(db: MasterFixture, taken: Fence) -> None:
    job_id = new_id()
    await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=1)
    assert (await db.view(job_id)).state == "FAILED"


@pytest.mark.parametrize("has_row", [True, False])
async def test_a_page_names_the_jobs_that_end_as_failed(db: MasterFixture, taken: Fence, has_row: bool) -> None:
    """A report of a rescue shows the jobs that it gave up."""
    last = await _row(db, "PROCESSING", rescues=2) if has_row else new_id()
    other = new_id()
    limit = 3 if has_row else 1
    page = [entry(last, 2 if has_row else 1), msgspec.structs.replace(entry(other), rescues=1)]
    written = await db.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=True, max_rescues=limit)
    assert written.accepted == {last, other}
    assert written.failed == {last}


async def test_a_sweep_counts_the_jobs_that_end_as_failed(db: MasterFixture, taken: Fence) -> None:
    await _row(db, "PROCESSING", rescues=2)
    await _row(db, "PROCESSING")
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (2, 2, 1)


async def test_what_only_waited_never_fails_by_rescues(db: MasterFixture, taken: Fence) -> None:
    waited = await _row(db, "ASSIGNED", rescues=5)
    await db.master.rescue.rescue_page(taken, [entry(waited, 2)], LANE, PRIORITY, claimed=False, max_rescues=3)
    swept = await _row(db, "ASSIGNED", rescues=5)
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (1, 0, 0), "what had not begun counts no rescue"
    assert [await db.state(id_) for id_ in (waited, swept)] == ["HELD", "HELD"]


async def test_a_sweep_moves_at_most_its_limit_and_goes_on(db: MasterFixture, taken: Fence) -> None:
    ids = [await _row(db, "PROCESSING") for _ in range(5)]
    assert not await db.master.rescue.close_drained(taken, 0, 0), "rows still name the bucket"
    assert [await db.master.rescue.sweep(taken, 2, max_rescues=3) for _ in range(4)] == [
        (2, 2, 0),
        (2, 2, 0),
        (1, 1, 0),
        (0, 0, 0),
    ]
    assert {await db.state(id_) for id_ in ids} == {"HELD"}
    assert await db.master.rescue.close_drained(taken, 5, 5)
    assert await db.master.rescue.close_drained(taken, 5, 5), "asked again after an unknown commit"
    bucket = await db.bucket_row(taken.bucket_id)
    assert bucket.state is BucketState.READY_TO_DELETE
    moved = "SELECT jobs_moved, jobs_rescued FROM bucket_event WHERE to_state = 'READY_TO_DELETE'"
    assert [tuple(row) for row in await db.sql.fetch(moved)] == [(5, 5)]


async def test_a_superseded_rescuer_closes_nothing(db: MasterFixture, taken: Fence) -> None:
    await db.sql.execute("UPDATE bucket SET epoch = epoch + 1")
    assert not await db.master.rescue.close_drained(taken, 0, 0)
    assert (await db.bucket_row(taken.bucket_id)).state is BucketState.DRAINING


async def test_a_bad_id_of_a_page_goes_to_quarantine_and_its_neighbours_are_saved(
    db: MasterFixture, taken: Fence
) -> None:
    good, old, future = new_id(), bytes(16), b"\x7f" + bytes(15)
    page = [entry(id_) for id_ in (old, good, future)]
    written = await db.master.rescue.rescue_page(taken, page, LANE, PRIORITY, claimed=False, max_rescues=3)
    assert written.accepted == {good}
    assert written.quarantined == {old, future}


async def test_what_is_put_aside_is_kept_whole_and_once(db: MasterFixture) -> None:
    """Two copies of one id are two lines, whatever else they share: the second leaves the store as well."""
    job_id, bucket_id = new_id(), db.fence.bucket_id
    odd = "nul\0, half a pair \ud800, \xe9 " + "and so on" * 1000
    unfit = [
        UnstorableEntry(job_id, "pending", b"one", odd),
        UnstorableEntry(job_id, "pending", b"two", odd),
        UnstorableEntry(job_id, "kept", b"one", odd),
    ]
    for _ in range(2):
        await db.master.outcomes.quarantine(bucket_id, [*unfit, unfit[0]])
    rows = await db.sql.fetch("SELECT job_id, bucket_id, reason, entry FROM quarantine ORDER BY seq")
    assert [row["entry"] for row in rows] == [b"one", b"two", b"one"]
    assert {(row["job_id"], row["bucket_id"]) for row in rows} == {tuple(uuids([job_id, bucket_id]))}
    assert all(row["reason"].isascii() and len(row["reason"]) < 500 for row in rows)


@pytest.mark.parametrize(
    "unfit",
    [Entry(new_id(), 2**40, "handler", b"{}"), Entry(new_id(), 1, "nul\0", b"{}")],
    ids=["number", "text"],
)
@pytest.mark.parametrize("claimed", [False, True])
async def test_values_that_no_row_can_hold_are_distinguished_from_other_refusals(
    db: MasterFixture, taken: Fence, unfit: Entry, claimed: bool
) -> None:
    with pytest.raises(ValueRefused):
        await db.master.rescue.rescue_page(taken, [unfit], LANE, PRIORITY, claimed=claimed, max_rescues=3)
    good = new_id()
    written = await db.master.rescue.rescue_page(taken, [entry(good)], LANE, PRIORITY, claimed=claimed, max_rescues=3)
    assert written.accepted == {good}


async def test_a_limit_of_rescues_beyond_the_servers_numbers_makes_no_entry_unfit(
    db: MasterFixture, taken: Fence
) -> None:
    job_id = new_id()
    written = await db.master.rescue.rescue_page(
        taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=10**12
    )
    assert written.accepted == {job_id}
    assert await db.master.rescue.sweep(taken, 10, max_rescues=10**12) == (0, 0, 0)


async def test_a_job_rescued_here_is_onboarded_and_concluded_once(db: MasterFixture, taken: Fence) -> None:
    """The whole way: rescued, onboarded by another bucket, finished there; the first owner wakes up and is refused."""
    job_id = await _row(db, "PROCESSING", token=1)
    await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    healthy = await db.bucket(taken.owner)
    (again,) = (await db.master.onboarding.onboard(healthy, LANE, PRIORITY, 60.0, 10)).entries
    assert (again.id, again.token, again.rescues) == (job_id, 3, 1)
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence)])).refused == {job_id}
    assert not (await db.master.outcomes.persist(db.fence, [in_flight_row(job_id)])).bucket_ok
    assert (await db.master.outcomes.record_final([final_row(job_id, healthy, 3)])).accepted == {job_id}
    concluding = await db.sql.fetch("SELECT token FROM ledger WHERE job_id = $1 AND concluding", *uuids([job_id]))
    assert [row["token"] for row in concluding] == [3]
