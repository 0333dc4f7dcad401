"""Agents that die in mid-work: every job runs again and has one outcome."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import blocks_loop, dies, isolated, kills_agent, kills_process, note, stuck, threaded, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def running(deployment: Deployment, count: int) -> None:
    async def began() -> bool:
        return len(deployment.witnessed("w")) >= count

    await eventually(began, 20, f"{count} running jobs")


async def audit(deployment: Deployment) -> None:
    twice = await deployment.fetch("SELECT id FROM job GROUP BY id HAVING count(*) > 1")
    assert twice == []
    astray = await deployment.fetch("SELECT state::text, count(*) FROM job WHERE state <> 'SUCCEEDED' GROUP BY 1")
    assert [tuple(row) for row in astray] == []


@pytest.mark.parametrize(
    "whole",
    [
        # With a long lease: `operation/test_supervised.py`.
        pytest.param(False, id="child killed under its supervisor", marks=pytest.mark.long),
        pytest.param(True, id="supervisor and child killed"),
    ],
)
async def test_killed_in_mid_work(deployment: Deployment, cluster: Cluster, whole: bool) -> None:
    deployment.shorten_lease()
    deployment.document["agents"]["default"] |= {"slots": 4, "bucket_buffer": 20}
    if not whole:  # its supervisor shows the death, and no lease has to end
        deployment.document["leases"]["lease"] = "300s"
    victim = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(40)]
    receipts += [await cluster.submit(until_file, {"path": path, "gate": gate}, durability="master") for _ in range(20)]
    await running(deployment, 4)
    helper = await deployment.start_agent()
    if whole:
        victim.kill_all()
    else:
        os.kill(victim.children()[0], signal.SIGKILL)
    Path(gate).touch()
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}
    await audit(deployment)
    rescued = await deployment.fetch("SELECT count(*) FROM job WHERE rescues > 0")
    assert rescued[0][0] >= 4, "what was running counts one rescue"
    assert helper.process.poll() is None


async def test_a_frozen_agent_records_nothing_when_it_wakes(deployment: Deployment, cluster: Cluster) -> None:
    """SIGSTOP of supervisor and child past the lease, then SIGCONT: it finds itself superseded and leaves."""
    deployment.shorten_lease()
    victim = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})
    await running(deployment, 1)
    frozen = [victim.process.pid, *victim.children()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    await deployment.start_agent()
    await running(deployment, 2)
    Path(gate).touch()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED

    async def reported() -> bool:
        return (await receipt.get()).progress is not None

    # No outcome waits for the report of its run: the rescuer sends it within a second.
    await eventually(reported, 15, "the report of the rescuer")
    outcome = await receipt.get()
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)

    async def replaced() -> bool:
        return frozen[1] not in victim.children()

    await eventually(replaced, 15, "the zombie to leave")
    before, after = (msgspec.structs.asdict(view) for view in (outcome, await receipt.get()))
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, "the outcome of the rescuer stands"


async def test_a_handler_that_blocks_the_loop_is_named_and_its_neighbours_survive(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.shorten_lease()
    first = await deployment.start_agent()
    path = str(deployment.path("w"))
    culprit = await cluster.submit(blocks_loop, {"path": path})
    await running(deployment, 1)
    neighbours = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(50)]
    await deployment.start_agent()
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in neighbours} == {JobState.SUCCEEDED}
    views = [await receipt.get() for receipt in neighbours]
    assert {view.attempt for view in views} == {1}, "no attempt burnt"
    named = await first.wait_event("loop_stalled")
    assert named["handler"] == "blocks_loop"
    assert await culprit.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert (await culprit.get()).rescues == 1


@pytest.mark.usefixtures("long_lease")
async def test_a_job_that_kills_its_agent_ends_alone_and_its_neighbours_never_reach_the_limit(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    neighbours = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(8)]
    await running(deployment, 8)
    culprit = await cluster.submit(kills_process, {"path": str(deployment.path("k"))})

    async def killed_twice() -> bool:
        return len(deployment.witnessed("k")) >= 2

    await eventually(killed_twice, 40, "two agents killed by the job")
    Path(gate).touch()  # what runs alone takes turns, two at a time
    assert await culprit.wait(timeout=PATIENCE_SECONDS) is JobState.FAILED
    assert [line[-1] for line in deployment.witnessed("k")] == ["0", "1", "2"]
    assert agent.count("certificate_written") == 2, "the third time it killed nothing but its own process"
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in neighbours} == {JobState.SUCCEEDED}
    # One of them may not have begun when the second agent died: the culprit then started before it, and it is not charged.
    assert {(await receipt.get()).rescues for receipt in neighbours} <= {1, 2}


@pytest.mark.usefixtures("long_lease")
async def test_a_job_that_kills_its_agent_at_once_is_counted_each_time_and_its_neighbours_are_not(
    deployment: Deployment, cluster: Cluster
) -> None:
    """It waited behind another long enough to have its row, and dies before that row says that it runs."""
    deployment.document["agents"]["default"] |= {"buckets": {"medium": 1}, "slots": 1, "bucket_buffer": 40}
    agent = await deployment.start_agent()
    gate = str(deployment.path("gate"))
    first = await cluster.submit(until_file, {"path": str(deployment.path("w")), "gate": gate})
    await running(deployment, 1)
    before = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(5)]
    poison = await cluster.submit(kills_agent, {"path": str(deployment.path("p"))})
    behind = [await cluster.submit(note, {"path": str(deployment.path("n"))}) for _ in range(20)]

    async def queued() -> bool:
        return (await deployment.states()).get("ASSIGNED") == 26

    await eventually(queued, 20, "rows of what waits")
    Path(gate).touch()
    assert await poison.wait(timeout=PATIENCE_SECONDS) is JobState.FAILED
    outcome = await poison.get()
    assert outcome.error is not None
    assert (outcome.error.reason, outcome.rescues) == ("agent_lost", 3)
    assert len(deployment.witnessed("p")) == 3, "it ran three times, and each one counted"
    assert await first.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in before + behind} == {JobState.SUCCEEDED}
    views = [await receipt.get() for receipt in behind]
    assert max(view.rescues for view in views) <= 2
    assert {view.attempt for view in views} == {1}
    assert agent.count("child_exited") == 3


@pytest.mark.usefixtures("long_lease")
async def test_an_agent_whose_threads_are_all_stuck_is_replaced_in_order(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["agents"]["default"] |= {"threads": 2}
    agent = await deployment.start_agent()
    hung = [await cluster.submit(stuck, {}) for _ in range(2)]
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in hung} == {JobState.FAILED}
    assert (await agent.wait_event("threads_exhausted"))["threads"] == 2
    await agent.wait_event("agent_started", 2)
    after = await cluster.submit(threaded, {"one": 1})
    assert await after.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert (await agent.wait_event("child_exited"))["how"] == "exit code 71"
    assert await deployment.bucket_events("LOST") == 0
    assert agent.count("certificate_written") == 0


@pytest.mark.usefixtures("long_lease")
async def test_a_process_handler_that_kills_its_process_harms_no_other_job(
    agent: AgentProcess, cluster: Cluster
) -> None:
    culprit = await cluster.submit(dies, {})
    neighbour = await cluster.submit(isolated, {})
    assert await culprit.wait(timeout=PATIENCE_SECONDS) is JobState.FAILED
    error = (await culprit.get()).error
    assert error is not None
    assert error.reason == "crashed"
    assert await neighbour.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert agent.count("child_exited") == 0
