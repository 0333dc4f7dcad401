"""``python -m benchmarks.onboard``: HELD jobs that are due, claimed in the master and put into a bucket, by one agent.

The same number of due jobs is onboarded twice: from a table that holds hardly anything else, and from one that holds
``--held`` jobs that are due later. Handlers do not end within the run and slots are few, so that nothing but the
onboarding works; then the whole way, from HELD to the outcome, is measured with jobs that do nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import click

from benchmarks import drain
from benchmarks.support.master_probe import fill
from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, measured_cluster
from benchmarks.support.report import median, output_options, progress, show, summary

_ONLY_ONBOARDING = {
    "agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 5}, "slots": 1, "bucket_buffer": 0, "max_running": 1}},
    "thresholds": {"assigned_low_water": 10_000_000},
}
_WHOLE_WAY = {"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": 5}}}}
_LOOK_SECONDS = 0.25
"""Seldom: the look takes CPU from the servers (every 20 ms it cost a tenth of the rate)."""
# A volatile clock would be no condition of the index: beside 10,000,000 held jobs one look read all of them.
_LEFT = (
    "SELECT EXISTS (SELECT FROM job WHERE state = 'HELD' AND lane = 'default' AND priority = 3"
    " AND due_at < statement_timestamp())"
)
_COUNTED = 0.9
_MOVED = (
    "SELECT extract(epoch FROM percentile_disc(0.95) WITHIN GROUP (ORDER BY changed_at)"
    "                        - percentile_disc(0.05) WITHIN GROUP (ORDER BY changed_at))::float8"
    " FROM job WHERE state = ANY ($2::job_state[]) AND changed_at >= $1"
)
"""Seconds between the moves of the 5th and the 95th of 100 jobs. An agent that has found nothing looks again after up to
three seconds, which is no part of the rate, and the last batches are small."""
_ONBOARDED = ["ASSIGNED", "PROCESSING"]
_ENDED = ["SUCCEEDED"]


async def once(measured: MeasuredCluster, jobs: int, *, handler: str, whole_way: bool) -> dict[str, Any]:
    """Put due jobs in beside a frozen agent, let it go; jobs per second and CPU."""
    sql = await measured.connect()
    try:
        measured.signal_agents(signal.SIGSTOP)
        args = b'{"seconds":600.0}' if handler == "bench.sleep" else b'{"text":""}'
        await fill(sql, jobs, due=True, handler=handler, args=args, seed=time.monotonic_ns())
        await sql.execute("CHECKPOINT")
        released = await sql.fetchval("SELECT clock_timestamp()")
        before = measured.cpu_seconds()
        measured.signal_agents(signal.SIGCONT)
        while await sql.fetchval(_LEFT):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)  # the rate is read from the rows, not from this clock
        if whole_way:
            await drain.wait_drained(measured)
        after = measured.cpu_seconds()
        seconds = await sql.fetchval(_MOVED, released, _ENDED if whole_way else _ONBOARDED)
    finally:
        await sql.close()
    cpu = {name: round(after[name] - before[name], 2) for name in after}
    return {"jobs_per_second": _COUNTED * jobs / seconds, "cpu_seconds": cpu}


def rates(held: int, jobs: int, runs: int, *, whole_way: bool) -> list[dict[str, Any]]:
    """Runs on one table, each with a new agent, so that no bucket is full."""
    found = []
    with measured_cluster(_WHOLE_WAY if whole_way else _ONLY_ONBOARDING) as measured:
        asyncio.run(_fill_far(measured, held))
        for number in range(runs + 1):
            measured.start_agent()
            share = jobs if number else max(jobs // 10, 1000)
            one = asyncio.run(
                once(measured, share, handler="bench.noop" if whole_way else "bench.sleep", whole_way=whole_way)
            )
            measured.kill_agents()
            asyncio.run(_clear(measured))
            measured.empty_buckets()
            if number:
                found.append(one)
                progress(f"{held:,} held: {one['jobs_per_second']:,.0f} jobs/s{' to the outcome' if whole_way else ''}")
    return found


async def _fill_far(measured: MeasuredCluster, held: int) -> None:
    sql = await measured.connect()
    try:
        began = time.perf_counter()
        await fill(sql, held, due=False, handler="bench.sleep")
        progress(f"filled {held:,} rows in {time.perf_counter() - began:.0f} s")
    finally:
        await sql.close()


async def _clear(measured: MeasuredCluster) -> None:
    """What the run has moved goes; what is held stays. The dead agent and its buckets are forgotten.

    So is what its buckets held in the store: the next agent would rescue them beside its onboarding.
    """
    sql = await measured.connect()
    try:
        await sql.execute("DELETE FROM job WHERE state <> 'HELD'", timeout=600)
        await sql.execute("DELETE FROM bucket; DELETE FROM agent; DELETE FROM lease")
        await sql.execute("VACUUM job", timeout=600)
    finally:
        await sql.close()


def run(held: int, small: int, jobs: int, runs: int, *, whole_way: bool) -> dict[str, Any]:
    """Small table, then large."""
    few = rates(small, jobs, runs, whole_way=False)
    many = rates(held, jobs, runs, whole_way=False)
    small_rate = median([one["jobs_per_second"] for one in few])
    large_rate = median([one["jobs_per_second"] for one in many])
    report: dict[str, Any] = {
        "held": held,
        "jobs": jobs,
        "jobs_per_second": large_rate,
        "jobs_per_second_small_table": small_rate,
        "ratio": round(large_rate / small_rate, 3),
        "held_small_table": small,
        "spread": {
            "large": summary([one["jobs_per_second"] for one in many]),
            "small": summary([one["jobs_per_second"] for one in few]),
        },
        "cpu_seconds": {"large": many[-1]["cpu_seconds"], "small": few[-1]["cpu_seconds"]},
    }
    if whole_way:
        ended = rates(small, jobs, runs, whole_way=True)
        report["held_to_outcome_jobs_per_second"] = summary([one["jobs_per_second"] for one in ended])
    return report


@click.command()
@click.option("--held", default=1_000_000, show_default=True, help="Jobs due later that the large table holds.")
@click.option("--small", default=10_000, show_default=True, help="The same for the small table.")
@click.option("--jobs", default=100_000, show_default=True, help="Jobs due now, onboarded in one run.")
@click.option("--runs", default=5, show_default=True)
@click.option("--whole-way/--onboarding-only", default=True, show_default=True, help="Also from HELD to the outcome.")
@output_options
def main(held: int, small: int, jobs: int, runs: int, whole_way: bool, as_json: bool, save: bool) -> None:
    """HELD jobs a second into the buckets of one agent, beside few and beside many others."""
    show("onboard", run(held, small, jobs, runs, whole_way=whole_way), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
