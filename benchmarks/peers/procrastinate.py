"""Procrastinate on psycopg."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector

from benchmarks.peers import adapter
from benchmarks.peers.job_counter import JobCounter

counter = JobCounter()
app = App(connector=PsycopgConnector(conninfo=adapter.DSN, min_size=4, max_size=50))


@app.task(name="noop")
async def noop(text: str) -> None:
    counter.hit()


async def _setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    async with app.open_async():
        if way == "bulk":
            return await adapter.in_bulk(
                lambda count: noop.batch_defer_async(*({"text": adapter.TEXT} for _ in range(count))), jobs
            )
        return await adapter.spread(lambda: noop.defer_async(text=adapter.TEXT), jobs, callers)


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=30)


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: asyncio.run(_enqueue(way, jobs, callers)),
        lambda: asyncio.run(_work()),
        lambda: asyncio.run(_setup()),
    )
