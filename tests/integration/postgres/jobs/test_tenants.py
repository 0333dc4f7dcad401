"""Due jobs of tenants are fetched in turns, however many one of them has; jobs without a tenant have a turn of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master import onboarding
from jobmaster.master.driver.statements import statement
from jobmaster.model.flow.tenant import NO_TENANT, TenantView, tenant_of
from jobmaster.model.ids import Fence
from jobmaster.model.job import Headers, JobState, NewJob
from jobmaster.ports import FetchScope, Onboarded, TenantTurns
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, uuids


def held(tenant: str, ago: float = 90.0, lane: str = LANE) -> NewJob:
    headers = encode_headers(Headers(tenant=(tenant,))) if tenant else b""
    return NewJob(new_id(), PRIORITY, lane, "handler", b"{}", headers, int((time.time() - ago) * 1e6))


async def fetch(db: MasterFixture, fence: Fence, limit: int, turns: TenantTurns | None = None) -> Onboarded:
    scope = FetchScope(tenants=turns or TenantTurns())
    return await db.master.onboarding.onboard(fence, LANE, PRIORITY, 0.0, limit, None, (), scope)


def counted(answer: Onboarded) -> dict[str, int]:
    return dict(Counter(tenant_of(entry.headers) for entry in answer.entries))


async def rounds(db: MasterFixture, fence: Fence, limit: int, turns: TenantTurns | None = None) -> list[dict[str, int]]:
    """What each call gives until a round has found nothing."""
    found, more = [], True
    while more:
        answer = await fetch(db, fence, limit, turns)
        more = answer.more
        found.append(counted(answer))
    return [each for each in found if each]


async def test_each_tenant_has_a_turn_however_many_jobs_of_one_are_older(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held("heavy", ago=900.0) for _ in range(200)])
    await db.master.intake.insert_held([held(f"t{n}") for n in range(5)])
    first = await fetch(db, await db.bucket(), 20)
    assert counted(first) == {"heavy": 6, "t0": 1, "t1": 1, "t2": 1, "t3": 1, "t4": 1}
    assert first.more


async def test_the_oldest_of_a_tenant_comes_first(db: MasterFixture) -> None:
    jobs = [held("a", ago) for ago in (10.0, 30.0, 20.0)]
    await db.master.intake.insert_held(jobs)
    fence = await db.bucket()
    got = [(await fetch(db, fence, 1)).entries for _ in range(8)]
    assert [entry.id for entries in got for entry in entries] == [jobs[1].id, jobs[2].id, jobs[0].id]


async def test_a_turn_of_a_tenant_is_as_long_as_its_weight(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held(one) for one in "ab" for _ in range(40)])
    answer = await fetch(db, await db.bucket(), 20, TenantTurns(weights={"b": 4}))
    assert counted(answer) == {"a": 4, "b": 16}


async def test_jobs_of_a_tenant_that_has_its_share_stay(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held(one) for one in ("a", "b", NO_TENANT) for _ in range(3)])
    found = await rounds(db, await db.bucket(), 10, TenantTurns(over_share=["a"]))
    assert found == [{"b": 3}, {NO_TENANT: 3}]


async def test_pages_of_tenants_follow_one_another_and_every_job_has_its_turn(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onboarding, "_TENANTS", 3)
    monkeypatch.setattr(onboarding, "_REST", 0.0)
    await db.master.intake.insert_held([held(f"t{n}") for n in range(8) for _ in range(2)])
    await db.master.intake.insert_held([held(NO_TENANT), held("t3", ago=-3600.0), held("t9", lane="other")])
    found = await rounds(db, await db.bucket(), 3)
    assert [len(each) for each in found[:3]] == [3, 3, 2]
    assert sum((Counter(each) for each in found), Counter()) == {**{f"t{n}": 2 for n in range(8)}, NO_TENANT: 1}


async def test_a_look_for_jobs_without_a_tenant_passes_those_of_tenants_over(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held("heavy", ago=900.0) for _ in range(50)])
    await db.master.intake.insert_held([held(NO_TENANT)])
    found = await rounds(db, await db.bucket(), 10, TenantTurns(over_share=["heavy"]))
    assert found == [{NO_TENANT: 1}]


async def test_metadata_and_tags_make_no_tenant(db: MasterFixture) -> None:
    lies = Headers(tags=("tenant", '"tenant":["x"]'), metadata={"tenant": "x", '"tenant":["x"]': '"tenant":["x"]'})
    row = await db.sql.fetchrow(
        "SELECT tenant_of($1) AS none, tenant_of($2) AS one, tenant_of('') AS empty",
        encode_headers(lies),
        encode_headers(Headers(tags=lies.tags, metadata=lies.metadata, tenant=("acme@eu",))),
    )
    assert tuple(row or ()) == (None, "acme@eu", None)


async def test_the_turns_are_read_from_the_index(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held(f"t{n % 300}") for n in range(3000)])
    await db.sql.execute("ANALYZE job")
    plan = await explained(db, "", 64)
    read, _, moved = plan.partition("CTE moved")
    assert "_lane_priority_tenant_of_due_at_id_idx" in read
    assert moved
    full = [line for line in read.splitlines() if "Seq Scan on job" in line and "cost=0.00..0.0" not in line]
    assert not full, "only of empty partitions"


async def explained(db: MasterFixture, after: str, tenants: int) -> str:
    fence = await db.bucket()
    owner, bucket = uuids([fence.owner, fence.bucket_id])
    wanted = (bucket, fence.epoch, owner, LANE, PRIORITY, 0.0, 100, None, 1 << 20, None, None, None, None)
    values: Sequence[object] = (*wanted, after, tenants, [], [], [])
    rows = await db.sql.fetch(f"EXPLAIN {statement('onboarding/onboard_turns').text}", *values)
    return "\n".join(row[0] for row in rows)


async def test_waiting_jobs_are_counted_by_tenant_and_lane(db: MasterFixture) -> None:
    jobs = [
        held("b", ago=50.0),
        held("b", ago=70.0),
        held("a"),
        held("a", lane="other"),
        held(NO_TENANT),
        held("late", ago=-900.0),
    ]
    await db.master.intake.insert_held(jobs)
    assert await db.master.queries.tenants(None, 10) == [
        TenantView("b", LANE, 2, 0, jobs[1].due_us),
        TenantView("a", LANE, 1, 0, jobs[2].due_us),
        TenantView("a", "other", 1, 0, jobs[3].due_us),
    ]
    await fetch(db, await db.bucket(), 2)
    found = await db.master.queries.tenants(LANE, 10)
    assert [(each.name, each.held, each.in_flight) for each in found] == [("b", 1, 1), ("a", 0, 1)]
    assert len(await db.master.queries.tenants(None, 1)) == 1


async def test_a_lost_bucket_gets_nothing(db: MasterFixture) -> None:
    await db.master.intake.insert_held([held("a")])
    await db.lost()
    answer = await fetch(db, db.fence, 10)
    assert not answer.bucket_ok
    assert not answer.entries
    assert await db.sql.fetchval("SELECT count(*) FROM job WHERE state = 'HELD'") == 1


async def test_a_job_that_is_cancelled_while_the_call_waits_for_the_bucket_stays_so(db: MasterFixture) -> None:
    jobs = [held("a"), held("b")]
    await db.master.intake.insert_held(jobs)
    freeze = await db.connect()
    transaction = freeze.transaction()
    await transaction.start()
    await freeze.execute("SELECT FROM bucket FOR UPDATE")

    async def release() -> None:
        assert await db.master.requests.cancel(jobs[0].id, tombstone=None, actor="test") is JobState.CANCELLED
        await transaction.rollback()

    answer = await db.after_lock("onboard_turns", fetch(db, db.fence, 10), release)
    await freeze.close()
    assert [entry.id for entry in answer.entries] == [jobs[1].id]
    assert await db.state(jobs[0].id) == "CANCELLED"


async def test_a_row_that_another_claimer_has_is_passed_by(db: MasterFixture) -> None:
    jobs = [held("a", ago=99.0), held("a"), held("b")]
    await db.master.intake.insert_held(jobs)
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", UUID(bytes=jobs[0].id))
    answer = await fetch(db, db.fence, 10)
    assert {entry.id for entry in answer.entries} == {jobs[1].id, jobs[2].id}
    await transaction.rollback()
    await other.close()
    assert await rounds(db, db.fence, 10) == [{"a": 1}]
