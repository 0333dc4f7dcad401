"""Lifespans and log lines of handlers in real agents."""

from __future__ import annotations

import json
import signal
from functools import partial
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers import life_jobs
from tests.system.operation.test_metrics import get, port_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]


def start(deployment: Deployment) -> AgentProcess:
    """An agent that may never serve."""
    _ = deployment.settings
    agent = AgentProcess(deployment.config, deployment.path(f"agent-{len(deployment.agents)}.log"))
    deployment.agents.append(agent)
    return agent


def lines(agent: AgentProcess, message: str) -> list[dict[str, Any]]:
    return [line for line in agent.events if line.get("message") == message]


async def written(agent: AgentProcess, message: str) -> bool:
    """True when the log has the line: one of a worker process may come after the outcome."""
    return bool(lines(agent, message))


@pytest.fixture
async def served(deployment: Deployment) -> AgentProcess:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:handlers"]
    return await deployment.start_agent()


@pytest.fixture
async def client(deployment: Deployment) -> Any:
    async with await open_cluster(deployment.settings, life_jobs.handlers) as opened:
        yield opened


async def test_handlers_of_each_mode_have_the_resources_and_their_lines_name_the_job(
    served: AgentProcess, client: Cluster
) -> None:
    kinds = {"in a slot": "life.async", "in a thread": "life.thread", "in a process": "life.process"}
    for words, name in kinds.items():
        receipt = await client.submit(name)
        assert await receipt.result(timeout=PATIENCE_SECONDS) is True
        await eventually(partial(written, served, words), PATIENCE_SECONDS, words)
        (line,) = lines(served, words)
        assert line["job"] == str(receipt.id)
        assert line["handler"] == name
        assert (line["attempt"], line["level"], line["logger"]) == (1, "info", "shop.life")
    assert lines(served, "in a slot")[0]["customer"] == 7
    assert len(lines(served, "lifespan began")) == 2, "of the agent and of its worker process"
    assert await served.terminate() == 0
    assert len(lines(served, "lifespan ended")) == 2


async def test_the_lifespan_is_left_after_the_last_handler(served: AgentProcess, client: Cluster) -> None:
    receipt = await client.submit(life_jobs.slow)

    async def began() -> bool:
        return bool(lines(served, "slow began"))

    await eventually(began, PATIENCE_SECONDS, "the job to begin")
    assert await served.terminate() == 0
    order = [line["message"] for line in served.events if "message" in line]
    assert order == ["lifespan began", "slow began", "slow ended", "lifespan ended"]
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED


async def test_a_lifespan_may_take_longer_than_the_lease_to_be_left(deployment: Deployment) -> None:
    """The agent has given everything back; neither the kernel's timer nor the supervisor ends it."""
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:lingering"]
    deployment.document["leases"]["lease"] = "6s"
    agent = await deployment.start_agent()
    assert await agent.terminate() == 0
    assert lines(agent, "lifespan ended at last")
    assert not await deployment.fetch("SELECT 1 FROM agent WHERE state <> 'RETIRED'")


async def test_a_lifespan_that_is_not_left_within_the_grace_time_is_named(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:lingering"]
    deployment.document["leases"]["grace"] = "1s"
    agent = await deployment.start_agent()
    assert await agent.terminate() == 0
    (failed,) = [line for line in agent.events if line.get("event") == "lifespan_failed"]
    assert "it was not left within" in failed["reason"]
    assert "in lingering_lifespan" in failed["reason"]


async def test_a_lifespan_that_blocks_the_loop_while_it_is_left_ends_with_the_process(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:blocking_end"]
    deployment.document["leases"]["grace"] = "1s"
    agent = await deployment.start_agent()
    assert await agent.terminate() == 0
    (failed,) = [line for line in agent.events if line.get("event") == "lifespan_failed"]
    assert "it blocks the event loop, at File" in failed["reason"]
    assert "in blocking_end_lifespan" in failed["reason"]
    assert not await deployment.fetch("SELECT 1 FROM agent WHERE state <> 'RETIRED'")


async def test_a_lifespan_that_fails_ends_the_agent_with_its_line_and_uses_up_no_attempt(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:failing"]
    agent = start(deployment)
    receipt = await cluster.submit("life.never", {}, durability="master", allow_unregistered=True)
    assert await agent.wait_exit() == 78
    said = agent.log.read_text()
    where = f'failing_lifespan failed: OSError: no route to the database (File "{life_jobs.__file__}", line '
    assert f"error: lifespan tests.system.handlers.life_jobs.{where}" in said
    assert agent.count("lifespan_failed") == 1
    assert agent.count("child_started") == 1
    rows = await deployment.fetch("SELECT state::text, attempt FROM job WHERE id = $1", receipt.id)
    assert [tuple(row) for row in rows] == [("HELD", 0)]
    assert not await deployment.fetch("SELECT 1 FROM agent")


async def test_a_lifespan_that_hangs_ends_at_its_limit(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:hanging"]
    deployment.document["agents"]["default"]["lifespan_timeout"] = "1s"
    agent = start(deployment)
    assert await agent.wait_exit() == 78
    assert "it has not yielded within 1 s (agents.<name>.lifespan_timeout is the limit)" in agent.log.read_text()


async def test_a_lifespan_that_blocks_the_loop_ends_too(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:blocking"]
    deployment.document["agents"]["default"]["lifespan_timeout"] = "1s"
    agent = start(deployment)
    assert await agent.wait_exit() == 78
    said = agent.log.read_text()
    assert "error: lifespan tests.system.handlers.life_jobs.blocking_lifespan: it blocks the event loop (File" in said
    assert "in blocking_lifespan)" in said


async def test_a_lifespan_that_hangs_is_named_by_the_probe_and_a_signal_ends_its_agent(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:hanging"]
    deployment.document["agents"]["default"]["lifespan_timeout"] = (
        "1h"  # the agent is there as long as the test asks it
    )
    deployment.document["observability"]["metrics_port"] = 0
    agent = start(deployment)
    port = await port_of(agent)

    async def named() -> bool:
        status, body = await get(port, "/ready")
        assert status == 503
        return (
            "it starts the lifespan tests.system.handlers.life_jobs.hanging_lifespan, at File"
            in json.loads(body)["reason"]
        )

    await eventually(named, PATIENCE_SECONDS, "the probe to name it")
    agent.process.send_signal(signal.SIGTERM)
    assert await agent.wait_exit() == 0


async def test_an_agent_whose_lifespan_has_ended_is_replaced(
    deployment: Deployment, served: AgentProcess, client: Cluster
) -> None:
    await (await client.submit(life_jobs.breaks_the_lifespan)).wait(timeout=PATIENCE_SECONDS)
    await served.wait_event("agent_started", 2)
    (stopping,) = [line for line in served.events if line.get("event") == "agent_stopping"]
    assert stopping["reason"] == "a lifespan of the handlers has ended before its time"
    (failed,) = [line for line in served.events if line.get("event") == "lifespan_failed"]
    assert "ExceptionGroup" in failed["reason"]
    receipt = await client.submit(life_jobs.in_loop)
    assert await receipt.result(timeout=PATIENCE_SECONDS) is True


async def test_the_root_logger_can_be_left_to_the_application(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.life_jobs:handlers"]
    deployment.document["observability"]["root_logging"] = False
    agent = await deployment.start_agent()
    assert "lifespan began" not in agent.log.read_text()
