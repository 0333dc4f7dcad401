"""Claims jobs from a bucket's lists into memory. It is woken and never polls; a claim whose reply was lost is repeated under
the same list name.

One blocking pop over the wake keys of all buckets returns the bucket that has something new; a claim's answer arms a timer
for the next due job. Prefetch is bounded by free slots plus the buffer, by the bytes of the bucket's claimed lists, and by
the backlog of the outcome writer. After every reconnect, and when the blocking pop times out, each claimer is woken once: a
token may have been lost with the connection.

Where jobs of several tenants come and memory is full of the jobs of some, claims go on, because a job of another tenant may
wait behind theirs; what is more than fits goes to the master, of the tenants that have more than their share.

A bucket that a pause covers is never given room: its jobs wait in the store, and it is looked into as if memory were full.

A claimer that leaves jobs in the bucket is always woken again: by the run queue at its low-water mark, by the outcome writer
when its backlog is down, by a renewal of the lease. While there is no room it still looks, at a bounded rate, for what cannot
wait: cancellations, hints, and a bucket over its high-water mark, from which jobs are spilled to the master unrun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from jobmaster.clock import Clock
from jobmaster.handlers import Handler
from jobmaster.metric_values import Histogram
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job import Entry, Priority
from jobmaster.ports import Claimed, ClaimerStore, ReplyStatus
from jobmaster.rules.batching import BATCH_BYTES, CLAIMED_BYTES
from jobmaster.settings.model import AgentSettings, StoreSettings
from jobmaster.telemetry import STEP_SECONDS
from jobmaster_agents.call_retry import Backoff, RepeatedLog
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.execute.bucket_queues import BucketQueue
from jobmaster_agents.execute.cancellation import Cancellation
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobTable
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership, unfrozen_epoch
from jobmaster_agents.state.progress import Progress
from jobmaster_agents.state.time_limits import trace_fields_of

CLAIM_JOBS_MAX = 1000
_SMALL_CLAIM_JOBS = 250
"""A claim of fewer jobs waits until there is more room, once each slot has a job. (Every second claim of a drain took the 50
jobs that 1,000 had left of 1,050.)"""
_QUICK_JOBS_PER_SECOND = 10_000.0
"""Where jobs of a bucket leave memory at this rate, it has room for one more full claim: with 1,000 jobs it was empty before
the next ones came, and 12 % of the agent's time passed in waits. 4,000 jobs gained nothing over 2,000."""
_QUICK_SAMPLE_JOBS = 100
"""Fewer jobs do not show that the rate is high."""
_AHEAD_JOBS = 500
"""Jobs of one claim that memory has no room for, while other tenants wait behind those that have their share of it."""
_LATE_JOBS = 100
"""Jobs of one portion that is spilled because its first job is late."""
_LOOK_SECONDS = 0.25
"""Shortest time between two looks into a bucket without room."""
_TIMER_SLACK_SECONDS = 0.001
"""Two clocks never agree to the microsecond: a timer that fires slightly too early would claim nothing, and fire again."""
_due_us, _token = attrgetter("due_us"), attrgetter("token")
_FENCED = (ReplyStatus.FENCED, ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.NO_BUCKET)


class ClaimObserver(Protocol):
    """The due fetcher, as a claimer uses it."""

    def kick(self, bucket_id: bytes) -> None: ...

    def put_at(self, bucket_id: bytes) -> float: ...

    def claimed(
        self, bucket_id: bytes, jobs: int, onboarded: int, next_due_seconds: float | None, *, crowded: bool
    ) -> None: ...


class PrefetchLimit(NamedTuple):
    """How many jobs of a bucket an agent may have in memory."""

    slots: int
    buffer: int
    """Jobs beyond the slots, while their claimed lists fit into memory."""

    @classmethod
    def of(cls, agent: AgentSettings, owned: OwnedBucket) -> PrefetchLimit:
        return cls(agent.slots_of(owned.lane, Priority(owned.priority)), agent.bucket_buffer)

    @property
    def jobs(self) -> int:
        return self.slots + self.buffer


class MemoryRate:
    """The rate at which jobs of a bucket leave memory, from the moment when it is full to the next claim."""

    def __init__(self) -> None:
        self.jobs_per_second = 0.0
        self._full: tuple[float, int] | None = None

    def full(self, now: float, jobs: int) -> None:
        """Memory has no room. (Times in seconds, and the jobs that are in it.)"""
        self._full = self._full or (now, jobs)

    def room(self, now: float, jobs: int) -> None:
        """Jobs are claimed again. Few that have left show only that the rate is low."""
        if self._full is None:
            return
        (since, before), self._full = self._full, None
        left, seconds = before - jobs, now - since
        if left < _QUICK_JOBS_PER_SECOND * seconds or left >= _QUICK_SAMPLE_JOBS:
            self.jobs_per_second = left / max(seconds, _TIMER_SLACK_SECONDS)


class StoreLateness:
    """What a claimer knows of jobs that wait too long in the store, behind a full memory."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        limits = {name: each.options.accept_seconds for name, each in handlers.items() if each.options.accept_seconds}
        self.limited = frozenset(limits)
        """Handlers with an ``accept_time``."""
        self.accept_seconds = min(limits.values(), default=None)
        """The shortest ``accept_time`` of a handler; ``None``: none has any."""
        self.late = False
        """At the last look without room, the first job that waits in the store had waited for longer than that."""
        self.spills = False
        """Other agents have room for such jobs: the next look spills them to the master."""
        self.not_accepted = 0
        """Jobs that were spilled so."""


class Claimer:
    """Claims for one bucket.

    Args:
        list_prefix: unique per incarnation of the agent; the lists are ``<prefix>-<n>``.
        repeated_log: logs failed claims; shared by all buckets of a store.
        store_settings: without room, jobs above four fifths of its high-water mark are spilled to the master; it also
            bounds the outcomes that the bucket keeps while the master is down.
    """

    def __init__(
        self,
        owned: OwnedBucket,
        store: ClaimerStore,
        ownership: Ownership,
        job_table: JobTable,
        executor: Executor,
        outcome_writer: OutcomeWriter,
        outcome_builder: OutcomeBuilder,
        handlers: dict[str, Handler],
        clock: Clock,
        claim_observer: ClaimObserver,
        cancellation: Cancellation,
        on_forgotten: OnForgotten,
        *,
        list_prefix: str,
        prefetch_limit: PrefetchLimit,
        store_settings: StoreSettings,
        log: EventLog | None = None,
        repeated_log: RepeatedLog | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.owned = owned
        self._bucket_id = owned.fence.bucket_id
        self._store = store
        self._ownership = ownership
        self._job_table = job_table
        self._executor = executor
        self._outcome_writer = outcome_writer
        self._outcome_builder = outcome_builder
        self._handlers = handlers
        self._now = clock.boottime
        self._claim_observer = claim_observer
        self._cancellation = cancellation
        self._on_forgotten = on_forgotten
        self._list_prefix = list_prefix
        self.prefetch_limit = prefetch_limit
        self._store_settings = store_settings
        self._spill_jobs = store_settings.high_water_jobs * 4 // 5
        self._log = log or EventLog()
        self._repeated_log = repeated_log
        self._progress = progress or Progress(clock.boottime)
        self.claim_seconds = Histogram(STEP_SECONDS)
        """Duration of claims; shared by all claimers of a process."""
        self._names = 0
        self._unanswered_list: str | None = None
        """List name of the claim that has no answer yet."""
        self._woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._look_for_lists = False
        self._rate = MemoryRate()
        self.flushing = False
        """True while the bucket completes: every claimed job goes back to the master unrun."""
        self.ended = False
        """True once the bucket is closed or lost: the loop ends, and no answer counts any more."""
        self.claimed = self.conflicting = 0
        self.waiting = 0
        """Jobs from producers that the last claim left in the bucket."""
        self.lateness = StoreLateness(handlers)

    # ------------------------------------------------------------ signals (cheap, called from anywhere on the loop)

    def wake(self, *, lists: bool = False) -> None:
        """There may be something to claim; with ``lists``, also claimed lists that this process does not know."""
        self._look_for_lists |= lists
        self._woken.set()

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Claim until cancelled or the bucket is closed or lost."""
        self._woken.set()
        try:
            with self._progress.expect("a claimer"):
                await self.adopt_unknown_lists()
                while not self.ended:
                    with self._progress.waiting:
                        await self._woken.wait()
                    self._woken.clear()
                    if self._look_for_lists:
                        self._look_for_lists = False
                        await self.adopt_unknown_lists()
                    await self._claim_while_room()
        finally:
            self._arm(None)

    def _free(self) -> int:
        if self.flushing:
            return CLAIM_JOBS_MAX
        if self.owned.paused:
            return 0  # woken when it is resumed; what it has above the high-water mark is spilled
        free = self._most() - self._executor.backlog(self._bucket_id)
        if free < _AHEAD_JOBS and self._claims_ahead():
            return _AHEAD_JOBS
        return min(free, CLAIM_JOBS_MAX)

    def _room(self) -> int:
        """``_free``, or 0 when each slot has a job and so few are not worth a claim. A small buffer takes each job that it
        has room for: one that waits in the store for longer than its ``accept_time`` is given back, to wait elsewhere. So
        does a queue of tenants: the turn may be that of a job which waits in the store."""
        free = self._free()
        if self.prefetch_limit.buffer < CLAIM_JOBS_MAX or free >= _SMALL_CLAIM_JOBS or free <= 0:
            return free
        queue = self._executor.queue_of(self._bucket_id)
        if queue is None or queue.aside or queue.is_fair:
            return free
        return free if self._executor.backlog(self._bucket_id) < self.prefetch_limit.slots else 0

    def _is_quick(self, queue: BucketQueue | None) -> bool:
        """True where jobs are short, and one more full claim pays. A buffer below a full claim is never exceeded: it was made
        small so that other agents may take what this one cannot start soon. Where tenants take turns the rate is not known:
        jobs that are given back to the master leave memory, too."""
        if self.prefetch_limit.buffer < CLAIM_JOBS_MAX or (queue is not None and queue.is_fair):
            return False
        return self._rate.jobs_per_second >= _QUICK_JOBS_PER_SECOND

    def _most(self) -> int:
        """Jobs that memory has room for. The buffer is bounded in bytes too; slots are filled whatever their jobs weigh."""
        limit = self.prefetch_limit
        queue = self._executor.queue_of(self._bucket_id)
        if self._job_table.bytes_of(self._bucket_id) >= CLAIMED_BYTES:
            most = limit.slots
        else:
            most = limit.jobs + CLAIM_JOBS_MAX if self._is_quick(queue) else limit.jobs
        return most if queue is None or not queue.aside else int(min(most, self._executor.aside.room(queue)))

    def _claims_ahead(self) -> bool:
        queue = self._executor.queue_of(self._bucket_id)
        if queue is None or not queue.is_fair or self._ownership.suspended:
            return False  # suspended: the master takes nothing
        return queue.overfull(self._room_of(queue), self._now())

    def _room_of(self, queue: BucketQueue) -> int:
        return max(self._most() - queue.running, 0)

    def _enqueue(self, claimed_list: ClaimedList, jobs: list[ClaimedJob]) -> None:
        """Queue the jobs, and give back what memory has no room for, of tenants that have more than their share."""
        queue = self._executor.queue_of(self._bucket_id)
        if queue is None or not queue.is_fair or self._ownership.suspended:
            self._executor.enqueue_claimed(claimed_list, jobs)
            return
        here, behind = queue.take_behind(jobs)
        self._executor.enqueue(here)
        if back := [*behind, *queue.shed(self._room_of(queue))]:
            queue.gave_back(back)
            for job in back:
                self._outcome_builder.release(job)

    def _bytes_max(self) -> int:
        """Payload of one claim: up to what may be buffered, or of as many jobs as there are free slots."""
        left = CLAIMED_BYTES - self._job_table.bytes_of(self._bucket_id)
        return min(left, BATCH_BYTES) if left > 0 else BATCH_BYTES

    async def _claim_while_room(self) -> None:
        while not self.ended:
            if self.owned.frozen:
                return  # woken when it is unfrozen
            if (now := self._now()) >= self._ownership.soft_until and not self._may_claim_suspended(now):
                with self._progress.waiting:
                    await self._ownership.wait_trusted()
            elif self._outcome_writer.crowded:
                self._outcome_writer.when_relieved(self.wake)
                return
            elif (free := self._room()) <= 0:
                self._rate.full(now, self._executor.backlog(self._bucket_id))
                self._executor.want_room(self._bucket_id, self._most() // 2)
                await self._look()
                return
            else:
                self._rate.room(now, self._executor.backlog(self._bucket_id))
                answer = await self._claim(free)
                if answer is None or not (answer.entries and (answer.remaining or len(answer.entries) >= free)):
                    return

    def _may_claim_suspended(self, now: float) -> bool:
        """Past half the lease: True while the bucket has a store term and may keep more outcomes, and memory has room for
        more jobs whose start waits for the master."""
        owned, store = self.owned, self._store_settings
        if owned.closed or not self._ownership.may_start_in(owned, now):
            return False
        if owned.kept >= store.kept_outcomes or owned.kept_bytes >= store.kept_bytes:
            if not owned.full:
                owned.full = True
                fields = {"bucket": self._bucket_id, "outcomes": owned.kept, "bytes": owned.kept_bytes}
                self._log.error(Event.BUCKET_KEEPS_NO_MORE, fields)
            return False
        return self._executor.deferred(self._bucket_id) < self.prefetch_limit.jobs

    async def _look(self) -> None:
        """Without room: read what cannot wait, and spill jobs of a bucket that is over its high-water mark."""
        now = self._now()
        if now < self._look_at:
            self._arm(self._look_at - now)
            return
        self._look_at = now + _LOOK_SECONDS
        answer = await self._claim(0, oldest=self.lateness.accept_seconds is not None)
        self._arm(None)  # a job that becomes due now has no room either
        lateness = self.lateness
        spills, lateness.spills = lateness.spills, False
        if spills and answer is not None and self._is_late(answer) and self.full:
            if self.ended or self._outcome_writer.crowded or self._ownership.suspended:
                return
            answer = await self._claim(_LATE_JOBS, spill=True, oldest=True)
            lateness.not_accepted += len(answer.entries) if answer is not None else 0
        lateness.late = answer is not None and self._is_late(answer)
        while answer is not None and answer.remaining > self._spill_jobs and self.full:
            if self.ended or self._outcome_writer.crowded or self._ownership.suspended:
                return  # suspended: the master accepts nothing now
            answer = await self._claim(CLAIM_JOBS_MAX, spill=True)

    @property
    def full(self) -> bool:
        """True while memory has no room for jobs of the bucket."""
        return self._room() <= 0

    def _is_late(self, answer: Claimed) -> bool:
        """True when a job that is left in the store has waited there for longer than the shortest ``accept_time``."""
        if (limit := self.lateness.accept_seconds) is None:
            return False
        limit_us = limit * 1e6
        if answer.oldest_us and answer.now_us - answer.oldest_us > limit_us:
            return True
        overdue = answer.next_due_us > 0 and answer.now_us - answer.next_due_us > limit_us
        return overdue and self._now() - self._claim_observer.put_at(self._bucket_id) > limit

    # ------------------------------------------------------------ one claim

    async def _claim(self, limit: int, *, spill: bool = False, oldest: bool = False) -> Claimed | None:
        """One claim, and what follows from its answer; ``None``: there is none, or it does not count."""
        self._names += 1
        name = self._unanswered_list = f"{self._list_prefix}-{self._names}"
        first_asked = self._now()
        try:
            found = await self._until_answered(name, limit, oldest)
        finally:
            self._unanswered_list = None
        if found is None or self.ended:
            # A try before the refusal may have moved jobs, and nothing may be claimed past them.
            self._look_for_lists = True
            return None  # if the bucket was lost meanwhile, its list is left to the rescuer
        self.claim_seconds.observe(self._now() - first_asked)
        answer, asked_at = found
        self.waiting = answer.remaining
        if answer.entries:
            size = sum(map(len, answer.raw))
            claimed_list = ClaimedList(self.owned, name, first_asked, answer.now_us, asked_at, size=size)
            self._accept(claimed_list, answer.entries, give_back=spill)
        if answer.cancelled:
            self._cancellation.hinted(self._bucket_id, answer.cancelled, answer.remaining)
        if answer.hint:
            self._claim_observer.kick(self._bucket_id)
            self._executor.aside.hinted()
        next_due = (answer.next_due_us - answer.now_us) / 1e6 if answer.next_due_us else None
        self._claim_observer.claimed(
            self._bucket_id,
            len(answer.entries),
            len(answer.entries) - list(map(_token, answer.entries)).count(1),
            next_due,
            crowded=answer.remaining > self._spill_jobs,
        )
        self._arm(None if next_due is None else max(next_due, 0.0))
        return answer

    async def _until_answered(self, name: str, limit: int, oldest: bool) -> tuple[Claimed, float] | None:
        """Claim under one list name until an answer comes; the answer, and when that try was sent."""
        backoff = Backoff("claim", self._log, self._repeated_log)
        while not self.ended:
            asked_at, fence = self._now(), self.owned.fence
            self._progress.note()
            try:
                answer = await self._store.claim(fence, name, limit, self._bytes_max(), oldest=oldest)
            except (Unavailable, Refused) as error:
                # The same name again: if the claim whose reply was lost has moved jobs, this returns the same list.
                await backoff.pause(error)
                continue
            backoff.succeeded()
            if answer.status is ReplyStatus.OK:
                return answer, asked_at
            if fence != self.owned.fence:
                continue  # unfrozen under a new epoch during the call
            if answer.status in _FENCED:
                self._on_forgotten(self._bucket_id, f"the store answered {answer.status} to a claim", answer.status)
            elif not self.owned.closed and self._ownership.on_refused_write is not None:
                self._ownership.write_refused(self.owned, f"the store answered {answer.status} to a claim")
            return None
        return None

    def _accept(self, claimed_list: ClaimedList, entries: list[Entry], *, give_back: bool) -> None:
        fresh = self._job_table.adopt(claimed_list, entries, self._handlers)
        self.claimed += len(entries)
        if self._job_table.conflicts:
            self._log_conflicts()
        self._cancellation.claimed(claimed_list, list(map(_token, entries)).count(1))
        if give_back or self.flushing:
            for job in fresh:
                self._outcome_builder.release(job)
        else:
            ready = self._ready(fresh) if any(map(_due_us, entries)) else fresh
            if ready:
                self._enqueue(claimed_list, ready)

    def take(self, entries: Sequence[Entry], clock_us: int) -> bool:
        """Jobs that the master has just assigned to the bucket, and that are due, go straight into memory: their rows hold
        all of them, and a rescuer gives the rows back. So a chain of steps waits for no call to the store.

        Args:
            clock_us: store time minus boot time, in microseconds.

        Returns: False when there is no room, or the bucket is not to start jobs; nothing was taken.
        """
        now = self._now()
        if self.ended or self.flushing or self.owned.closed or self._free() < len(entries):
            return False
        if not self._ownership.may_start(now) or self._outcome_writer.crowded:
            return False
        self._names += 1
        name = f"{self._list_prefix}-{self._names}"  # of no list in the store; to delete it there changes nothing
        size = sum(entry.payload_bytes for entry in entries)
        claimed_list = ClaimedList(self.owned, name, now, clock_us + int(now * 1e6), size=size)
        fresh = self._job_table.adopt(claimed_list, entries, self._handlers)
        self.claimed += len(entries)
        self._cancellation.claimed(claimed_list, 0)
        if fresh:
            self._executor.enqueue_claimed(claimed_list, fresh)
        return True

    def _log_conflicts(self) -> None:
        """One id came with two payloads to buckets of this agent: the first copy counts, and the log names both."""
        conflicts, self._job_table.conflicts = self._job_table.conflicts, []
        for job_id, first, second in conflicts:
            self.conflicting += 1
            fields = {"job": job_id, "handler": first, "other_handler": second, "bucket": self._bucket_id}
            job = self._job_table.get(job_id)
            self._log.error(Event.JOB_CONFLICT, fields | (trace_fields_of(job.entry.headers) if job else {}))

    def _ready(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Jobs due now; a SavePending job that is due later goes to the master, from which it is fetched when it is due."""
        now = self._now()
        ready: list[ClaimedJob] = []
        for job in jobs:
            if job.cancelled or not self._outcome_builder.is_early(job, now):
                ready.append(job)
            else:
                self._outcome_builder.postpone(job, now)
        return ready

    def _arm(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds + _TIMER_SLACK_SECONDS, self.wake)

    # ------------------------------------------------------------ lists whose reply was lost

    async def adopt_unknown_lists(self) -> None:
        """Adopt claimed lists that the store has and memory does not (lost replies, a store restored from an older copy).

        A fenced bucket takes no submits, so nothing wakes its claimer and no claim would show the fence: this call does.
        """
        fence = self.owned.fence
        try:
            status, names = await self._store.claimed_lists(fence)
            if status in _FENCED and not self.ended and fence == self.owned.fence:
                self._on_forgotten(self._bucket_id, f"the store answered {status} to a look at its lists", status)
            if status is not ReplyStatus.OK:
                return
            for name in names:
                if self._is_known(name):
                    continue
                asked_at = self._now()
                self._progress.note()
                answer = await self._store.read_claimed(fence, name)
                if self.ended:
                    return
                if answer.status is ReplyStatus.OK and answer.entries and not self._is_known(name):
                    self._adopt(name, asked_at, answer)
        except (Unavailable, Refused):
            return  # the next round of anti-entropy looks again

    def _adopt(self, name: str, asked_at: float, answer: Claimed) -> None:
        """The list of a claim; or jobs that were onboarded before the bucket was unfrozen, which go back to the master."""
        epoch = unfrozen_epoch(name)
        owned = self.owned if epoch is None else self.owned.predecessor(epoch)
        claimed_list = ClaimedList(owned, name, asked_at, answer.now_us, size=sum(map(len, answer.raw)))
        self._accept(claimed_list, answer.entries, give_back=epoch is not None)

    def _is_known(self, name: str) -> bool:
        return name == self._unanswered_list or self._job_table.knows(self._bucket_id, name)
