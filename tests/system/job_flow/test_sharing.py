"""Jobs that wait in the master and come due together are shared by all agents that have room."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOBS, AGENTS, SLOTS = 150, 3, 5


async def test_each_of_three_agents_gets_a_share_before_anything_has_ended(
    deployment: Deployment, cluster: Cluster
) -> None:
    deployment.document["agents"]["default"] |= {
        "buckets": {"critical": 0, "high": 0, "medium": 1, "low": 0, "very_low": 0},
        "slots": SLOTS,
        "processes": AGENTS,
    }
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    await deployment.start_agent(processes=AGENTS)

    async def beats() -> int:
        return int((await deployment.fetch("SELECT min(beats)::int AS beats FROM agent"))[0]["beats"])

    # An agent whose last renewal named no other one takes all that is due.
    begun = await beats() + 2

    async def known_to_each_other() -> bool:
        return await beats() >= begun

    await eventually(known_to_each_other, PATIENCE_SECONDS, "a renewal of each agent since the last one has started")
    await cluster.submit_many([{"path": path, "gate": gate}] * JOBS, until_file, after=1.0, durability="master")

    async def shares() -> Counter[str]:
        rows = await deployment.fetch("SELECT bucket_id::text FROM job WHERE state IN ('ASSIGNED', 'PROCESSING')")
        return Counter(row["bucket_id"] for row in rows)

    async def all_busy() -> bool:
        found = await shares()
        return (
            len(found) == AGENTS and min(found.values()) >= SLOTS and len(deployment.witnessed("w")) >= AGENTS * SLOTS
        )

    await eventually(all_busy, 120, "every slot of every agent to be busy, though no job has ended")
    Path(gate).touch()

    async def over() -> bool:
        return (await deployment.states()).get(JobState.SUCCEEDED, 0) == JOBS

    await eventually(over, 120, "the end of all jobs")
    ran_by = Counter(line[3] for line in deployment.witnessed("w") if line[4] == "ended")
    assert len(ran_by) == AGENTS
