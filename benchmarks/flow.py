"""``python -m benchmarks.flow``: what limits, batches, workflows and tenants cost. One function for each figure."""

from __future__ import annotations

import asyncio
import statistics
import time

import click
import uvloop

from benchmarks.support.handlers import handlers, noop
from benchmarks.support.measured_cluster import measured_cluster
from benchmarks.support.report import output_options, progress, show
from jobmaster.client.cluster import Cluster
from jobmaster.client.workflows.definition import chain
from jobmaster.handlers import call
from jobmaster.model.workflow import WorkflowState
from jobmaster.wiring import open_cluster

CHAIN_STEPS = 10


async def chain_ms(cluster: Cluster, rounds: int) -> dict[str, float]:
    """Milliseconds from the start of a chain of 10 steps to the read that finds it ended, one chain after another."""
    flow = chain(*(call(noop) for _ in range(CHAIN_STEPS)))
    took = []
    for _ in range(rounds + 5):  # the first ones warm up
        began = time.perf_counter()
        ended = await cluster.workflows.wait(await cluster.workflows.start("bench", flow), timeout=60)
        took.append((time.perf_counter() - began) * 1000)
        assert ended.state is WorkflowState.SUCCEEDED
        await asyncio.sleep(0.02)
    ordered = sorted(took[5:])
    return {
        "chain_ms": round(statistics.median(ordered), 1),
        "chain_p99_ms": round(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], 1),
    }


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=100, show_default=True, help="Chains, one after another.")
@output_options
def main(rounds: int, as_json: bool, save: bool) -> None:
    """Measure workflows at light load on one agent."""

    async def measure() -> dict[str, float]:
        with measured_cluster() as measured:
            measured.start_agent()
            progress("a chain of 10 steps")
            async with await open_cluster(measured.settings, handlers) as cluster:
                return await chain_ms(cluster, rounds)

    show("flow", {"rounds": rounds, **uvloop.run(measure())}, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
