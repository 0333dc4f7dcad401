"""``python -m benchmarks.master.retire``: a range leaves ``job``, and a connection beside it writes and reads all the while.

The range has ``--finished`` jobs and ``--unfinished`` ones that are due later; a second range retires afterwards, so that the
attic with all those of the first one is written again. The longest wait of that connection is compared with its
longest wait without a retirement, over as long a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import click

from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from benchmarks.support.synthetic_history import fill_day, lower_floor
from jobmaster.master.driver.statements import quoted
from jobmaster.wiring import open_archive

_UNFINISHED = """
INSERT INTO job (id, state, priority, lane, handler, token, due_at, args)
SELECT (substr(uuid_floor(date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => $1::integer)
                          + n * interval '50 microseconds')::text, 1, 14)
        || '7' || substr(digest, 1, 3) || '-8' || substr(digest, 4, 3) || '-' || substr(digest, 7, 12))::uuid,
       'HELD', 3, 'default', 'bench.noop', 1, clock_timestamp() + interval '90 days', convert_to(repeat('x', 200), 'UTF8')
FROM (SELECT n, md5(n || ' ' || $1::integer) AS digest FROM generate_series(1, $2::integer) AS n) AS made
"""
_WRITE = """
INSERT INTO job (id, state, priority, lane, handler, token, due_at, args)
SELECT (substr(uuid_floor(clock_timestamp())::text, 1, 14) || '7' || substr(md5(random()::text), 1, 3) || '-8'
        || substr(md5(random()::text), 1, 3) || '-' || substr(md5(random()::text), 1, 12))::uuid,
       'HELD', 3, 'default', 'bench.noop', 1, clock_timestamp(), '{}'
"""
_READ = "SELECT id FROM job WHERE state = 'HELD' AND lane = 'default' AND priority = 3 AND due_at < now() LIMIT 1"


async def waits(sql: asyncpg.Connection[asyncpg.Record], stop: asyncio.Event) -> list[float]:
    """How long a write and a look at what is due took, again and again; milliseconds."""
    found = []
    while not stop.is_set():
        began = time.perf_counter()
        await sql.execute(_WRITE)
        await sql.fetch(_READ)
        found.append((time.perf_counter() - began) * 1000)
    return found


def _quantiles_of(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    share = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) for name, part in share.items()}


async def measure(measured: MeasuredCluster, finished: int, unfinished: int) -> dict[str, Any]:
    """Two ranges, one after the other."""
    settings = measured.settings
    async with contextlib.AsyncExitStack() as stack:
        sql = await asyncpg.connect(measured.dsn, server_settings={"search_path": quoted(settings.schema_name())})
        stack.push_async_callback(sql.close)
        await lower_floor(sql, 2)
        for day in (2, 1):
            await fill_day(sql, day, finished)
            await sql.execute(_UNFINISHED, day, unfinished, timeout=3600)
        await sql.execute("CHECKPOINT")
        progress(f"filled 2 x {finished:,} finished and 2 x {unfinished:,} unfinished jobs")
        archive = await open_archive(settings)
        stack.push_async_callback(archive.close)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        found: dict[str, Any] = {"finished": finished, "unfinished": unfinished}
        for name, bound in (("first", today - timedelta(days=1)), ("second", today)):
            stop = asyncio.Event()
            other = asyncio.create_task(waits(sql, stop))
            began = time.perf_counter()
            done = await archive.detach(bound)
            seconds = time.perf_counter() - began
            stop.set()
            assert done is not None
            found[name] = {"seconds": round(seconds, 1), "moved": done[1], "beside": _quantiles_of(await other)}
            progress(f"{name}: {found[name]}")
            stop = asyncio.Event()
            other = asyncio.create_task(waits(sql, stop))
            await asyncio.sleep(seconds)
            stop.set()
            found[f"{name}_without"] = {"beside": _quantiles_of(await other)}
            progress(f"without: {found[f'{name}_without']}")
        return found


@click.command()
@click.option("--finished", default=1_000_000, show_default=True, help="Finished jobs of each range.")
@click.option("--unfinished", default=500_000, show_default=True, help="Jobs of each range that are due later.")
@output_options
def main(finished: int, unfinished: int, as_json: bool, save: bool) -> None:
    """How long others wait while a range leaves."""
    with measured_cluster({}) as measured:
        found = asyncio.run(measure(measured, finished, unfinished))
    show("retire", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
