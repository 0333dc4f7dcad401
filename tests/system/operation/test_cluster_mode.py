"""The mode of a cluster, over real agents that are at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import note, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]


def _mode(deployment: Deployment, *words: str) -> dict[str, object]:
    called = deployment.run("cluster", "mode", *words, "-o", "json")
    assert called.returncode == 0, called.stderr
    found: dict[str, object] = json.loads(called.stdout)
    return found


async def test_agents_of_a_migrating_cluster_complete_their_buckets_and_open_none_until_it_is_active(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    assert _mode(deployment)["mode"] == "active"
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    running = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def began() -> bool:
        return len(deployment.witnessed("w")) == 1

    await eventually(began, PATIENCE_SECONDS, "the job to begin")
    assert _mode(deployment, "migrating", "--reason", "a new server")["mode"] == "migrating"
    Path(gate).touch()
    assert await running.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED, "what runs may end"

    async def completed() -> bool:
        return _mode(deployment)["open_buckets"] == 0

    await eventually(completed, PATIENCE_SECONDS, "the buckets to complete")
    later = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(5)]
    second = await deployment.start_agent()
    assert second.count("buckets_opened") == 0
    assert _mode(deployment)["open_buckets"] == 0
    assert "cluster.mode" in deployment.run("doctor").stdout
    assert deployment.witnessed("n") == []
    archived = deployment.run("cluster", "mode", "archived")
    assert (archived.returncode, "5 jobs have not ended" in archived.stderr) == (4, True)

    assert _mode(deployment, "active")["mode"] == "active"
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in later} == {JobState.SUCCEEDED}
    assert await deployment.bucket_events("LOST") == 0
