"""Procrastinate on psycopg."""

from __future__ import annotations

import asyncio
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy

from benchmarks.peers import adapter

app = App(connector=PsycopgConnector(conninfo=adapter.DSN, min_size=4, max_size=50))
_RETRY = RetryStrategy(max_attempts=1) if adapter.KIND == "retry_5" else False


@app.task(name="job", pass_context=True, retry=_RETRY)
async def job(context: Any, text: str) -> None:
    """The job; its system keeps no result."""
    await adapter.run_async(text, context.job.attempts + 1)


async def _setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    async with app.open_async():
        if way == "bulk":
            return await adapter.in_bulk(
                lambda count: job.batch_defer_async(*({"text": adapter.text()} for _ in range(count))), jobs
            )
        return await adapter.spread(lambda: job.defer_async(text=adapter.text()), jobs, callers)


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=adapter.at_once(30))


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: asyncio.run(_enqueue(way, jobs, callers)),
        lambda: asyncio.run(_work()),
        lambda: asyncio.run(_setup()),
    )
