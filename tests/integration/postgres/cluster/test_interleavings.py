"""Two sessions, step by step, under READ COMMITTED: begin, lock, the other waits (seen in the server), commit.

Each of these passes with plain code in a quiet test; only the written order shows whether a fence is read again after the
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import Written
from tests.integration.postgres.fixture import (
    DUE,
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
    uuids,
)


async def test_a_takeover_waits_for_an_in_flight_write_and_then_finds_its_row(
    db: MasterFixture, rescuer: bytes
) -> None:
    job_id = new_id()
    (uuid,), fence = uuids([job_id]), uuids(db.fence[:1] + db.fence[2:])
    args = (
        fence[0],
        1,
        fence[1],
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
        [b""],
        [None],
    )
    async with db.open_transaction("outcomes/persist", *args) as commit:
        await db.sql.execute("UPDATE agent SET state = 'DEAD' WHERE id = $1", fence[1])
        lose = statement("buckets/lose").text
        task = asyncio.ensure_future(db.sql.fetch(lose, "test"))
        await db.waiting("buckets/lose")
        await commit()
        await task
    taken = await db.take(rescuer)
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (1, 1, 0)
    view = await db.view(job_id)
    assert (view.state, view.token, view.rescues) == ("HELD", 2, 1)


async def test_an_outcome_that_waits_for_the_rescue_is_refused(db: MasterFixture, rescuer: bytes) -> None:
    (job_id,) = await db.processing()
    await db.lost()
    taken = await db.take(rescuer)
    ids = uuids([taken.bucket_id, taken.owner])
    async with db.open_transaction("rescue/sweep", ids[0], taken.epoch, ids[1], 10, 3, b"{}", b"{}") as commit:
        task = db.master.outcomes.record_final([final_row(job_id, db.fence)])
        written = await db.after_lock("outcomes/record_final", task, commit)
    assert written.refused == {job_id}
    assert await db.state(job_id) == "HELD"


async def test_a_rescue_that_waits_for_an_outcome_leaves_it_alone(db: MasterFixture, rescuer: bytes) -> None:
    (job_id,) = await db.processing()
    await db.lost()
    taken = await db.take(rescuer)
    holder = await db.connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", uuids([job_id])[0])
    sweep = db.master.rescue.sweep(taken, 10, max_rescues=3)
    assert await db.after_lock("rescue/sweep", sweep, transaction.commit) == (0, 0, 0)
    page = await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    await holder.close()
    assert page.refused == {job_id}
    assert await db.state(job_id) == "SUCCEEDED"


async def test_a_cancel_that_waits_for_a_first_row_leaves_that_row_unchanged(db: MasterFixture) -> None:
    """The outcome of a job without a row comes first: the tombstone must not replace it."""
    job_id = new_id()
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, args)"
        " VALUES ($1, 'SUCCEEDED', 3, 'default', 'handler', 1, $2, 1, '{}')",
        *uuids([job_id, db.fence.bucket_id]),
    )
    cancel = db.master.requests.cancel(job_id, tombstone=new_job(job_id), actor="test")
    assert await db.after_lock("requests/cancel_rowless", cancel, transaction.commit) == "SUCCEEDED"
    await other.close()
    assert await db.state(job_id) == "SUCCEEDED"


async def test_two_claimers_share_the_due_jobs_and_neither_waits(db: MasterFixture) -> None:
    ids = [new_id() for _ in range(20)]
    await db.master.intake.insert_held([new_job(id_) for id_ in ids])
    second = await db.bucket()
    bucket, owner = uuids([db.fence.bucket_id, db.fence.owner])
    async with db.open_transaction(
        "onboarding/onboard", bucket, 1, owner, LANE, PRIORITY, 60.0, 12, 0, None, 10**6, *[None] * 4, False
    ) as commit:
        answer = await db.master.onboarding.onboard(second, LANE, PRIORITY, 60.0, 12)
        assert len(answer.entries) == 8, "what the other has locked is skipped"
        await commit()
    rows = await db.sql.fetch("SELECT bucket_id, count(*), min(token), max(token) FROM job GROUP BY 1")
    assert sorted((row["count"], row["min"], row["max"]) for row in rows) == [(8, 2, 2), (12, 2, 2)]


async def _expire(db: MasterFixture, agent_id: bytes) -> None:
    """The lease of one agent is over; all others have been alive for long."""
    await db.sql.execute("UPDATE agent SET held_since = held_since - interval '1 hour'")
    await db.sql.execute(
        "UPDATE agent SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", uuids([agent_id])[0]
    )


async def _server_is_old(db: MasterFixture) -> None:
    """The rule about the server's age is tested elsewhere: here promises are shorter than this server has been up."""
    await db.sql.execute("UPDATE agent SET lease_seconds = 0.001")


async def test_an_agent_that_just_renewed_gets_no_certificate(db: MasterFixture, rescuer: bytes) -> None:
    await _expire(db, db.owner)
    await _server_is_old(db)
    (owner,) = uuids([db.owner])
    async with db.open_transaction("members/renew", owner, 10.0, None) as commit:
        assert await db.master.members.certify_dead(rescuer, 10) == [], "its row is being renewed right now"
        await commit()
    assert await db.master.members.certify_dead(rescuer, 10) == []
    assert (await db.bucket_row(db.fence.bucket_id)).state is BucketState.ACTIVE


async def test_the_certificate_itself_reads_the_lease_again_after_a_wait(db: MasterFixture, rescuer: bytes) -> None:
    """The same without SKIP LOCKED: what the compare-and-set is worth when it has to wait."""
    await _expire(db, db.owner)
    await _server_is_old(db)
    owner, certifier = uuids([db.owner, rescuer])
    patient = statement("members/certify_dead").text.replace("SKIP LOCKED", "")
    async with db.open_transaction("members/renew", owner, 10.0, None) as commit:
        certifying = await db.connect()
        task = certifying.fetch(patient, certifier, 10)
        assert await db.after_lock("members/certify_dead", task, commit) == []
        await certifying.close()


async def test_a_renewal_that_waits_for_the_certificate_learns_of_it(db: MasterFixture, rescuer: bytes) -> None:
    await _expire(db, db.owner)
    await _server_is_old(db)
    (certifier,) = uuids([rescuer])
    async with db.open_transaction("members/certify_dead", certifier, 10) as commit:
        renewal = await db.after_lock("members/renew", db.master.members.renew(db.owner, 10.0), commit)
    assert not renewal.alive


async def test_a_bucket_made_just_before_the_certificate_is_lost_with_it(db: MasterFixture) -> None:
    made = new_id()
    owner, bucket = uuids([db.owner, made])
    async with db.open_transaction("buckets/create", owner, [bucket], ["store"], [LANE], [PRIORITY]) as commit:
        ended = db.master.members.end_agent(db.owner, dead=True, reason="test")
        assert await db.after_lock("members/lock", ended, commit)
    assert (await db.bucket_row(made)).state is BucketState.LOST


async def test_a_bucket_cannot_be_made_after_the_certificate(db: MasterFixture) -> None:
    fence = Fence(db.fence.bucket_id, 1, AgentId(db.owner))
    await db.lost(fence)
    (bucket,) = await db.master.queries.list_buckets()
    assert not await db.master.buckets.create_buckets([msgspec.structs.replace(bucket, id=new_id())])
    assert len(await db.master.queries.list_buckets()) == 1


async def test_two_rescuers_never_get_the_same_bucket(db: MasterFixture, rescuer: bytes) -> None:
    second = await db.agent(new_id())
    await db.bucket()
    await db.lost()
    (first,) = uuids([rescuer])
    async with db.open_transaction("buckets/take_lost", first, ["store"], [], []) as commit:
        other = await db.master.rescue.take_lost(second, ["store"], {})
        assert other is not None
        assert await db.master.rescue.take_lost(second, ["store"], {}) is None
        await commit()
    owners = {bucket.id: bucket.owner for bucket in await db.master.queries.list_buckets()}
    assert sorted(owners.values()) == sorted([rescuer, second])


@pytest.mark.parametrize("name", ["record_final", "hold", "release", "persist", "retry_here"])
async def test_a_batch_locks_in_id_order_whatever_order_it_comes_in(db: MasterFixture, name: str) -> None:
    """So two batches that overlap wait for each other in one direction only, and cannot deadlock.

    Another transaction locks the highest id; the batch comes with the highest first. When it waits, it must hold the lowest.
    """
    ids = await db.assigned(5)
    backwards = sorted(ids, reverse=True)
    master, fence = db.master, db.fence
    writes: dict[str, Callable[[], Awaitable[Written]]] = {
        "record_final": lambda: master.outcomes.record_final([final_row(id_, fence, 2) for id_ in backwards]),
        "hold": lambda: master.outcomes.hold(fence, [hold_row(id_, 2) for id_ in backwards]),
        "release": lambda: master.onboarding.release(fence, [(id_, 2) for id_ in backwards]),
        "persist": lambda: master.outcomes.persist(fence, [in_flight_row(id_, 2) for id_ in backwards]),
        "retry_here": lambda: master.outcomes.retry_here(fence, [hold_row(id_, 2, due_us=DUE) for id_ in backwards]),
    }
    lock = "SELECT id FROM job WHERE id = $1 FOR UPDATE"
    holder = await db.connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.fetch(lock, *uuids(backwards[:1]))
    task = asyncio.ensure_future(writes[name]())
    await db.waiting(f"/{name} ")
    for id_ in backwards[1:]:
        with pytest.raises(asyncpg.LockNotAvailableError):
            await db.sql.fetch(f"{lock} NOWAIT", *uuids([id_]))
    await transaction.commit()
    assert (await task).accepted == set(ids)
    await holder.close()


async def test_a_frozen_session_of_a_dead_owner_is_ended_before_its_bucket_is_taken(
    db: MasterFixture, rescuer: bytes
) -> None:
    """A client that freezes inside a transaction holds its locks, and no statement time-out ends it."""
    (job_id,) = await db.processing()
    frozen = await db.connect(application_name=str(uuids([db.owner])[0]))
    await frozen.execute("BEGIN")
    await frozen.execute("UPDATE job SET ran_us = 1 WHERE id = $1", uuids([job_id])[0])
    alive = await db.connect(application_name=str(uuids([rescuer])[0]))
    await db.lost()
    taken = await db.take(rescuer)
    assert frozen.is_closed() or await _dead(frozen)
    assert await alive.fetchval("SELECT 1") == 1
    assert await db.master.rescue.sweep(taken, 10, max_rescues=3) == (1, 1, 0)
    await alive.close()


async def _dead(connection: object) -> bool:
    try:
        await connection.fetchval("SELECT 1")  # type: ignore[attr-defined]
    except Exception:
        return True
    return False
