"""Jobs that may be started once only: what a rescuer makes of them, and how it knows."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.driver.statements import statement
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Headers
from jobmaster.ports import RowRef
from tests.integration.postgres.fixture import (
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    in_flight_row,
    new_job,
    uuids,
)

ONCE = encode_headers(Headers(at_most_once=True))
LOOKALIKE = encode_headers(
    Headers(metadata={"at_most_once": "true", "x": '"at_most_once":true'}, tags=("at_most_once",))
)


async def started(db: MasterFixture, *, headers: bytes = ONCE, state: str = "PROCESSING") -> bytes:
    """A job whose start was accepted (or, ASSIGNED, that only waits)."""
    job_id = new_id()
    row = in_flight_row(job_id, state=state)._replace(headers=headers)
    assert (await db.master.outcomes.persist(db.fence, [row])).accepted == {job_id}
    return job_id


async def taken(db: MasterFixture, rescuer: bytes) -> Fence:
    await db.lost()
    return await db.take(rescuer)


async def assert_abandoned(db: MasterFixture, job_id: bytes) -> None:
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id, view.rescues) == ("FAILED", 1, db.fence.bucket_id, 1)
    assert view.error is not None
    assert view.error.reason == "abandoned"
    assert await db.lines(job_id) == [], "the row is the concluding line of this identity"


@pytest.mark.parametrize("where", ["claimed", "pending", "sweep"])
async def test_one_that_was_started_is_abandoned_and_its_late_outcome_refused(
    db: MasterFixture, rescuer: bytes, where: str
) -> None:
    job_id = await started(db)
    fence = await taken(db, rescuer)
    if where == "sweep":
        assert await db.master.rescue.sweep(fence, 10, max_rescues=3) == (1, 1, 1)
    else:
        page = await db.master.rescue.rescue_page(
            fence, [entry(job_id)], LANE, PRIORITY, claimed=where == "claimed", max_rescues=3
        )
        assert page.accepted == page.failed == {job_id}
    await assert_abandoned(db, job_id)
    late = final_row(job_id, db.fence)
    assert (await db.master.outcomes.record_final([late])).refused == {job_id}
    assert await db.state(job_id) == "FAILED"
    assert await db.lines(job_id) == [(1, "refused")], "the line shows that it came to an end after all"


async def test_one_that_was_not_started_is_rescued_as_usual(db: MasterFixture, rescuer: bytes) -> None:
    waits, swept, rowless = await started(db, state="ASSIGNED"), await started(db, state="ASSIGNED"), new_id()
    fence = await taken(db, rescuer)
    copies = [entry(waits), entry(rowless)]
    page = await db.master.rescue.rescue_page(fence, copies, LANE, PRIORITY, claimed=True, max_rescues=3)
    assert page.accepted == {waits, rowless}
    assert await db.master.rescue.sweep(fence, 10, max_rescues=3) == (1, 0, 0)
    assert [await db.state(job_id) for job_id in (waits, swept, rowless)] == ["HELD"] * 3
    # What makes it a proof: its old owner can be allowed to start none of them any more.
    for job_id in (waits, swept, rowless):
        row = in_flight_row(job_id)._replace(headers=ONCE)
        assert not (await db.master.outcomes.persist(db.fence, [row])).bucket_ok


async def test_a_cancel_request_goes_first(db: MasterFixture, rescuer: bytes) -> None:
    job_id = await started(db)
    await db.master.requests.cancel(job_id, tombstone=None, actor="test")
    fence = await taken(db, rescuer)
    await db.master.rescue.sweep(fence, 10, max_rescues=3)
    assert await db.state(job_id) == "CANCELLED"


@pytest.mark.parametrize("state", ["PROCESSING", "ASSIGNED"])
async def test_without_a_bucket_it_is_the_same(db: MasterFixture, state: str) -> None:
    job_id = await started(db, state=state)
    await db.sql.execute("DELETE FROM bucket")
    assert (await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 1
    if state == "PROCESSING":
        await assert_abandoned(db, job_id)
    else:
        assert await db.state(job_id) == "HELD"


async def test_text_that_looks_like_the_mark_is_none(db: MasterFixture, rescuer: bytes) -> None:
    job_id = await started(db, headers=LOOKALIKE)
    await db.master.rescue.sweep(await taken(db, rescuer), 10, max_rescues=3)
    assert await db.state(job_id) == "HELD"


async def test_the_start_marks_the_row_and_an_older_write_takes_the_mark_away_no_more(
    db: MasterFixture, rescuer: bytes
) -> None:
    """The handler alone says it: the row that the master gave out has no mark before the start."""
    await db.master.intake.insert_held([new_job(job_id := new_id())])
    (got,) = (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 1)).entries
    start = in_flight_row(job_id, got.token)
    assert (await db.master.outcomes.persist(db.fence, [start._replace(headers=ONCE)])).accepted == {job_id}
    late = start._replace(state="ASSIGNED")  # sent before the start, and executed after it
    assert (await db.master.outcomes.persist(db.fence, [late])).accepted == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.headers_json) == ("PROCESSING", ONCE)
    await db.master.rescue.sweep(await taken(db, rescuer), 10, max_rescues=3)
    assert await db.state(job_id) == "FAILED"


async def test_a_takeover_that_waits_for_the_start_abandons_the_job(db: MasterFixture, rescuer: bytes) -> None:
    """The start is being committed while the certificate is written: the rescuer sees it."""
    job_id = new_id()
    (uuid,), ours = uuids([job_id]), uuids(db.fence[:1] + db.fence[2:])
    args = (
        ours[0],
        1,
        ours[1],
        [uuid],
        ["PROCESSING"],
        [3],
        ["default"],
        ["h"],
        [1],
        [0],
        [0],
        [0],
        [b"{}"],
        [ONCE],
        [None],
    )
    async with db.open_transaction("outcomes/persist", *args) as commit:
        await db.sql.execute("UPDATE agent SET state = 'DEAD' WHERE id = $1", ours[1])
        task = asyncio.ensure_future(db.sql.fetch(statement("buckets/lose").text, "test"))
        await db.waiting("buckets/lose")
        await commit()
        await task
    await db.master.rescue.sweep(await db.take(rescuer), 10, max_rescues=3)
    await assert_abandoned(db, job_id)


async def test_a_start_that_waits_for_the_takeover_is_refused(db: MasterFixture, rescuer: bytes) -> None:
    """The other order: the start finds another owner when it gets its turn, and the job was never begun."""
    ours = uuids(db.fence[2:])
    await db.sql.execute("UPDATE agent SET state = 'DEAD' WHERE id = $1", ours[0])
    row = in_flight_row(job_id := new_id())._replace(headers=ONCE)
    async with db.open_transaction("buckets/lose", "test") as commit:
        written = await db.after_lock("outcomes/persist", db.master.outcomes.persist(db.fence, [row]), commit)
    assert not written.bucket_ok
    fence = await db.take(rescuer)
    page = await db.master.rescue.rescue_page(fence, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    assert page.accepted == {job_id}
    assert await db.state(job_id) == "HELD"


async def test_an_owner_that_knows_nothing_of_one_does_not_run_it_again(db: MasterFixture) -> None:
    job_id, waiting = await started(db), await started(db, state="ASSIGNED")
    rows = [
        RowRef(id_, Identity(1, db.fence.bucket_id, db.fence.epoch), state, 0)
        for id_, state in ((job_id, "PROCESSING"), (waiting, "ASSIGNED"))
    ]
    assert await db.master.onboarding.give_back(db.fence.bucket_id, rows) == 2
    view = await db.view(job_id)
    assert view.error is not None
    assert (view.state, view.token, view.error.reason) == ("FAILED", 1, "abandoned")
    assert await db.state(waiting) == "HELD"
