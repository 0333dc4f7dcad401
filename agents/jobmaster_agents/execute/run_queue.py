"""What runs jobs, and what they wait in: a slot, the queue of a bucket, and whatever runs them off the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from jobmaster.rules.priority_order import effective_level
from jobmaster_agents.outcomes.outcome import StopCause
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.ownership import OwnedBucket


class JobDispatcher(Protocol):
    """Where handlers run that must not run on the loop: threads, worker processes."""

    def start(self, job: ClaimedJob, done: Callable[[ClaimedJob], None]) -> None:
        """Run it when there is room; record its verdict; then call ``done`` on the loop."""
        ...

    def stop(self, job: ClaimedJob, cause: StopCause) -> None:
        """Stop it as far as its kind can be stopped."""
        ...

    def sweep(self, now: float) -> None:
        """Stop what has run too long; called often while something is there."""
        ...

    def started_before(self, moment: float) -> list[ClaimedJob]:
        """Jobs that have really been started before a moment."""
        ...

    @property
    def stuck(self) -> int:
        """Handlers that were given up and go on; ``sweep`` asks them again."""
        ...


OnDetached = Callable[[ClaimedJob, StopCause, float], None]
"""Told of a handler on the loop that does not stop: its job, why it was to stop, seconds since it was first asked."""

CANCEL_AGAIN_SECONDS = 2.0
"""A coroutine that has swallowed its cancellation can only be asked again."""
_GIVE_UP_SECONDS = 10.0
_GIVE_UP_RELEASED_SECONDS = 4.0
"""Less than an agent that leaves waits for handlers to stop."""


def should_detach(cause: StopCause, asked_seconds: float) -> bool:
    """True for a handler on the loop that has been asked to stop for so long and goes on.

    Args:
        asked_seconds: time since it was first asked.
    """
    return asked_seconds >= (_GIVE_UP_RELEASED_SECONDS if cause is StopCause.RELEASE else _GIVE_UP_SECONDS)


class Slot:
    """One task that runs jobs one after another."""

    __slots__ = (
        "cancelling",
        "cause",
        "deadline",
        "detached",
        "job",
        "started",
        "stop_repeated_at",
        "stop_requested_at",
        "tainted",
        "task",
    )

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancelling: Callable[[], int] = int
        """The task's own."""
        self.job: ClaimedJob | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.cause: StopCause | None = None
        self.stop_requested_at = 0.0
        """When its job was first asked to stop."""
        self.stop_repeated_at = 0.0
        """When it was last asked."""
        self.tainted = False
        """A job has left something in the task (a cancellation, a context variable): it must not run another one."""
        self.detached = False
        """Its job has its verdict, and its handler goes on."""


class BucketQueue:
    """Claimed jobs of one bucket that wait for a slot."""

    __slots__ = (
        "bucket_id",
        "deferred",
        "jobs",
        "low_water",
        "owned",
        "refill_level",
        "running",
        "slots",
        "wants_jobs",
    )

    def __init__(self, owned: OwnedBucket, slots: int, low_water: int) -> None:
        self.owned = owned
        self.bucket_id = owned.fence.bucket_id
        self.jobs: deque[ClaimedJob] = deque()
        self.deferred: list[ClaimedJob] = []
        """Jobs whose start needs an accepted write, while the master does not answer."""
        self.running = 0
        self.slots = slots
        self.low_water = low_water
        self.wants_jobs = False
        """More jobs wait in the store or the master: whoever sees so few jobs in the queue says so, once."""
        self.refill_level = low_water

    def take(self) -> list[ClaimedJob]:
        """Remove and return what waits."""
        jobs = [job for job in (*self.jobs, *self.deferred) if job.phase is JobPhase.QUEUED]
        self.jobs.clear()
        self.deferred.clear()
        return jobs


class QueueChoice(NamedTuple):
    """What a slot does next."""

    queue: BucketQueue | None
    """The bucket to serve; ``None``: none has jobs and room."""
    others: bool
    """There are others like it."""
    contested: bool
    """Another bucket has the higher priority, or waits longer: one job, then compare again."""
    boosted: bool
    """A job of lower priority goes first, because of its age."""


def choose_queue(
    queues: Iterable[BucketQueue], now: float, age_boost_seconds: float, *, boosted_last: bool
) -> QueueChoice:
    """The queue to serve next, of those that have jobs and room.

    Age lifts one job at a time: when the last start was a lifted one, the next is by priority alone. So neither starves
    the other, however many have waited (``rules.fairness``).

    Args:
        now: CLOCK_BOOTTIME seconds.
        lifted_last: ``boosted`` of the choice before this one.
    """
    first: BucketQueue | None = None
    best: BucketQueue | None = None
    first_level = best_level = -1.0
    others = False
    for queue in queues:
        if queue.jobs and queue.running < queue.slots:
            others = best is not None
            priority = queue.owned.priority
            level = effective_level(priority, waited_seconds(queue.jobs[0], now), age_boost_seconds)
            if level > best_level:
                best, best_level = queue, level
            if first is None or (priority, level) > (first.owned.priority, first_level):
                first, first_level = queue, level
    if best is first:
        return QueueChoice(best, others, False, False)
    return QueueChoice(first, others, True, False) if boosted_last else QueueChoice(best, others, True, True)


def waited_seconds(job: ClaimedJob, now: float) -> float:
    """Since when a job could have run: since it was due, or was made; by the clock of its store."""
    entry = job.entry
    since_us = entry.due_us or int.from_bytes(entry.id[:6], "big") * 1000
    return now + (job.claimed_list.clock_us - since_us) / 1e6
