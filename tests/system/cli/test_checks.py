"""What the doctor says of agents and of what waits, from rows."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster.doctor import checks as doctor_checks
from jobmaster.doctor.findings import CheckStatus
from jobmaster.model.pause import Pause, PauseKind, PausesInForce
from jobmaster.settings.model import ClusterSettings

LACKING: dict[str, Any] = {
    "lane": "default", "priority": 3, "handler": "gone", "jobs": 1000, "oldest_us": 5_000_000, "known": False, "active": True,
    "frozen": False, "requires": [],
}  # fmt: skip


def agent(pid: int, *handlers: str) -> dict[str, Any]:
    row = {"name": "default", "host": "web-1", "pid": pid, "mode": "full"}
    return {**row, "handlers": list(handlers), "settings": "{}"}


def test_agents_with_different_handlers_are_no_fault_while_every_due_job_has_one() -> None:
    """README's first five minutes: a demo agent beside one's own, and both are called default."""
    alive = [agent(7, "resize"), agent(8, "demo.a", "demo.b", "demo.c", "demo.d"), agent(9, "resize")]
    found = doctor_checks._handlers(alive, [])
    assert found.status is CheckStatus.OK
    assert found.detail == (
        "5 handlers, 3 agents; default (pid 7 on web-1), default (pid 9 on web-1): without demo.a, demo.b, demo.c and 1 "
        "more; default (pid 8 on web-1): without resize; every due job has an agent for it"
    )
    found = doctor_checks._handlers(alive, doctor_checks._waiting([LACKING]))
    assert found.status is CheckStatus.WARN
    assert "every due job" not in found.detail


def test_jobs_that_no_agent_can_run_are_named_with_their_number_age_and_fix() -> None:
    elsewhere = {**LACKING, "handler": "there", "jobs": 2, "known": True}
    found = doctor_checks._runnable(doctor_checks._waiting([LACKING, elsewhere]), 65_000_000)
    assert found.status is CheckStatus.FAIL
    assert found.detail.startswith(
        "no living agent has the handler 'gone' (at least 1000 job(s) wait in default/medium"
    )
    assert "no agent with a bucket of default/medium has the handler 'there' (2 job(s)" in found.detail
    assert found.fix.startswith("start an agent with the module that declares it")
    unserved = {**elsewhere, "active": False}
    found = doctor_checks._runnable(doctor_checks._waiting([unserved]), 65_000_000)
    assert found.status is CheckStatus.OK, "jobs.served names that"


def test_overdue_are_only_jobs_that_an_agent_could_have_run() -> None:
    held = {"lane": "default", "priority": 3, "held": 9, "overdue": 5}
    assert doctor_checks._overdue([{**held, "stranded": 3}], []).detail.startswith("2 held job(s) are overdue")
    found = doctor_checks._overdue([{**held, "stranded": 5}], [])
    assert found.status is CheckStatus.OK
    assert "but for 5 that no agent can take" in found.detail


def test_frozen_buckets_are_no_lack_of_buckets() -> None:
    held = [{"lane": "a", "priority": 3, "held": 1}, {"lane": "b", "priority": 3, "held": 2}]
    found = doctor_checks._served([{"lane": "b", "priority": 3, "state": "FROZEN"}], held)
    assert found.detail == "no bucket serves a/medium (1 held); every bucket of b/medium (2 held) is frozen"
    assert found.fix == "configure buckets for it on some agent; jobmaster bucket unfreeze --all (or BUCKET, or --lane)"
    found = doctor_checks._served([{"lane": "b", "priority": 3, "state": "FROZEN"}], held[1:])
    assert "configure" not in found.fix


def schedule(
    name: str, *, served: bool = True, lane_served: bool = True, late: float = 0.0, hides: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "handler": f"{name}.run",
        "lane": f"{name}-lane",
        "served": served,
        "lane_served": lane_served,
        "late_seconds": late,
        "hides": hides,
    }


def test_schedules_of_a_lane_without_a_bucket_are_named() -> None:
    found = doctor_checks._schedules([schedule("kept"), schedule("lost", lane_served=False)])
    assert found.status is CheckStatus.FAIL
    assert found.detail == "no agent serves the lane: lost (lane 'lost-lane')"


async def test_paused_schedules_are_a_finding() -> None:
    class NoAgents:
        async def rows(self, statement: str, version: int) -> list[dict[str, object]]:
            return []

    reader: Any = NoAgents()
    pause = Pause(kind=PauseKind.HANDLER, value="a", actor="ann", reason="charges twice", since_us=0)
    rows = [{"name": "nightly"}, {"name": "weekly"}]
    for pauses, detail in (
        ((), "2 schedules are paused (jobmaster pauses)"),
        ((pause,), "handler 'a' is paused by ann: charges twice; 2 schedules are paused (jobmaster pauses)"),
    ):
        found = await doctor_checks._paused(ClusterSettings(), reader, PausesInForce(1, pauses), 2, rows)
        assert (found.status, found.detail) == (CheckStatus.WARN, detail)


def test_schedules_without_an_agent_for_their_handler_are_named() -> None:
    rows = [schedule("kept"), *(schedule(f"gone{n}", served=False) for n in range(5))]
    found = doctor_checks._schedules(rows)
    assert found.status is CheckStatus.FAIL
    assert found.detail == (
        "no living agent has the handler: gone0 runs 'gone0.run'; gone1 runs 'gone1.run'; gone2 runs 'gone2.run'; and 2 more"
    )
    assert found.fix.startswith("start an agent with this handler")


def test_schedules_of_the_api_that_hide_declared_ones_are_named() -> None:
    found = doctor_checks._schedules([schedule("kept"), *(schedule(f"s{n}", hides=True) for n in range(4))])
    assert found.status is CheckStatus.WARN
    assert found.detail == "agents declare s0, s1, s2 and 1 more, but the definition by the API stands"
    assert "jobmaster schedule remove NAME" in found.fix


def test_schedules_whose_fires_nothing_decides_are_named() -> None:
    found = doctor_checks._schedules([schedule("kept"), schedule("late", late=700.0), schedule("later", late=90.0)])
    assert found.status is CheckStatus.WARN
    assert found.detail == "2 wait for a decision, late for 11m 40s"
    assert doctor_checks._schedules([schedule("kept", late=5.0)]).status is CheckStatus.OK
    assert doctor_checks._schedules([]).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("paused", "now_us", "status", "says"),
    [
        (True, 60_000_000, CheckStatus.FAIL, "1 agent(s) have not confirmed the last pause or resume: old"),
        (False, 60_000_000, CheckStatus.WARN, "1 agent(s) have not confirmed"),
        (True, 2_000_000, CheckStatus.WARN, "handler 'a' is paused by ann: charges twice"),
        (False, 2_000_000, CheckStatus.OK, "nothing is paused"),
    ],
)
async def test_agents_that_obey_no_pause_are_named_once_they_had_time_to_renew(
    paused: bool, now_us: int, status: CheckStatus, says: str
) -> None:
    class Agents:
        async def rows(self, statement: str, version: int) -> list[dict[str, object]]:
            return [{"name": "old", "obeys": False}, {"name": "new", "obeys": True}]

    pause = Pause(kind=PauseKind.HANDLER, value="a", actor="ann", reason="charges twice", since_us=0)
    found = PausesInForce(1_000_000, (pause,) if paused else ())
    reader: Any = Agents()
    finding = await doctor_checks._paused(ClusterSettings(), reader, found, now_us, [])
    assert (finding.status, says in finding.detail) == (status, True), finding
