"""One process that calls the master's own statements, without agents: for what only the master pays.

The cost of a call is the CPU of the server process that ran it, which does not depend on what else the machine is doing, and
the time it took, which does.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg

from benchmarks.support.measured_cluster import MeasuredCluster
from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.wiring import open_master

BATCH = 1000
_FILL = """
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, args)
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(md5($1::text || n::text), 1, 3) || 'b' || substr(md5(n::text || $1::text), 1, 15))::uuid,
           'HELD', 3, 'default', $2, 1, clock_timestamp() + $3 * interval '1 second' + random() * $4 * interval '1 second', $5
    FROM generate_series(1, $6::bigint) n
"""
_FAR_SECONDS = 30 * 86_400.0
ARGS = b'{"seconds":600.0}'


class MasterProbe:
    """A living agent with buckets, and the connections to look at."""

    def __init__(self, measured: MeasuredCluster, master: Master, sql: asyncpg.Connection[asyncpg.Record]) -> None:
        self.measured = measured
        self.master = master
        self.sql = sql
        self.owner = AgentId(new_id())
        self.fences: list[Fence] = []
        self._filled = 0

    @classmethod
    async def open(cls, measured: MeasuredCluster, buckets: int = 1) -> MasterProbe:
        """A registered agent that owns some buckets of one lane and priority."""
        probe = cls(measured, await open_master(measured.settings, application_name="bench"), await measured.connect())
        await probe.master.members.register(
            Agent(
                id=probe.owner, name="bench", host="bench", pid=1, version="0", mode="full", store="default", weight=1,
                state=AgentState.ACTIVE, lease_us=0, lease_seconds=3600.0, started_us=0,
            ),
            ["default"],
            [],
        )  # fmt: skip
        made = [
            Bucket(
                id=BucketId(new_id()), store="default", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
                owner=probe.owner,
            )
            for _ in range(buckets)
        ]  # fmt: skip
        assert await probe.master.buckets.create_buckets(made)
        probe.fences = [Fence(BucketId(bucket.id), bucket.epoch, probe.owner) for bucket in made]
        return probe

    async def close(self) -> None:
        await self.master.close()
        await self.sql.close()

    async def fill(self, jobs: int, *, due: bool, handler: str = "bench.noop", args: bytes = ARGS) -> None:
        """HELD jobs: due over the last minute, or spread at random over a month from an hour ahead."""
        await fill(self.sql, jobs, due=due, handler=handler, args=args, seed=self._filled)
        self._filled += 1

    async def claims(self, batches: int, fence: Fence | None = None) -> dict[str, float]:
        """Onboard some batches through the real statement; cost per job."""
        fence = fence or self.fences[0]
        before, began = self.backend_cpu(), time.perf_counter()
        jobs = 0
        for _ in range(batches):
            answer = await self.master.onboarding.onboard(fence, "default", 3, 0.0, BATCH, None)
            jobs += len(answer.entries)
        return self.cost(jobs, before, began)

    def cost(self, jobs: int, cpu_before: float, began: float) -> dict[str, float]:
        """CPU of the server and wall-clock time per job, in microseconds."""
        seconds = time.perf_counter() - began
        used = self.backend_cpu() - cpu_before
        assert jobs, "nothing was claimed"
        return {
            "cost_us_per_job": round(used / jobs * 1e6, 3),
            "wall_us_per_job": round(seconds / jobs * 1e6, 3),
            "jobs": jobs,
        }

    def backend_cpu(self) -> float:
        """CPU of every process of the database server so far."""
        return self.measured.cpu_seconds()["postgres"]


async def fill(
    sql: asyncpg.Connection[Any], jobs: int, *, due: bool, handler: str, args: bytes = ARGS, seed: int = 0
) -> None:
    """HELD rows by INSERT ... SELECT, a million at a time, then statistics as autovacuum would make them."""
    first, spread = (-60.0, 59.0) if due else (3600.0, _FAR_SECONDS)
    for start in range(0, jobs, 1_000_000):
        count = min(1_000_000, jobs - start)
        await sql.execute(_FILL, f"{seed}-{start}-{due}", handler, first, spread, args, count, timeout=600)
    await sql.execute("VACUUM (ANALYZE) job", timeout=600)
