"""Runs handlers on the event loop: slots, order, deadlines, cancellation. One persistent task per slot, not one per job.

A slot takes jobs one after another and awaits their coroutines directly inside its own task. A job that never suspends
costs no task and no loop turn; ``asyncio.timeout``, task groups and anyio scopes work as a handler's first await because
a real task runs it (stepping coroutines by hand was measured as fast and breaks all three). A slot wakes one more slot
before it runs a job while others wait, so jobs that suspend spread over as many slots as there are jobs.

State that a job leaves in the slot's task does not reach the next job: after a changed context variable or a cancellation,
the handler's own included, the slot ends with its task, and a new slot with a fresh context replaces it. A handler that
catches every cancellation is detached after a while: its job gets an outcome, and another slot takes the place.

The hot path is kept short: one deadline sweep for all slots instead of a timer per job, one clock reading per job, no
``current_task``/``timeout``/``gather`` (they cost a third of the throughput on CPython 3.11).

The lease authorises a start, or the bucket's store while the master does not answer (``Ownership.may_start_in``). A job with
``start="fenced"`` needs an accepted PROCESSING write: it is deferred until the master answers, so that it keeps no slot from
other jobs. Jobs that do not run in a slot go to the dispatcher, which authorises them when their kind has room. Outcomes go
to the outcome writer; this module makes no call to a store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context

from jobmaster.clock import Clock
from jobmaster.handlers import Handler, JobContext
from jobmaster.model.flow.batch import RANGE_BYTES
from jobmaster.model.job import Priority
from jobmaster.settings.model import AgentSettings, Tenants
from jobmaster_agents.execute.aside import Aside
from jobmaster_agents.execute.bucket_queues import (
    BucketQueue,
    JobDispatcher,
    OnDetached,
    OnOverdue,
    Slot,
    choose_queue,
)
from jobmaster_agents.execute.stopping import CANCEL_AGAIN_SECONDS, should_detach
from jobmaster_agents.outcomes.outcome_builder import (
    OutcomeBuilder,
    StopCause,
    needs_master,
    needs_write,
    warn_after_seconds,
)
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobPhase
from jobmaster_agents.state.limited_starts import LimitedStarts, has_limits
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.pauses import Pauses

Authorise = Callable[[ClaimedJob], Coroutine[object, object, bool | None]]
"""Awaits an accepted PROCESSING write. True: start the job; False: do not; ``None``: not now."""

TURN_SECONDS = 0.005
"""How long slots may run jobs without a turn of the loop (heartbeats, sockets)."""
_SWEEP_SECONDS = 0.05
_BURST_JOBS = 32
"""Jobs that a slot takes from one bucket before it compares priorities again."""
_CLOSE_SECONDS = 1.0
_NEVER = float("inf")
# Looked up once: access to an enum member costs 50 ns on CPython 3.11.
_QUEUED, _RUNNING = JobPhase.QUEUED, JobPhase.RUNNING


class Executor:
    """All slots of one process.

    Args:
        authorise: awaits an accepted PROCESSING write for a ``start="fenced"`` job.
        on_room: called with the id of a bucket that has room for more jobs, after ``want_room``.
        on_overdue: called for each attempt that becomes overdue.
        on_detached: called for each handler that does not stop.
        limits: jobs of full limits wait aside, without a slot.
        pauses: jobs that they cover are given back instead of queued.
    """

    def __init__(
        self,
        settings: AgentSettings,
        age_boost_seconds: float,
        clock: Clock,
        ownership: Ownership,
        outcome_builder: OutcomeBuilder,
        dispatcher: JobDispatcher,
        authorise: Authorise,
        on_room: Callable[[bytes], None],
        *,
        on_overdue: OnOverdue,
        on_detached: OnDetached,
        limits: LimitedStarts,
        pauses: Pauses | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._age_boost_seconds = age_boost_seconds
        self._now = clock.boottime
        self._ownership = ownership
        self._outcome_builder = outcome_builder
        self._dispatcher = dispatcher
        self._authorise = authorise
        self._on_room = on_room
        self._pauses = pauses or Pauses()
        self._limits = limits
        self.tenants = Tenants()
        self._on_overdue = on_overdue
        self._on_detached = on_detached
        self._context = copy_context()
        """The context variables of the agent; every job starts with a copy."""
        self._queues: dict[bytes, BucketQueue] = {}
        self.aside = Aside(self._queues, limits, ownership, outcome_builder, self._now, self._wake_slot)
        self._slots: dict[Slot, None] = {}
        self._stuck: dict[Slot, None] = {}
        """Former slots whose detached handlers still run."""
        self._parked: list[asyncio.Future[None]] = []
        self._boosted_last = False
        """The last job started before jobs of a higher priority, because of its age."""
        self._waking = False
        """A woken slot has not reached the queues yet; it wakes the next slot itself."""
        self._dispatched: dict[ClaimedJob, BucketQueue] = {}
        """Jobs that the dispatcher has. By copy and not by id: a superseded copy may still end when the next one starts."""
        self._turn_ends = 0.0
        self._turn_scheduled = False
        self._sweeping = False
        self._closed = False
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self.running = 0
        self.finished = 0
        """Handlers that have ended since the start of the process."""
        ownership.on_resumed.append(self._requeue_deferred)

    async def run(self) -> None:
        """Never returns. Raises the error that ended a slot: an invariant is broken, and the lease makes the exit safe."""
        try:
            await asyncio.shield(self._failure)
        finally:
            self._end_slots()  # from here on a cancellation means the end of the process and not of the job

    def fail(self, error: BaseException) -> None:
        """End ``run`` with an error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    # ------------------------------------------------------------ buckets and jobs in

    def open(self, owned: OwnedBucket) -> None:
        """Serve a bucket."""
        low_water = self._settings.bucket_buffer // 2
        self._queues[owned.fence.bucket_id] = BucketQueue(owned, self._slots_of(owned), low_water)

    def enqueue(self, jobs: Iterable[ClaimedJob]) -> None:
        """Queue claimed jobs (all of open buckets) and wake a slot."""
        if self._pauses.in_force:
            jobs = self._unpaused(jobs)
        claimed_list: ClaimedList | None = None
        queue: BucketQueue | None = None
        for job in jobs:
            if job.claimed_list is not claimed_list:  # adjacent jobs mostly come from one claimed list
                claimed_list = job.claimed_list
                queue = self._queues.get(claimed_list.owned.fence.bucket_id)
            if queue is not None:
                if job.entry.headers:
                    queue.append(job, self.tenants)
                else:
                    queue.jobs.append(job)
        self._begin()

    def enqueue_claimed(self, claimed_list: ClaimedList, jobs: list[ClaimedJob]) -> None:
        """``enqueue`` of jobs of one claimed list: those without options are queued together."""
        queue = self._queues.get(claimed_list.owned.fence.bucket_id)
        queued = None if queue is None else queue.jobs
        if not isinstance(queued, deque) or claimed_list.has_options or self._pauses.in_force:
            self.enqueue(jobs)
            return
        queued.extend(jobs)
        self._begin()

    def _begin(self) -> None:
        if not self.running:
            self._turn_ends = self._now() + TURN_SECONDS
        self._wake_slot()

    def backlog(self, bucket_id: bytes) -> int:
        """Number of jobs of a bucket that wait or run."""
        queue = self._queues.get(bucket_id)
        if queue is None:
            return 0
        return len(queue.jobs) + queue.running + (self.aside.start_soon(queue) if queue.aside else 0)

    def queue_of(self, bucket_id: bytes) -> BucketQueue | None:
        """The waiting jobs of a bucket that is served."""
        return self._queues.get(bucket_id)

    def slots_of(self, bucket_id: bytes) -> int:
        """Number of jobs of a bucket that may run at once, also while it is frozen."""
        queue = self._queues.get(bucket_id)
        return self._slots_of(queue.owned) if queue else 0

    def _slots_of(self, owned: OwnedBucket) -> int:
        return self._settings.slots_of(owned.lane, Priority(owned.priority))

    def want_room(self, bucket_id: bytes, at: int | None = None) -> None:
        """Call ``on_room`` once when the bucket's queue has at most ``at`` jobs (default: its low-water mark)."""
        if (queue := self._queues.get(bucket_id)) is not None:
            wanted = queue.low_water if at is None else at
            queue.refill_level = max(queue.refill_level, wanted) if queue.wants_jobs else wanted
            queue.wants_jobs = True

    def take_queued(self, bucket_id: bytes) -> list[ClaimedJob]:
        """Remove and return the waiting jobs of a bucket (to be given back)."""
        return queue.take() if (queue := self._queues.get(bucket_id)) is not None else []

    def take_some(self, bucket_id: bytes, wanted: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Remove and return some of the waiting jobs of a bucket (to be given back), which has room then."""
        if (queue := self._queues.get(bucket_id)) is None:
            return []
        taken = queue.take_some(wanted)
        if queue.wants_jobs and len(queue.jobs) <= queue.refill_level:
            self._notify_room(queue)
        return taken

    # ------------------------------------------------------------ pauses

    def give_back_paused(self) -> None:
        """Pauses have changed: every job that they cover and that has not begun goes back to the master, no attempt used. A
        job that waits for the write before its start has not begun either."""
        for queue in self._queues.values():
            for job in queue.take_some(self._is_paused):
                self._outcome_builder.release(job)
        for slot in list(self._slots):
            if slot.job is not None and slot.deadline == _NEVER and self._is_paused(slot.job):
                self._stop_slot(slot, StopCause.RELEASE)
        for job in list(self._dispatched):
            if self._is_paused(job) and self._dispatcher.is_waiting(job):
                self._dispatcher.give_back(job)

    def _unpaused(self, jobs: Iterable[ClaimedJob]) -> list[ClaimedJob]:
        """Those that no pause covers; the others are given back. A cancelled job ends here."""
        admitted = []
        cancelled = self._pauses.cancelled_ranges
        for job in jobs:
            if cancelled and job.entry.id[:RANGE_BYTES] in cancelled:
                job.cancelled = True
            if not job.cancelled and self._is_paused(job):
                self._outcome_builder.release(job)
            else:
                admitted.append(job)
        return admitted

    def _is_paused(self, job: ClaimedJob) -> bool:
        pauses, entry = self._pauses, job.entry
        if entry.handler in pauses.handlers or pauses.cover_bucket(job.claimed_list.owned):
            return True
        if entry.handler in pauses.barred and entry.id not in pauses.trials:
            return True
        # Only a pause of a tag reads the headers.
        return bool(pauses.tags and entry.headers) and not pauses.tags.isdisjoint(
            self._outcome_builder.headers(job).tags
        )

    def running_before(self, moment: float) -> list[ClaimedJob]:
        """Running jobs that started before a moment (CLOCK_BOOTTIME seconds)."""
        jobs = [slot.job for slot in self._slots if slot.job is not None and slot.started < moment]
        return jobs + self._dispatcher.started_before(moment) if self._dispatched else jobs

    def started_at(self, job: ClaimedJob) -> float | None:
        """When a job was started (CLOCK_BOOTTIME seconds); ``None``: it does not run."""
        if job in self._dispatched:
            return self._dispatcher.started_at(job)
        return next((slot.started for slot in self._slots if slot.job is job), None)

    def set_slots(self, settings: AgentSettings | None = None) -> None:
        """Apply the number of slots of the settings to every bucket; a frozen bucket gets none."""
        self._settings = settings or self._settings
        for queue in self._queues.values():
            queue.slots = 0 if queue.owned.frozen else self._slots_of(queue.owned)
            queue.share_slots(self.tenants)
        self._wake_slot()

    @property
    def slots(self) -> int:
        """Jobs that may run at once."""
        return min(sum(queue.slots for queue in self._queues.values()), self._settings.max_running)

    def reweigh_tenants(self, tenants: Tenants) -> None:
        """Other weights of tenants, and other spare slots."""
        self.tenants = tenants
        for queue in self._queues.values():
            queue.reweigh(tenants)
        self._wake_slot()

    def close(self, bucket_id: bytes) -> None:
        """Stop serving the bucket; its waiting jobs belong to the caller."""
        self._queues.pop(bucket_id, None)

    # ------------------------------------------------------------ stopping jobs

    def stop_job(self, job: ClaimedJob, cause: StopCause) -> None:
        """Stop one job. A job that waits for a slot ends at once when the cause is CANCEL, and stays queued otherwise."""
        if cause is StopCause.CANCEL:
            job.cancelled = True
            if job.phase is JobPhase.QUEUED:
                self._outcome_builder.end_unstarted(job, self._now())
                return
        if job in self._dispatched:
            self._dispatcher.stop(job, cause)
            return
        for slot in self._slots:
            if slot.job is job:
                self._stop_slot(slot, cause)
                return

    def give_back_waiting(self, job: ClaimedJob) -> None:
        """Give a job back that its slot has passed on and that has not begun."""
        if job in self._dispatched:
            self._dispatcher.give_back(job)

    async def aclose(self) -> None:
        """End all slots. Running handlers are cancelled without an outcome; a handler that ignores it is not awaited."""
        tasks = self._end_slots()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        self._slots.clear()

    def _end_slots(self) -> list[asyncio.Task[None]]:
        self._closed = True
        tasks = [slot.task for slot in (*self._slots, *self._stuck) if slot.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def _stop_slot(self, slot: Slot, cause: StopCause) -> None:
        now = self._now()
        if slot.cause is None:
            slot.stop_requested_at = now
        if slot.cause is None or cause is StopCause.SUPERSEDED:
            slot.cause = cause
        slot.stop_repeated_at = now
        if slot.task is not None:
            slot.task.cancel()

    def _detach(self, slot: Slot, job: ClaimedJob, cause: StopCause) -> None:
        """The handler catches every cancellation: the job gets its outcome, another slot its place. The sweep cancels on."""
        slot.current_context()  # the handler still runs as this job
        slot.detached = slot.tainted = True
        del self._slots[slot]
        self._stuck[slot] = None
        queue = self._queues.get(job.claimed_list.owned.fence.bucket_id)
        now = self._end(slot, queue)
        self._outcome_builder.stopped(job, cause, slot.started, now)
        self._on_detached(job, cause, now - slot.stop_requested_at)
        self._wake_slot()
        if queue is not None and queue.wants_jobs and len(queue.jobs) <= queue.refill_level:
            self._notify_room(queue)

    @property
    def stuck(self) -> int:
        """Number of detached handlers that have not ended."""
        return len(self._stuck)

    # ------------------------------------------------------------ slots

    def _wake_slot(self) -> None:
        if self._waking:
            return
        while self._parked:
            parked = self._parked.pop()
            if not parked.done():
                parked.set_result(None)
                self._waking = True
                return
        if len(self._slots) < self._settings.max_running and not self._closed:
            # A fresh context: the caller may be a job.
            slot = Slot(self._make_context, self._context.copy())
            slot.task = self._loop.create_task(self._work(slot), name="jobmaster-slot", context=slot.copied_variables())
            slot.cancelling = slot.task.cancelling
            slot.task.add_done_callback(lambda task: self._slot_ended(slot, task))
            self._slots[slot] = None
            self._waking = True

    def _slot_ended(self, slot: Slot, task: asyncio.Task[None]) -> None:
        self._stuck.pop(slot, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        elif slot in self._slots and not self._closed:
            # Cancelled between two jobs, by code that a former job has left behind.
            del self._slots[slot]
            self._waking = False
            self._wake_slot()

    def _retire(self, slot: Slot) -> None:
        """A job has tainted its task: a new slot takes its place."""
        if slot in self._slots:
            del self._slots[slot]
            self._wake_slot()

    async def _work(self, slot: Slot) -> None:
        while not (self._closed or slot.tainted):
            self._waking = False
            now = self._now()
            if now > self._turn_ends:
                # One slot waits for the loop's next turn and then wakes the others; else each turn costs a round of all.
                if not await self._yield_turn():
                    await self._park()
                continue
            left = self._settings.max_running - self.running
            choice = choose_queue(
                self._queues.values(), now, self._age_boost_seconds, left, boosted_last=self._boosted_last
            )
            queue = choice.queue
            if queue is None or left <= 0:
                await self._park()
            elif now >= self._ownership.soft_until and not self._ownership.may_start_in(queue.owned, now):
                # Past half the lease nothing starts, unless the store is the lease authority for the bucket.
                await self._ownership.wait_trusted()
            else:
                if choice.others:  # earlier wake-ups were suppressed because this slot was already on its way
                    self._wake_slot()
                self._boosted_last = choice.boosted
                await self._burst(slot, queue, now, 1 if choice.contested else _BURST_JOBS)
        if not self._closed:
            self._retire(slot)

    async def _park(self) -> None:
        parked = self._loop.create_future()
        self._parked.append(parked)
        await parked

    async def _burst(self, slot: Slot, queue: BucketQueue, now: float, count: int) -> None:
        """Run at most ``count`` jobs of one bucket, one after another; fewer when the turn of the loop ends."""
        jobs = queue.jobs
        limit = self._settings.max_running
        # The lease is checked between bursts, so a burst ends with the turn it began in: a slot that has waited inside a job
        # must not go on in a turn that other slots have begun meanwhile.
        turn_ends = self._turn_ends
        for _ in range(count):
            if not jobs or queue.running >= queue.slots or self.running >= limit or now > turn_ends:
                break
            if (turns := queue.turns) is None:
                job = jobs.popleft()
            elif (next_job := turns.take(min(queue.slots - queue.running, limit - self.running), now)) is None:
                break
            else:
                job = next_job
            if job.phase is _QUEUED:
                if jobs and not self._waking:
                    self._wake_slot()
                now = await self._run(slot, queue, job, now)
            if queue.wants_jobs and len(jobs) <= queue.refill_level:
                self._notify_room(queue)
            if slot.tainted:
                break

    def _notify_room(self, queue: BucketQueue) -> None:
        left = queue.refill_level - len(queue.jobs)
        if queue.aside and self.aside.start_soon(queue, left + 1) > left:
            return
        queue.wants_jobs = False
        self._on_room(queue.bucket_id)

    async def _yield_turn(self) -> bool:
        if self._turn_scheduled:
            return False
        self._turn_scheduled = True
        self._loop.call_soon(self._new_turn)
        await asyncio.sleep(0)
        return True

    def _new_turn(self) -> None:
        self._turn_scheduled = False
        self._turn_ends = self._now() + TURN_SECONDS

    # ------------------------------------------------------------ one job

    async def _run(self, slot: Slot, queue: BucketQueue, job: ClaimedJob, now: float) -> float:
        """Run one job to its outcome; returns the time at its end."""
        entry, outcome_builder = job.entry, self._outcome_builder
        barred = (entry.headers or entry.due_us) and outcome_builder.must_not_start(job, now)
        handler = job.handler  # read now: the headers may have changed the rule of delivery
        if handler is None or job.cancelled or barred:
            outcome_builder.end_unstarted(job, now)
            return now
        queue.running += 1
        if queue.turns is not None:
            queue.turns.started(job)
        self.running += 1
        job.phase = _RUNNING
        slot.job = job
        slot.started = now
        slot.deadline = _NEVER
        if not handler.runs_on_loop or entry.rescues:
            begins = self._prepare(slot, queue, job, handler, now)
            if begins is None:
                begins = await self._fenced_start(slot, queue, job)
                slot.started = now = self._now()
            if not begins:
                return now
        slot.deadline = 0.0
        if not self._sweeping:
            self._start_sweep()
        try:
            result = await (self._call(slot, job, now) if handler.needs_context else handler.call(entry.args))
        except BaseException as error:  # SystemExit of a handler must not end its neighbours
            self._limits.ended(job)
            return self._raised(slot, queue, job, error, now)
        if job.limited is not None or queue.turns is not None:
            self._returned(slot, queue, job)
        cause = slot.cause
        if cause is not None and slot.detached:
            return now
        slot.job = None
        queue.running -= 1
        self.running -= 1
        self.finished += 1
        ended = self._now()
        if cause is not None or slot.cancelling():
            slot.tainted = True  # it caught the cancellation, ours or its own, and returned a result
            if cause is StopCause.SUPERSEDED:
                return ended
        try:  # 30 ns: an unchanged context shares the very same mapping
            if copy_context() != slot.variables and not slot.is_unchanged():
                slot.tainted = True
        except Exception:  # the values are foreign code, and so is their comparison
            slot.tainted = True
        outcome_builder.returned(job, result, now, ended)
        return ended

    def _returned(self, slot: Slot, queue: BucketQueue, job: ClaimedJob) -> None:
        """Its permits and its tenant's slot are free."""
        if job.limited is not None:
            self._limits.ended(job)
        if queue.turns is not None and not slot.detached:
            queue.turns.ended(job)

    def _prepare(
        self, slot: Slot, queue: BucketQueue, job: ClaimedJob, handler: Handler, now: float
    ) -> bool | None:  # no coroutine: most jobs of limits, threads and processes await nothing here
        """Whether the job begins here now, with its permits; ``None``: it needs an accepted write first."""
        if has_limits(job) and not self.aside.lets_start(queue, job, now):
            self._free(slot, queue)
            return False
        if self._ownership.suspended and needs_master(job):
            self._defer(slot, queue, job)
            return False
        if handler.runs_elsewhere or self._outcome_builder.runs_alone(job):  # the dispatcher authorises it
            slot.job = None
            self._dispatch(queue, job)
            return False
        return None if needs_write(job) else True

    def _call(self, slot: Slot, job: ClaimedJob, started: float) -> Awaitable[object]:
        """Decode the arguments, and call a handler that is run with a context."""
        handler = job.handler
        assert handler is not None
        arguments = handler.decode(job.entry.args if handler.cipher is None else handler.args_of(job.entry))
        slot.context = context = self._make_context(job, started)
        slot.context_job = job
        if handler.is_surrounded or not handler.wants_context:
            return handler.run(context, arguments)
        result: Awaitable[object] = handler.function(context, **arguments)
        return result

    def _make_context(self, job: ClaimedJob, started: float) -> JobContext:
        builder = self._outcome_builder
        return builder.context(job, started + builder.timeout_seconds(job))

    def _raised(self, slot: Slot, queue: BucketQueue, job: ClaimedJob, error: BaseException, started: float) -> float:
        """The outcome of a job whose handler raised; raises the error again when the process ends."""
        if isinstance(error, GeneratorExit) and not self._is_current_task(slot):
            raise error  # the coroutine is closed from outside
        cancelled, cause = isinstance(error, asyncio.CancelledError), slot.cause
        if cancelled and cause is None and self._closed:
            raise error  # nothing is recorded, the claimed list keeps the job
        if slot.detached:
            return started
        ended = self._end(slot, queue)
        slot.tainted = True  # a new task costs less than a search for what the handler may have left
        if cause is not None and cancelled:
            self._outcome_builder.stopped(job, cause, started, ended)
        elif cause is not StopCause.SUPERSEDED:
            self._outcome_builder.raised(job, error, started, ended)
        return ended

    def _is_current_task(self, slot: Slot) -> bool:
        """True while the loop runs the slot's own task."""
        try:
            return asyncio.current_task() is slot.task
        except RuntimeError:  # no loop runs in this thread
            return False

    def _end(self, slot: Slot, queue: BucketQueue | None) -> float:
        self._free(slot, queue)
        self.finished += 1
        return self._now()

    def _free(self, slot: Slot, queue: BucketQueue | None) -> None:
        job, slot.job = slot.job, None
        if queue is not None:
            queue.running -= 1
            if queue.turns is not None and job is not None:
                queue.turns.ended(job)
        self.running -= 1

    # ------------------------------------------------------------ starts that need an accepted write

    async def _fenced_start(self, slot: Slot, queue: BucketQueue, job: ClaimedJob) -> bool:
        """Await the accepted PROCESSING write. True: call the handler now. False: the job has its outcome, waits again, or
        is not ours any more.

        The lease is read again after the write, just before the call: no start comes after its end. The store is no
        substitute for it. A job that waits for the master goes to ``deferred`` and keeps no slot from the others.
        """
        allowed: bool | None = None
        try:
            if not self._ownership.suspended:
                allowed = await self._authorise(job)
        except asyncio.CancelledError:
            if self._closed:
                raise
            slot.tainted = (
                True  # with or without a cause: an earlier job of this task may have left a cancellation behind
            )
        cause, slot.cause = slot.cause, None
        now = self._now()
        if allowed and cause is None and _is_running(job) and self._ownership.may_start(now):
            return True
        self._free(slot, queue)
        if not _is_running(job):
            return False  # superseded, or its bucket was lost, while the write was under way
        if job.cancelled:
            self._outcome_builder.end_unstarted(job, now)
        elif job.unwritable:
            job.phase = JobPhase.ENDED  # it cannot have its row, so it cannot be started, or given back
        elif cause is StopCause.RELEASE or _has_past_epoch(job) or (allowed and not self._ownership.suspended):
            self._outcome_builder.release(job)
        elif (full := self._limits.take_denial(job)) is not None and cause is None:
            job.phase = JobPhase.QUEUED
            self.aside.put(queue, job, full, asked=True)
        elif cause is None and allowed is not False:
            job.phase = JobPhase.QUEUED
            (queue.deferred if self._ownership.suspended else queue.jobs).append(job)
        return False

    def _defer(self, slot: Slot, queue: BucketQueue, job: ClaimedJob) -> None:
        self._free(slot, queue)
        job.phase = JobPhase.QUEUED
        queue.deferred.append(job)

    def deferred(self, bucket_id: bytes) -> int:
        """Number of jobs of a bucket that wait for the master to answer, or for a permit, before they start."""
        queue = self._queues.get(bucket_id)
        return len(queue.deferred) + len(queue.aside) if queue else 0

    def _requeue_deferred(self) -> None:
        for queue in self._queues.values():
            queue.jobs.extendleft(reversed(queue.deferred))
            queue.deferred.clear()
        self._wake_slot()

    # ------------------------------------------------------------ jobs that do not run in a slot

    def _dispatch(self, queue: BucketQueue, job: ClaimedJob) -> None:
        self._dispatched[job] = queue
        if not self._sweeping:
            self._start_sweep()
        self._dispatcher.start(job, self._dispatched_ended)

    def _dispatched_ended(self, job: ClaimedJob) -> None:
        queue = self._dispatched.pop(job, None)
        if queue is None:
            return
        queue.running -= 1
        if queue.turns is not None:
            queue.turns.ended(job)
        self.running -= 1
        if (full := self._limits.take_denial(job)) is not None and job.phase is _QUEUED:
            self.aside.put(queue, job, full, asked=True)
        else:
            self.finished += 1
        self._wake_slot()
        if queue.wants_jobs and len(queue.jobs) <= queue.refill_level:
            self._notify_room(queue)

    # ------------------------------------------------------------ deadlines

    def _start_sweep(self) -> None:
        self._sweeping = True
        # Not in the context of the job that runs now: the sweep goes on while other jobs run.
        self._loop.call_later(_SWEEP_SECONDS, self._sweep, context=self._context)

    def _sweep(self) -> None:
        """Stop jobs past their deadline. Scheduled again only while a job runs."""
        now = self._now()
        busy = bool(self._dispatched or self._stuck)
        if self._dispatched or self._dispatcher.stuck:
            busy = True
            self._dispatcher.sweep(now)
        for slot in list(self._slots):
            if slot.job is None:
                continue
            busy = True
            if slot.deadline == 0.0:  # computed here, because most jobs end before the first sweep
                slot.deadline = slot.started + self._outcome_builder.timeout_seconds(slot.job)
                slot.overdue_at = slot.started + warn_after_seconds(slot.job)
            if now >= slot.overdue_at and slot.deadline < _NEVER:  # a start that waits for a write has no times yet
                slot.overdue_at = _NEVER
                self._on_overdue(slot.job, now - slot.started)
            if slot.cause is None:
                if now >= slot.deadline:
                    self._stop_slot(slot, StopCause.TIMEOUT)
            elif should_detach(slot.cause, now - slot.stop_requested_at):
                self._detach(slot, slot.job, slot.cause)
            elif now - slot.stop_repeated_at > CANCEL_AGAIN_SECONDS:
                self._stop_slot(slot, slot.cause)  # it caught the last cancellation
        for slot in self._stuck:
            if slot.task is not None and now - slot.stop_repeated_at > CANCEL_AGAIN_SECONDS:
                slot.stop_repeated_at = now
                slot.task.cancel()
        if any(queue.turns and queue.may_start(queue.slots - queue.running, now) for queue in self._queues.values()):
            self._wake_slot()  # a minute without another tenant opens the spare slots, and no event tells
        if busy and not self._closed:
            self._loop.call_later(_SWEEP_SECONDS, self._sweep, context=self._context)
        else:
            self._sweeping = False


def _has_past_epoch(job: ClaimedJob) -> bool:
    return job.claimed_list.owned.successor is not None  # under an epoch that is over nothing is accepted any more


def _is_running(job: ClaimedJob) -> bool:
    return job.phase is JobPhase.RUNNING  # a call: another task changes the phase while a write is awaited
