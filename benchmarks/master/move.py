"""``python -m benchmarks.master.move``: all jobs of a cluster move to the master of another one (``jobmaster migrate``).

Both masters are schemas of one database, so one server reads and writes everything: on two servers a move is faster. A part
of the jobs has idempotency keys and an attempt that failed. The rate of each tenth is reported: a large move would be
impossible if pages took longer the more jobs had moved.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import click
import msgspec

from benchmarks.support.master_probe import fill
from benchmarks.support.measured_cluster import MeasuredCluster, measured_cluster
from benchmarks.support.report import output_options, progress, show
from jobmaster.master.driver.statements import quoted
from jobmaster.retention.cluster_move import move_cluster
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import migrate_master

_KEYS = """
INSERT INTO idempotency (scope, key, job_id, digest)
SELECT handler, 'key of ' || id, id, sha256(args) FROM job TABLESAMPLE BERNOULLI ($1::double precision)
"""
_ATTEMPTS = """
INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, ran_us, error)
SELECT id, 1, id, 1, 'failed', 1000, convert_to('{"type":"TimeoutError","message":"late"}', 'UTF8')
FROM job TABLESAMPLE BERNOULLI ($1::double precision)
"""


def target_of(source: ClusterSettings) -> ClusterSettings:
    """Another cluster in the same database."""
    return msgspec.structs.replace(source, cluster=f"{source.cluster}-target")


async def measure(measured: MeasuredCluster, jobs: int, args_bytes: int, keyed_percent: float) -> dict[str, Any]:
    """One move, without agents and producers beside it."""
    source = measured.settings
    target = target_of(source)
    await migrate_master(target)
    sql = await measured.connect()
    try:
        args = b'{"text":"%s"}' % (b"x" * max(args_bytes - 11, 0))
        await fill(sql, jobs, due=False, handler="bench.noop", args=args)
        for statement in (_KEYS, _ATTEMPTS):
            await sql.execute(statement, keyed_percent, timeout=3600)
        await sql.execute("ANALYZE", timeout=3600)
        await sql.execute("CHECKPOINT")
        progress(f"filled {jobs:,} jobs")
        steps: list[tuple[float, int]] = []

        def note(line: str) -> None:
            if line.endswith(" jobs moved"):
                steps.append((time.perf_counter(), int(line.split()[0])))
                if len(steps) % 100 == 0:
                    progress(line)
            else:
                progress(line)

        before = measured.cpu_seconds()
        began = time.perf_counter()
        moved = await move_cluster(source, target, "benchmark", note, archive=True)
        seconds = time.perf_counter() - began
        after = measured.cpu_seconds()
        there = await sql.fetchval(f"SELECT count(*) FROM {quoted(target.schema_name())}.job WHERE state = 'HELD'")
    finally:
        await sql.close()
    if (moved.moved, moved.archived, there) != (jobs, True, jobs):
        raise click.ClickException(f"of {jobs:,} jobs {moved.moved:,} moved, and {there:,} are in the target")
    return {
        "jobs": jobs,
        "args_bytes": args_bytes,
        "seconds": round(seconds, 1),
        "jobs_per_second": round(jobs / seconds),
        "jobs_per_second_of_each_tenth": _tenths(steps),
        "cpu_seconds": {name: round(after[name] - before[name], 1) for name in after},
    }


def _tenths(steps: list[tuple[float, int]]) -> list[int]:
    """Rates from page to page, ten of them where there are pages enough."""
    marks = [steps[min(len(steps) * part // 10, len(steps) - 1)] for part in range(11)]
    return [round((to[1] - of[1]) / (to[0] - of[0])) for of, to in pairwise(marks) if to[0] > of[0]]


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--args-bytes", default=200, show_default=True, help="Arguments of each job.")
@click.option(
    "--keyed-percent", default=10.0, show_default=True, help="Jobs with an idempotency key, and with an attempt."
)
@output_options
def main(jobs: int, args_bytes: int, keyed_percent: float, as_json: bool, save: bool) -> None:
    """Jobs a second that move to the master of another cluster."""
    with measured_cluster({}) as measured:
        found = asyncio.run(measure(measured, jobs, args_bytes, keyed_percent))
    show("move", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
