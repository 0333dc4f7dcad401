"""SIGHUP: the configuration is read again under a running agent."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import note, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]


async def active(deployment: Deployment) -> Counter[tuple[str, int]]:
    rows = await deployment.fetch("SELECT lane, priority FROM bucket WHERE state = 'ACTIVE'")
    return Counter((row["lane"], row["priority"]) for row in rows)


async def reload(deployment: Deployment, agent: AgentProcess) -> None:
    _ = deployment.settings  # writes the file
    agent.process.send_signal(signal.SIGHUP)


async def test_buckets_follow_the_file_and_no_job_is_lost(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    child = agent.children()
    settings = deployment.document["agents"]["default"]
    settings["buckets"] = {"critical": 0, "high": 1, "medium": 4, "low": 0, "very_low": 1}
    settings["slots"] = 3
    deployment.document["leases"]["lease"] = "4s"
    await reload(deployment, agent)
    told = await agent.wait_event("reloaded")
    assert told["changed"] == ["agents.default.buckets", "agents.default.slots"]
    assert told["needs_a_restart"] == ["leases.lease"]

    async def followed() -> bool:
        return await active(deployment) == {("default", 4): 1, ("default", 3): 4, ("default", 1): 1}

    await eventually(followed, 30, "the buckets of the file")
    receipts = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(60)]
    settings["buckets"]["medium"] = 1
    await reload(deployment, agent)
    await agent.wait_event("reloaded", 2)
    receipts += [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(60)]

    async def shrunk() -> bool:
        return (await active(deployment))["default", 3] == 1

    await eventually(shrunk, 30, "one bucket of medium priority")

    async def published() -> bool:
        return bool((await deployment.fetch("SELECT slots FROM agent"))[0]["slots"] == 3 * 3)

    await eventually(published, PATIENCE_SECONDS, "the slots of the file for autoscalers")
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    assert len(deployment.witnessed("n")) == 120, "each ran once"
    assert await deployment.bucket_events("LOST") == 0
    assert agent.children() == child, "the same process"
    assert await agent.terminate() == 0


async def test_a_shrink_that_waits_for_a_long_job_has_nothing_rescued(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    """The buckets that are done leave at once, the one with the job when it has ended; renewals go on all the time."""
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs() -> bool:
        return bool(deployment.witnessed("w"))

    await eventually(runs, 60, "the job to run")
    deployment.document["agents"]["default"]["buckets"] = {
        "critical": 1,
        "high": 0,
        "medium": 0,
        "low": 0,
        "very_low": 0,
    }
    deployment.document["leases"]["grace"] = "120s"
    await reload(deployment, agent)
    await agent.wait_event("bucket_closed", 4, seconds=60)
    leases: set[object] = set()
    while len(leases) < 6:
        leases.add((await deployment.fetch("SELECT lease_until FROM agent"))[0][0])
    Path(gate).touch()
    await agent.wait_event("bucket_closed", 5, seconds=60)
    assert await receipt.wait(timeout=60) is JobState.SUCCEEDED
    assert await deployment.bucket_events("LOST") == 0
    assert agent.count("bucket_forgotten") == 0
    assert await agent.terminate(120) == 0


async def test_a_broken_file_changes_nothing_and_the_event_names_file_and_field(
    deployment: Deployment, agent: AgentProcess
) -> None:
    before = await active(deployment)
    text = deployment.config.read_text()
    deployment.config.write_text(text.replace("lease: 300s", "lease: soon"))
    agent.process.send_signal(signal.SIGHUP)
    told = await agent.wait_event("reload_refused")
    assert "lease" in told["reason"]
    assert deployment.config.name in told["reason"], "the file, and the place in it"
    deployment.config.unlink()
    agent.process.send_signal(signal.SIGHUP)
    assert deployment.config.name in (await agent.wait_event("reload_refused", 2))["reason"]
    assert await active(deployment) == before
    deployment.config.write_text(text)
    agent.process.send_signal(signal.SIGHUP)
    assert (await agent.wait_event("reloaded"))["changed"] == []
    assert await agent.terminate() == 0
