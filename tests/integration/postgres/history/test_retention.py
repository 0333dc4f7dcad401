"""What is written beside jobs goes when its time is over, in small batches, and never while it is needed."""

from __future__ import annotations

from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.ports import RecordKind
from tests.integration.postgres.fixture import MasterFixture, new_job, uuids

OLD = "clock_timestamp() - interval '31 days'"


async def age(db: MasterFixture, table: str, column: str, where: str = "true") -> None:
    await db.sql.execute(f"UPDATE {table} SET {column} = {OLD} WHERE {where}")


async def count(db: MasterFixture, table: str) -> int:
    found: int = await db.sql.fetchval(f"SELECT count(*) FROM {table}")
    return found


async def test_agents_that_ended_long_ago_are_forgotten_but_for_those_that_own_a_bucket(db: MasterFixture) -> None:
    ended, recent, owner = [await db.agent(new_id()) for _ in range(3)]
    await db.bucket(owner)
    await db.master.members.end_agent(ended, dead=False, reason="test")
    await db.master.members.end_agent(recent, dead=True, reason="test")
    await db.master.members.end_agent(owner, dead=True, reason="test")
    assert await db.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 0
    await age(db, "agent", "ended_at", f"id <> '{UUID(bytes=recent)}'")
    assert await db.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 1
    left = {row["id"] for row in await db.sql.fetch("SELECT id FROM agent")}
    assert left == {*uuids([db.owner, recent, owner])}, (
        "the living, the lately dead, and whose bucket waits for its rescue"
    )


async def test_a_dead_agent_is_not_forgotten_before_the_rows_of_its_rescued_bucket_are_swept(db: MasterFixture) -> None:
    """A rescuer owns the bucket from its take on. The permits of the rows there are those of the former owner."""
    dead, rescuer = await db.agent(new_id()), await db.agent(new_id())
    fence = await db.bucket(dead)
    await db.lost(fence)
    await age(db, "agent", "ended_at", f"id = '{UUID(bytes=dead)}'")
    taken = await db.take(rescuer)
    assert taken.bucket_id == fence.bucket_id
    assert await db.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 0
    await db.master.rescue.sweep(taken, 10, max_rescues=3)
    assert await db.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 1


async def test_a_key_lives_as_long_as_its_job_and_never_above_the_watermark(db: MasterFixture) -> None:
    """Below the watermark: one job whose row is still there (a straggler), one that was dropped. Above: one without a row."""
    kept, dropped = new_id(), new_id()
    await db.master.intake.insert_held([new_job(kept)])
    before = await db.sql.fetchval("SELECT floor FROM watermark")
    await db.sql.execute("UPDATE watermark SET floor = $1", *uuids([new_id()]))
    try:
        keys = [("straggler", kept, b"d"), ("dropped", dropped, b"d"), ("only a store has it", new_id(), b"d")]
        await db.master.intake.reserve_keys("handler", keys)
        assert await db.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 0, "too young"
        await age(db, "idempotency", "created_at")
        assert await db.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 1
    finally:
        await db.sql.execute("UPDATE watermark SET floor = $1", before)
    left = {row["key"] for row in await db.sql.fetch("SELECT key FROM idempotency")}
    assert left == {"straggler", "only a store has it"}


@pytest.mark.parametrize(
    ("what", "table", "insert"),
    [
        (
            RecordKind.QUARANTINE,
            "quarantine",
            "INSERT INTO quarantine (at, job_id, reason, entry)"
            " SELECT {at}, gen_random_uuid(), 'x', '' FROM generate_series(1, 5)",
        ),
        (
            RecordKind.OPERATOR_LOG,
            "operator_log",
            "INSERT INTO operator_log (at, actor, action, subject) SELECT {at}, 'a', 'b', 'c' FROM generate_series(1, 5)",
        ),
        (
            RecordKind.BUCKET_EVENTS,
            "bucket_event",
            "INSERT INTO bucket_event (at, bucket_id, to_state, epoch, reason)"
            " SELECT {at}, gen_random_uuid(), 'LOST', 1, 'x' FROM generate_series(1, 5)",
        ),
    ],
)  # fmt: skip
async def test_old_lines_go_in_batches_and_young_ones_stay(
    db: MasterFixture, what: RecordKind, table: str, insert: str
) -> None:
    before = await count(db, table)
    for at in (OLD, "clock_timestamp()"):
        await db.sql.execute(insert.format(at=at))
    assert [await db.master.maintenance.forget(what, 30, 3) for _ in range(3)] == [3, 2, 0]
    assert await count(db, table) == before + 5


async def test_the_history_of_a_bucket_that_is_there_stays(db: MasterFixture) -> None:
    await age(db, "bucket_event", "at")
    assert await count(db, "bucket_event") == 1
    assert await db.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10) == 0
    await db.sql.execute("DELETE FROM bucket")
    assert await db.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10) == 1


async def test_what_a_store_has_lost_is_forgotten_with_the_history_of_buckets(db: MasterFixture) -> None:
    fence = Fence(BucketId(new_id()), 1, AgentId(db.owner))
    for _ in range(2):
        await db.master.buckets.note_loss(fence, "default", 3, 2, "the store answered GEN")
    assert await count(db, "store_loss") == 1
    await db.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10)
    assert await count(db, "store_loss") == 1
    await age(db, "store_loss", "at")
    await db.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10)
    assert await count(db, "store_loss") == 0
