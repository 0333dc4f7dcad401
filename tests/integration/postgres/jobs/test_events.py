"""The stream of recorded events: none is skipped, however transactions end, and none comes twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import Refused
from jobmaster.model.event import BucketEvent, ClusterEvent, EventKind, JobEvent, OperatorEvent
from jobmaster.model.pause import PauseKind
from jobmaster.ports import EventPage, EventPlace
from tests.integration.postgres.fixture import ERROR, SNOOZED, MasterFixture, final_row, hold_row
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

INSERT = (
    "INSERT INTO job (id, state, priority, lane, handler, token, attempt, rescues, args, headers, waited_us, ran_us) "
    "VALUES ($1, 'SUCCEEDED', 3, 'default', 'handler', 1, 0, 0, '{}', '', 0, 0)"
)
JOBS = tuple(kind.value for kind in EventKind if kind.value.startswith("job_"))


async def read(db: MasterFixture, after: EventPlace, count: int, *kinds: str, limit: int = 1000) -> list[ClusterEvent]:
    """The events after a place, once there are so many: transactions of other tests on the server hold them back."""
    found: list[ClusterEvent] = []

    async def enough() -> bool:
        page = await db.master.events.read(after, kinds or None, None, limit)
        found[:] = [event for _, event in page.events]
        return len(found) >= count

    await eventually(enough, what=lambda: f"{count} events, not {found}")
    return found


async def ids(db: MasterFixture, after: EventPlace, count: int) -> list[bytes]:
    return [event.id_bytes for event in await read(db, after, count, *JOBS) if isinstance(event, JobEvent)]


async def test_of_transactions_that_end_in_the_reverse_order_of_their_numbers_no_event_is_lost(
    db: MasterFixture,
) -> None:
    early, late, last = new_id(), new_id(), new_id()
    place = await db.master.events.place(start=False)
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT pg_current_xact_id()")  # its number is lower than that of the next one
    await db.master.outcomes.copy_final([final_row(late, db.fence)])
    page = await db.master.events.read(place, JOBS, None, 1000)
    assert page.events == [], "an event behind an open transaction would hide those of that transaction"
    assert not page.more
    await other.execute(INSERT, early.hex())
    await transaction.commit()
    await other.close()
    await db.master.outcomes.copy_final([final_row(last, db.fence)])
    assert await ids(db, page.place, 3) == [early, late, last]
    assert await ids(db, place, 3) == [early, late, last]


async def test_a_reader_that_continues_at_any_place_gets_the_rest_once(db: MasterFixture) -> None:
    place = await db.master.events.place(start=False)
    jobs = sorted(new_id() for _ in range(7))
    await db.master.outcomes.copy_final([final_row(job_id, db.fence) for job_id in jobs[:4]])
    await db.master.outcomes.copy_final([final_row(job_id, db.fence, state="FAILED") for job_id in jobs[4:]])
    assert await ids(db, place, 7) == jobs
    page = await db.master.events.read(place, JOBS, None, 1000)
    for number, (after, _) in enumerate(page.events):
        assert await ids(db, after, 0) == jobs[number + 1 :]
    assert await ids(db, page.place, 0) == []
    pages: list[EventPage] = []
    after = place
    while not pages or pages[-1].more:
        pages.append(await db.master.events.read(after, JOBS, None, 3))
        after = pages[-1].place
    assert [len(each.events) for each in pages] == [3, 3, 1]
    assert [event.id_bytes for each in pages for _, event in each.events if isinstance(event, JobEvent)] == jobs


async def test_events_have_what_the_rows_have(db: MasterFixture) -> None:
    place = await db.master.events.place(start=False)
    (job_id,) = await db.processing()
    await db.master.outcomes.hold(db.fence, [hold_row(job_id, error=SNOOZED)])
    other = new_id()
    await db.master.outcomes.copy_final([final_row(other, db.fence, state="FAILED")])
    await db.master.pauses.pause(PauseKind.HANDLER, "handler", None, None, "ann", "too hot")
    bucket = await db.bucket()
    snoozed, failed, act, opened = await read(db, place, 4)
    assert isinstance(snoozed, JobEvent)
    assert (snoozed.kind, snoozed.outcome, snoozed.id_bytes, snoozed.handler) == (
        EventKind.ATTEMPT_ENDED, "snoozed", job_id, "handler",
    )  # fmt: skip
    assert isinstance(failed, JobEvent)
    assert (failed.state, failed.ran_us, failed.error is not None) == ("FAILED", 7, True)
    assert isinstance(act, OperatorEvent)
    assert (act.actor, act.detail["reason"]) == ("ann", "too hot")
    assert isinstance(opened, BucketEvent)
    assert (opened.bucket_id, opened.state) == (bucket.bucket_id, "ACTIVE")
    assert [event.kind for event in await read(db, place, 1, "attempt_ended")] == ["attempt_ended"]
    chosen = await db.master.events.read(place, None, ["other"], 1000)
    assert chosen.events == []
    chosen = await db.master.events.read(place, None, ["handler"], 1000)
    assert [event.kind for _, event in chosen.events] == ["attempt_ended", "job_failed"]


async def test_places_from_which_no_stream_can_go_on_are_refused(db: MasterFixture) -> None:
    place = await db.master.events.place(start=True)
    for other, message in (
        (place._replace(system="1"), "of another server"),
        (place._replace(timeline="00000000"), "a standby has taken over"),
        (place._replace(xid=place.began - (1 << 31)), "too old"),
    ):
        with pytest.raises(Refused, match=message):
            await db.master.events.read(other, None, None, 10)


async def test_a_range_that_was_dropped_unread_is_an_error(db: MasterFixture) -> None:
    place = await db.master.events.place(start=True)
    low, high = (bytes([0]) * 15 + bytes([number]) for number in (1, 2))
    insert = (
        "INSERT INTO archive_manifest "
        "(name, attempts, lo, hi, discarded, state, jobs_recorded, attempts_recorded, dropped_xid) "
        "VALUES ('job_dropped', 'attempt_dropped', $1, $2, true, 'DROPPED', $3, 0, $3)"
    )
    await db.sql.execute(insert, low.hex(), high.hex(), place.began + 1000)
    try:
        with pytest.raises(Refused, match="job_dropped left the master before"):
            await db.master.events.read(place, None, None, 10)
    finally:
        await db.sql.execute("DELETE FROM archive_manifest WHERE name = 'job_dropped'")


async def test_a_reader_beside_many_writers_gets_each_event_once(db: MasterFixture) -> None:
    """Transactions that overlap in every way, with subtransactions, some of them rolled back; a reader that starts again
    at the last cursor after each page."""
    chance = random.Random(7)
    after = await db.master.events.place(start=False)
    written: list[bytes] = []

    async def write() -> None:
        connection = await db.connect()
        for _ in range(20):
            jobs = [new_id() for _ in range(chance.randint(1, 5))]
            transaction = connection.transaction()
            await transaction.start()
            for job_id in jobs:
                async with connection.transaction():
                    await connection.execute(INSERT, job_id.hex())
                await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.2:
                await transaction.rollback()
            else:
                await transaction.commit()
                written.extend(jobs)
        await connection.close()

    writing = asyncio.gather(*(write() for _ in range(4)))
    found: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not writing.done() or len(found) < len(written):
                page = await db.master.events.read(after, JOBS, None, chance.choice((2, 1000)))
                found += [event.id_bytes for _, event in page.events if isinstance(event, JobEvent)]
                after = page.events[-1][0] if page.events and chance.random() < 0.5 else page.place
    finally:
        await writing
    assert sorted(found) == sorted(written)


async def test_an_event_whose_row_was_moved_comes_once(db: MasterFixture) -> None:
    place = await db.master.events.place(start=False)
    job_id, later = new_id(), new_id()
    await db.master.outcomes.copy_final([final_row(job_id, db.fence)])
    await ids(db, place, 1)
    (read_to,) = (await db.master.events.read(place, JOBS, None, 1)).events[0][:1]
    # As the attic does: the new row bears the transaction that recorded the old one.
    await db.sql.execute("UPDATE job SET recorded_xid = xmin::text::bigint WHERE id = $1", job_id.hex())
    await db.master.outcomes.copy_final([final_row(later, db.fence)])
    assert await ids(db, place, 2) == [job_id, later]
    assert await ids(db, read_to, 1) == [later]


async def test_published_jobs_are_shown_as_their_rows_are(db: MasterFixture) -> None:
    (running,) = await db.processing()
    (assigned,) = await db.assigned()
    ended, held = new_id(), new_id()
    await db.master.outcomes.copy_final([final_row(ended, db.fence)])
    await db.master.outcomes.hold(db.fence, [hold_row(held, error=ERROR)])
    found = await db.master.events.changed([running, assigned, ended, held, new_id()])
    assert {one.event.id_bytes: one.event.kind for one in found} == {
        running: EventKind.JOB_STARTED,
        ended: EventKind.JOB_SUCCEEDED,
        held: EventKind.JOB_WAITS,
    }
