"""Graceful exit: no rescue, no attempt burnt, nothing left behind (invariant I14)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import note, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]


async def none_rescued(deployment: Deployment) -> None:
    assert await deployment.bucket_events("LOST") == 0
    assert await deployment.bucket_events("DRAINING") == 0
    spoilt = await deployment.fetch("SELECT count(*) FROM job WHERE rescues > 0")
    assert spoilt[0][0] == 0


async def test_running_jobs_end_waiting_jobs_go_back_and_run_elsewhere(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["agents"]["default"] |= {"slots": 2, "bucket_buffer": 2}
    first = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(30)]

    async def some_run() -> bool:
        return len(deployment.witnessed("w")) >= 2

    await eventually(some_run, 15, "running jobs")
    first.process.send_signal(signal.SIGTERM)
    await first.wait_event("agent_stopping")
    Path(gate).touch()
    assert await first.wait_exit() == 0, first.log.read_text()
    await none_rescued(deployment)
    states = await deployment.states()
    assert states.get("SUCCEEDED", 0) + states.get("HELD", 0) == 30, states
    ended = {line[0] for line in deployment.witnessed("w") if line[-1] == "ended"}
    for table in ("job_log", "run_progress"):  # an agent that leaves sends the last reports of its handlers
        assert {row[0].hex for row in await deployment.fetch(f"SELECT job_id FROM {table}")} == ended
    await deployment.start_agent()
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    views = [await receipt.get() for receipt in receipts]
    assert {view.attempt for view in views} == {1}
    assert len(deployment.witnessed("w")) == 60, "each began once and ended once"


async def test_a_second_signal_hands_running_jobs_back(
    deployment: Deployment, cluster: Cluster, agent: AgentProcess
) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs() -> bool:
        return bool(deployment.witnessed("w"))

    await eventually(runs, 15, "the job to run")
    agent.process.send_signal(signal.SIGTERM)
    await agent.wait_event("agent_stopping")
    agent.process.send_signal(signal.SIGTERM)
    assert await agent.wait_exit(15) == 0, agent.log.read_text()
    await none_rescued(deployment)
    view = await receipt.get()
    assert (view.state, view.attempt, view.rescues) == (JobState.HELD, 0, 0)


@pytest.mark.parametrize("restarts", [2, pytest.param(5, marks=pytest.mark.long)])
async def test_rolling_restarts_under_load(deployment: Deployment, cluster: Cluster, restarts: int) -> None:
    path = str(deployment.path("ran"))
    agents = [await deployment.start_agent(), await deployment.start_agent()]
    submitted = 0
    stop = asyncio.Event()

    async def load() -> None:
        nonlocal submitted
        while not stop.is_set():
            await cluster.submit_many([(note, {"path": path})] * 50)
            submitted += 50
            await asyncio.sleep(0.01)

    loading = asyncio.create_task(load())
    for turn in range(restarts):
        fresh = await deployment.start_agent()
        assert await agents.pop(0).terminate() == 0, f"restart {turn}"
        agents.append(fresh)
    stop.set()
    await loading

    async def done() -> bool:
        return (await deployment.states()).get("SUCCEEDED", 0) == submitted

    await eventually(done, 60, f"{submitted} outcomes")
    await none_rescued(deployment)
    ran = [line[0] for line in deployment.witnessed("ran")]
    assert len(ran) == len(set(ran)) == submitted


async def waiting_for(deployment: Deployment, agent: AgentProcess, buckets: int) -> None:
    """The agent has retired so many buckets, waits for the job in its last one, and has renewed often meanwhile."""
    await agent.wait_event("bucket_closed", buckets, seconds=60)

    async def renewals() -> int:
        return int(
            (await deployment.fetch("SELECT round(extract(epoch FROM lease_until) * 1000) FROM agent LIMIT 1"))[0][0]
        )

    seen: set[int] = set()
    while len(seen) < 6:
        assert agent.process.poll() is None, agent.log.read_text()
        seen.add(await renewals())
        await asyncio.sleep(0.05)


async def test_buckets_that_are_done_wait_for_a_long_job_in_another_and_none_is_rescued(
    deployment: Deployment, cluster: Cluster
) -> None:
    """A graceful exit of many renewals: what the agent has retired is not among its buckets, and is no loss."""
    deployment.document["leases"]["grace"] = "120s"
    first = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs() -> bool:
        return bool(deployment.witnessed("w"))

    await eventually(runs, 60, "the job to run")
    first.process.send_signal(signal.SIGTERM)
    await waiting_for(deployment, first, 5)
    Path(gate).touch()
    assert await first.wait_exit(120) == 0, first.log.read_text()
    assert await receipt.wait(timeout=60) is JobState.SUCCEEDED
    await none_rescued(deployment)
    assert first.count("bucket_forgotten") == first.count("bucket_given_back") == 0
    report = deployment.run("doctor", "-o", "json")
    assert '"I14": 0' in report.stdout, report.stdout


async def test_an_operators_drain_is_a_graceful_exit(deployment: Deployment, agent: AgentProcess) -> None:
    ids = await deployment.fetch("SELECT id FROM agent WHERE state = 'ACTIVE'")
    result = deployment.run("agent", "drain", str(ids[0][0]))
    assert result.returncode == 0, result.stderr
    await agent.wait_event("agent_stopped")
    await none_rescued(deployment)
