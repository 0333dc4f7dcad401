"""Jobs that wait are changed while real agents work."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jobmaster import ChangeEffect, Cluster
from jobmaster.model.job import JobState
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_run_now_starts_at_once_wherever_the_job_waits(deployment: Deployment, cluster: Cluster) -> None:
    # The leader looks for due jobs once an hour, so only the hint of the change can start them.
    deployment.document["leases"] |= {"leader_lease": "3h", "leader_renew": "1h"}
    await deployment.start_agent()
    far = await cluster.submit("add", {"one": 1, "other": 2}, after=timedelta(days=1))
    near = await cluster.submit("add", {"one": 3, "other": 4}, after=120.0, durability="store")
    for receipt, result in ((far, 3), (near, 7)):
        change = await receipt.run_now()
        assert change.effect is ChangeEffect.CHANGED
        assert await receipt.result(timeout=PATIENCE_SECONDS) == result
        late = await receipt.run_now()
        assert (late.effect, late.state) == (ChangeEffect.ALREADY_ENDED, JobState.SUCCEEDED)


async def test_many_changes_beside_working_agents_start_no_job_early_and_none_twice(
    deployment: Deployment, cluster: Cluster
) -> None:
    """A third of the jobs is put off by a day while the agent claims the rest: what answered CHANGED has not run."""
    await deployment.start_agent()
    receipts = [await cluster.submit("add", {"one": n, "other": 0}) for n in range(300)]
    changes = await asyncio.gather(*(receipt.reschedule(after=86_400.0) for receipt in receipts[::3]))
    put_off = {change.id for change in changes if change.changed}
    rest = [receipt for receipt in receipts if receipt.id not in put_off]
    await cluster.wait_all(rest, timeout=PATIENCE_SECONDS)
    assert {await cluster.state(job_id) for job_id in put_off} <= {JobState.HELD}
    ended = await deployment.fetch("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'")
    assert ended[0][0] == len(rest)
    for job_id in put_off:
        assert (await cluster.run_now(job_id)).changed
    await cluster.wait_all(put_off, timeout=PATIENCE_SECONDS)
    doubled = await deployment.fetch("SELECT count(*) FROM attempt")
    assert doubled[0][0] == 0
