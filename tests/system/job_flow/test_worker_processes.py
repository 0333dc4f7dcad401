"""Worker processes that are killed while jobs lie with them: each job runs, and each run is counted."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import children_of
from tests.support.waiting import eventually
from tests.system.jobs import handlers, noted_in_process

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOBS, EVERY, KILLS = 600, 60, 3


def worker_of(agent: int) -> int:
    """A worker process: a child of the fork server, or of the agent where there is none."""
    children = children_of(agent)
    return next(iter([*(worker for child in children for worker in children_of(child)), *children]))


async def test_a_worker_that_dies_with_jobs_costs_only_the_one_that_ran(deployment: Deployment) -> None:
    """Some handlers end their own process, and workers are killed from outside in between."""
    path = str(deployment.path("w"))
    deployment.document["agents"]["default"] |= {"isolated_processes": 2, "isolated_warm": 2, "slots": 50}
    async with await open_cluster(deployment.settings, handlers) as cluster:
        agent = await deployment.start_agent()
        receipts = [
            await cluster.submit(noted_in_process, {"path": path, "dies": number % EVERY == 0})
            for number in range(JOBS)
        ]
        for killed in range(1, KILLS + 1):

            async def ran(least: int = killed * JOBS // (KILLS + 2)) -> bool:
                return Path(path).exists() and len(deployment.witnessed("w")) >= least

            await eventually(ran, PATIENCE_SECONDS, "jobs run")
            with contextlib.suppress(StopIteration, ProcessLookupError, FileNotFoundError):  # it has just ended itself
                os.kill(worker_of(agent.children()[0]), signal.SIGKILL)
        states = await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
        attempts = {receipt.id.hex: (await receipt.get()).attempt for receipt in receipts}
    assert Counter(states.values()) == {JobState.SUCCEEDED: JOBS}
    lines = deployment.witnessed("w")
    runs = Counter(line[0] for line in lines)
    assert len({(line[0], line[2]) for line in lines}) == len(lines), "no attempt ran twice"
    assert runs.keys() == attempts.keys()
    dying = [receipt.id.hex for number, receipt in enumerate(receipts) if number % EVERY == 0]
    assert all(attempts[job_id] >= 2 for job_id in dying)
    more = Counter({job_id: count - 1 for job_id, count in attempts.items()})
    assert sum(more.values()) <= len(dying) + KILLS, "only what had begun has used up an attempt"
