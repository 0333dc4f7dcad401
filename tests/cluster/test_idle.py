"""Nothing polls: what an idle agent asks of the master, and that wake-ups are immediate all the same."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import asyncpg
import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.cluster.conftest import AgentProcess, Rig
from tests.cluster.jobs import noop

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def queries(rig: Rig, agent_id: UUID) -> int:
    """Statements the server has finished for one agent, from its own statistics of transactions per backend."""
    connection = await asyncpg.connect(rig.dsn)
    try:
        return int(
            await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        )
    finally:
        await connection.close()


async def test_an_idle_coordinator_asks_the_master_less_than_twice_a_second(rig: Rig) -> None:
    rig.document["leases"] = {}
    await rig.start_agent()
    [[agent_id]] = await rig.fetch("SELECT id FROM agent WHERE state = 'ACTIVE'")
    await asyncio.sleep(8)  # the chores of its first seconds in office, and the statistics' own delay
    before, began = await queries(rig, agent_id), time.monotonic()
    await asyncio.sleep(20)
    after, ended = await queries(rig, agent_id), time.monotonic()
    # The looking itself commits a few: the two connections above.
    assert (after - before - 4) / (ended - began) < 2.0


async def test_a_job_after_a_quiet_minute_starts_at_once(rig: Rig, agent: AgentProcess, cluster: Cluster) -> None:
    waits = []
    for _ in range(10):
        await asyncio.sleep(0.7)
        began = time.perf_counter()
        receipt = await cluster.submit(noop, {})
        assert await receipt.wait(timeout=5) is JobState.SUCCEEDED
        waits.append(time.perf_counter() - began)
    assert sorted(waits)[5] < 0.1, waits
