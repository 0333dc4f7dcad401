"""Which maintenance task runs next."""

from __future__ import annotations

from jobmaster_agents.leader.maintenance_schedule import MaintenanceTask, MaintenanceTasks
from tests.support.hand_clock import HandClock


async def test_a_task_in_a_hurry_runs_next_whatever_else_is_due() -> None:
    clock, ran = HandClock(), []

    def task(name: str) -> MaintenanceTask:
        async def run() -> None:
            ran.append(name)

        return MaintenanceTask(name, 60.0, run)

    tasks = MaintenanceTasks([task("one"), task("two"), task("three")], lambda: True, clock, 1.0)
    for _ in range(3):
        clock.now += 1.0
        await tasks.tick()
    assert ran == ["one", "two", "three"]
    clock.now += 61.0
    tasks.kicked.clear()
    tasks.hurry("three")
    assert tasks.kicked.is_set()
    await tasks.tick()
    assert ran[3:] == ["three"]
    await tasks.tick()
    assert ran[3:] == ["three", "one"], "and then again at its interval"
