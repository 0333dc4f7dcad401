"""Running handlers: slots, order, deadlines, cancellation. One persistent task per slot, not one per job.

A slot takes jobs one after another and awaits their coroutines directly inside its own task. A job that never suspends
costs no task and no loop turn; ``asyncio.timeout``, task groups and anyio scopes work as a handler's first await because
a real task runs it (stepping coroutines by hand was measured as fast and breaks all three). A slot wakes one more slot
before it runs a job while others wait, so jobs that suspend spread over as many slots as there are jobs.

What is on the hot path stays off it: one deadline sweep for all slots instead of a timer per job, one clock reading per
job, no ``current_task``/``timeout``/``gather`` (a third of the throughput on CPython 3.11).

Starts are authorised by the lease (``Holdings.may_start``) or, for ``start="fenced"``, by an accepted PROCESSING write.
Outcomes go to the reporter; nothing here speaks to a store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.job import RunMode, StartRule
from jobmaster.rules.fairness import effective_level
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.portions import LiveJob, Phase
from jobmaster_agents.verdicts import StopCause, Verdicts

_TURN_SECONDS = 0.005
"""How long slots may run jobs back to back before the loop gets a turn (heartbeats, sockets)."""
_SWEEP_SECONDS = 0.05
_BURST_JOBS = 32
"""Jobs a slot takes from one bucket before it compares priorities again."""
_CANCEL_AGAIN_SECONDS = 2.0


class Elsewhere(Protocol):
    """Where handlers run that must not run on the loop: threads, worker processes."""

    def start(self, job: LiveJob, started: float, done: Callable[[LiveJob], None]) -> None:
        """Run it; record its verdict; then call ``done`` on the loop."""
        ...

    def stop(self, job: LiveJob, cause: StopCause) -> None:
        """Stop it as far as its kind can be stopped."""
        ...


class Slot:
    """One task that runs jobs one after another."""

    __slots__ = ("cause", "deadline", "job", "nagged_at", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: LiveJob | None = None
        self.deadline = 0.0
        self.cause: StopCause | None = None
        self.nagged_at = 0.0


class BucketQueue:
    """Claimed jobs of one bucket that wait for a slot."""

    __slots__ = ("holding", "jobs", "running", "slots")

    def __init__(self, holding: Holding, slots: int) -> None:
        self.holding = holding
        self.jobs: deque[LiveJob] = deque()
        self.running = 0
        self.slots = slots


class Execution:
    """All slots of one process.

    Args:
        authorise: awaits an accepted PROCESSING write for a ``start="fenced"`` job; False = do not run.
        on_room: called (often) when a bucket's queue got shorter; must be cheap.
    """

    def __init__(
        self,
        settings: AgentSettings,
        age_boost_seconds: float,
        clock: Clock,
        holdings: Holdings,
        verdicts: Verdicts,
        elsewhere: Elsewhere,
        authorise: Callable[[LiveJob], Coroutine[object, object, bool]],
        on_room: Callable[[bytes], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._age_boost_seconds = age_boost_seconds
        self._now = clock.boottime
        self._holdings = holdings
        self._verdicts = verdicts
        self._elsewhere = elsewhere
        self._authorise = authorise
        self._on_room = on_room
        self._queues: dict[bytes, BucketQueue] = {}
        self._slots: list[Slot] = []
        self._parked: list[asyncio.Future[None]] = []
        self._away: dict[bytes, tuple[LiveJob, float, BucketQueue]] = {}
        """Jobs that run elsewhere: (job, deadline, queue)."""
        self._turn_ends = 0.0
        self._turn_asked = False
        self._sweeping = False
        self._closed = False
        self.running = 0
        self.finished = 0
        """Handlers that came to an end since the start."""

    # ------------------------------------------------------------ buckets and jobs in

    def open(self, holding: Holding) -> None:
        """Serve a bucket."""
        self._queues[holding.fence.bucket_id] = BucketQueue(holding, self._settings.slots)

    def enqueue(self, jobs: Iterable[LiveJob]) -> None:
        """Queue claimed jobs (all of open buckets) and wake a slot."""
        queues = self._queues
        for job in jobs:
            queue = queues.get(job.portion.holding.fence.bucket_id)
            if queue is not None:
                queue.jobs.append(job)
        if not self.running:
            self._turn_ends = self._now() + _TURN_SECONDS
        self._wake_slot()

    def backlog(self, bucket_id: bytes) -> int:
        """Jobs of a bucket that wait or run."""
        queue = self._queues.get(bucket_id)
        return len(queue.jobs) + queue.running if queue else 0

    def take_queued(self, bucket_id: bytes) -> list[LiveJob]:
        """Remove and return what waits in a bucket (to be handed back)."""
        queue = self._queues.get(bucket_id)
        if queue is None:
            return []
        jobs = [job for job in queue.jobs if job.phase is Phase.QUEUED]
        queue.jobs.clear()
        return jobs

    def close(self, bucket_id: bytes) -> None:
        """Serve the bucket no more; what waits in it stays with the caller."""
        self._queues.pop(bucket_id, None)

    # ------------------------------------------------------------ stopping jobs

    def stop_job(self, job: LiveJob, cause: StopCause) -> None:
        """Stop one running job; a job that has not started is only marked."""
        job.cancelled = job.cancelled or cause is StopCause.CANCEL
        if job.entry.id in self._away:
            self._elsewhere.stop(job, cause)
            return
        for slot in self._slots:
            if slot.job is job:
                self._stop_slot(slot, cause)
                return

    def stop_all(self, cause: StopCause) -> None:
        """Stop every running job."""
        for slot in self._slots:
            if slot.job is not None:
                self._stop_slot(slot, cause)
        for job, _, _ in list(self._away.values()):
            self._elsewhere.stop(job, cause)

    async def aclose(self) -> None:
        """End all slots; running handlers are cancelled without a verdict."""
        self._closed = True
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._slots.clear()

    def _stop_slot(self, slot: Slot, cause: StopCause) -> None:
        if slot.cause is None or cause is StopCause.SUPERSEDED:
            slot.cause = cause
        slot.nagged_at = self._now()
        if slot.task is not None:
            slot.task.cancel()

    # ------------------------------------------------------------ slots

    def _wake_slot(self) -> None:
        while self._parked:
            parked = self._parked.pop()
            if not parked.done():
                parked.set_result(None)
                return
        if len(self._slots) < self._settings.max_running and not self._closed:
            slot = Slot()
            slot.task = self._loop.create_task(self._work(slot), name="jobmaster-slot")
            self._slots.append(slot)

    def _choose(self, now: float) -> BucketQueue | None:
        best: BucketQueue | None = None
        best_level = -1.0
        for queue in self._queues.values():
            if queue.jobs and queue.running < queue.slots:
                waited = now - queue.jobs[0].portion.claimed_at
                level = effective_level(queue.holding.priority, waited, self._age_boost_seconds)
                if level > best_level:
                    best, best_level = queue, level
        return best

    async def _work(self, slot: Slot) -> None:
        now = self._now()
        while not self._closed:
            queue = self._choose(now) if self.running < self._settings.max_running else None
            if queue is None:
                await self._park()
                now = self._now()
                continue
            if now >= self._holdings.soft_until:  # past half the lease nothing starts
                await self._holdings.wait_trusted()
                now = self._now()
                continue
            jobs = queue.jobs
            taken = 0
            while jobs and taken < _BURST_JOBS and queue.running < queue.slots:
                if now > self._turn_ends:
                    await self._yield_turn()
                    now = self._now()
                    if not jobs or queue.running >= queue.slots or now >= self._holdings.soft_until:
                        break
                job = jobs.popleft()
                taken += 1
                if job.phase is Phase.QUEUED:
                    if jobs:
                        self._wake_slot()
                    now = await self._run(slot, queue, job, now)
            self._on_room(queue.holding.fence.bucket_id)

    async def _park(self) -> None:
        parked = self._loop.create_future()
        self._parked.append(parked)
        await parked

    async def _yield_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._new_turn)
        await asyncio.sleep(0)

    def _new_turn(self) -> None:
        self._turn_asked = False
        self._turn_ends = self._now() + _TURN_SECONDS

    # ------------------------------------------------------------ one job

    async def _run(self, slot: Slot, queue: BucketQueue, job: LiveJob, now: float) -> float:
        """Run one job to its verdict; returns the time at its end."""
        handler = job.handler
        if handler is None or job.cancelled or self._verdicts.is_over(job, now):
            self._verdicts.without_running(job, now)
            return now
        queue.running += 1
        self.running += 1
        job.phase = Phase.RUNNING
        if handler.options.start is StartRule.FENCED and not await self._authorised(queue, job):
            return self._now()
        if handler.options.mode is not RunMode.ASYNC or job.entry.rescues:
            self._run_elsewhere(queue, job, now)
            return now
        slot.job = job
        slot.cause = None
        slot.deadline = now + self._verdicts.timeout_seconds(job)
        if not self._sweeping:
            self._start_sweep()
        try:
            result = await self._verdicts.call(job, slot.deadline)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit of a handler must not end its neighbours
            ended, cause = self._end(slot, queue), _cause(slot)
            if isinstance(error, asyncio.CancelledError) and cause is None and _cancelling(slot):
                raise  # the process ends: nothing is recorded, the claimed list keeps the job
            self._clear_cancellation(slot)
            if cause is not None and isinstance(error, asyncio.CancelledError):
                self._verdicts.stopped(job, cause, now, ended)
            elif cause is not StopCause.SUPERSEDED:
                self._verdicts.raised(job, error, now, ended)
            return ended
        ended = self._end(slot, queue)
        if _cause(slot) is not None:  # it swallowed the cancellation and came to a result
            self._clear_cancellation(slot)
            if _cause(slot) is StopCause.SUPERSEDED:
                return ended
        self._verdicts.returned(job, result, now, ended)
        return ended

    def _end(self, slot: Slot, queue: BucketQueue) -> float:
        slot.job = None
        self._done(queue)
        return self._now()

    @staticmethod
    def _clear_cancellation(slot: Slot) -> None:
        # A cancellation meant for this job must not hit the slot's next one.
        while slot.task is not None and slot.task.cancelling():
            slot.task.uncancel()

    def _done(self, queue: BucketQueue) -> None:
        queue.running -= 1
        self.running -= 1
        self.finished += 1

    async def _authorised(self, queue: BucketQueue, job: LiveJob) -> bool:
        allowed = await self._authorise(job)
        running = _in_phase(job, Phase.RUNNING)  # it may have been superseded while the write was under way
        # Read again just before the call: authorisation never comes after the lease's end.
        if allowed and running and self._holdings.may_start(self._now()):
            return True
        queue.running -= 1
        self.running -= 1
        if running and job.cancelled:
            now = self._now()
            self._verdicts.without_running(job, now)
        elif running and allowed:
            self._verdicts.release(job)
        return False

    # ------------------------------------------------------------ elsewhere

    def _run_elsewhere(self, queue: BucketQueue, job: LiveJob, now: float) -> None:
        self._away[job.entry.id] = (job, now + self._verdicts.timeout_seconds(job), queue)
        if not self._sweeping:
            self._start_sweep()
        self._elsewhere.start(job, now, self._back)

    def _back(self, job: LiveJob) -> None:
        found = self._away.pop(job.entry.id, None)
        if found is None:
            return
        queue = found[2]
        self._done(queue)
        self._wake_slot()
        self._on_room(queue.holding.fence.bucket_id)

    # ------------------------------------------------------------ deadlines

    def _start_sweep(self) -> None:
        self._sweeping = True
        self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Time out what ran too long; runs only while something runs."""
        now = self._now()
        busy = False
        for slot in self._slots:
            if slot.job is None:
                continue
            busy = True
            if slot.cause is None:
                if now >= slot.deadline:
                    self._stop_slot(slot, StopCause.TIMEOUT)
            elif now - slot.nagged_at > _CANCEL_AGAIN_SECONDS:
                # It swallowed the first cancellation; a coroutine cannot be killed, only asked again.
                self._stop_slot(slot, slot.cause)
        for job, deadline, _ in list(self._away.values()):
            busy = True
            if now >= deadline:
                self._elsewhere.stop(job, StopCause.TIMEOUT)
        if busy and not self._closed:
            self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        else:
            self._sweeping = False


def _in_phase(job: LiveJob, phase: Phase) -> bool:
    return job.phase is phase


def _cause(slot: Slot) -> StopCause | None:
    return slot.cause  # a call, because it is set from elsewhere while the job is awaited


def _cancelling(slot: Slot) -> bool:
    return slot.task is not None and slot.task.cancelling() > 0
