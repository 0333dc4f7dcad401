"""arq."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from arq import Worker, create_pool
from arq.connections import RedisSettings

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()


async def noop(context: Any, text: str) -> None:
    """The job."""
    counter.hit()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    pool = await create_pool(RedisSettings.from_dsn(adapter.REDIS))
    seconds = await adapter.spread(lambda: pool.enqueue_job("noop", adapter.TEXT), jobs, callers)
    await pool.aclose()
    return seconds


def _work() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker([noop], redis_settings=RedisSettings.from_dsn(adapter.REDIS), max_jobs=100, poll_delay=0.01).run()


if __name__ == "__main__":
    adapter.main(lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)), _work)
