"""Jobs of ``spark_map`` with real agents and a real Spark: one application for many jobs, one outcome for each of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from jobmaster.client.batches.batch import Batch
from jobmaster.client.cluster import Cluster
from jobmaster.model.flow.batch import BatchState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import processes_with
from tests.support.waiting import eventually, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.spark]
pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
CHUNK = 20


@pytest.fixture
async def agent(deployment: Deployment) -> AgentProcess:
    """An agent with slots for two chunks."""
    deployment.document["handlers"] = ["tests.system.handlers.map_jobs"]
    deployment.document["agents"]["default"]["buckets"] = {"medium": 1}
    deployment.document["agents"]["default"]["slots"] = 2 * CHUNK
    return await deployment.start_agent()


def runs(deployment: Deployment) -> list[list[str]]:
    """Each call for a job: the job, the directory of the application, the number."""
    return deployment.witnessed("runs")


def processes(scratch: str) -> dict[int, str]:
    """Processes of an application, by its directory: process ids and command lines."""
    return processes_with("SPARK_LOCAL_DIRS", scratch)


def _found(scratch: str, word: str) -> list[int]:
    """Processes of an application with this word in their command line; at least one."""
    found = [pid for pid, command in processes(scratch).items() if word in command]
    assert found, processes(scratch)
    return found


async def submitted(cluster: Cluster, deployment: Deployment, count: int, *, held: bool = False) -> Batch:
    """A batch of so many jobs. With ``held`` the jobs from the second chunk on wait for the file ``gate``."""
    path, gate, fault = (str(deployment.path(name)) for name in ("runs", "gate", "fault"))
    async with cluster.batch("numbers") as batch:
        for n in range(count):
            wait = gate if held and n >= CHUNK else ""
            arguments = {"n": n, "path": path, "gate": wait, "fault": fault if n % 10 == 7 else ""}
            await batch.submit("map.double", arguments)
    return batch


async def outcomes(deployment: Deployment) -> Counter[tuple[str, int]]:
    """Jobs by their state and the number of their concluding lines."""
    rows = await deployment.fetch(
        """SELECT j.state, count(l.job_id) AS ended FROM jobs j LEFT JOIN ledger l ON l.job_id = j.id AND l.concluding
           GROUP BY j.id, j.state"""
    )
    return Counter((row["state"], row["ended"]) for row in rows)


async def first_chunk_done(deployment: Deployment, count: int) -> str:
    """The outcomes of the first chunk are written, and the second one waits in Spark; the directory of the application."""

    async def reached() -> bool:
        done = (await outcomes(deployment))["SUCCEEDED", 1]
        return done == CHUNK and len(runs(deployment)) > CHUNK

    await eventually(reached, 4 * PATIENCE_SECONDS, lambda: f"{runs(deployment)} of {count}")
    (scratch,) = {scratch for _, scratch, _ in runs(deployment)}
    return scratch


async def test_one_application_does_the_work_of_a_batch_and_what_failed_is_done_again_alone(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    deployment.path("fault").touch()
    batch = await submitted(cluster, deployment, 2 * CHUNK)
    view = await batch.wait(timeout=4 * PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.succeeded, view.counts.failed) == (BatchState.FAILED, 36, 4)
    assert await outcomes(deployment) == {("SUCCEEDED", 1): 36, ("FAILED", 1): 4}
    found = await deployment.fetch(
        "SELECT (args->>'n')::int AS n, (result->>'twice')::int AS twice, error::text FROM jobs"
    )
    assert all(row["twice"] == 2 * row["n"] if row["n"] % 10 != 7 else "as asked" in row["error"] for row in found)
    assert len({scratch for _, scratch, _ in runs(deployment)}) == 1
    calls = Counter(Counter(job for job, *_ in runs(deployment)).values())
    assert calls == {1: 36, 2: 4}, "two attempts of the jobs that fail"

    deployment.path("fault").unlink()
    again = await cluster.batches.retry_failed(batch)
    view = await again.wait(timeout=4 * PATIENCE_SECONDS)
    assert view.counts is not None
    assert (view.state, view.counts.succeeded) == (BatchState.SUCCEEDED, 4)
    assert sorted(int(n) for *_, n in runs(deployment)[2 * CHUNK + 4 :]) == [7, 17, 27, 37]


@pytest.mark.parametrize(
    "victim",
    # That an application ends with its agent, and its job runs again: `examples/test_nightly_pipeline.py`, too.
    ["driver", pytest.param("agent", marks=pytest.mark.long), pytest.param("executor", marks=pytest.mark.long)],
)
async def test_after_a_kill_the_jobs_without_an_outcome_run_again_and_no_others(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster, victim: str
) -> None:
    batch = await submitted(cluster, deployment, 2 * CHUNK, held=True)
    scratch = await first_chunk_done(deployment, 2 * CHUNK)
    word = {"driver": "driver_program", "executor": "pyspark.daemon"}
    for pid in agent.children() if victim == "agent" else _found(scratch, word[victim]):
        os.kill(pid, signal.SIGKILL)
    if victim != "executor":
        await asyncio.to_thread(
            wait_until, lambda: not processes(scratch), PATIENCE_SECONDS, "the end of the application"
        )
    deployment.path("gate").touch()
    view = await batch.wait(timeout=4 * PATIENCE_SECONDS)
    assert view.state is BatchState.SUCCEEDED
    assert await outcomes(deployment) == {("SUCCEEDED", 1): 2 * CHUNK}
    calls = Counter(int(n) for *_, n in runs(deployment))
    assert {n: calls[n] for n in range(CHUNK)} == dict.fromkeys(range(CHUNK), 1)
    # Spark outlives a killed executor's Python: the chunk is tried again, in halves.
    assert len({scratch for _, scratch, _ in runs(deployment)}) == (1 if victim == "executor" else 2)


async def test_the_cancel_of_a_batch_ends_the_application_and_keeps_what_is_done(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    batch = await submitted(cluster, deployment, 2 * CHUNK, held=True)
    scratch = await first_chunk_done(deployment, 2 * CHUNK)
    assert _found(scratch, "driver_program")
    await cluster.batches.cancel(batch)
    view = await batch.wait(timeout=2 * PATIENCE_SECONDS)
    assert view.state is BatchState.CANCELLED
    assert await outcomes(deployment) == {("SUCCEEDED", 1): CHUNK, ("CANCELLED", 1): CHUNK}
    await asyncio.to_thread(wait_until, lambda: not processes(scratch), PATIENCE_SECONDS, "the end of the application")
