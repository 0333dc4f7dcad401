"""What runs jobs, and what they wait in: a slot, the queue of a bucket, and whatever runs them off the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from jobmaster.rules.fairness import effective_level
from jobmaster_agents.holdings import Holding
from jobmaster_agents.portions import LiveJob, Phase
from jobmaster_agents.verdicts import StopCause


class Elsewhere(Protocol):
    """Where handlers run that must not run on the loop: threads, worker processes."""

    def start(self, job: LiveJob, done: Callable[[LiveJob], None]) -> None:
        """Run it when there is room; record its verdict; then call ``done`` on the loop."""
        ...

    def stop(self, job: LiveJob, cause: StopCause) -> None:
        """Stop it as far as its kind can be stopped."""
        ...

    def sweep(self, now: float) -> None:
        """Stop what has run too long; called often while something is there."""
        ...

    def started_before(self, moment: float) -> list[LiveJob]:
        """Jobs that have really been started before a moment."""
        ...


class Slot:
    """One task that runs jobs one after another."""

    __slots__ = ("cause", "deadline", "job", "nagged_at", "started", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: LiveJob | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.cause: StopCause | None = None
        self.nagged_at = 0.0

    def clear_cancellation(self) -> None:
        """A cancellation meant for this job must not hit the slot's next one."""
        self.cause = None
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()


class BucketQueue:
    """Claimed jobs of one bucket that wait for a slot."""

    __slots__ = ("aside", "bucket_id", "holding", "hungry", "jobs", "low_water", "running", "slots")

    def __init__(self, holding: Holding, slots: int, low_water: int) -> None:
        self.holding = holding
        self.bucket_id = holding.fence.bucket_id
        self.jobs: deque[LiveJob] = deque()
        self.aside: list[LiveJob] = []
        """Jobs whose start needs an accepted write, while the master does not answer."""
        self.running = 0
        self.slots = slots
        self.low_water = low_water
        self.hungry = False
        """More jobs wait in the store: whoever sees the queue at its low-water mark says so, once."""

    def take(self) -> list[LiveJob]:
        """Remove and return what waits."""
        jobs = [job for job in (*self.jobs, *self.aside) if job.phase is Phase.QUEUED]
        self.jobs.clear()
        self.aside.clear()
        return jobs


def choose(queues: Iterable[BucketQueue], now: float, age_boost_seconds: float) -> tuple[BucketQueue | None, bool]:
    """The queue to serve next, of those that have jobs and room; and whether there are others like it."""
    best: BucketQueue | None = None
    best_level, others = -1.0, False
    for queue in queues:
        if queue.jobs and queue.running < queue.slots:
            others = best is not None
            level = effective_level(queue.holding.priority, now - queue.jobs[0].portion.claimed_at, age_boost_seconds)
            if level > best_level:
                best, best_level = queue, level
    return best, others
