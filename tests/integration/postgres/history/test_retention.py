"""What is written beside jobs goes when its time is over, in small batches, and never while it is needed."""

from __future__ import annotations

from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.ports import RecordKind
from tests.integration.postgres.fixture import World, new_job, uuids

OLD = "clock_timestamp() - interval '31 days'"


async def age(world: World, table: str, column: str, where: str = "true") -> None:
    await world.sql.execute(f"UPDATE {table} SET {column} = {OLD} WHERE {where}")


async def count(world: World, table: str) -> int:
    found: int = await world.sql.fetchval(f"SELECT count(*) FROM {table}")
    return found


async def test_agents_that_ended_long_ago_are_forgotten_but_for_those_that_own_a_bucket(world: World) -> None:
    ended, recent, owner = [await world.agent(new_id()) for _ in range(3)]
    await world.bucket(owner)
    await world.master.members.end_agent(ended, dead=False, reason="test")
    await world.master.members.end_agent(recent, dead=True, reason="test")
    await world.master.members.end_agent(owner, dead=True, reason="test")
    assert await world.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 0
    await age(world, "agent", "ended_at", f"id <> '{UUID(bytes=recent)}'")
    assert await world.master.maintenance.forget(RecordKind.AGENTS, 30, 10) == 1
    left = {row["id"] for row in await world.sql.fetch("SELECT id FROM agent")}
    assert left == {*uuids([world.owner, recent, owner])}, (
        "the living, the lately dead, and whose bucket waits for its rescue"
    )


async def test_a_key_lives_as_long_as_its_job_and_never_above_the_watermark(world: World) -> None:
    """Below the watermark: one job whose row is still there (a straggler), one that was dropped. Above: one without a row."""
    kept, dropped = new_id(), new_id()
    await world.master.intake.insert_held([new_job(kept)])
    before = await world.sql.fetchval("SELECT floor FROM watermark")
    await world.sql.execute("UPDATE watermark SET floor = $1", *uuids([new_id()]))
    try:
        keys = [("straggler", kept, b"d"), ("dropped", dropped, b"d"), ("only a store has it", new_id(), b"d")]
        await world.master.intake.reserve_keys("handler", keys)
        assert await world.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 0, "too young"
        await age(world, "idempotency", "created_at")
        assert await world.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 1
    finally:
        await world.sql.execute("UPDATE watermark SET floor = $1", before)
    left = {row["key"] for row in await world.sql.fetch("SELECT key FROM idempotency")}
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
    world: World, what: RecordKind, table: str, insert: str
) -> None:
    before = await count(world, table)
    for at in (OLD, "clock_timestamp()"):
        await world.sql.execute(insert.format(at=at))
    assert [await world.master.maintenance.forget(what, 30, 3) for _ in range(3)] == [3, 2, 0]
    assert await count(world, table) == before + 5


async def test_the_history_of_a_bucket_that_is_there_stays(world: World) -> None:
    await age(world, "bucket_event", "at")
    assert await count(world, "bucket_event") == 1
    assert await world.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10) == 0
    await world.sql.execute("DELETE FROM bucket")
    assert await world.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10) == 1


async def test_what_a_store_has_lost_is_forgotten_with_the_history_of_buckets(world: World) -> None:
    fence = Fence(BucketId(new_id()), 1, AgentId(world.owner))
    for _ in range(2):
        await world.master.buckets.note_loss(fence, "default", 3, 2, "the store answered GEN")
    assert await count(world, "store_loss") == 1
    await world.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10)
    assert await count(world, "store_loss") == 1
    await age(world, "store_loss", "at")
    await world.master.maintenance.forget(RecordKind.BUCKET_EVENTS, 30, 10)
    assert await count(world, "store_loss") == 0
