"""Start-up actions of handlers in real agents: once for all of them, before the first job."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from jobmaster.wiring import open_cluster
from tests.support.deployment import ENVIRONMENT, AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers import once_jobs
from tests.system.operation.test_handler_life import start
from tests.system.operation.test_metrics import get, port_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the actions leave their marks."""
    made = tmp_path / "once"
    made.mkdir()
    monkeypatch.setitem(ENVIRONMENT, once_jobs.PLACE, str(made))
    return made


async def reason_of(agent: AgentProcess) -> str:
    status, body = await get(await port_of(agent), "/ready")
    assert status == 503
    reason: str = json.loads(body)["reason"]
    return reason


async def forget(deployment: Deployment) -> None:
    """The schema is shared by the tests of a run."""
    await deployment.fetch("DELETE FROM once_action")
    await deployment.fetch("DELETE FROM once_attempt")
    await deployment.fetch("DELETE FROM named_lock")


async def test_agents_that_start_together_run_an_action_once(deployment: Deployment, folder: Path) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.once_jobs:handlers"]
    await forget(deployment)
    agents = [start(deployment) for _ in range(2)]
    for agent in agents:
        await agent.wait_event("agent_started")
    assert len((folder / "ran").read_text().split()) == 1
    assert sum(agent.count("once_action_done") for agent in agents) == 1
    again = await deployment.start_agent()
    assert again.count("once_action_done") == 0
    assert len((folder / "ran").read_text().split()) == 1


async def test_an_action_that_fails_keeps_the_agent_unready_until_it_succeeds(
    deployment: Deployment, folder: Path
) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.once_jobs:failing"]
    deployment.document["observability"]["metrics_port"] = 0
    await forget(deployment)
    agent = start(deployment)
    failed = await agent.wait_event("once_action_failed")
    assert (failed["action"], failed["version"]) == ("load-rates", "3")
    assert "FileNotFoundError" in failed["reason"]

    async def named() -> bool:  # for a moment it is tried again
        return "the start-up action load-rates 3 failed and is tried again: FileNotFoundError" in await reason_of(agent)

    await eventually(named, PATIENCE_SECONDS, "the probe to name the failure")
    async with await open_cluster(deployment.settings, once_jobs.failing) as client:
        receipt = await client.submit("once.job")
        assert not await deployment.fetch("SELECT 1 FROM agent WHERE state = 'ACTIVE'"), "nothing takes the job"
        (listed,) = json.loads(deployment.run("once", "list", "-o", "json").stdout)
        assert (listed["name"], listed["version"], listed["failures"] >= 1) == ("load-rates", "3", True)
        assert listed["state"] == "running" or "FileNotFoundError" in listed["error"]
        (folder / "rates").write_text("1.0")
        await agent.wait_event("agent_started")
        assert await receipt.result(timeout=PATIENCE_SECONDS) == 42
        (listed,) = json.loads(deployment.run("once", "list", "-o", "json").stdout)
        assert (listed["state"], listed["failures"], listed["error"]) == ("done", 0, None)
        assert (await receipt.get()).attempt == 1, "of its only run"


async def test_the_action_of_a_killed_agent_is_taken_over_and_the_wait_names_it(
    deployment: Deployment, folder: Path
) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.once_jobs:hanging"]
    deployment.document["observability"]["metrics_port"] = 0
    await forget(deployment)
    first = start(deployment)

    async def began() -> bool:
        return (folder / "hangs").exists()

    await eventually(began, PATIENCE_SECONDS, "the action")
    second = start(deployment)

    async def waits() -> bool:
        return "it waits for the start-up action load-rates 3, which" in await reason_of(second)

    await eventually(waits, PATIENCE_SECONDS, "the second agent to wait")
    (folder / "hangs").unlink()
    first.kill_all()
    await deployment.fetch("UPDATE named_lock SET expires_at = clock_timestamp() - interval '1 ms'")  # its ttl is over
    await eventually(began, PATIENCE_SECONDS, "the action to be taken over")
    assert "it runs the start-up action load-rates 3" in await reason_of(second)
    second.process.send_signal(signal.SIGTERM)
    assert await second.wait_exit() == 0
    assert not await deployment.fetch("SELECT 1 FROM once_action")
    assert not await deployment.fetch("SELECT 1 FROM named_lock WHERE holder IS NOT NULL"), "given back"
