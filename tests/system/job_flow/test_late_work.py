"""Jobs with an ``accept_time`` and a ``complete_time`` on real agents that are slow, busy or dead."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.model.errors import InputError
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.late_jobs import blocks, handlers, hurried, hurried_work, late, stoppable

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]

SLOTS = 4
FLEET_JOBS, FLEET_MORE_MAX, FLEET_SECONDS = 400, 1.3, 20.0
"""Jobs of a fleet that is busy for 30 times their ``accept_time``, their assignments beyond the first, for each of them,
and the time that they take on an idle machine. 0.9 to 1.0 were measured, 1.5 without the rest of a bucket with late jobs, 1.9
without limits that grow with the token."""
ACCEPT_SECONDS, COMPLETE_SECONDS = 1.0, 8.0
"""A quick run that the machine holds up for longer than the second is taken for a slow one, and runs twice."""
MEDIUM = {"critical": 0, "high": 0, "medium": 1, "low": 0, "very_low": 0}


class Case(NamedTuple):
    """Certified delivery is at-least-once here: a job that is lost or fails runs again."""

    certified: bool
    accept: bool
    complete: bool
    failure: str
    """Of the first run: ``none``, ``raises``, ``slow``, ``dies`` (its agent); ``busy``: its agent has no place for it."""


class Expected(NamedTuple):
    runs: int
    outcome: str
    """State, or state and reason."""
    elsewhere: bool = False
    """It ran at another agent than the one whose bucket it was put into."""


REFUSED = Expected(0, "refused")
"""A job delivered at most once has no complete_time."""
EXPECTED: dict[str, dict[tuple[bool, bool, bool], Expected]] = {
    # failure: (certified, accept, complete) -> runs, outcome
    "none": {
        (True, False, False): Expected(1, "SUCCEEDED"),
        (True, True, False): Expected(1, "SUCCEEDED"),
        (True, False, True): Expected(1, "SUCCEEDED"),
        (True, True, True): Expected(1, "SUCCEEDED"),
        (False, False, False): Expected(1, "SUCCEEDED"),
        (False, True, False): Expected(1, "SUCCEEDED"),
        (False, False, True): REFUSED,
        (False, True, True): REFUSED,
    },
    "raises": {
        (True, False, False): Expected(2, "SUCCEEDED"),
        (True, True, False): Expected(2, "SUCCEEDED"),
        (True, False, True): Expected(2, "SUCCEEDED"),
        (True, True, True): Expected(2, "SUCCEEDED"),
        (False, False, False): Expected(1, "FAILED error"),
        (False, True, False): Expected(1, "FAILED error"),
        (False, False, True): REFUSED,
        (False, True, True): REFUSED,
    },
    "slow": {
        (True, False, False): Expected(1, "SUCCEEDED"),
        (True, True, False): Expected(1, "SUCCEEDED"),
        (True, False, True): Expected(2, "SUCCEEDED"),
        (True, True, True): Expected(2, "SUCCEEDED"),
        (False, False, False): Expected(1, "SUCCEEDED"),
        (False, True, False): Expected(1, "SUCCEEDED"),
        (False, False, True): REFUSED,
        (False, True, True): REFUSED,
    },
    "busy": {
        (True, False, False): Expected(1, "SUCCEEDED"),
        (True, True, False): Expected(1, "SUCCEEDED", elsewhere=True),
        (True, False, True): Expected(1, "SUCCEEDED"),
        (True, True, True): Expected(1, "SUCCEEDED", elsewhere=True),
        (False, False, False): Expected(1, "SUCCEEDED"),
        (False, True, False): Expected(1, "SUCCEEDED", elsewhere=True),
        (False, False, True): REFUSED,
        (False, True, True): REFUSED,
    },
    "dies": {
        (True, False, False): Expected(2, "SUCCEEDED"),
        (True, True, False): Expected(2, "SUCCEEDED"),
        (True, False, True): Expected(2, "SUCCEEDED"),
        (True, True, True): Expected(2, "SUCCEEDED"),
        (False, False, False): Expected(1, "FAILED abandoned"),
        (False, True, False): Expected(1, "FAILED abandoned"),
        (False, False, True): REFUSED,
        (False, True, True): REFUSED,
    },
}


class Table:
    """The jobs of the table, and what became of them."""

    def __init__(self, deployment: Deployment, cluster: Cluster) -> None:
        self.deployment = deployment
        self.cluster = cluster
        self.path, self.gate = str(deployment.path("w")), str(deployment.path("gate"))
        self.receipts: dict[Case, JobReceipt[Any]] = {}
        self.found: dict[Case, Expected] = {}

    async def submit(self, case: Case, **options: Any) -> None:
        if case.accept:
            options["accept_time"] = ACCEPT_SECONDS
        if case.complete:
            options["complete_time"] = COMPLETE_SECONDS
        if not case.certified:
            options["delivery"] = "at_most_once"
        arguments = {"path": self.path, "gate": self.gate, "failure": case.failure}
        try:
            self.receipts[case] = await self.cluster.submit(late, arguments, **options)
        except InputError:
            self.found[case] = REFUSED

    async def submit_all(self, failure: str, **options: Any) -> list[JobReceipt[Any]]:
        cases = [Case(*flags, failure) for flags in product((True, False), (True, False), (True, False))]
        for case in cases:
            await self.submit(case, **options)
        return [self.receipts[case] for case in cases if case in self.receipts]

    async def note(self, blocked_by: int) -> None:
        """Runs and outcomes of all cases, after their end."""
        lines = self.deployment.witnessed("w")
        runs = Counter(line[0] for line in lines if line[4] == "began")
        pids = {line[0]: int(line[3]) for line in lines if line[4] == "began"}
        for case, receipt in self.receipts.items():
            view = await receipt.get()
            outcome = view.state.value + (f" {view.error.reason}" if view.error is not None else "")
            elsewhere = case.failure == "busy" and pids[receipt.id.hex] != blocked_by
            self.found[case] = Expected(runs[receipt.id.hex], outcome, elsewhere)


async def test_runs_and_outcomes_of_certified_accept_complete_and_failure(deployment: Deployment) -> None:
    """Every row of the table on one cluster: jobs of the narrow lane find the first agent busy, and a second one comes."""
    deployment.document["handlers"] = ["tests.system.handlers.late_jobs"]
    deployment.document["agents"]["default"] |= {"slots": SLOTS, "bucket_buffer": 100}
    del deployment.document["agents"]["default"]["buckets"]
    deployment.document["agents"]["default"]["lanes"] = {"default": MEDIUM | {"medium": 3}, "narrow": MEDIUM}
    async with await open_cluster(deployment.settings, handlers) as cluster:
        table = Table(deployment, cluster)
        first = await deployment.start_agent()
        arguments = {"path": table.path, "gate": table.gate}
        await cluster.submit_many([arguments] * SLOTS, blocks, lane="narrow")

        async def blocked() -> bool:
            return len(deployment.witnessed("w")) == SLOTS

        await eventually(blocked, 60, "every slot of the narrow lane to be taken")
        blocked_by = first.children()[0]
        await table.submit_all("busy", lane="narrow")
        await deployment.start_agent()
        for failure in ("none", "raises", "slow"):
            await table.submit_all(failure)
        # What does not wait for the gate has ended now: quick, tried again, given to another agent.
        waits = {"slow": lambda case: not case.complete, "busy": lambda case: not case.accept}
        soon = [r for case, r in table.receipts.items() if not waits.get(case.failure, lambda case: False)(case)]
        await cluster.wait_all(soon, timeout=PATIENCE_SECONDS)
        held_up = {case: r for case, r in table.receipts.items() if r not in soon}
        assert not [(case, view) for case, r in held_up.items() if (view := await r.get()).state.final]
        Path(table.gate).touch()
        await cluster.wait_all(held_up.values(), timeout=PATIENCE_SECONDS)
        for case in [Case(*flags, "dies") for flags in product((True, False), (True, False), (True, False))]:
            await table.submit(case)
            if case in table.receipts:  # one after the other: an agent that dies takes all its jobs along
                await cluster.wait(table.receipts[case], timeout=PATIENCE_SECONDS)
        await table.note(blocked_by)
    assert table.found == {
        Case(*flags, failure): row for failure, rows in EXPECTED.items() for flags, row in rows.items()
    }


async def test_late_jobs_behind_a_full_memory_go_to_another_agent(deployment: Deployment) -> None:
    """Jobs without a limit fill the first agent's memory; those with one wait behind them in the store."""
    deployment.document["handlers"] = ["tests.system.handlers.late_jobs"]
    deployment.document["agents"]["default"] |= {"slots": 2, "bucket_buffer": 2, "buckets": MEDIUM}
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    async with await open_cluster(deployment.settings, handlers) as cluster:
        first = await deployment.start_agent()
        await cluster.submit_many([{"path": path, "gate": gate}] * 4, blocks)

        async def full() -> bool:
            return len(deployment.witnessed("w")) == 2

        await eventually(full, 60, "both slots to be taken")
        receipts = [await cluster.submit(hurried, {"path": path}) for _ in range(20)]
        await deployment.start_agent()
        await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
        pids = {int(line[3]) for line in deployment.witnessed("w") if line[4] == "hurried"}
        assert pids.isdisjoint(first.children()), "the first agent has no place for them"
        Path(gate).touch()


@pytest.mark.long
async def test_a_fleet_without_room_does_not_hand_late_jobs_round(deployment: Deployment) -> None:
    """Every agent is busy for many times the ``accept_time``: each further assignment of a job would cost two updates of its
    row, and bring it to an agent that has no room either."""
    deployment.document["handlers"] = ["tests.system.handlers.late_jobs"]
    deployment.document["agents"]["default"] |= {"slots": 2, "bucket_buffer": 20, "buckets": MEDIUM}
    async with await open_cluster(deployment.settings, handlers) as cluster:
        for _ in range(3):
            await deployment.start_agent()
        began = time.monotonic()
        receipts = [await cluster.submit(hurried_work) for _ in range(FLEET_JOBS)]
        await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
        busy = time.monotonic() - began
    [row] = await deployment.fetch(
        "SELECT count(*) AS jobs, sum(token - 1) AS more, max(token) AS most FROM job WHERE id = ANY ($1)",
        [receipt.id for receipt in receipts],
    )
    assert row["jobs"] == FLEET_JOBS
    assert row["more"] > FLEET_JOBS / 10, "jobs are given back: the limit is passed"
    # A machine that takes longer for the same work passes more of the limits.
    assert row["more"] <= FLEET_MORE_MAX * FLEET_JOBS * max(1.0, busy / FLEET_SECONDS), (dict(row), busy)


async def test_cancel_slow_stops_the_slow_run_and_the_other_one_counts(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.late_jobs"]
    path = str(deployment.path("w"))
    async with await open_cluster(deployment.settings, handlers) as cluster:
        await deployment.start_agent()
        receipt = await cluster.submit(stoppable, {"path": path})
        assert await cluster.result(receipt, timeout=PATIENCE_SECONDS) == "later"

        async def stopped() -> bool:
            return [line[4] for line in deployment.witnessed("w")] == ["began", "stopped"]

        await eventually(stopped, 60, "the end of the slow run")
        view = await receipt.get()
        assert (view.state, view.attempt, view.token > 2) == ("SUCCEEDED", 1, True)
        lines = await deployment.fetch("SELECT outcome FROM attempt WHERE job_id = $1", receipt.id)
        assert [line["outcome"] for line in lines] == ["reassigned"]
