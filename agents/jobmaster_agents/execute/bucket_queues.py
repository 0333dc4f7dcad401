"""The executor's data: a slot, the queue of a bucket, the choice of the next queue, and the port of the dispatcher."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import Context, copy_context
from itertools import chain, islice, takewhile
from typing import NamedTuple, Protocol

from jobmaster.handlers import JobContext
from jobmaster.handlers.current import set_here, set_running
from jobmaster.model.flow.limit import LimitKey
from jobmaster.model.flow.tenant import tenant_of
from jobmaster.rules.priority_order import effective_level
from jobmaster.settings.model import Tenants
from jobmaster_agents.execute.tenant_queue import TenantQueue, spare_slots
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.limited_starts import may_borrow
from jobmaster_agents.state.ownership import OwnedBucket


class JobDispatcher(Protocol):
    """What the executor needs of `Dispatcher`: jobs in threads, worker processes and tasks of their own."""

    def start(self, job: ClaimedJob, done: Callable[[ClaimedJob], None]) -> None:
        """Run the job when there is room, pass on its outcome, then call ``done`` on the loop."""
        ...

    def stop(self, job: ClaimedJob, cause: StopCause) -> None:
        """Stop the job as far as its kind can be stopped."""
        ...

    def give_back(self, job: ClaimedJob) -> None:
        """Give a job back that has not begun."""
        ...

    def sweep(self, now: float) -> None:
        """Stop jobs past their deadline; called often while there are any."""
        ...

    def started_before(self, moment: float) -> list[ClaimedJob]:
        """Jobs that have begun (not only been dispatched) before a moment."""
        ...

    def is_waiting(self, job: ClaimedJob) -> bool:
        """True when the job was dispatched and has not begun."""
        ...

    def started_at(self, job: ClaimedJob) -> float | None:
        """When a job has begun; ``None``: it waits, or is not here."""
        ...

    @property
    def stuck(self) -> int:
        """Number of detached handlers that still run; ``sweep`` cancels them again."""
        ...


OnOverdue = Callable[[ClaimedJob, float], None]
"""Called once for an attempt that has run longer than ``warn_after`` of its handler: job, seconds."""
MakeContext = Callable[[ClaimedJob, float], JobContext]
"""Makes the context of a job that has started at that time (CLOCK_BOOTTIME seconds)."""
OnDetached = Callable[[ClaimedJob, StopCause, float], None]
"""Called for a handler on the loop that does not stop: job, cause of the stop, seconds since the first cancellation."""

_QUEUED = JobPhase.QUEUED


class SlotPlace:
    """What the jobs of a slot find in their context (see ``current_job``). A slot gives it up after a job that has created
    tasks, because they may outlive it."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot: Slot | None = slot

    def current_context(self) -> JobContext | None:
        """Context of the job that runs in the slot."""
        return None if self._slot is None else self._slot.current_context()

    def note_task(self) -> None:
        """A task was created by the job, or in its name."""
        if self._slot is not None and self._slot.job is not None:
            self._slot.has_tasks = True
            self._slot.variables = None

    def give_up(self) -> None:
        """The job has ended; what it has left behind is a part of no job."""
        self._slot = None


class Slot:
    """One task that runs jobs one after another."""

    __slots__ = (
        "_make_context",
        "_place",
        "_variables",
        "cancelling",
        "cause",
        "context",
        "context_job",
        "deadline",
        "detached",
        "has_tasks",
        "job",
        "overdue_at",
        "started",
        "stop_repeated_at",
        "stop_requested_at",
        "tainted",
        "task",
        "variables",
    )

    def __init__(self, make_context: MakeContext, variables: Context) -> None:
        self._make_context = make_context
        self.context: JobContext | None = None
        self.context_job: ClaimedJob | None = None
        """Whose context that is: the job that runs, or an earlier one."""
        self._place = SlotPlace(self)
        self._variables = set_running(variables, self._place)
        """Context variables at the start of every job."""
        self.variables: Context | None = self._variables
        """What they are to be at its end; ``None``: ``is_unchanged`` decides."""
        self.has_tasks = False
        """Its job has created tasks."""
        self.task: asyncio.Task[None] | None = None
        self.cancelling: Callable[[], int] = int
        """``task.cancelling``."""
        self.job: ClaimedJob | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.overdue_at = 0.0
        """Set together with ``deadline``; infinite when its handler has no ``warn_after``, or after the warning."""
        self.cause: StopCause | None = None
        self.stop_requested_at = 0.0
        """When its job was first cancelled."""
        self.stop_repeated_at = 0.0
        """When its job was last cancelled."""
        self.tainted = False
        """A job has left state in the task (a cancellation, a context variable): the slot must not run another job."""
        self.detached = False
        """Its job has its outcome, and the handler still runs."""

    def copied_variables(self) -> Context:
        """Context variables for its task."""
        return self._variables.copy()

    def is_unchanged(self) -> bool:
        """In the slot's task, after a job that has not left ``variables`` as they were: true when it only created tasks."""
        if not self.has_tasks or copy_context() != self._variables:
            return False
        self.has_tasks = False
        self._place.give_up()
        self._place = SlotPlace(self)
        set_here(self._place)
        self._variables = self.variables = copy_context()
        return True

    def current_context(self) -> JobContext | None:
        """The context of the job that runs here (see ``current_job``); ``None`` between two jobs."""
        job = self.job
        if job is None:
            return self.context if self.detached else None
        if self.context_job is not job:
            self.context, self.context_job = self._make_context(job, self.started), job
        return self.context


class JobsAside:
    """Jobs of one bucket that wait for permits, by the full limit that they wait for. Some may have ended meanwhile."""

    __slots__ = ("_by_limit", "_count")

    def __init__(self) -> None:
        self._by_limit: dict[LimitKey, deque[ClaimedJob]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ClaimedJob]:
        return chain.from_iterable(self._by_limit.values())

    def of(self, limit: LimitKey) -> Collection[ClaimedJob]:
        """Those that wait for a limit, in their order."""
        return self._by_limit.get(limit, ())

    def by_limit(self) -> Iterable[tuple[LimitKey, deque[ClaimedJob]]]:
        """All of them, by limit."""
        return self._by_limit.items()

    def add(self, limit: LimitKey, job: ClaimedJob, *, first: bool) -> None:
        """One more, behind the others; or before them, and behind those that came back before it and are older."""
        waiting = self._by_limit.setdefault(limit, deque())
        if not first:
            waiting.append(job)
        else:
            older = takewhile(lambda each: each.entry.id < job.entry.id, waiting)
            waiting.insert(sum(1 for _ in older), job)
        self._count += 1

    def take(self, limit: LimitKey, most: int) -> list[ClaimedJob]:
        """Remove and return the first jobs of a limit; those that have ended are removed as well."""
        waiting = self._by_limit.get(limit)
        taken: list[ClaimedJob] = []
        while waiting and len(taken) < most:
            job = waiting.popleft()
            self._count -= 1
            if job.phase is _QUEUED:
                taken.append(job)
        if waiting is not None and not waiting:
            del self._by_limit[limit]
        return taken

    def take_borrowers(self, limit: LimitKey, most: int) -> list[ClaimedJob]:
        """Remove and return the first jobs of a limit that may start with a lent permit."""
        waiting = self._by_limit.get(limit)
        if waiting is None:
            return []
        taken = list(islice((job for job in waiting if job.phase is _QUEUED and may_borrow(job)), most))
        for job in taken:
            self.discard(limit, job)
        return taken

    def discard(self, limit: LimitKey, job: ClaimedJob) -> None:
        """Remove one job."""
        waiting = self._by_limit[limit]
        waiting.remove(job)
        self._count -= 1
        if not waiting:
            del self._by_limit[limit]

    def remove(self, gone: Collection[ClaimedJob]) -> None:
        """Remove some of the jobs."""
        left = {limit: deque(job for job in jobs if job not in gone) for limit, jobs in self._by_limit.items()}
        self._by_limit = {limit: jobs for limit, jobs in left.items() if jobs}
        self._count = sum(map(len, self._by_limit.values()))

    def clear(self) -> None:
        """Remove all jobs."""
        self._by_limit.clear()
        self._count = 0


class BucketQueue:
    """Claimed jobs of one bucket that wait for a slot."""

    __slots__ = (
        "_returning",
        "aside",
        "bucket_id",
        "deferred",
        "jobs",
        "low_water",
        "owned",
        "refill_level",
        "returned_jobs",
        "running",
        "slots",
        "turns",
        "wants_jobs",
    )

    def __init__(self, owned: OwnedBucket, slots: int, low_water: int) -> None:
        self.owned = owned
        self.bucket_id = owned.fence.bucket_id
        self.jobs: deque[ClaimedJob] | TenantQueue = deque()
        self.turns: TenantQueue | None = None
        """``jobs``, once a job of a tenant has come."""
        self.deferred: list[ClaimedJob] = []
        """Jobs whose start needs an accepted write, while the master does not answer."""
        self.aside = JobsAside()
        self.running = 0
        self.returned_jobs = 0
        """How many were given back so far because of their tenants."""
        self._returning: deque[ClaimedJob] = deque()
        self.slots = slots
        self.low_water = low_water
        self.wants_jobs = False
        """More jobs wait in the store or the master: ``on_room`` is called once when the queue falls to ``refill_level``."""
        self.refill_level = low_water

    def append(self, job: ClaimedJob, tenants: Tenants) -> None:
        """The last job, of its tenant; the first one of a tenant makes turns of the queue."""
        jobs = self.jobs
        if job.entry.headers and self.turns is None and tenant_of(job.entry.headers):
            self.jobs = self.turns = TenantQueue(tenants.weights, jobs, self.running)
            jobs.clear()  # a slot may be about to take the next one from it
            self.share_slots(tenants)
        self.jobs.append(job)

    @property
    def is_fair(self) -> bool:
        """True once a job of a tenant has come."""
        return self.turns is not None

    def reweigh(self, tenants: Tenants) -> None:
        """Other weights of tenants, and other spare slots."""
        if self.turns is not None:
            self.turns.reweigh(tenants.weights)
            self.share_slots(tenants)

    def share_slots(self, tenants: Tenants) -> None:
        """The number of slots is another one."""
        if self.turns is not None:
            self.turns.slots = self.slots
            self.turns.spare = spare_slots(self.slots, tenants.spare)

    def may_start(self, left: int, now: float) -> bool:
        """True when one of the waiting jobs may have one of the free slots.

        Args:
            left: jobs that the process may start beside those that run.
            now: CLOCK_BOOTTIME seconds.
        """
        free = min(self.slots - self.running, left)
        return self.turns is None or self.turns.may_start(free, now)

    def overfull(self, room: int, now: float) -> bool:
        """True when jobs of several tenants come, and one of them has its share of the room: claim on, and ``shed``."""
        return self.turns is not None and self.turns.is_contested(now) and bool(self.over_share(room))

    @property
    def room(self) -> int:
        """Waiting jobs that memory has room for."""
        return max(self.slots + 2 * self.low_water - self.running, 0)

    def over_share(self, room: int) -> list[str]:
        """Tenants that have their share of the room for waiting jobs, or more."""
        return [] if self.turns is None else self.turns.over_share(room, self.least_share)

    def take_behind(self, jobs: list[ClaimedJob]) -> tuple[list[ClaimedJob], list[ClaimedJob]]:
        """Claimed jobs: those to be queued, and those that wait behind jobs of their tenant in the master."""
        return (jobs, []) if self.turns is None else self.turns.take_behind(jobs, self.least_share)

    def fetched_all(self, but: Collection[str]) -> None:
        """No job of any tenant waits in the master, but of these."""
        if self.turns is not None:
            self.turns.fetched_all(but)

    def shed(self, room: int) -> list[ClaimedJob]:
        """Remove and return jobs beyond the room, of tenants that have more than their share."""
        if self.turns is None or len(self.turns) <= room:
            return []
        return [job for job in self.turns.shed(room, self.least_share) if job.phase is JobPhase.QUEUED]

    def gave_back(self, jobs: Collection[ClaimedJob]) -> None:
        """These jobs are on their way to the master, because of their tenants."""
        self.returned_jobs += len(jobs)
        self._returning.extend(jobs)

    @property
    def is_giving_back(self) -> bool:
        """True while the master does not have all of these jobs yet. (It never has those that it cannot store.)"""
        while self._returning and (self._returning[0].phase is JobPhase.GONE or self._returning[0].unwritable):
            self._returning.popleft()
        return bool(self._returning)

    @property
    def least_share(self) -> int:
        """Waiting jobs that keep the slots busy until more are fetched."""
        return 2 * self.slots

    def take(self) -> list[ClaimedJob]:
        """Remove and return the waiting jobs."""
        jobs = [job for job in self.waiting() if job.phase is JobPhase.QUEUED]
        self.jobs.clear()
        self.deferred.clear()
        self.aside.clear()
        return jobs

    def waiting(self) -> list[ClaimedJob]:
        """The waiting jobs; some may have ended meanwhile."""
        return [*self.jobs, *self.deferred, *self.aside]

    def take_some(self, wanted: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Remove and return those of the waiting jobs; the others keep their order."""
        taken = [job for job in self.waiting() if job.phase is JobPhase.QUEUED and wanted(job)]
        if taken:
            gone = set(taken)
            if self.turns is not None:
                self.turns.remove(gone)
            else:
                self.jobs = deque(job for job in self.jobs if job not in gone)
            self.deferred[:] = [job for job in self.deferred if job not in gone]
            if self.aside:
                self.aside.remove(gone)
        return taken


class QueueChoice(NamedTuple):
    """The queue that a slot serves next."""

    queue: BucketQueue | None
    """``None``: no bucket has both jobs and room."""
    others: bool
    """Other buckets have jobs and room, too."""
    contested: bool
    """Another bucket has the higher priority, or has waited longer: start one job, then compare again."""
    boosted: bool
    """A job of lower priority goes first, because of its age."""


def choose_queue(
    queues: Iterable[BucketQueue], now: float, age_boost_seconds: float, left: int, *, boosted_last: bool
) -> QueueChoice:
    """Choose among the queues that have jobs and room.

    The age boost applies to one job at a time: after a boosted start, the next choice is by priority alone. So neither old
    nor urgent jobs starve the others, however many wait (``rules.priority_order``).

    Args:
        now: CLOCK_BOOTTIME seconds.
        left: jobs that the process may start beside those that run.
        boosted_last: ``boosted`` of the previous choice.
    """
    first: BucketQueue | None = None
    best: BucketQueue | None = None
    first_level = best_level = -1.0
    others = False
    for queue in queues:
        if queue.jobs and queue.running < queue.slots and (queue.turns is None or queue.may_start(left, now)):
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
    """Time since the job could have run: since it was due or, without a due time, created; by the clock of its store."""
    entry = job.entry
    since_us = entry.due_us or int.from_bytes(entry.id[:6], "big") * 1000
    return now + (job.claimed_list.clock_us - since_us) / 1e6
