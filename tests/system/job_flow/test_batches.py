"""Batches over real agents, real stores and a real master: ended once, whichever process dies."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.handlers import call
from jobmaster.model.flow.batch import BatchState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import fails, noop, note, until_file
from tests.system.operation.test_metrics import scrape

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def _callbacks(deployment: Deployment) -> dict[str, Any]:
    return {
        f"on_{occasion}": call(note, str(deployment.path(occasion))) for occasion in ("complete", "success", "failure")
    }


async def _noted(deployment: Deployment, *occasions: str) -> None:
    """Exactly these callbacks have run, each once."""

    async def ran() -> bool:
        return all(deployment.witnessed(occasion) for occasion in occasions)

    await eventually(ran, PATIENCE_SECONDS, f"the callbacks {occasions}")
    assert {each: len(deployment.witnessed(each)) for each in ("complete", "success", "failure")} == {
        each: int(each in occasions) for each in ("complete", "success", "failure")
    }


async def test_a_batch_of_jobs_without_rows_ends_with_its_last_one(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    async with cluster.batch("noops", **_callbacks(deployment)) as batch:
        summary = await batch.submit_many(call(noop) for _ in range(3000))
        assert (await batch.submit(call(noop))).level == next(iter(summary.by_level)) == "store"
    view = await batch.wait(timeout=PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.size, view.counts.succeeded, view.counts.missing) == (BatchState.SUCCEEDED, 3001, 3001, 0)
    await _noted(deployment, "complete", "success")

    async def logged() -> bool:  # the end is committed, and its callbacks may run, before the line is written
        return agent.count("batch_ended") == 1

    await eventually(logged, PATIENCE_SECONDS, "the line of the end of the batch")


async def test_a_failed_job_fails_the_batch(deployment: Deployment, agent: AgentProcess, cluster: Cluster) -> None:
    async with cluster.batch("mixed", **_callbacks(deployment)) as batch:
        await batch.submit_many([call(noop), call(fails, str(deployment.path("f"))), call(noop)])
    view = await batch.wait(timeout=PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.failed, view.counts.succeeded) == (BatchState.FAILED, 1, 2)
    await _noted(deployment, "complete", "failure")
    again = await cluster.batches.retry_failed(batch)
    assert (await again.wait(timeout=PATIENCE_SECONDS)).size == 1


async def test_a_batch_whose_last_job_no_agent_ends_is_counted_by_the_note_of_its_end(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    async with cluster.batch("cancelled", **_callbacks(deployment)) as batch:
        await batch.submit(call(noop))
        left = await batch.submit(call(noop), after=3600)

    async def ran() -> bool:
        counts = (await batch.progress()).counts
        return counts is not None and counts.succeeded == 1

    await eventually(ran, PATIENCE_SECONDS, "the first job")
    await left.cancel()
    view = await batch.wait(timeout=PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.succeeded, view.counts.cancelled) == (BatchState.FAILED, 1, 1)
    assert view.tallied == 2, "by a look of the leader it would have ended ten seconds later"
    await _noted(deployment, "complete", "failure")


async def test_the_note_of_an_end_is_counted_where_an_agent_that_runs_no_jobs_leads(
    deployment: Deployment, cluster: Cluster
) -> None:
    kinds = deployment.document["agents"]
    kinds["default"]["mode"], kinds["leader"] = "execution", {"mode": "leader", "weight": 10}
    deployment.document["observability"]["metrics_port"] = 0
    leader = await deployment.start_agent("--name", "leader")
    port = int((await leader.wait_event("metrics_served"))["port"])
    await deployment.start_agent("--name", "default")
    async with cluster.batch("cancelled") as batch:
        left = [await batch.submit(call(noop), after=3600) for _ in range(2)]
    for receipt in left:
        await receipt.cancel()
    view = await batch.wait(timeout=PATIENCE_SECONDS)
    assert (view.state, view.tallied) == (BatchState.FAILED, 2)
    figures = await scrape(port)
    assert figures["jobmaster_batches_ended_total:FAILED"] == 1
    assert figures["jobmaster_batches_found_total"] == 0, "by the leader's look, ten seconds later"


async def test_a_cancelled_batch_stops_what_runs_and_starts_nothing_more(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    async with cluster.batch("stopped", **_callbacks(deployment)) as batch:
        await batch.submit_many(call(until_file, path, gate) for _ in range(3000))
        await batch.submit(call(noop), after=3600)

    async def began() -> bool:
        return len(deployment.witnessed("w")) > 20

    await eventually(began, PATIENCE_SECONDS, "the jobs to begin")
    await batch.cancel()
    view = await batch.wait(timeout=PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.cancelled) == (BatchState.CANCELLED, 3001)
    assert len(deployment.witnessed("w")) < 3000
    assert not any(line[-1] == "ended" for line in deployment.witnessed("w"))
    await _noted(deployment, "complete")


async def test_a_batch_ends_once_though_its_agents_are_killed(deployment: Deployment, cluster: Cluster) -> None:
    agents = [await deployment.start_agent() for _ in range(2)]
    path = str(deployment.path("w"))
    async with cluster.batch("killed", **_callbacks(deployment)) as batch:
        for _ in range(6):
            await batch.submit_many(call(note, path) for _ in range(500))
            for agent in agents:
                for pid in agent.children():
                    with suppress(ProcessLookupError):  # one that was killed before is reaped only now
                        os.kill(pid, signal.SIGKILL)
    view = await batch.wait(timeout=2 * PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.succeeded, view.size) == (BatchState.SUCCEEDED, 3000, 3000)
    await _noted(deployment, "complete", "success")


async def test_an_abandoned_batch_fails_and_its_jobs_run(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    batch = cluster.batch("abandoned", **_callbacks(deployment))
    await batch.__aenter__()
    await batch.submit_many(call(note, str(deployment.path("w"))) for _ in range(5))
    batch._stop_touching()
    await deployment.fetch("UPDATE batch SET silent_after = now(), look_at = now()")
    view = await cluster.batches.wait(batch, timeout=PATIENCE_SECONDS)
    assert (view.state, view.reason) == (BatchState.FAILED, "abandoned")
    await _noted(deployment, "complete", "failure")

    async def ran() -> bool:
        return len(deployment.witnessed("w")) == 5

    await eventually(ran, PATIENCE_SECONDS, "its jobs")


async def test_a_batch_inside_another_one_counts(deployment: Deployment, agent: AgentProcess, cluster: Cluster) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    async with cluster.batch("outer", **_callbacks(deployment)) as outer:
        async with cluster.batch("inner", parent=outer) as inner:
            await inner.submit(call(until_file, path, gate))
        await outer.submit(call(noop))
    await asyncio.sleep(0)
    assert not (await outer.get()).state.final
    await asyncio.to_thread(Path(gate).touch)
    assert (await outer.wait(timeout=PATIENCE_SECONDS)).state is BatchState.SUCCEEDED
    await _noted(deployment, "complete", "success")
