"""Circuit breakers on real agents: jobs of a resource that is down wait, and trials find out when it is up again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.breaker_jobs import handlers, needs_nothing, needs_resource

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]

JOBS = 30


@pytest.fixture
async def broken(deployment: Deployment) -> AsyncIterator[Cluster]:
    """A cluster of two agents, in which the resource is down."""
    deployment.document["handlers"] = ["tests.system.handlers.breaker_jobs"]
    deployment.path("down").touch()
    await deployment.start_agent(processes=1)
    await deployment.start_agent(processes=1)
    async with await open_cluster(deployment.settings, handlers) as cluster:
        yield cluster


async def is_in(cluster: Cluster, *states: BreakerState) -> None:
    async def so() -> bool:
        return (await cluster.breakers.get("resource")).state in states

    await eventually(so, PATIENCE_SECONDS, lambda: f"the breaker to be {states}")


async def submitted(deployment: Deployment, cluster: Cluster, seconds: float = 0.0) -> None:
    args = {"path": str(deployment.path("w")), "down": str(deployment.path("down")), "seconds": seconds}
    await cluster.submit_many([args] * JOBS, needs_resource)


async def all_succeeded(deployment: Deployment) -> None:
    async def over() -> bool:
        rows = await deployment.fetch(
            "SELECT count(*) AS ended FROM job WHERE handler = 'needs_resource' AND state = 'SUCCEEDED'"
        )
        return bool(rows[0]["ended"] == JOBS)

    await eventually(over, PATIENCE_SECONDS, "the end of all jobs")


def most_trials_at_once(deployment: Deployment, after: int) -> int:
    """Jobs whose first run since then was under way at once, by the lines that handlers have written.

    A trial that has failed is due again soon. An agent that has not heard of the next trials yet may start it once more: that
    is one of the documented exceptions.
    """
    changes = []
    began, ended = set[str](), set[str]()
    for line in map(list, deployment.witnessed("w")[after:]):
        seen = began if line[4] == "began" else ended
        if line[0] not in seen:
            seen.add(line[0])
            changes.append((float(line[5]), 1 if line[4] == "began" else -1))
    most = under_way = 0
    for _, step in sorted(changes):
        under_way += step
        most = max(most, under_way)
    return most


async def test_while_a_resource_is_down_its_jobs_wait_and_others_run(deployment: Deployment, broken: Cluster) -> None:
    await submitted(deployment, broken)
    await is_in(broken, BreakerState.OPEN)

    async def all_wait() -> bool:
        return (await deployment.states()).get(JobState.HELD, 0) == JOBS

    await eventually(all_wait, PATIENCE_SECONDS, "every job to wait in the master")
    receipt = await broken.submit(needs_nothing, {"path": str(deployment.path("n"))})
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    listed = deployment.run("breaker", "list", "-o", "json")
    (line,) = json.loads(listed.stdout)
    assert (line["name"], line["actor"], line["handlers"]) == ("resource", "breaker", ["needs_resource"])
    assert "resource" in deployment.run("pauses").stdout
    deployment.path("down").unlink()
    await is_in(broken, BreakerState.CLOSED)
    await all_succeeded(deployment)
    rows = await deployment.fetch("SELECT sum(attempt) AS used FROM job WHERE handler = 'needs_resource'")
    began = sum(line[4] == "began" for line in deployment.witnessed("w"))
    assert rows[0]["used"] == began, "an attempt was used for each run, and for no wait"


async def test_half_open_the_trials_are_bounded_and_a_failure_opens_it_again(
    deployment: Deployment, broken: Cluster
) -> None:
    await broken.breakers.open("resource", reason="not yet", actor="test")
    await submitted(deployment, broken, seconds=0.5)

    async def all_wait() -> bool:
        return (await deployment.states()).get(JobState.HELD, 0) == JOBS

    await eventually(all_wait, PATIENCE_SECONDS, "every job to wait in the master")
    before = len(deployment.witnessed("w")) if deployment.path("w").exists() else 0
    await broken.breakers.open("resource", open_for=0.1, reason="now", actor="test")
    await is_in(broken, BreakerState.HALF_OPEN)

    async def opened_again() -> bool:
        view = await broken.breakers.get("resource")
        return view.state is BreakerState.OPEN and "trials have failed" in view.reason

    await eventually(opened_again, PATIENCE_SECONDS, "the trials to fail")
    assert 1 <= most_trials_at_once(deployment, before) <= 2
    deployment.path("down").unlink()
    await is_in(broken, BreakerState.CLOSED)
    await all_succeeded(deployment)


async def test_trials_survive_the_death_of_every_agent_and_of_the_leader(
    deployment: Deployment, broken: Cluster
) -> None:
    """Each agent is killed while it may run a trial, and is started again by its supervisor."""
    await submitted(deployment, broken, seconds=1.0)
    await is_in(broken, BreakerState.OPEN)

    async def all_wait() -> bool:
        return (await deployment.states()).get(JobState.HELD, 0) == JOBS

    await eventually(all_wait, PATIENCE_SECONDS, "every job to wait in the master")
    deployment.path("down").unlink()
    await is_in(broken, BreakerState.HALF_OPEN, BreakerState.CLOSED)
    for agent in deployment.agents:
        for pid in agent.children():
            os.kill(pid, signal.SIGKILL)
    await is_in(broken, BreakerState.CLOSED)
    await all_succeeded(deployment)


async def test_an_operator_opens_and_closes_it(deployment: Deployment, broken: Cluster) -> None:
    deployment.path("down").unlink()
    opened = deployment.run("breaker", "open", "resource", "--reason", "maintenance", "-o", "json")
    assert json.loads(opened.stdout)["state"] == "OPEN", opened.stderr
    for agent in deployment.agents:
        await agent.wait_event("pauses_changed", 1, PATIENCE_SECONDS)  # it obeys
    await submitted(deployment, broken)

    async def all_wait() -> bool:
        return (await deployment.states()).get(JobState.HELD, 0) == JOBS

    await eventually(all_wait, PATIENCE_SECONDS, "every job to wait in the master")
    unknown = deployment.run("breaker", "close", "resorce")
    assert unknown.returncode != 0
    assert "did you mean" in unknown.stderr.lower()
    assert json.loads(deployment.run("breaker", "close", "resource", "-o", "json").stdout)["state"] == "CLOSED"
    await all_succeeded(deployment)
    assert not Path(deployment.path("down")).exists()
