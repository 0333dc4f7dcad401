"""Which maintenance task of the leader runs next: one at a time, at a limited pace, the most overdue first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from jobmaster.clock import Clock

IDLE_SECONDS = 60.0
LATE_JOBS = "late"
"""Name of the task that runs when the leader's tick has found a job past its ``complete_time``."""
SIGNALS = "signals"
"""Name of the task that runs when the tick has found a wait for a signal that is over, or a signal without its sender."""
BATCHES = "batches"
"""Name of the task that runs when the tick has found a batch to look at."""
MORE = True
"""Result of a maintenance task that has more to do: it runs again with the next tick."""


@dataclass(slots=True)
class MaintenanceTask:
    """A task that the leader runs from time to time."""

    name: str
    every_seconds: float
    run: Callable[[], Awaitable[bool | None]]
    next_at: float = 0.0


class MaintenanceTasks:
    """Periodic task that runs the maintenance tasks, one at a time, while this agent leads.

    Args:
        leads: returns True while this agent leads.
        pace_seconds: least time between the starts of two tasks.
    """

    name = "maintenance"

    def __init__(
        self, tasks: Sequence[MaintenanceTask], leads: Callable[[], bool], clock: Clock, pace_seconds: float
    ) -> None:
        self.tasks = list(tasks)
        self._leads = leads
        self._now = clock.boottime
        self._pace_seconds = pace_seconds
        self.kicked = asyncio.Event()

    def hurry(self, name: str) -> None:
        """The task of that name is due now. A task that is due for longer runs before it, so no task can keep others from
        running."""
        for task in self.tasks:
            if task.name == name:
                task.next_at = min(task.next_at, self._now())
        self.kicked.set()

    async def tick(self) -> float:
        """Run the task that is most overdue."""
        if not self._leads() or not self.tasks:
            return IDLE_SECONDS
        now = self._now()
        task = min(self.tasks, key=lambda each: each.next_at)
        if task.next_at <= now:
            task.next_at = now + task.every_seconds  # set first: a task that fails must not take every turn
            if await task.run() is MORE:
                task.next_at = now
        soonest = min(each.next_at for each in self.tasks)
        return max(soonest - self._now(), now + self._pace_seconds - self._now(), 0.0)
