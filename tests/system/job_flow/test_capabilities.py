"""A rolling update: agents of an older program beside newer ones, and jobs that only the newer ones can treat as asked."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.workflows.definition import chain
from jobmaster.handlers import call
from jobmaster.model.flow.workflow import WorkflowState
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers import rolling_jobs
from tests.system.jobs import note

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOBS = 10


async def older_agent(deployment: Deployment, handlers: str = "handlers") -> AgentProcess:
    deployment.document["handlers"] = [f"tests.system.handlers.older_jobs:{handlers}"]
    agent = await deployment.start_agent()
    deployment.document["handlers"] = ["tests.system.jobs"]
    return agent


async def ended(receipts: list[JobReceipt[Any]]) -> None:
    assert {await receipt.wait(timeout=PATIENCE_SECONDS) for receipt in receipts} == {JobState.SUCCEEDED}


async def test_jobs_that_require_a_capability_wait_for_an_agent_that_has_it(
    deployment: Deployment, cluster: Cluster
) -> None:
    older = await older_agent(deployment)
    path = str(deployment.path("n"))
    timed = [await cluster.submit(note, {"path": path}, complete_time=30.0) for _ in range(JOBS)]
    plain = [await cluster.submit(note, {"path": path}) for _ in range(JOBS)]
    await ended(plain)
    rows = await deployment.fetch("SELECT state::text, attempt FROM job WHERE id = ANY ($1)", [one.id for one in timed])
    assert [tuple(row) for row in rows] == [("HELD", 0)] * JOBS
    shown = deployment.run("job", "show", str(timed[0].id))
    assert "has the capability complete_time" in shown.stdout, shown.stdout + shown.stderr
    newer = await deployment.start_agent()
    await ended(timed)
    ran_by = {line[3] for line in deployment.witnessed("n") if line[0] in {one.id.hex for one in timed}}
    assert ran_by <= {str(pid) for pid in newer.children()}
    assert older.process.poll() is None


async def test_an_older_agent_gives_back_what_a_producer_has_put_into_its_bucket(
    deployment: Deployment, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer has an old list of the owners."""
    monkeypatch.setattr(BucketDirectory, "lacks", lambda self, headers: False)
    await older_agent(deployment)
    path = str(deployment.path("n"))
    timed = [await cluster.submit(note, {"path": path}, complete_time=30.0) for _ in range(JOBS)]
    assert all(receipt.bucket_id is not None for receipt in timed)

    async def given_back() -> bool:
        return (await deployment.states()).get(JobState.HELD, 0) == JOBS

    await eventually(given_back, 30, "the older agent to give the jobs back")
    newer = await deployment.start_agent()
    await ended(timed)
    assert {line[2:4] for line in map(tuple, deployment.witnessed("n"))} <= {
        ("1", str(pid)) for pid in newer.children()
    }


async def test_in_a_rolling_update_an_older_agent_runs_plain_jobs_and_none_of_the_others(
    deployment: Deployment,
) -> None:
    """The deploy gives a handler a limit: jobs of it, steps of workflows and late work are left to agents that know these."""
    older = await older_agent(deployment, "rolling")
    newer_handlers = rolling_jobs.handlers
    plain_path, path = str(deployment.path("plain")), str(deployment.path("n"))
    async with await open_cluster(deployment.settings, newer_handlers) as cluster:
        limited = [await cluster.submit("rolling.charge", {"path": path}) for _ in range(JOBS)]
        timed = [await cluster.submit("rolling.note", {"path": path}, complete_time=30.0) for _ in range(JOBS)]
        links = chain(
            call("rolling.note", path=path), call("rolling.charge", path=path), call("rolling.note", path=path)
        )
        workflows = [await cluster.workflows.start("links", links) for _ in range(3)]
        await ended([await cluster.submit("rolling.note", {"path": plain_path}) for _ in range(JOBS)])
        assert {line[3] for line in deployment.witnessed("plain")} <= {str(pid) for pid in older.children()}
        rows = await deployment.fetch(
            "SELECT state::text, attempt, count(*) FROM job WHERE NOT state = 'SUCCEEDED' GROUP BY 1, 2"
        )
        assert [tuple(row) for row in rows] == [("HELD", 0, 2 * JOBS + 3)]
        deployment.document["handlers"] = ["tests.system.handlers.rolling_jobs"]
        newer = await deployment.start_agent()
        await ended([*limited, *timed])
        for workflow in workflows:
            assert (await cluster.workflows.wait(workflow, timeout=PATIENCE_SECONDS)).state is WorkflowState.SUCCEEDED
    ran_by = [line[3] for line in deployment.witnessed("n")]
    assert len(ran_by) == 2 * JOBS + 9
    assert set(ran_by) <= {str(pid) for pid in newer.children()}
    assert older.process.poll() is None
