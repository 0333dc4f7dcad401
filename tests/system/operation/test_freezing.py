"""The emergency stop as an operator uses it, over a real agent that is at work."""

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


async def test_freeze_and_unfreeze_a_lane(deployment: Deployment, agent: AgentProcess, cluster: Cluster) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    running = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def began() -> bool:
        return len(deployment.witnessed("w")) == 1

    await eventually(began, 20, "the job to begin")
    frozen = deployment.run("bucket", "freeze", "--lane", "default", "--reason", "charges twice", "-o", "json")
    assert frozen.returncode == 0, frozen.stderr
    assert {bucket["state"] for bucket in json.loads(frozen.stdout)} == {"FROZEN"}
    await agent.wait_event("bucket_frozen", 6)
    # Producers are not kept waiting: with every bucket frozen their jobs are held on the master.
    later = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(5)]
    Path(gate).touch()
    assert await running.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED, "what runs is recorded"
    assert "is FROZEN for" in deployment.run("status").stdout
    assert deployment.witnessed("n") == []
    assert deployment.run("bucket", "freeze", "--all").stderr.startswith("nothing to freeze")
    unfrozen = deployment.run("bucket", "unfreeze", "--all", "--reason", "mended", "-o", "json")
    assert {bucket["epoch"] for bucket in json.loads(unfrozen.stdout)} == {2}
    await agent.wait_event("bucket_unfrozen", 6)
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in later} == {JobState.SUCCEEDED}
    assert agent.count("bucket_forgotten") == 0
    assert await deployment.bucket_events("LOST") == 0
    assert await agent.terminate() == 0
    log = await deployment.fetch("SELECT action, count(*) FROM operator_log GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in log] == [("bucket freeze", 6), ("bucket unfreeze", 6)]


async def test_an_agent_that_leaves_in_the_middle_of_a_stop_burns_nothing(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(3)]

    async def began() -> bool:
        return len(deployment.witnessed("w")) == 3

    await eventually(began, 20, "the jobs to begin")
    frozen = {bucket["id"] for bucket in json.loads(deployment.run("bucket", "freeze", "--all", "-o", "json").stdout)}
    await agent.wait_event("bucket_frozen", len(frozen))
    Path(gate).touch()
    assert await agent.terminate() == 0
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    lost = await deployment.fetch("SELECT bucket_id::text AS id FROM bucket_event WHERE to_state = 'LOST'")
    assert {row["id"] for row in lost} == frozen
    assert len(frozen) >= 6
    await deployment.start_agent()
    assert (await deployment.fetch("SELECT max(rescues) FROM job"))[0][0] == 0


async def test_bad_input_is_one_sentence(deployment: Deployment) -> None:
    for words, said in (
        ((), "name the buckets"),
        (("--all", "--lane", "x"), "not several of them"),
        (("0199a1f0-1",), "there is no bucket"),
        (("nonsense",), "there is no bucket 'nonsense'"),
    ):
        result = deployment.run("bucket", "freeze", *words)
        assert result.returncode in (2, 3)
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
