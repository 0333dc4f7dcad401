"""PgQueuer, through its Python API."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers import adapter


async def _setup() -> None:
    connection = await asyncpg.connect(adapter.DSN)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def _enqueue(way: str, jobs: int, callers: int) -> float:
    async with asyncpg.create_pool(adapter.DSN, min_size=1, max_size=50) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))

        async def bulk(count: int) -> None:
            await queries.enqueue(["job"] * count, [adapter.text().encode() for _ in range(count)], [0] * count)

        if way == "bulk":
            return await adapter.in_bulk(bulk, jobs)
        return await adapter.spread(lambda: queries.enqueue("job", adapter.text().encode()), jobs, callers)


async def _work() -> None:
    connection = await asyncpg.connect(adapter.DSN)
    manager = PgQueuer(AsyncpgDriver(connection))

    @manager.entrypoint("job")
    async def job(job: Any) -> None:
        await adapter.run_async(job.payload.decode())

    await manager.run(batch_size=500)


if __name__ == "__main__":
    adapter.main(
        lambda way, jobs, callers: uvloop.run(_enqueue(way, jobs, callers)),
        lambda: uvloop.run(_work()),
        lambda: asyncio.run(_setup()),
    )
