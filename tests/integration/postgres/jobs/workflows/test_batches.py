"""Batches: what has become of their jobs is counted, and each end has one callback, whatever is sent twice or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.model.flow.batch import BatchState, BatchView, Callback, EndReason, NewBatch, Occasion, range_of
from jobmaster.ports import RecordKind
from tests.integration.postgres.fixture import MasterFixture, final_row, in_flight_row, new_job, uuids

ABANDON_SECONDS = 3600.0
EVERY = (Occasion.COMPLETE, Occasion.SUCCESS, Occasion.FAILURE)


def _callbacks(occasions: Iterable[Occasion] = EVERY) -> tuple[Callback, ...]:
    return tuple(Callback(each, 3, "default", f"on.{each}", b"{}", b"") for each in occasions)


async def _open(
    db: MasterFixture, *, parent: bytes | None = None, timeout: float | None = None, abandon: float = ABANDON_SECONDS
) -> bytes:
    batch_id = range_of(new_id())
    batch = NewBatch(batch_id, parent, None, "images", "", timeout, abandon, _callbacks())
    assert await db.master.batches.open(batch)
    return batch_id


def _child(batch_id: bytes, index: int) -> bytes:
    return batch_id[:12] + index.to_bytes(4, "big")


async def _end(db: MasterFixture, batch_id: bytes, indexes: Iterable[int], state: str = "SUCCEEDED") -> None:
    rows = [final_row(_child(batch_id, index), db.fence, state=state) for index in indexes]
    assert await db.master.outcomes.copy_final(rows)


async def _view(db: MasterFixture, batch_id: bytes) -> BatchView:
    (view,) = await db.master.batches.list(batch_id)
    return view


async def _fired(db: MasterFixture) -> list[str]:
    rows = await db.sql.fetch("SELECT handler FROM job WHERE handler LIKE 'on.%' AND state = 'HELD' ORDER BY handler")
    return [row["handler"].removeprefix("on.") for row in rows]


async def test_a_batch_ends_with_its_last_job_and_its_callbacks_are_made_once(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await _end(db, batch_id, [1, 2])
    assert await db.master.batches.conclude(batch_id) is None, "its producer may add jobs"
    assert await db.master.batches.close(batch_id, 3)
    assert await db.master.batches.conclude(batch_id) is None, "one of three jobs has no row"
    await _end(db, batch_id, [3])
    answers = await asyncio.gather(*(db.master.batches.conclude(batch_id) for _ in range(4)))
    (concluded,) = [answer for answer in answers if answer is not None]
    assert (concluded.state, set(concluded.groups)) == (BatchState.SUCCEEDED, {("default", 3)})
    assert await db.master.batches.conclude(batch_id) is None
    assert await _fired(db) == ["complete", "success"]
    view = await _view(db, batch_id)
    assert view.counts is not None
    assert (view.counts.succeeded, view.counts.ended, view.counts.missing) == (3, 3, 0)
    assert {occasion: job is not None for occasion, job in view.callbacks.items()} == {
        "complete": True, "success": True, "failure": False,
    }  # fmt: skip


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "EXPIRED"])
async def test_a_job_that_has_not_succeeded_fails_the_batch(db: MasterFixture, state: str) -> None:
    batch_id = await _open(db)
    await _end(db, batch_id, [1, 2])
    await _end(db, batch_id, [3], state)
    await db.master.batches.close(batch_id, 3)
    concluded = await db.master.batches.conclude(batch_id)
    assert concluded is not None
    assert concluded.state is BatchState.FAILED
    assert await _fired(db) == ["complete", "failure"]


async def test_a_job_that_goes_on_keeps_the_batch_open(db: MasterFixture) -> None:
    batch_id = await _open(db)
    held, running = _child(batch_id, 1), _child(batch_id, 2)
    await db.master.intake.insert_held([new_job(held)])
    await db.master.outcomes.persist(db.fence, [in_flight_row(running)])
    await db.master.batches.close(batch_id, 2)
    assert await db.master.batches.conclude(batch_id) is None
    counts = await db.master.batches.progress(batch_id)
    assert (counts.held, counts.in_flight, counts.unfinished, counts.ended) == (1, 1, 2, 0)


async def test_an_empty_batch_succeeds(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await db.master.batches.close(batch_id, 0)
    assert await db.master.batches.full([batch_id]) == [batch_id]
    concluded = await db.master.batches.conclude(batch_id)
    assert concluded is not None
    assert concluded.state is BatchState.SUCCEEDED


async def test_a_batch_counts_no_job_of_another_one(db: MasterFixture) -> None:
    batch_id = await _open(db)
    neighbours = [new_id() for _ in range(3)]
    await db.master.outcomes.copy_final([final_row(each, db.fence) for each in neighbours])
    await db.master.batches.close(batch_id, 1)
    assert await db.master.batches.conclude(batch_id) is None
    assert (await db.master.batches.progress(batch_id)).ended == 0


async def test_what_is_sent_twice_opens_and_closes_once(db: MasterFixture) -> None:
    batch = NewBatch(range_of(new_id()), None, None, "images", "", None, ABANDON_SECONDS, _callbacks())
    assert [await db.master.batches.open(batch) for _ in range(2)] == [True, False]
    second = range_of(new_id())
    assert [await db.master.batches.add_range(batch.id, second) for _ in range(2)] == [True, True]
    assert not await db.master.batches.add_range(range_of(new_id()), second), "there is no such batch"
    assert [await db.master.batches.close(batch.id, 0) for _ in range(2)] == [True, False]
    assert not await db.master.batches.add_range(batch.id, range_of(new_id())), "it is closed"
    assert (await _view(db, batch.id)).ranges == (batch.id, second)


async def test_all_ranges_of_a_batch_are_counted(db: MasterFixture) -> None:
    batch_id = await _open(db)
    second = range_of(new_id())
    await db.master.batches.add_range(batch_id, second)
    await _end(db, batch_id, [1])
    await _end(db, second, [1, 2])
    await db.master.batches.close(batch_id, 3)
    assert await db.master.batches.conclude(batch_id) is not None


async def test_tallies_of_all_agents_show_when_to_count(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await db.master.batches.close(batch_id, 5)
    await db.master.batches.tally(db.owner, {batch_id: 2})
    await db.master.batches.tally(db.owner, {batch_id: 1, range_of(new_id()): 7})
    assert await db.master.batches.full([batch_id]) == []
    await db.master.batches.tally(new_id(), {batch_id: 2})
    assert await db.master.batches.full([batch_id]) == [batch_id]
    assert await db.master.batches.conclude(batch_id) is None, "tallies are no count"
    assert (await _view(db, batch_id)).tallied == 5


async def test_a_batch_waits_for_the_batches_inside_it(db: MasterFixture) -> None:
    outer = await _open(db)
    inner = await _open(db, parent=outer)
    await db.master.batches.close(outer, 0)
    assert await db.master.batches.full([outer]) == []
    assert await db.master.batches.conclude(outer) is None
    await db.master.batches.close(inner, 1)
    await _end(db, inner, [1], "FAILED")
    concluded = await db.master.batches.conclude(inner)
    assert concluded is not None
    assert concluded.parent == outer
    ended = await db.master.batches.conclude(outer)
    assert ended is not None
    assert ended.state is BatchState.FAILED, "one inside it has failed"
    late = NewBatch(range_of(new_id()), outer, None, "late", "", None, ABANDON_SECONDS, ())
    assert not await db.master.batches.open(late), "nothing is opened inside a batch that has ended"


async def test_a_batch_opened_inside_while_the_outer_one_is_counted_is_not_missed(db: MasterFixture) -> None:
    outer = await _open(db)
    await db.master.batches.close(outer, 0)
    inner: tuple[Any, ...] = (
        *uuids([range_of(new_id()), outer]),
        None,
        "inner",
        "",
        None,
        ABANDON_SECONDS,
        *([] for _ in range(6)),
        None,
        None,
    )
    async with db.open_transaction("batches/open", *inner) as commit:
        counting = db.master.batches.conclude(outer)
        assert await db.after_lock("batches/conclude", counting, commit) is None


async def test_a_cancel_reaches_what_waits_what_runs_and_what_is_inside(db: MasterFixture) -> None:
    outer = await _open(db)
    inner = await _open(db, parent=outer)
    held, running, inside = _child(outer, 1), _child(outer, 2), _child(inner, 1)
    await db.master.intake.insert_held([new_job(held), new_job(inside)])
    await db.master.outcomes.persist(db.fence, [in_flight_row(running)])
    assert await db.master.batches.cancel_page(outer, None, 10) == (None, 0), "it was not requested"
    version = (await db.master.pauses.in_force()).version
    assert await db.master.batches.request_cancel(outer, "ann") == [outer, inner]
    in_force = await db.master.pauses.in_force()
    assert in_force.version > version
    assert in_force.cancelled_ranges == {outer[:12], inner[:12]}
    last, jobs = await db.master.batches.cancel_page(outer, None, 1)
    assert (last, jobs) == (held, 1)
    assert await db.master.batches.cancel_page(outer, last, 1) == (running, 1)
    assert await db.master.batches.cancel_page(outer, None, 10) == (None, 0)
    await db.master.batches.cancel_page(inner, None, 10)
    assert [await db.state(each) for each in (held, running, inside)] == ["CANCELLED", "PROCESSING", "CANCELLED"]
    assert (await db.master.members.renew(db.owner, 10.0)).cancel_requested == [running]
    await db.master.outcomes.record_final([final_row(running, db.fence, state="CANCELLED")])
    await db.master.batches.close(inner, 1)
    await db.master.batches.close(outer, 2)
    assert await db.master.batches.conclude(inner) is not None
    concluded = await db.master.batches.conclude(outer)
    assert concluded is not None
    assert concluded.state is BatchState.CANCELLED
    assert await _fired(db) == ["complete", "complete"], "of a cancelled batch only the callback of every end"
    assert await db.master.batches.request_cancel(outer, "ann") == []
    assert (await db.master.pauses.in_force()).cancelled_ranges == frozenset()


@pytest.mark.parametrize("reason", list(EndReason))
async def test_a_batch_can_end_before_its_jobs(db: MasterFixture, reason: EndReason) -> None:
    batch_id = await _open(db)
    await _end(db, batch_id, [1])
    await db.master.intake.insert_held([new_job(_child(batch_id, 2))])
    await db.master.batches.close(batch_id, 4)
    concluded = await db.master.batches.conclude(batch_id, reason)
    assert concluded is not None
    assert concluded.state is BatchState.FAILED
    view = await _view(db, batch_id)
    assert view.counts is not None
    assert (view.reason, view.counts.succeeded, view.counts.unfinished, view.counts.missing) == (reason, 1, 1, 2)
    assert await db.state(_child(batch_id, 2)) == "HELD", "its jobs go on"
    assert await _fired(db) == ["complete", "failure"]


async def _due(db: MasterFixture, lost: float = 0.0) -> list[str]:
    await db.sql.execute("UPDATE batch SET look_at = now() - interval '1 s' WHERE look_at IS NOT NULL")
    (found,) = await db.master.batches.due(10, lost)
    return [name for name in ("abandoned", "expired", "lost") if getattr(found, name)]


async def test_the_leader_sees_what_a_batch_has_been_waiting_for(db: MasterFixture) -> None:
    batch_id = await _open(db, timeout=3600.0)
    assert await db.master.batches.due(10, 0.0) == [], "it is not looked at yet"
    assert await _due(db) == []
    await db.sql.execute("UPDATE batch SET created_at = now() - interval '90 s'")
    await _due(db)
    assert (await db.master.batches.due(10, 0.0))[0].quiet_seconds == pytest.approx(90, abs=30)
    await db.sql.execute("UPDATE batch SET silent_after = now() - interval '1 s'")
    assert await _due(db) == ["abandoned"]
    assert await db.master.batches.touch(batch_id, ABANDON_SECONDS) is False
    assert await _due(db) == []
    await db.master.batches.tally(db.owner, {batch_id: 1})
    assert (await db.master.batches.due(10, 0.0))[0].quiet_seconds < 30
    await db.master.batches.close(batch_id, 1)
    assert await db.master.batches.touch(batch_id, ABANDON_SECONDS) is None
    await db.sql.execute("UPDATE batch SET expires_at = now() - interval '1 s'")
    assert await _due(db) == ["expired"]
    await db.master.buckets.note_loss(db.fence, "store", 5, 0, "test")
    assert await _due(db) == ["expired", "lost"]
    assert await _due(db, lost=3600.0) == ["expired"], "a job may have ended lately"
    await db.master.batches.postpone(batch_id, 60.0)
    assert await db.master.batches.due(10, 0.0) == []


@pytest.mark.parametrize("column", ["expires_at", "silent_after"])
async def test_the_leader_looks_when_a_batch_expires_or_is_abandoned_and_not_later(
    db: MasterFixture, column: str
) -> None:
    batch_id = await _open(db, timeout=3600.0)
    await db.sql.execute(f"UPDATE batch SET {column} = clock_timestamp() + interval '20 s'")
    await db.master.batches.postpone(batch_id, 600.0)
    assert await db.sql.fetchval(f"SELECT look_at = {column} FROM batch")
    await db.sql.execute(f"UPDATE batch SET {column} = clock_timestamp() - interval '20 s'")
    await db.master.batches.postpone(batch_id, 600.0)
    assert await db.sql.fetchval("SELECT look_at > clock_timestamp() + interval '500 s' FROM batch"), "it was looked at"


async def test_a_short_timeout_is_looked_at_in_time(db: MasterFixture) -> None:
    batch_id = await _open(db, timeout=2.0)
    assert await db.sql.fetchval("SELECT look_at <= created_at + interval '3 s' FROM batch")
    await db.master.batches.close(batch_id, 1)
    assert await db.sql.fetchval("SELECT look_at = expires_at FROM batch")


async def test_a_batch_does_not_end_while_a_job_beyond_its_size_goes_on(db: MasterFixture) -> None:
    """A producer had no answer for a job, did not find it, and it came into being all the same."""
    batch_id = await _open(db)
    await db.master.batches.close(batch_id, 2)
    await _end(db, batch_id, [1, 2])
    await db.master.intake.insert_held([new_job(_child(batch_id, 3))])
    assert await db.master.batches.conclude(batch_id) is None
    await db.master.batches.request_cancel(batch_id, "ann")
    await db.master.batches.cancel_page(batch_id, None, 10)
    assert await db.master.batches.conclude(batch_id) is not None
    view = await _view(db, batch_id)
    assert view.counts is not None
    assert (view.size, view.counts.succeeded, view.counts.cancelled) == (3, 2, 1)


async def test_nothing_is_opened_inside_a_cancelled_batch(db: MasterFixture) -> None:
    outer = await _open(db)
    await db.master.batches.request_cancel(outer, "ann")
    inner = NewBatch(range_of(new_id()), outer, None, "inner", "", None, ABANDON_SECONDS, ())
    assert not await db.master.batches.open(inner)


async def test_a_batch_opened_while_the_outer_one_is_cancelled_is_found_by_the_leader(db: MasterFixture) -> None:
    outer, inner_id = await _open(db), range_of(new_id())
    inner: tuple[Any, ...] = (
        *uuids([inner_id, outer]),
        None,
        "inner",
        "",
        None,
        ABANDON_SECONDS,
        *([] for _ in range(6)),
        None,
        None,
    )
    async with db.open_transaction("batches/open", *inner) as commit:
        cancelling = db.master.batches.request_cancel(outer, "ann")
        assert await db.after_lock("batches/request_cancel", cancelling, commit) == [outer]
    await db.sql.execute("UPDATE batch SET look_at = now() - interval '1 s'")
    left = {found.id: found.inner_left for found in await db.master.batches.due(10, 0.0)}
    assert left == {outer: True, inner_id: False}
    assert await db.master.batches.request_cancel(outer, "leader") == [outer, inner_id]
    await db.sql.execute("UPDATE batch SET look_at = now() - interval '1 s'")
    assert not any(found.inner_left for found in await db.master.batches.due(10, 0.0))


async def test_copies_of_a_cancelled_batch_never_start_though_it_has_ended_before_them(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await db.master.batches.request_cancel(batch_id, "ann")
    assert await db.master.batches.conclude(batch_id, EndReason.ABANDONED) is not None
    assert (await db.master.pauses.in_force()).cancelled_ranges == {batch_id[:12]}


async def test_quarantined_jobs_are_not_forgotten_before_their_batch(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await db.sql.execute(
        "INSERT INTO quarantine (job_id, reason, entry, at) VALUES ($1, 'a', '', now() - interval '9 d'),"
        " ($2, 'a', '', now() - interval '9 d')",
        *uuids([_child(batch_id, 1), new_id()]),
    )
    assert await db.master.maintenance.forget(RecordKind.QUARANTINE, 1.0, 1) == 1
    assert await db.master.maintenance.forget(RecordKind.QUARANTINE, 1.0, 1) == 0
    assert (await db.master.batches.progress(batch_id)).failed == 1


async def test_a_quarantined_job_counts_as_failed(db: MasterFixture) -> None:
    batch_id = await _open(db)
    await db.sql.execute(
        "INSERT INTO quarantine (job_id, reason, entry) VALUES ($1, 'a', ''), ($1, 'b', '')",
        *uuids([_child(batch_id, 1)]),
    )
    await db.master.batches.close(batch_id, 1)
    assert (await db.master.batches.progress(batch_id)).failed == 1
    concluded = await db.master.batches.conclude(batch_id)
    assert concluded is not None
    assert concluded.state is BatchState.FAILED


async def test_batches_that_ended_long_ago_are_forgotten_and_their_jobs_stay(db: MasterFixture) -> None:
    outer = await _open(db)
    inner = await _open(db, parent=outer)
    await _end(db, inner, [1])
    await db.master.batches.tally(db.owner, {inner: 1})
    await db.master.batches.close(inner, 1)
    await db.master.batches.conclude(inner)
    await db.sql.execute("UPDATE batch SET ended_at = ended_at - interval '2 days' WHERE ended_at IS NOT NULL")
    assert await db.master.maintenance.forget(RecordKind.BATCHES, 1.0, 10) == 0, "the outer one counts it"
    await db.master.batches.close(outer, 0)
    await db.master.batches.conclude(outer)
    assert await db.master.maintenance.forget(RecordKind.BATCHES, 1.0, 10) == 1
    for table in ("batch", "batch_range", "batch_callback"):
        rows = await db.sql.fetchval(f"SELECT count(*) FROM {table}")
        assert rows == (3 if table == "batch_callback" else 1)
    assert await db.sql.fetchval("SELECT count(*) FROM batch_tally") == 0
    assert await db.state(_child(inner, 1)) == "SUCCEEDED"
