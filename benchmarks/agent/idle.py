"""``python -m benchmarks.agent.idle``: the cost of an idle agent, and its calls to the servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import click
import redis.asyncio

from benchmarks.support.measured_cluster import MEDIUM_ONLY, MeasuredCluster, cpu_of, descendants, measured_cluster
from benchmarks.support.report import output_options, show, summary

SETTLE_SECONDS = 3.0


async def _counters(measured: MeasuredCluster) -> dict[str, float]:
    """Commands the store has processed, transactions the master has ended."""
    connection = await asyncpg.connect(measured.dsn)
    store = redis.asyncio.from_url(measured.url)
    try:
        ended = await connection.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        return {"store_commands": (await store.info("stats"))["total_commands_processed"], "transactions": ended}
    finally:
        await connection.close()
        await store.aclose()


def one_span(measured: MeasuredCluster, seconds: float) -> dict[str, float]:
    """CPU in percent of one core, over one span of quiet."""
    supervisor, child = descendants(measured.agents[0].pid)[:2]
    began, counted = time.perf_counter(), asyncio.run(_counters(measured))
    used = {name: cpu_of(pid) for name, pid in (("supervisor", supervisor), ("agent", child))}
    time.sleep(seconds)
    after = {name: cpu_of(pid) for name, pid in (("supervisor", supervisor), ("agent", child))}
    passed, more = time.perf_counter() - began, asyncio.run(_counters(measured))
    return {
        **{f"{name}_percent": (after[name] - used[name]) / passed * 100 for name in used},
        **{f"{name}_per_second": (more[name] - counted[name]) / passed for name in counted},
    }


def run(seconds: float, runs: int, buckets: int) -> dict[str, Any]:
    """One agent; nothing is submitted."""
    with measured_cluster({"agents": {"default": {"buckets": {**MEDIUM_ONLY, "medium": buckets}}}}) as measured:
        measured.start_agent()
        time.sleep(SETTLE_SECONDS)
        found = [one_span(measured, seconds) for _ in range(runs)]
        spread = {name: summary([one[name] for one in found], digits=3) for name in found[0]}
        return {
            "agent_cpu_percent": spread["agent_percent"]["median"],
            "supervisor_cpu_percent": spread["supervisor_percent"]["median"],
            "store_commands_per_second": spread["store_commands_per_second"]["median"],
            "transactions_per_second": spread["transactions_per_second"]["median"],
            "buckets": buckets,
            "seconds": seconds,
            "spread": spread,
            "servers": asyncio.run(measured.described()),
        }


@click.command()
@click.option("--seconds", default=12.0, show_default=True, help="Of one span.")
@click.option("--runs", default=5, show_default=True)
@click.option("--buckets", default=15, show_default=True)
@output_options
def main(seconds: float, runs: int, buckets: int, as_json: bool, save: bool) -> None:
    """CPU of an idle agent in percent of one core."""
    show("idle", run(seconds, runs, buckets), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
