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


GivenUp = Callable[[LiveJob, StopCause, float], None]
"""Told of a handler on the loop that does not stop: its job, why it was to stop, seconds since it was first asked."""

CANCEL_AGAIN_SECONDS = 2.0
"""A coroutine that has swallowed its cancellation can only be asked again."""
_GIVE_UP_SECONDS = 10.0
_GIVE_UP_RELEASED_SECONDS = 4.0
"""Less than an agent that leaves waits for handlers to stop."""


def is_to_be_given_up(cause: StopCause, asked_seconds: float) -> bool:
    """True for a handler on the loop that has been asked to stop for so long and goes on.

    Args:
        asked_seconds: time since it was first asked.
    """
    return asked_seconds >= (_GIVE_UP_RELEASED_SECONDS if cause is StopCause.RELEASE else _GIVE_UP_SECONDS)


class Slot:
    """One task that runs jobs one after another."""

    __slots__ = (
        "asked_at",
        "cancelling",
        "cause",
        "deadline",
        "given_up",
        "job",
        "nagged_at",
        "soiled",
        "started",
        "task",
    )

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancelling: Callable[[], int] = int
        """The task's own."""
        self.job: LiveJob | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.cause: StopCause | None = None
        self.asked_at = 0.0
        """When its job was first asked to stop."""
        self.nagged_at = 0.0
        """When it was last asked."""
        self.soiled = False
        """A job has left something in the task (a cancellation, a context variable): it must not run another one."""
        self.given_up = False
        """Its job has its verdict, and its handler goes on."""


class BucketQueue:
    """Claimed jobs of one bucket that wait for a slot."""

    __slots__ = ("aside", "bucket_id", "holding", "hungry", "jobs", "level", "low_water", "running", "slots")

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
        """More jobs wait in the store or the master: whoever sees so few jobs in the queue says so, once."""
        self.level = low_water

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
