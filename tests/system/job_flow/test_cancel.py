"""Cancelling a job in each of its states; a cancelled job never starts again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from jobmaster.settings.model import StoreSettings
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import fails_for_now, note, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_held(deployment: Deployment, agent: AgentProcess, cluster: Cluster) -> None:
    receipt = await cluster.submit(note, {"path": str(deployment.path("w"))}, after=3600, durability="master")
    assert await receipt.cancel() is JobState.CANCELLED
    assert (await receipt.get()).state is JobState.CANCELLED


async def test_waiting_in_a_bucket_without_a_row(deployment: Deployment, cluster: Cluster, agent: AgentProcess) -> None:
    """The tombstone: the master learns of the job by its cancellation; the copy in the bucket is refused."""
    await agent.terminate()
    deployment.document["agents"]["default"] |= {"slots": 1, "bucket_buffer": 0}
    await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    blockers = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(4)]

    async def busy() -> bool:
        return len(deployment.witnessed("w")) >= 2

    await eventually(busy, 15, "both buckets to be busy")
    victim = await cluster.submit(note, {"path": str(deployment.path("never"))})
    assert await victim.cancel() is JobState.CANCELLED
    Path(gate).touch()
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in blockers} == {JobState.SUCCEEDED}
    later = await cluster.submit(note, {"path": str(deployment.path("later"))})
    await later.wait(timeout=PATIENCE_SECONDS)
    assert (await victim.get()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", ["store", pytest.param("master", marks=pytest.mark.long), "retry"])
async def test_waiting_in_a_bucket_for_its_time(
    deployment: Deployment, cluster: Cluster, agent: AgentProcess, kind: str
) -> None:
    """It is CANCELLED long before that, though nothing of it runs; and no copy of it is left to be started."""
    if kind == "retry":
        receipt = await cluster.submit(fails_for_now, {"path": str(deployment.path("w"))})
    else:
        level: Literal["store", "master"] = "master" if kind == "master" else "store"
        receipt = await cluster.submit(note, {"path": str(deployment.path("w"))}, after=200, durability=level)

    async def copies() -> int:
        url = deployment.document["stores"]["default"]["url"]
        store = AgentStore(cluster=deployment.document["cluster"], name="default", url=url, settings=StoreSettings())
        try:
            depths = await store.depths(await store.known_buckets())
        finally:
            await store.close()
        return sum(depth.assigned for depth in depths if depth is not None)

    async def waits() -> bool:
        rows = await deployment.fetch("SELECT state::text FROM job")
        return [row["state"] for row in rows] == ["ASSIGNED"] and await copies() == 1

    async def over() -> bool:
        return (await receipt.get()).state is JobState.CANCELLED and not await copies()

    await eventually(waits, 60, "the job to wait in its bucket")
    assert await receipt.cancel() is JobState.ASSIGNED
    await eventually(over, 60, "the end of a job that was not due")
    assert await receipt.wait(timeout=60) is JobState.CANCELLED
    assert deployment.witnessed("w") == [] if kind != "retry" else len(deployment.witnessed("w")) == 1


async def test_running(deployment: Deployment, cluster: Cluster, agent: AgentProcess) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def persisted() -> bool:
        return bool(await deployment.fetch("SELECT FROM job WHERE state = 'PROCESSING'"))

    await eventually(persisted, 15, "its row")
    await receipt.cancel()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.CANCELLED
    assert [line[4] for line in deployment.witnessed("w")] == ["began"]


async def test_a_final_state_stays(agent: AgentProcess, deployment: Deployment, cluster: Cluster) -> None:
    receipt = await cluster.submit(note, {"path": str(deployment.path("w"))})
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert await receipt.cancel() is JobState.SUCCEEDED
