"""arq."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from arq import Retry, Worker, create_pool
from arq.connections import RedisSettings

from benchmarks.peers import adapter


async def job(context: dict[str, Any], text: str) -> str | None:
    """The job."""
    try:
        return await adapter.run_async(text, context["job_try"])
    except adapter.Again as again:
        raise Retry(defer=0) from again


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    pool = await create_pool(RedisSettings.from_dsn(adapter.REDIS))
    seconds = await adapter.spread(lambda: pool.enqueue_job("job", adapter.text()), jobs, callers)
    await pool.aclose()
    return seconds


def _work() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker([job], redis_settings=RedisSettings.from_dsn(adapter.REDIS), max_jobs=100, poll_delay=0.01).run()


if __name__ == "__main__":
    adapter.main(lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)), _work)
