"""A job that its handler has put off: its row counts it, its line says so, and no attempt is used up."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.job import Headers, HoldRow
from jobmaster.ports import Written
from tests.integration.postgres.fixture import DUE, ERROR, LANE, PRIORITY, SNOOZED, MasterFixture

ONCE = Headers(at_most_once=True)


def row(job_id: bytes, token: int, headers: Headers, *, used: int = 0, error: bytes | None = SNOOZED) -> HoldRow:
    return HoldRow(
        job_id, PRIORITY, LANE, "handler", token, used, 0, DUE, b"{}", encode_headers(headers), error, 5
    )  # fmt: skip


async def write(db: MasterFixture, here: bool, held: HoldRow) -> Written:
    outcomes = db.master.outcomes
    return await (outcomes.retry_here(db.fence, [held]) if here else outcomes.hold(db.fence, [held]))


@pytest.mark.parametrize("here", [False, True], ids=["held", "in its bucket"])
async def test_a_snooze_is_counted_in_the_row_and_named_in_the_line(db: MasterFixture, here: bool) -> None:
    [job_id] = await db.assigned()
    for _ in range(2):  # as after a lost answer
        assert (await write(db, here, row(job_id, 2, Headers(snoozes=1)))).accepted == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.attempt) == ("ASSIGNED" if here else "HELD", 0)
    assert view.due_us == DUE
    assert view.headers == Headers(snoozes=1)
    assert await db.lines(job_id) == [(2, "snoozed")]


@pytest.mark.parametrize("here", [False, True], ids=["held", "in its bucket"])
async def test_a_job_without_a_row_gets_one_that_counts_it(db: MasterFixture, here: bool) -> None:
    job_id = new_id()
    assert (await write(db, here, row(job_id, 1, Headers(snoozes=1, tags=("a",))))).accepted == {job_id}
    view = await db.view(job_id)
    assert (view.attempt, view.headers) == (0, Headers(snoozes=1, tags=("a",)))
    assert await db.lines(job_id) == [(1, "snoozed")]


@pytest.mark.parametrize("here", [False, True], ids=["held", "in its bucket"])
async def test_a_failed_attempt_leaves_the_headers_alone(db: MasterFixture, here: bool) -> None:
    [job_id] = await db.assigned()
    assert (await write(db, here, row(job_id, 2, Headers(snoozes=1), used=1, error=ERROR))).accepted == {job_id}
    view = await db.view(job_id)
    assert (view.attempt, view.headers_json) == (1, b"")
    assert await db.lines(job_id) == [(2, "failed")]


@pytest.mark.parametrize("here", [False, True], ids=["held", "in its bucket"])
async def test_an_older_write_does_not_take_away_that_a_job_is_delivered_at_most_once(
    db: MasterFixture, here: bool
) -> None:
    [job_id] = await db.assigned()
    await db.sql.execute("UPDATE job SET headers = $1", encode_headers(ONCE))
    assert (await write(db, here, row(job_id, 2, Headers(), error=None))).accepted == {job_id}
    assert (await db.view(job_id)).headers == ONCE


@pytest.mark.parametrize("here", [False, True], ids=["held", "in its bucket"])
async def test_a_superseded_run_puts_nothing_off(db: MasterFixture, here: bool) -> None:
    [job_id] = await db.assigned()
    before = await db.jobs()
    assert (await write(db, here, row(job_id, 1, Headers(snoozes=1)))).refused == {job_id}
    assert await db.jobs() == before
