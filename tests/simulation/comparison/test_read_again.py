"""What a statement reads without a lock it sees as it was when it began: the simulated master as the real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from tests.integration.postgres.fixture import ERROR, MasterFixture, entry, hold_row, in_flight_row, new_job, uuids
from tests.simulation.comparison.direct_calls import DirectNetwork, master_server
from tests.simulation.master.sim_master import MasterServer, SimMaster

FencedCall = Callable[[SimMaster, Fence, bytes], Any]
BINDING: dict[str, tuple[FencedCall, str]] = {
    "persist": (lambda m, f, j: m.outcomes.persist(f, [in_flight_row(j, 2)]), "ACTIVE"),
    "retry_here": (lambda m, f, j: m.outcomes.retry_here(f, [hold_row(j, 2, error=ERROR)]), "ACTIVE"),
    "onboard": (lambda m, f, j: m.onboarding.onboard(f, "default", 3, 60.0, 10), "ACTIVE"),
    "insert_assigned": (lambda m, f, j: m.intake.insert_assigned(f.bucket_id, f.epoch, [new_job(new_id())]), "ACTIVE"),
    "rescue_page": (
        lambda m, f, j: m.rescue.rescue_page(f, [entry(j, 2)], "default", 3, claimed=True, max_rescues=3), "DRAINING",
    ),
    "sweep": (lambda m, f, j: m.rescue.sweep(f, 10, max_rescues=3), "DRAINING"),
}  # fmt: skip


class Between(DirectNetwork):
    """Something else happens between the beginning of a statement and its effect."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None

    async def call(self, what: str, effect: Callable[[], Any], **how: Any) -> Any:
        if (sees := how.get("sees")) is not None:
            sees()
        then, self.then = self.then, None
        if then is not None:
            then()
        return effect()


async def ready(state: str, without: frozenset[str]) -> tuple[MasterServer, SimMaster, Between, Fence, bytes]:
    """A simulated master with one bucket, one job ASSIGNED in it and one HELD."""
    server = master_server(lambda: time.time_ns() // 1000)
    server.statements.without = without
    network = Between()
    master = SimMaster(server, network)  # type: ignore[arg-type]
    owner = new_id()
    row = Agent(id=owner, name="a", host="h", pid=1, version="0", mode="full", store="s", weight=1,
                state=AgentState.ACTIVE, lease_us=0, lease_seconds=3600.0, started_us=0)  # fmt: skip
    await master.members.register(row, [], [])
    made = Bucket(id=new_id(), store="s", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1, owner=owner)
    await master.buckets.create_buckets([made])
    fence = Fence(BucketId(made.id), 1, AgentId(owner))
    job_id = new_id()
    await master.intake.insert_held([new_job(job_id)])
    await master.onboarding.onboard(fence, "default", 3, 60.0, 10)
    await master.intake.insert_held([new_job(new_id())])
    tables = server.statements.tables
    tables.buckets[made.id] = tables.buckets[made.id]._replace(state=state)
    return server, master, network, fence, job_id


@pytest.mark.parametrize("name", BINDING)
async def test_a_binding_write_reads_its_bucket_again(name: str) -> None:
    call_fault, state = BINDING[name]
    server, master, network, fence, job_id = await ready(state, frozenset())
    network.then = lambda: take_over(server, fence)
    before = dict(server.statements.tables.jobs)
    await call_fault(master, fence, job_id)
    assert server.statements.tables.jobs == before


@pytest.mark.parametrize("name", BINDING)
async def test_without_the_lock_it_does_not(name: str) -> None:
    call_fault, state = BINDING[name]
    server, master, network, fence, job_id = await ready(state, frozenset({"bucket lock"}))
    network.then = lambda: take_over(server, fence)
    before = dict(server.statements.tables.jobs)
    await call_fault(master, fence, job_id)
    assert server.statements.tables.jobs != before


async def test_nor_does_the_real_one(db: MasterFixture) -> None:
    """The write waits for the job's row; the bucket is taken meanwhile; only the row that it waited for is read again."""
    (job_id,) = await db.assigned()
    text = statement("outcomes/persist").text
    assert "FOR SHARE" in text
    ids = uuids([db.fence.bucket_id, db.fence.owner, job_id])
    args = (
        ids[0],
        1,
        ids[1],
        [ids[2]],
        ["PROCESSING"],
        [3],
        ["default"],
        ["h"],
        [2],
        [0],
        [0],
        [0],
        [b"{}"],
        [b""],
        [None],
    )
    other, late = await db.connect(), await db.connect()
    async with other.transaction():
        await other.execute("UPDATE bucket SET state = 'DRAINING', epoch = epoch + 1, owner = gen_random_uuid()")
        await other.execute("UPDATE job SET changed_at = clock_timestamp() WHERE id = $1", ids[2])
        task = asyncio.ensure_future(late.fetchrow(text.replace("FOR SHARE", ""), *args))
        await db.waiting("outcomes/persist")
    answer = await task
    assert answer is not None
    assert (answer["bucket_ok"], answer["accepted"]) == (True, [ids[2]])
    await other.close()
    await late.close()


def take_over(server: MasterServer, fence: Fence) -> None:
    buckets = server.statements.tables.buckets
    buckets[fence.bucket_id] = buckets[fence.bucket_id]._replace(state="DRAINING", epoch=2, owner=new_id())
