"""Oban for Python on PostgreSQL, embedded in a process of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from benchmarks.peers import adapter

_OPTIONS: dict[str, Any] = {} if adapter.ATTEMPTS is None else {"max_attempts": adapter.ATTEMPTS}
if adapter.KIND == "tags":
    _OPTIONS["tags"] = ["blue", "green"]


@worker(queue="default", **_OPTIONS)
class Job:
    """The job; its system keeps no result."""

    async def process(self, job: Any) -> None:
        await adapter.run_async(job.args["text"], job.attempt)

    def backoff(self, job: Any) -> int:
        return 0


_job: Any = Job
"""With what the decorator adds."""


async def _setup() -> None:
    pool = await Oban.create_pool(adapter.DSN)
    await install(pool)
    await pool.close()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    pool = await Oban.create_pool(adapter.DSN, min_size=4, max_size=50)
    client = Oban(pool=pool)

    async def bulk(count: int) -> None:
        await client.enqueue_many([_job.new({"text": adapter.text()}) for _ in range(count)])

    async def one() -> None:
        await client.enqueue(_job.new({"text": adapter.text()}))

    way_seconds = adapter.in_bulk(bulk, jobs) if way == "bulk" else adapter.spread(one, jobs, callers)
    seconds = await way_seconds
    await pool.close()
    return seconds


async def _work() -> None:
    pool = await Oban.create_pool(adapter.DSN, min_size=4, max_size=20)
    async with Oban(pool=pool, queues={"default": 100}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    # Workers are found by the name of their module, which must be the same in producers and workers.
    from benchmarks.peers.oban import Job as _job

    adapter.main(
        lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)),
        lambda: uvloop.run(_work()),
        lambda: asyncio.run(_setup()),
    )
