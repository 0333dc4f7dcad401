"""Jobs of an unserved lane and priority run all the same, in a bucket of an agent that helps out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.jobs import result_waiter
from jobmaster.model.errors import Unserved, WaitTimeout
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.other_jobs import handlers as other_jobs
from tests.system.handlers.other_jobs import rare
from tests.system.jobs import noop

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NO_LOW = {"critical": 1, "high": 1, "medium": 1, "low": 0, "very_low": 0}
LOW = {**dict.fromkeys(NO_LOW, 0), "low": 1}


def configure(deployment: Deployment, **thresholds: Any) -> None:
    deployment.document["agents"] = {"general": {"buckets": NO_LOW}, "low": {"buckets": LOW}}
    deployment.document["thresholds"] = {"fallback_after": "600ms", **thresholds}


async def low_buckets(deployment: Deployment) -> dict[str, str]:
    """Kind of agent -> state of its bucket of low priority."""
    rows = await deployment.fetch(
        "SELECT a.name, b.state::text FROM bucket b JOIN agent a ON a.id = b.owner WHERE b.priority = 2"
    )
    return {row["name"]: row["state"] for row in rows}


async def test_an_agent_helps_until_a_configured_one_comes(deployment: Deployment, cluster: Cluster) -> None:
    configure(deployment)
    helper = await deployment.start_agent("--name", "general")
    # All at once: after 600 ms the helper has a bucket for those that come then.
    receipts = await asyncio.gather(*(cluster.submit(noop, {}, priority="low") for _ in range(20)))
    assert all(receipt.unserved for receipt in receipts), "said at once"
    for receipt in receipts:
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert await low_buckets(deployment) == {"general": "ACTIVE"}
    await deployment.start_agent("--name", "low")

    async def given_up() -> bool:
        return await low_buckets(deployment) == {"general": "READY_TO_DELETE", "low": "ACTIVE"}

    await eventually(given_up, 20, lambda: f"the end of the help: {helper.log.read_text()}")
    assert helper.count("help_ended") == 1
    receipt = await cluster.submit(noop, {}, priority="low")
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert helper.process.poll() is None
    assert await deployment.bucket_events("LOST") == 0


async def test_an_idle_helper_gives_its_bucket_up(deployment: Deployment, cluster: Cluster) -> None:
    configure(deployment, fallback_idle="1s")
    helper = await deployment.start_agent("--name", "general")
    receipt = await cluster.submit(noop, {}, priority="low")
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED

    async def given_up() -> bool:
        return await low_buckets(deployment) == {"general": "READY_TO_DELETE"}

    await eventually(given_up, 20, lambda: f"the end of the help: {helper.log.read_text()}")
    assert helper.count("help_idle") >= 1
    assert await deployment.bucket_events("LOST") == 0


async def test_no_agent_helps_in_a_lane_that_its_kind_does_not_name(deployment: Deployment, cluster: Cluster) -> None:
    """The other lane's jobs are found at the same time, so its turn has come when the default lane's job has run."""
    configure(deployment)
    deployment.document["agents"]["other"] = {"lanes": {"other": dict(NO_LOW)}}
    await deployment.start_agent("--name", "general")
    other = await deployment.start_agent("--name", "other")
    await cluster.submit(noop, {}, priority="low", lane="other")
    receipt = await cluster.submit(noop, {}, priority="low")
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert (await deployment.states()).get("HELD", 0) == 1
    assert other.count("buckets_opened") == 1
    with pytest.raises(Unserved, match="no bucket serves other/low"):
        await cluster.submit(noop, {}, priority="low", lane="other", on_unserved="raise")


async def test_a_job_whose_handler_no_agent_has_is_put_off_and_runs_when_one_has_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cause is left out if it is not read in time.
    monkeypatch.setattr(result_waiter, "READ_SECONDS", PATIENCE_SECONDS)
    deployment.document["thresholds"] = {"fallback_after": "600ms"}
    agent = await deployment.start_agent()
    async with await open_cluster(deployment.settings, other_jobs) as cluster:
        receipt = await cluster.submit(rare, {}, durability="master")

        async def put_off() -> bool:
            return bool(
                await deployment.fetch(
                    "SELECT FROM job WHERE state = 'HELD' AND due_at > now() + interval '50 minutes'"
                )
            )

        await eventually(put_off, 20, lambda: f"the job to be put off: {agent.log.read_text()}")
        said = await agent.wait_event("handler_unserved")
        assert said["reason"] == "no living agent has the handler 'rare'"
        due_us = (await receipt.get()).due_us
        assert due_us is not None
        assert due_us < time.time() * 1e6, "its own due time is shown"
        with pytest.raises(WaitTimeout, match="no living agent has the handler 'rare'"):
            await receipt.wait(timeout=0.1)
        await deployment.start_agent("--handlers", "tests.system.handlers.other_jobs")
        assert await receipt.result(timeout=PATIENCE_SECONDS) == "found"
