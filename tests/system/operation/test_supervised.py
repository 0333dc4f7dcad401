"""What a supervisor adds: a dead child costs about a second, not a lease. Leases are so long here that no test awaits one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from uuid import UUID

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LONG = {"lease": "10m", "renew": "1s"}


@pytest.mark.parametrize("processes", [1, 2], ids=["its successor rescues", "its sibling rescues"])
async def test_jobs_of_a_killed_child_run_again_long_before_its_lease_ends(
    deployment: Deployment, cluster: Cluster, processes: int
) -> None:
    deployment.document["leases"] = LONG
    deployment.document["agents"]["default"]["processes"] = processes
    agent = await deployment.start_agent(processes=processes)
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs() -> bool:
        return len(deployment.witnessed("w")) >= 1

    await eventually(runs, 20, "the job to run")
    owner = await deployment.fetch(
        "SELECT pid FROM agent a JOIN bucket b ON b.owner = a.id WHERE b.id = $1", UUID(bytes=receipt.bucket_id)
    )
    os.kill(owner[0]["pid"], signal.SIGKILL)

    async def runs_again() -> bool:
        return len(deployment.witnessed("w")) >= 2

    await eventually(runs_again, 10, "the job to run again")
    Path(gate).touch()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    await agent.wait_event("certificate_written")
    assert agent.count("certificate_written") == 1


async def test_jobs_of_an_orphaned_agent_run_again_long_before_its_lease_ends(
    deployment: Deployment, cluster: Cluster
) -> None:
    """Its supervisor is killed: the agent writes its own certificate on the way out."""
    deployment.document["leases"] = LONG
    orphaned = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    receipt = await cluster.submit(until_file, {"path": path, "gate": gate})

    async def runs(times: int) -> bool:
        return len(deployment.witnessed("w")) >= times

    await eventually(lambda: runs(1), 20, "the job to run")
    await deployment.start_agent()
    orphaned.process.kill()
    await eventually(lambda: runs(2), 20, "the job to run again")
    Path(gate).touch()
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    rows = await deployment.fetch("SELECT ended_reason FROM agent WHERE state = 'DEAD'")
    assert [row["ended_reason"] for row in rows] == ["its supervisor died"]


async def test_the_supervisor_of_a_real_agent_stays_small(deployment: Deployment) -> None:
    agent = await deployment.start_agent(new_programs=True)
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{agent.process.pid}/status").read_text())
    assert found is not None
    assert int(found[1]) <= 30 * 1024
