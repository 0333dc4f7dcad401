"""Schedules with real agents: jobs start at their nominal times, whatever becomes of the leader."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobmaster.master.master import Master
from jobmaster.model.schedule import Overlap, Schedule
from jobmaster.rules.recurrence import next_fire_us
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SECOND = 1_000_000
SCHEDULES = 50
LEADER_LEASE_SECONDS, LEADER_RENEW_SECONDS = 20.0, 2.0
LATE_SECONDS = 10.0
"""For a machine with three times its load. A leader that is killed leaves its lease for at least 18 seconds, in which no
agent makes jobs."""


def now_us() -> int:
    return time.time_ns() // 1000


def once(name: str, nominal_us: int, overlap: Overlap = Overlap.PARALLEL) -> list[Schedule]:
    """Schedules that all fire at one moment."""
    return [
        Schedule(name=f"{name}-{number}", handler="started_at", expression="60s", start_us=nominal_us,
                 end_us=nominal_us + SECOND, overlap=overlap)
        for number in range(SCHEDULES)
    ]  # fmt: skip


async def master_of(deployment: Deployment) -> Master:
    settings = deployment.settings
    return await Master.connect(
        dsn=deployment.dsn, schema=settings.schema_name(), settings=settings.master, application_name="test"
    )


async def starts(deployment: Deployment, name: str) -> list[int]:
    """When the jobs of these schedules started, microseconds since 1970."""
    found: list[int] = []

    async def all_ended() -> bool:
        rows = await deployment.fetch(
            "SELECT convert_from(j.result, 'UTF8')::bigint FROM schedule_fire f JOIN job j ON j.id = f.job_id"
            " WHERE f.schedule LIKE $1 || '-%' AND j.state = 'SUCCEEDED'", name,
        )  # fmt: skip
        found[:] = [row[0] for row in rows]
        return len(found) == SCHEDULES

    await eventually(all_ended, PATIENCE_SECONDS, lambda: f"the jobs of {name}, {len(found)} have ended")
    return found


@pytest.mark.long
async def test_a_leader_that_is_killed_at_the_fire_time_delays_no_job(deployment: Deployment) -> None:
    """Jobs are made ahead of their time, and the next leader makes the others."""
    deployment.document["agents"] = {
        "boss": {"mode": "leader", "weight": 9},
        "worker": {**deployment.document["agents"]["default"], "weight": 1},
    }
    deployment.document["leases"] |= {
        "leader_lease": f"{LEADER_LEASE_SECONDS}s", "leader_renew": f"{LEADER_RENEW_SECONDS}s"
    }  # fmt: skip
    boss = await deployment.start_agent("--name", "boss")
    await boss.wait_event("leader_elected")
    await deployment.start_agent("--name", "worker")
    master = await master_of(deployment)
    try:
        first_us, second_us = now_us() + 15 * SECOND, now_us() + 55 * SECOND
        assert await master.schedules.put(once("first", first_us), next_fire_us) == []

        async def made() -> bool:
            rows = await deployment.fetch("SELECT count(*) FROM schedule_fire WHERE outcome = 'fired'")
            return bool(rows[0][0] == SCHEDULES)

        await eventually(made, PATIENCE_SECONDS, "jobs that are made ahead of their time")
        assert now_us() < first_us
        await asyncio.sleep((first_us - now_us()) / SECOND - 0.1)
        boss.kill_all()
        assert await master.schedules.put(once("second", second_us, Overlap.SKIP), next_fire_us) == []
        for name, nominal_us in (("first", first_us), ("second", second_us)):
            began = await starts(deployment, name)
            assert min(began) >= nominal_us, "none starts before its time"
            assert max(began) - nominal_us < LATE_SECONDS * SECOND, (name, (max(began) - nominal_us) / SECOND)
    finally:
        await master.close()
    rows = await deployment.fetch("SELECT outcome, count(*), count(DISTINCT job_id) FROM schedule_fire GROUP BY 1")
    assert [tuple(row) for row in rows] == [("fired", 2 * SCHEDULES, 2 * SCHEDULES)]
