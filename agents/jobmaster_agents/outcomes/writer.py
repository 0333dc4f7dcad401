"""Writes outcomes to the master in batches, then deletes the claimed lists. The commit comes first, the delete second.

No timer makes a batch: while one write is under way, outcomes collect for the next one. So light load commits each outcome
at once, and heavy load commits thousands at a time (group commit). Two writers run side by side: one commits while the other
encodes its rows.

The two refusals are kept apart here (``ports.Written``): accepted, or refused *by the row*, is settled; refused *by the
bucket lock* means that the bucket is lost, and no key is touched. An answer that leaves out an id is a defect. A commit
without an answer is repeated through the guarded statement until the answer is known; a claimed list is never deleted before.
A batch that times out, or in which the master refuses a value, is halved (``batch_write``). A row that is refused alone is
put aside with its list, so that it does not delay its neighbours.

A batch is bounded in bytes as well as in rows, and so is everything that waits here: a job may carry 256 KiB.

While the master is away outcomes wait here, up to a bound above which nothing is claimed, until they are kept in the store
(``withdraw``). An outcome that is in neither when the process ends is lost, but its job is still in its claimed list and runs
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from operator import attrgetter

from msgspec.structs import replace

from jobmaster.clock import Clock
from jobmaster.model.errors import InputError, JobMasterError, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import ReplyStatus, StepScope, WriterOutcomes, WriterStore, Written
from jobmaster.rules.batching import OUTCOME_BYTES, BatchSize, fitting_count
from jobmaster.telemetry import Telemetry
from jobmaster_agents.call_retry import Backoff, UntilAnswered
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.outcomes.acknowledger import Acknowledger
from jobmaster_agents.outcomes.batch_write import BatchWrite, copied, demand_account
from jobmaster_agents.outcomes.bucket_enqueuer import BucketEnqueuer
from jobmaster_agents.outcomes.failure_log import FailureLog
from jobmaster_agents.outcomes.metrics import OutcomeMetrics
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, JobTable, by_bucket
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress
from jobmaster_agents.state.time_limits import trace_fields_of

_row, _has_row, _weight, _ENDED = attrgetter("row"), attrgetter("has_row"), attrgetter("weight"), JobPhase.ENDED
_id, _payload = attrgetter("id"), attrgetter("payload_bytes")  # found once, not for each job
_STEP = b'"workflow":['
"""In the headers of a step, as the trigger of the master looks for it."""
BATCH_ROWS = 2000
WRITERS = 2
_UNWRITABLE_AGAIN_SECONDS = 60.0
BACKLOG_ROWS_MAX = 20_000
"""Outcomes on the way to the master above which no more jobs are claimed."""
BACKLOG_ROWS_RELIEF = 10_000

Jobs = Sequence[ClaimedJob]
Write = Callable[[Jobs], Coroutine[object, object, None]]


class OutcomeWriter:
    """Writes outcomes and settles claimed lists.

    Args:
        on_forgotten: called once per bucket that turned out to have another owner, with the reason.
        limits: gets accepted outcomes, which free permits.
        on_promoted: called with copies that may start, because the copy before them was refused.
    """

    def __init__(
        self,
        outcomes: WriterOutcomes,
        store: WriterStore,
        ownership: Ownership,
        job_table: JobTable,
        clock: Clock,
        on_forgotten: OnForgotten,
        log: EventLog | None = None,
        telemetry: Telemetry | None = None,
        progress: Progress | None = None,
        *,
        on_promoted: Callable[[Sequence[ClaimedJob]], None],
        limits: LimitedStarts,
    ) -> None:
        self._outcomes = outcomes
        self._store = store
        self._ownership = ownership
        self._job_table = job_table
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._log = log or EventLog()
        telemetry = telemetry or Telemetry()
        self.failures = FailureLog(telemetry, self._log, clock.boottime)
        self._metrics = OutcomeMetrics(telemetry, self.failures)
        self._progress = progress or Progress(clock.boottime)
        self.until_answered = UntilAnswered(ownership, clock, self._log, self._progress)
        self.acknowledger = Acknowledger(store, job_table, self.forget, self._log, self._progress)
        self.bucket_enqueuer = BucketEnqueuer(outcomes, store, job_table, self.until_answered, clock, self._log)
        self._copy: list[ClaimedJob] = []
        self._upsert: list[ClaimedJob] = []
        self._holds: list[ClaimedJob] = []
        self._holds_here: list[ClaimedJob] = []
        self._unwritable: list[ClaimedJob] = []
        self._bytes = 0  # of the backlog
        self.size = BatchSize(BATCH_ROWS)
        """Of the next statement to the master."""
        self._work = asyncio.Event()
        self._resting = 0  # writers that wait for work: only they are worth a call for each outcome
        self._writing = 0
        self._idle = asyncio.Event()
        self._when_relieved: list[Callable[[], None]] = []
        self.on_ended: Callable[[Sequence[FinalRow]], None] = lambda rows: None
        """Called with outcomes that the master has accepted."""
        self.on_batch: Callable[[], None] = lambda: None
        """Called before outcomes are written."""
        self.on_continued: Callable[[bytes], None] = lambda bucket_id: None
        """Called with a bucket a job of which has ended as the step of a workflow: a next step may be due in the master."""
        self.step_scope: Callable[[OwnedBucket], StepScope | None] = lambda owned: None
        """Which next steps a bucket takes now; ``None``: none."""
        self.take_next: Callable[[OwnedBucket, Sequence[Entry], int], bool] = lambda owned, entries, clock_us: False
        """Takes next steps that are ASSIGNED to a bucket into memory; False: they are put into the store. (The number: store
        time minus boot time, microseconds.)"""
        self._on_promoted = on_promoted
        self._limits = limits
        self.copied = 0
        self.upserted = 0
        self.refused = 0
        self.quarantined = 0
        self.fenced_batches = 0

    # ------------------------------------------------------------ outcomes in

    def final(self, job: ClaimedJob) -> None:
        """Queue a ``FinalRow``."""
        self._bytes += job.weight
        (self._upsert if job.has_row else self._copy).append(job)
        if self._resting:
            self._work.set()

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        """Queue a ``HoldRow``; ``here`` keeps the job in its bucket if that still takes jobs."""
        job.weight = job.row.payload_bytes  # type: ignore[union-attr]
        self._bytes += job.weight
        (self._holds_here if here and not job.claimed_list.owned.closed else self._holds).append(job)
        self._work.set()

    @property
    def backlog(self) -> int:
        """Outcomes not yet settled."""
        waiting = len(self._copy) + len(self._upsert) + len(self._holds) + len(self._holds_here)
        return waiting + self._writing + len(self._unwritable)

    @property
    def crowded(self) -> bool:
        """True when no more jobs should be claimed until outcomes have been written."""
        return self.backlog > BACKLOG_ROWS_MAX or self._bytes > OUTCOME_BYTES

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call back once, when the backlog is well below ``crowded``."""
        self._when_relieved.append(call)

    async def wait_settled(self) -> None:
        """Wait until every outcome so far is in the master and its list deleted (tests; unbounded)."""
        while self.backlog or not self.acknowledger.idle:
            self._idle.clear()
            if self.backlog:
                await self._idle.wait()
            await self.acknowledger.wait_idle()

    # ------------------------------------------------------------ the loops

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_loop(), name="jobmaster-outcome-writer")
            group.create_task(self.acknowledger.run(), name="jobmaster-acknowledger")
            group.create_task(self.bucket_enqueuer.run(), name="jobmaster-bucket-enqueuer")

    async def _write_loop(self) -> None:
        with self._progress.expect("an outcome writer"):
            while True:
                await self._write_waiting()

    async def _write_waiting(self) -> None:
        """What waits now, a batch of each kind; or wait for work."""
        if not (self._copy or self._upsert or self._holds or self._holds_here):
            self._work.clear()
            if not self.backlog:
                self._idle.set()
            self._resting += 1
            with self._progress.waiting:
                await self._work.wait()
            self._resting -= 1
            return
        await self.until_answered.may_commit()  # before a batch is taken: later outcomes join it
        self._progress.note()
        self.on_batch()
        await self._batch(self._copy, self._write_copy)
        await self._batch(self._upsert, self._write_upsert)
        await self._batch(self._holds, self._write_holds)
        await self._batch(self._holds_here, self._write_holds_here)

    async def _batch(self, queue: list[ClaimedJob], write: Write) -> None:
        if not queue:
            return
        taken = queue[: self.size.rows]
        weights = list(map(_weight, taken))
        if (total := sum(weights)) > self.size.bytes:
            taken = taken[: fitting_count(weights, self.size.bytes)]
            total = sum(islice(weights, len(taken)))
        del queue[: len(taken)]
        jobs = [job for job in taken if job.phase is _ENDED]  # the rest was dropped with its bucket
        if queue is self._copy and True in map(_has_row, jobs):
            # They got rows while they waited here; one row that exists would fail the COPY for all.
            known = [job for job in jobs if job.has_row]
            self._upsert += known
            total -= sum(map(_weight, known))
            jobs = [job for job in jobs if not job.has_row]
        self._writing += len(jobs)
        try:
            if jobs:
                began = self._now()
                await write(jobs)
                self._metrics.wrote(self._now() - began)
        finally:
            self._writing -= len(jobs)
            self._bytes -= total
        self._relieve()

    async def send(self, what: str, jobs: Jobs, send: Callable[[Jobs], Coroutine[object, object, Written]]) -> Written:
        """Send all jobs, in one statement or in several; the answer about them.

        Jobs whose values the master refuses are put aside and left out of the answer, so nothing of theirs is settled. So
        are jobs that the bucket's lock refused; a part that was sent before may have been accepted.
        """
        backoff = Backoff(what, self._log)

        async def until_answered(some: Jobs) -> Written:
            answer = await self.until_answered(
                what, lambda: send(some), refusals=False, rows=True, timeouts=len(some) == 1
            )
            backoff.succeeded()
            return answer

        async def on_refused(job: ClaimedJob, error: Refused | InputError) -> bool:
            self._put_aside(job, error)
            return True

        batches: BatchWrite[ClaimedJob] = BatchWrite(self.size, _id_of, _bytes_of, backoff.pause)
        return await batches.write_all(jobs, until_answered, on_refused)

    async def _give_back(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> HELD, repeated until answered, also after refusals."""

        async def until_answered(some: Sequence[HoldRow]) -> Written:
            return await self.until_answered("hold", lambda: self._outcomes.hold(fence, some), timeouts=len(some) == 1)

        async def on_refused(row: HoldRow, error: Refused | InputError) -> bool:
            raise error  # unreachable: ``until_answered`` repeats after refusals

        batches: BatchWrite[HoldRow] = BatchWrite(self.size, _id, _payload, Backoff("hold", self._log).pause)
        written = await batches.write_all(rows, until_answered, on_refused)
        self._metrics.given_back(rows, written, here=False)
        return written

    def _put_aside(self, job: ClaimedJob, error: JobMasterError) -> None:
        """The master refuses this job's values: it stays in memory and in its list and is tried again now and then."""
        job.unwritable = True
        fields = {"job": job.entry.id, "handler": job.entry.handler, "reason": str(error)}
        self._log.error(Event.JOB_UNWRITABLE, {**fields, **trace_fields_of(job.entry.headers)})
        if job.row is not None:
            if not self._unwritable:
                asyncio.get_running_loop().call_later(_UNWRITABLE_AGAIN_SECONDS, self._write_again)
            self._unwritable.append(job)
            self._bytes += job.weight

    def _write_again(self) -> None:
        jobs, self._unwritable = self._unwritable, []
        for job in jobs:
            (self._upsert if isinstance(job.row, FinalRow) else self._holds).append(job)
        self._work.set()

    def withdraw(self, is_kept: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Take back outcomes that are kept in the store and that no writer has taken: those may be on their way."""
        kept: list[ClaimedJob] = []
        for queue in (self._copy, self._upsert, self._holds, self._holds_here):
            kept += filter(is_kept, queue)
            queue[:] = [job for job in queue if not is_kept(job)]
        self._bytes -= sum(map(_weight, kept))
        self._relieve()
        return kept

    def _relieve(self) -> None:
        if self._when_relieved and self.backlog <= BACKLOG_ROWS_RELIEF and self._bytes <= OUTCOME_BYTES // 2:
            calls, self._when_relieved = self._when_relieved, []
            for call in calls:
                call()

    # ------------------------------------------------------------ final rows

    async def _write_copy(self, jobs: Jobs) -> None:
        rows: list[FinalRow] = list(map(_row, jobs))  # what waits for the COPY has a final row
        try:
            done = await copied(self._outcomes, rows)
        except Unavailable:
            done = False
            self.size.timed_out(len(jobs), sum(map(_weight, jobs)))
        if done:
            self.size.succeeded()
            self.copied += len(rows)
            self._metrics.ended(rows)
            self.on_ended(rows)
            self.settle_accepted(jobs)
        else:
            await self._write_upsert(jobs)

    async def _write_upsert(self, jobs: Jobs) -> None:
        # A step always has a row, so outcomes that are copied are not looked through.
        steps = [job for job in jobs if _is_step(job.entry)]
        if steps:
            await self._write_steps(steps)
            jobs = [job for job in jobs if not _is_step(job.entry)]
        if jobs:
            await self._record(jobs, "record_final", self._outcomes.record_final)

    async def _record(
        self, jobs: Jobs, what: str, record: Callable[[Sequence[FinalRow]], Coroutine[object, object, Written]]
    ) -> None:
        written = await self.send(what, jobs, lambda some: record(_finals(some)))
        self.upserted += len(written.accepted)
        self._metrics.accepted(_finals(jobs), written)
        self.on_ended([row for row in _finals(jobs) if row.id in written.accepted])
        self._settle(jobs, written)

    async def _write_steps(self, jobs: Jobs) -> None:
        """Outcomes of steps of workflows; the next steps stay in the bucket, and in memory, where it may take them."""
        for owned, mine in by_bucket(jobs):
            scope, fence, entries = self.step_scope(owned), owned.fence, list[Entry]()
            bucket_id, more = fence.bucket_id, scope is None
            if scope is None:
                await self._record(mine, "record_final", self._outcomes.record_final)
            else:

                async def finish(
                    rows: Sequence[FinalRow],
                    fence: Fence = fence,
                    scope: StepScope = scope,
                    entries: list[Entry] = entries,
                ) -> Written:
                    nonlocal more
                    finished = await self._outcomes.finish_steps(fence, rows, scope)
                    entries += finished.entries
                    more = more or finished.more
                    return finished.written

                await self._record(mine, "finish_steps", finish)
            clock_us = mine[0].claimed_list.clock_us
            entries = _due_by(entries, clock_us + int(self._now() * 1e6))
            taken = bool(entries) and fence == owned.fence and self.take_next(owned, entries, clock_us)
            if entries and not taken:
                await self._put_assigned(
                    owned, fence, entries, [HoldRow.of(entry, owned.priority, owned.lane) for entry in entries]
                )
            if more:
                self.on_continued(bucket_id)

    # ------------------------------------------------------------ back to the master, or later here

    async def _write_holds(self, jobs: Jobs) -> None:
        for owned, mine in by_bucket(jobs):
            written = await self.send("hold", mine, lambda some, f=owned.fence: self._outcomes.hold(f, _holds(some)))  # type: ignore[misc]
            self._metrics.given_back(_holds(mine), written, here=False)
            self._settle(mine, written)

    async def _write_holds_here(self, jobs: Jobs) -> None:
        for owned, mine in by_bucket(jobs):
            fence = owned.fence
            written = await self.send(
                "retry_here",
                mine,
                lambda some, f=fence: self._outcomes.retry_here(f, _holds(some)),  # type: ignore[misc]
            )
            done = mine if written.bucket_ok else [job for job in mine if job.entry.id in written.settled]
            self._metrics.given_back(_holds(done), written, here=True)
            rows = [row for row in _holds(done) if row.id in written.accepted and row.id not in written.cancelled]
            self._settle(done, written)
            if rows:
                back = [row._replace(token=row.token + 1, error=None, ran_us=0) for row in rows]
                await self._put_assigned(owned, fence, list(map(_next_entry, rows)), back)
            if not written.bucket_ok:
                if not owned.closed:  # else it began to complete, or was frozen, meanwhile
                    self.refused_by_bucket(owned, "a write was refused by the bucket's lock")
                if not owned.lost:  # giving jobs back needs no bucket, only their rows
                    await self._write_holds([job for job in mine if job.entry.id not in written.settled])

    async def _put_assigned(
        self, owned: OwnedBucket, fence: Fence, entries: Sequence[Entry], rows: Sequence[HoldRow]
    ) -> None:
        """Put the copies of rows that the master has ASSIGNED to the bucket: retries, and next steps.

        Rows of jobs that the bucket does not take are given back, as ``rows`` has them, under their new identity.
        """
        result = await self.bucket_enqueuer.put(fence, entries)
        if result.done:
            return
        if result.shows_loss(owned, fence):
            self.forget(fence.bucket_id, f"the store answered {result.reply} to a retry or a next step", result.reply)
            return  # the rescuer sweeps the rows
        if result.left:
            ids = {entry.id for entry in result.left}
            await self._give_back(fence, [row for row in rows if row.id in ids])

    async def give_back(self, owned: OwnedBucket, entries: Sequence[Entry]) -> bool:
        """Jobs in a bucket that is being emptied -> HELD; True when the master has settled every one of them."""
        rows = [HoldRow.of(entry, owned.priority, owned.lane) for entry in entries]
        written = await self._give_back(owned.fence, rows)
        self.refused += len(written.refused)
        self.quarantined += len(written.quarantined)
        self.acknowledger.publish(owned, sorted(written.accepted))
        return written.bucket_ok and all(entry.id in written.settled for entry in entries)

    # ------------------------------------------------------------ after a write

    def _settle(self, jobs: Jobs, written: Written) -> None:
        self.refused += len(written.refused)
        self.quarantined += len(written.quarantined)
        over = written.refused | written.quarantined
        accepted = written.accepted | written.cancelled if written.cancelled else written.accepted
        if not over and len(accepted) >= len(jobs):
            self.settle_accepted(jobs)
            return
        demand_account([job.entry.id for job in jobs if not job.unwritable], written)
        self.settle_accepted([job for job in jobs if job.entry.id in accepted])
        for job in jobs:
            if job.entry.id in over:
                self.settle_refused(job)

    def settle_accepted(self, jobs: Jobs) -> None:
        """The master has accepted what was written about these copies."""
        settled = self._job_table.settle_accepted(jobs)
        if self._limits:
            self._limits.settled(jobs)
        self.acknowledger.delete(settled.lists)
        for owned, ids in settled.ended.items():
            self.acknowledger.publish(owned, ids)
        self._resume(settled.promoted)

    def recorded(self, row: FinalRow) -> None:
        """An attempt has recorded its outcome itself, in its own transaction."""
        self._metrics.ended([row])
        self.on_ended([row])
        if _STEP in row.headers:
            self.on_continued(row.bucket_id)

    def settle_refused(self, job: ClaimedJob) -> None:
        """The row belongs to another assignment, or is final: the copy is settled, nothing is recorded."""
        claimed_lists, promoted = self._job_table.settle(job, accepted=False)
        self.acknowledger.delete(claimed_lists)
        self._resume(promoted)

    def _resume(self, promoted: Jobs) -> None:
        if promoted:
            self._on_promoted(promoted)

    def refused_by_bucket(self, owned: OwnedBucket, why: str) -> None:
        """Refused by the bucket's lock: lost, or frozen by an operator. Nothing of it is settled."""
        self.fenced_batches += 1
        self._ownership.write_refused(owned, why)

    def forget(self, bucket_id: bytes, why: str, reply: ReplyStatus | None = None) -> None:
        """The bucket has another owner: nothing of it is settled, no key of it is touched."""
        self.fenced_batches += 1
        self._on_forgotten(bucket_id, why, reply)


def _is_step(entry: Entry) -> bool:
    """True for the job of a step of a workflow."""
    return bool(entry.headers) and _STEP in entry.headers


def _due_by(entries: Sequence[Entry], store_us: int) -> list[Entry]:
    """What the master has found due is due by the store's clock, too: each step of a chain would otherwise wait for as
    long as the master's clock is ahead."""
    return [each if each.due_us <= store_us else replace(each, due_us=store_us) for each in entries]


def _finals(jobs: Jobs) -> list[FinalRow]:
    return [job.row for job in jobs if isinstance(job.row, FinalRow)]


def _holds(jobs: Jobs) -> list[HoldRow]:
    return [job.row for job in jobs if isinstance(job.row, HoldRow)]


def _next_entry(row: HoldRow) -> Entry:
    return Entry(row.id, row.token + 1, row.handler, row.args, row.due_us, row.headers, row.attempt, row.rescues)


def _id_of(job: ClaimedJob) -> bytes:
    return job.entry.id


def _bytes_of(job: ClaimedJob) -> int:
    return job.entry.payload_bytes if job.row is None else job.weight
