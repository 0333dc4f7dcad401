"""Each guard of the statements that move a cluster, alone: what it refuses, and what it lets pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from tests.integration.postgres.fixture import MasterFixture, new_job

MIGRATING = "UPDATE cluster SET mode = 'migrating', mode_at = clock_timestamp() - interval '1 h'"
QUIET = "UPDATE bucket SET state = 'READY_TO_DELETE'"
HINDRANCES = {
    "the cluster is active": "UPDATE cluster SET mode = 'active'",
    "a bucket is open": "UPDATE bucket SET state = 'COMPLETING'",
    "an agent without a lease has no death certificate": "UPDATE agent SET lease_until = clock_timestamp() - interval '1 s'",
    "the longest lease has begun before the mode changed": "UPDATE cluster SET mode_at = clock_timestamp()",
}


async def run(db: MasterFixture, name: str, *values: object) -> list[asyncpg.Record]:
    return list(await db.sql.fetch(statement(name).text, *values))


async def held(db: MasterFixture, count: int) -> list[UUID]:
    ids = [new_id() for _ in range(count)]
    await db.master.intake.insert_held([new_job(id_) for id_ in ids])
    return [UUID(bytes=id_) for id_ in ids]


async def states(db: MasterFixture, ids: list[UUID]) -> list[str]:
    return [await db.state(id_.bytes) for id_ in ids]


@pytest.fixture
async def target(db: MasterFixture) -> AsyncIterator[UUID]:
    """A move has begun in a quiet cluster."""
    target = UUID(bytes=new_id())
    await run(db, "cluster/begin_move", target, "new")
    await db.sql.execute(f"{MIGRATING};{QUIET}")
    yield target
    await db.sql.execute("DELETE FROM cluster_move; DELETE FROM passed_signal; UPDATE cluster SET mode = 'active'")


@pytest.mark.parametrize("hindrance", HINDRANCES)
async def test_no_page_is_noted_while(db: MasterFixture, target: UUID, hindrance: str) -> None:
    page = await held(db, 1)
    await db.sql.execute(HINDRANCES[hindrance])
    assert await run(db, "cluster/note_page", page) == []
    await db.sql.execute(f"{MIGRATING};{QUIET};UPDATE agent SET lease_until = clock_timestamp() + interval '1 h'")
    (noted,) = await run(db, "cluster/note_page", page)
    assert noted["page"] == page


@pytest.mark.parametrize("left", ["a page", "a signal", "nothing"])
async def test_another_target_is_taken_when_nothing_is_in_doubt(db: MasterFixture, target: UUID, left: str) -> None:
    other = UUID(bytes=new_id())
    if left == "a page":
        await run(db, "cluster/note_page", await held(db, 1))
    elif left == "a signal":
        await db.sql.execute(
            "INSERT INTO passed_signal SELECT now(), gen_random_uuid(), 'k', 'one', '', 'a', now() + interval '1 h'"
        )
    (move,) = await run(db, "cluster/begin_move", other, "other")
    assert move["target"] == (other if left == "nothing" else target)


async def test_what_has_ended_is_not_locked_and_does_not_move(db: MasterFixture, target: UUID) -> None:
    waiting, ended = jobs = await held(db, 2)
    await db.master.requests.cancel(ended.bytes, tombstone=None, actor="ann")
    assert [row["id"] for row in await run(db, "cluster/lock_page", jobs)] == [waiting]
    assert (await run(db, "cluster/mark_moved", jobs))[0]["moved"] == 1
    assert await states(db, jobs) == ["MOVED", "CANCELLED"]


async def test_a_page_that_has_moved_is_in_doubt_no_more(db: MasterFixture, target: UUID) -> None:
    jobs = await held(db, 2)
    await run(db, "cluster/note_page", jobs)
    refused = "SELECT set_cluster_mode('active', 'ann', '')"
    with pytest.raises(asyncpg.PostgresError, match="some jobs may be in both"):
        await db.sql.execute(refused)
    await run(db, "cluster/mark_moved", jobs)
    (move,) = await run(db, "cluster/begin_move", target, "new")
    assert (move["page"], move["moved"]) == ([], 2)
    await db.sql.execute(refused)


async def test_a_cancel_that_waits_for_a_page_finds_its_job_moved(db: MasterFixture, target: UUID) -> None:
    """Without the lock it would be answered with CANCELLED, while the job runs in the other cluster."""
    (job,) = jobs = await held(db, 1)
    async with db.open_transaction("cluster/lock_page", jobs) as commit:
        task = asyncio.ensure_future(db.master.requests.cancel(job.bytes, tombstone=None, actor="ann"))
        await db.waiting("requests/cancel")
        assert not task.done()
        await commit()
        await task


async def test_a_signal_of_a_key_waits_until_the_jobs_that_wait_for_it_are_here(db: MasterFixture) -> None:
    """Sent between the look at kept signals and the commit of the jobs, it would reach none of them."""
    send: Any = [UUID(bytes=new_id()), "order:1", b"{}", "all", 0.0, 100, "ann", 100]
    async with db.open_transaction("cluster/lock_signals", ["order:1"]) as commit:
        other = await db.connect()
        task = asyncio.ensure_future(other.fetch(statement("signals/send").text, *send))
        await db.waiting("signals/send")
        assert not task.done()
        await commit()
        await task
        await other.close()
