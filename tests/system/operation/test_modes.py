"""What an agent of each mode does, and does not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.model.job import JobState
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import noop, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_a_leader_owns_no_buckets_and_leads(deployment: Deployment) -> None:
    await deployment.start_agent("--mode", "leader")
    assert await deployment.fetch("SELECT FROM bucket") == []

    async def leads() -> bool:
        return bool(
            await deployment.fetch("SELECT FROM lease l JOIN agent a ON a.id = l.owner WHERE a.mode = 'leader'")
        )

    await eventually(leads, 10, "the leader's lease")


async def test_a_heavier_agent_that_comes_later_gets_the_lease_once(deployment: Deployment, cluster: Cluster) -> None:
    # The leader's lease ends when it is handed on, however slow the machine is. That waits for as long as a lease lasts.
    deployment.document["leases"] |= {"lease": "8s", "leader_lease": "300s"}
    deployment.document["agents"]["heavy"] = {"mode": "leader", "weight": 9}
    light = await deployment.start_agent("--name", "default")
    assert (await light.wait_event("leader_elected"))["epoch"] == 1
    heavy = await deployment.start_agent("--name", "heavy")
    assert (await light.wait_event("leader_resigned"))["heir"]
    assert (await heavy.wait_event("leader_elected"))["epoch"] == 2

    async def beats(of: int) -> bool:
        rows = await deployment.fetch("SELECT min(beats) AS least FROM agent WHERE state = 'ACTIVE'")
        return bool(rows[0]["least"] >= of)

    least = (await deployment.fetch("SELECT max(beats) AS most FROM agent"))[0]["most"]
    await eventually(lambda: beats(least + 5), 15, "five more renewals of both")
    assert await (await cluster.submit(noop, {}, after=0.5, durability="master")).wait(timeout=PATIENCE_SECONDS)
    assert [each.count("leader_elected") for each in (light, heavy)] == [1, 1]
    assert (await deployment.fetch("SELECT epoch FROM lease"))[0]["epoch"] == 2


@pytest.mark.usefixtures("long_lease")
async def test_agents_get_jobs_by_their_shares(deployment: Deployment, cluster: Cluster) -> None:
    only = {"critical": 0, "high": 0, "medium": 1, "low": 0, "very_low": 0}
    deployment.document["agents"] = {
        "small": {"buckets": dict(only), "share": 1},
        "big": {"buckets": dict(only), "share": 3},
    }
    for name in ("small", "big"):
        await (await deployment.start_agent("--name", name)).wait_event("buckets_opened")
    receipts: list[JobReceipt[None]] = []
    for _ in range(30):  # a few at a time: an agent that has no time to claim them is given fewer
        receipts += [await cluster.submit(noop, {}) for _ in range(10)]
        ended = await cluster.wait_all(receipts[-10:], timeout=PATIENCE_SECONDS)
        assert set(ended.values()) == {JobState.SUCCEEDED}
    owners = await deployment.fetch("SELECT b.id, a.name FROM bucket b JOIN agent a ON a.id = b.owner")
    names = {row["id"].bytes: row["name"] for row in owners}
    went = Counter(names[receipt.bucket_id] for receipt in receipts if receipt.bucket_id)
    assert 180 < went["big"] < 270, "three quarters, give or take some"


async def test_an_execution_agent_works_and_never_leads(deployment: Deployment, cluster: Cluster) -> None:
    await deployment.start_agent("--mode", "execution")
    assert await (await cluster.submit(noop, {})).wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert await deployment.fetch("SELECT FROM lease WHERE owner IS NOT NULL AND expires_at > clock_timestamp()") == []


async def test_a_drain_agent_rescues_and_runs_nothing(deployment: Deployment, cluster: Cluster) -> None:
    deployment.shorten_lease()
    victim = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def began() -> bool:
        return bool(deployment.witnessed("w"))

    await eventually(began, 15, "the job to run")
    await deployment.start_agent("--mode", "drain")
    victim.kill_all()

    async def held() -> bool:
        return (await deployment.states()).get("HELD", 0) == 1

    await eventually(held, 20, "the rescue")
    Path(gate).touch()
    await deployment.start_agent()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
