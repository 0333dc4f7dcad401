"""What the master says of waiting jobs: counts up to a bound, ages, buckets, slots of the agents that take jobs."""

from __future__ import annotations

import time

import pytest

from jobmaster.clock import new_id
from jobmaster.ports import FilledBucket, HeldJobs
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, new_job


def ago_us(seconds: float) -> int:
    return int((time.time() - seconds) * 1e6)


async def test_held_jobs_are_counted_by_lane_priority_and_due_time_up_to_a_bound(db: MasterFixture) -> None:
    await db.master.intake.insert_held(
        [
            *(new_job(new_id(), due_us=ago_us(90.0 - place)) for place in range(5)),
            *(new_job(new_id(), due_us=ago_us(-3600.0)) for _ in range(3)),
            new_job(new_id(), due_us=ago_us(-3600.0), lane="reports"),
            new_job(new_id(), due_us=ago_us(10.0), priority=5),
        ]
    )
    for most, due, later in ((1000, 5, 3), (2, 2, 2)):
        found = {(each.lane, each.priority): each for each in (await db.master.queries.backlog(most)).held}
        assert found.keys() == {(LANE, PRIORITY), (LANE, 5), ("reports", PRIORITY)}
        assert found[LANE, PRIORITY] == HeldJobs(
            LANE,
            PRIORITY,
            due,
            later,
            pytest.approx(90.0, abs=60.0),  # type: ignore[arg-type]
        )
        assert found["reports", PRIORITY][2:] == (0, 1, 0.0)
        assert found[LANE, 5][2:4] == (1, 0)


async def test_buckets_that_may_hold_jobs_are_listed_and_agents_that_take_jobs_with_their_slots(
    db: MasterFixture,
) -> None:
    silent, leaving, drained = [await db.agent(new_id()) for _ in range(3)]
    lost, retired = await db.bucket(silent), await db.bucket(leaving, lane="reports", priority=5)
    await db.sql.execute("UPDATE agent SET slots = 40")
    await db.sql.execute("UPDATE agent SET lease_until = now() - interval '1 second' WHERE id = $1", silent.hex())
    await db.sql.execute("UPDATE agent SET state = 'STOPPING' WHERE id = $1", leaving.hex())
    await db.sql.execute("UPDATE agent SET drain_requested = true WHERE id = $1", drained.hex())
    await db.sql.execute("UPDATE bucket SET state = 'LOST' WHERE id = $1", lost.bucket_id.hex())
    await db.sql.execute("UPDATE bucket SET state = 'READY_TO_DELETE' WHERE id = $1", retired.bucket_id.hex())
    found = await db.master.queries.backlog(10)
    assert found.held == []
    assert sorted(found.buckets) == sorted(
        [
            FilledBucket(db.fence.bucket_id, "store", LANE, PRIORITY, db.owner, True),
            FilledBucket(lost.bucket_id, "store", LANE, PRIORITY, silent, False),
        ]
    )
    assert found.slots == {db.owner: 40}
