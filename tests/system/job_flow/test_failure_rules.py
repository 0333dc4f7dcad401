"""A handler's rules and decisions, through real servers and processes, for every kind of handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.model.errors import JobFailed
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.handlers.policy_jobs import TIMES, handlers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

KINDS = ["off_async", "off_thread", "off_process", "off_once", "off_transactional"]


@pytest.fixture
def deployment(deployment: Deployment) -> Deployment:
    deployment.document["handlers"] = ["tests.system.handlers.policy_jobs"]
    deployment.document["jobs"] = {"max_snoozes": TIMES}
    return deployment


@pytest.fixture
async def cluster(deployment: Deployment) -> AsyncIterator[Cluster]:
    async with await open_cluster(deployment.settings, handlers) as opened:
        yield opened


async def lines(deployment: Deployment, job: Any) -> list[str]:
    found = await deployment.fetch("SELECT outcome FROM attempt WHERE job_id = $1 ORDER BY token", job.id)
    return [line["outcome"] for line in found]


@pytest.mark.parametrize("threshold", ["5m", "10ms"], ids=["in its bucket", "in the master"])
async def test_a_snoozed_job_runs_again_without_losing_an_attempt(
    deployment: Deployment, cluster: Cluster, threshold: str
) -> None:
    deployment.document["thresholds"] = {"transient_threshold": threshold}
    await deployment.fetch("CREATE TABLE public.counter (n int NOT NULL)")
    await deployment.fetch("INSERT INTO public.counter VALUES (0)")
    await deployment.start_agent()
    for name in KINDS:
        receipt = await cluster.submit(name, {"after": 0.2})
        assert await receipt.result(timeout=PATIENCE_SECONDS) == [TIMES, 1], name
        view = await receipt.get()
        assert (view.state, view.attempt, view.headers.snoozes) == (JobState.SUCCEEDED, 1, TIMES)
        assert await lines(deployment, receipt) == ["snoozed"] * TIMES, name
    assert (await deployment.fetch("SELECT n FROM public.counter"))[0]["n"] == 1, "two runs were rolled back"


async def failure(deployment: Deployment, cluster: Cluster, name: str, **args: object) -> tuple[str, int, list[str]]:
    """Reason, attempts used up, and how the earlier ones ended."""
    receipt = await cluster.submit(name, args)
    with pytest.raises(JobFailed):
        await receipt.result(timeout=PATIENCE_SECONDS)
    view = await receipt.get()
    assert view.error is not None
    return view.error.reason, view.attempt, await lines(deployment, receipt)


async def test_what_ends_a_job_before_its_attempts_are_used_up(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    ends = {
        "snoozed too often": await failure(deployment, cluster, "off_for_ever"),
        "failed by its handler": await failure(deployment, cluster, "fails_for_good"),
        "given up by its rules": await failure(deployment, cluster, "ruled", text="hopeless"),
        "all attempts": await failure(deployment, cluster, "ruled", text="busy"),
        "all attempts, by the back-off": await failure(deployment, cluster, "odd_policy"),
    }
    assert ends == {
        "snoozed too often": ("snoozed_out", 1, ["snoozed"] * TIMES),
        "failed by its handler": ("failed", 1, []),
        "given up by its rules": ("given_up", 1, []),
        "all attempts": ("error", 3, ["failed"] * 2),
        "all attempts, by the back-off": ("error", 2, ["failed"]),
    }
    late = await cluster.submit("slow", {"gate": str(deployment.path("gate"))})
    await agent.wait_event("attempt_overdue", seconds=PATIENCE_SECONDS)
    deployment.path("gate").touch()
    assert await late.result(timeout=PATIENCE_SECONDS) is True
    assert Counter(line["event"] for line in agent.events if line["event"] in LINES) == LINES
    problem = next(line for line in agent.events if line["event"] == "retry_policy_failed")
    assert (problem["handler"], problem["reason"]) == ("odd_policy", "it raised ZeroDivisionError: in the policy")


LINES = {
    "job_snoozed": TIMES,
    "job_failed": 5,
    "attempt_failed": 3,
    "retry_policy_failed": 2,
    "attempt_overdue": 1,
}
