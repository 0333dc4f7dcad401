"""Which maintenance task runs next."""

from __future__ import annotations

from jobmaster_agents.leader.maintenance_runner import MaintenanceTask, MaintenanceTasks
from tests.support.hand_clock import HandClock

EVERY_SECONDS = 60.0


class Maintenance:
    """Three tasks, and the names of those that have run."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.ran: list[str] = []
        self.tasks = MaintenanceTasks(list(map(self.task, ("one", "two", "three"))), lambda: True, self.clock, 1.0)

    def task(self, name: str) -> MaintenanceTask:
        async def run() -> None:
            self.ran.append(name)

        return MaintenanceTask(name, EVERY_SECONDS, run)

    async def tick(self, seconds: float) -> None:
        self.clock.now += seconds
        await self.tasks.tick()


async def test_a_task_in_a_hurry_runs_before_its_interval_has_passed() -> None:
    maintenance = Maintenance()
    for _ in range(3):
        await maintenance.tick(1.0)
    assert maintenance.ran == ["one", "two", "three"]
    maintenance.tasks.kicked.clear()
    maintenance.tasks.hurry("three")
    assert maintenance.tasks.kicked.is_set()
    await maintenance.tick(1.0)
    assert maintenance.ran[3:] == ["three"]
    await maintenance.tick(1.0)
    assert maintenance.ran[3:] == ["three"], "and then again at its interval"


async def test_tasks_that_are_due_for_longer_run_before_one_in_a_hurry() -> None:
    """Late jobs are found at each tick of the leader, and the other tasks still run at their intervals."""
    maintenance = Maintenance()
    for _ in range(600):
        maintenance.tasks.hurry("three")
        await maintenance.tick(1.0)
    runs = {name: maintenance.ran.count(name) for name in ("one", "two", "three")}
    assert runs["one"] >= 9
    assert runs["two"] >= 9
    assert runs["three"] >= 500
