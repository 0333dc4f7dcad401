"""Writes rows of jobs that have not ended: for the promise of SavePending, and to authorise fenced starts.

Within ``persist_within`` of its claim a job has its row in the master, or has ended. The periodic task reads the
claimed lists that are half that old and writes in-flight rows for their jobs that have not ended, one statement per
bucket. When jobs are quick there is nothing to do: their lists are settled before.

A rescuer must be able to see which jobs may have crashed the agent. A job whose row shows only that it is queued keeps
its claimed list: it may start and crash this process before its row is PROCESSING, and then the list counts the
rescue. A job that was rescued before is written PROCESSING before it starts, so that of those only the one that really
ran is counted. A job that waits for a thread, a worker process or a task has not begun, whatever its slot has done
with it.

A job whose handler has a limit is written by another statement, which gives a permit or denies it; a job that is denied has
no new row and waits aside (``state.limited_starts``).

A job whose handler has ``start="fenced"`` waits for the same statement before it is called. While one write is under way the
next starts collect for the following one.

The PROCESSING row of a job with a ``complete_time`` has the time at which the job is given to another agent. A run that is
to end then (``cancel_slow``), or whose successor waits behind it in this process, writes its row again after that time. The
row refuses the write as soon as the job is another assignment's, and the run is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from math import inf

import msgspec

from jobmaster.clock import Clock
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model.flow.limit import FullLimit
from jobmaster.model.job import InFlightRow, JobState
from jobmaster.ports import InFlightOutcomes, Written
from jobmaster.ports import LimitedStarts as MasterLimits
from jobmaster_agents.outcomes.outcome_builder import StopCause, is_at_most_once, needs_write
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobPhase, JobTable, by_bucket
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.ownership import OwnedBucket
from jobmaster_agents.state.progress import Progress
from jobmaster_agents.state.time_limits import cancels_slow, complete_seconds

_BATCH_JOBS = 1000
_WAITING = (JobPhase.QUEUED, JobPhase.RUNNING)
_NONE: frozenset[bytes] = frozenset()
_ASK_AGAIN_SECONDS = 1.0
"""Between two writes of a row that may be another assignment's."""
StartedAt = Callable[[ClaimedJob], float | None]
"""When a job was started (CLOCK_BOOTTIME seconds); ``None``: it does not run."""


class InFlightRows:
    """Writes in-flight rows.

    Args:
        stop: stops a job that is cancelled or that another assignment holds.
        waits: True for a job that its slot has passed on and that waits for a thread, a worker process or a task.
        started_at: when a job was started.
    """

    def __init__(
        self,
        outcomes: InFlightOutcomes,
        job_table: JobTable,
        outcome_writer: OutcomeWriter,
        stop: Callable[[ClaimedJob, StopCause], None],
        waits: Callable[[ClaimedJob], bool],
        started_at: StartedAt,
        clock: Clock,
        progress: Progress,
        limits: LimitedStarts,
        master_limits: MasterLimits,
    ) -> None:
        self._started_at = started_at
        self._limits = limits
        self._master_limits = master_limits
        self._now = clock.boottime
        self._progress = progress
        self._outcomes = outcomes
        self._job_table = job_table
        self._outcome_writer = outcome_writer
        self._stop = stop
        self._waits = waits
        self._starts: list[tuple[ClaimedJob, asyncio.Future[bool | None]]] = []
        self._asking: list[asyncio.Future[bool | None]] = []
        self._work = asyncio.Event()

    # ------------------------------------------------------------ fenced starts

    async def authorise(self, job: ClaimedJob) -> bool | None:
        """True when the master has accepted a PROCESSING write for this job, under the bucket lock; ``None`` when it does not
        answer: then call again later. After False, ``LimitedStarts.take_denial`` names the limit that had no permit, if that
        was the reason."""
        if is_at_most_once(job):
            _mark_at_most_once(job)
        allowed: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._starts.append((job, allowed))
        self._work.set()
        return await allowed

    async def run(self) -> None:
        """Answer ``authorise`` until cancelled."""
        with self._progress.expect("the writer of fenced starts"):
            while True:
                if not self._starts:
                    self._work.clear()
                    with self._progress.waiting:
                        await self._work.wait()
                self._progress.note()
                await self._authorise_waiting()

    async def _authorise_waiting(self) -> None:
        starts, self._starts = self._starts[:_BATCH_JOBS], self._starts[_BATCH_JOBS:]
        waiting = {job: allowed for job, allowed in starts if not allowed.done()}
        self._asking = list(waiting.values())
        limited = list(filter(self._limits.needs_permits, waiting))
        unlimited = [job for job in waiting if not self._limits.needs_permits(job)] if limited else list(waiting)
        for owned, jobs in (*by_bucket(unlimited), *by_bucket(limited)):
            accepted = await self.write(owned, jobs, starting=True)
            for job in jobs:
                if accepted is None and job.phase is JobPhase.RUNNING and job.claimed_list.owned.successor is None:
                    job.phase = JobPhase.QUEUED  # not started; it goes on when its bucket has a new fence
                if not waiting[job].done():
                    waiting[job].set_result(accepted is not None and job.entry.id in accepted)

    def put_off(self) -> None:
        """Answer ``None`` to all that wait: the master does not answer, and no job waits for it in a slot. A write that was
        sent may still be accepted; repeated it is the same write."""
        starts, self._starts = self._starts, []
        for allowed in (*self._asking, *(allowed for _, allowed in starts)):
            if not allowed.done():
                allowed.set_result(None)

    # ------------------------------------------------------------ the statement

    async def write(
        self, owned: OwnedBucket, jobs: Sequence[ClaimedJob], *, starting: bool = False
    ) -> Collection[bytes] | None:
        """Write rows of jobs that have not ended, which frees the claimed lists of those that run; the accepted ids.

        ``None``: the bucket accepts no binding write now, or its lock refused it; none of the jobs is settled.
        """
        jobs = [job for job in jobs if job.phase in _WAITING]
        if owned.frozen or owned.successor is not None:
            return None
        if not jobs:
            return _NONE
        fence = owned.fence
        begun = {job for job in jobs if job.phase is JobPhase.RUNNING and (starting or self._counts_as_begun(job))}
        for job in jobs:
            job.has_row = True  # from here on it may have one, whatever becomes of the answer

        def row(job: ClaimedJob) -> InFlightRow:
            return _in_flight(job, self._late_seconds(job, starting) if job in begun else None)

        denied: dict[bytes, FullLimit] = {}

        async def send(some: Sequence[ClaimedJob]) -> Written:
            rows = list(map(row, some))
            if not (starting and self._limits.needs_permits(some[0])):  # none or all of them have limits
                return await self._outcomes.persist(fence, rows)
            admission = await self._master_limits.admit(
                fence, rows, {job.entry.id: self._limits.uses(job) for job in some}
            )
            denied.update(admission.denied)
            return admission.written._replace(accepted=admission.written.accepted | admission.denied.keys())

        written = await self._outcome_writer.send("persist", jobs, send)
        if denied:
            written = written._replace(accepted=written.accepted - denied.keys())
        if not written.bucket_ok:
            if fence == owned.fence:
                self._outcome_writer.refused_by_bucket(owned, "an in-flight write was refused by the bucket's lock")
            return None
        for job in jobs:
            self._note(job, written, begun=job in begun)
            if starting and self._limits.needs_permits(job):
                self._note_permit(job, written, denied.get(job.entry.id))
        self._outcome_writer.acknowledger.publish(
            owned, [job.entry.id for job in jobs if job.entry.id in written.accepted]
        )
        return written.accepted - written.cancelled

    def _note_permit(self, job: ClaimedJob, written: Written, full: FullLimit | None) -> None:
        if full is not None:
            self._limits.denied(job, full)
        elif job.entry.id in written.accepted:
            self._limits.admitted(job)

    def _late_seconds(self, job: ClaimedJob, starting: bool) -> float:
        """Of a job that has begun, or begins when the write is accepted: seconds from now until another agent gets it."""
        if (limit := complete_seconds(job)) is None:
            return inf
        started = None if starting else self._started_at(job)
        return limit if started is None else max(limit - (self._now() - started), 0.0)

    def _counts_as_begun(self, job: ClaimedJob) -> bool:
        return _may_begin(job) and not self._waits(job)

    def _note(self, job: ClaimedJob, written: Written, *, begun: bool) -> None:
        job_id = job.entry.id
        if job_id in written.accepted or job_id in written.cancelled:
            if job_id in written.accepted:
                job.row_state = JobState.PROCESSING if begun else job.row_state or JobState.ASSIGNED
            # The row has our identity and the whole payload: this job no longer needs the list.
            if begun and (claimed_list := self._job_table.make_safe(job)) is not None:
                self._outcome_writer.acknowledger.delete([claimed_list])
            if job_id in written.cancelled and job.phase in _WAITING:
                self._stop(job, StopCause.CANCEL)
        elif job_id in written.refused or job_id in written.quarantined:
            self._superseded(job)

    def _superseded(self, job: ClaimedJob) -> None:
        """The row belongs to another assignment, or is final: stop the handler, record nothing."""
        if job.phase not in _WAITING:
            return  # it has ended meanwhile, and its own outcome may be the final row: that write decides
        self._outcome_writer.refused += 1
        was_running = job.phase is JobPhase.RUNNING
        self._outcome_writer.settle_refused(job)
        if was_running:
            self._stop(job, StopCause.SUPERSEDED)


class InFlightWriter:
    """Periodic task: ticks four times per ``persist_within``; reads memory only, unless a job is slow.

    Args:
        running_before: jobs that run and were started before a moment (CLOCK_BOOTTIME seconds). Their rows must say
            PROCESSING: a rescue counts those, and not what was only queued.
    """

    name = "in-flight-writer"

    def __init__(
        self,
        job_table: JobTable,
        in_flight: InFlightRows,
        running_before: Callable[[float], Sequence[ClaimedJob]],
        started_at: StartedAt,
        clock: Clock,
        persist_within_seconds: float,
    ) -> None:
        self._job_table = job_table
        self._in_flight = in_flight
        self._running_before = running_before
        self._started_at = started_at
        self._asked_at = -inf
        self._now = clock.boottime
        self._within_seconds = persist_within_seconds

    async def tick(self) -> float:
        """Write rows of old lists; seconds until the next tick."""
        now = self._now()
        moment = now - self._within_seconds / 2
        slow = _slow(self._job_table.unpersisted(moment))
        slow += [job for job in self._running_before(moment) if _is_only_queued(job)]
        slow += self._perhaps_reassigned(now)
        for owned, jobs in by_bucket(slow):
            for first in range(0, len(jobs), _BATCH_JOBS):
                await self._in_flight.write(owned, jobs[first : first + _BATCH_JOBS])
        return self._within_seconds / 4

    def _perhaps_reassigned(self, now: float) -> list[ClaimedJob]:
        """Jobs past their ``complete_time`` whose run ends when another assignment has the job."""
        if now - self._asked_at < _ASK_AGAIN_SECONDS:
            return []
        self._asked_at = now
        found: list[ClaimedJob] = []
        for job in self._running_before(now):
            limit = complete_seconds(job) if job.row_state is JobState.PROCESSING else None
            if limit is not None and (job.followers or cancels_slow(job)):
                started = self._started_at(job)
                if started is not None and now - started > limit:
                    found.append(job)
        return found


def _slow(claimed_lists: Sequence[ClaimedList]) -> list[ClaimedJob]:
    return [
        job
        for claimed_list in claimed_lists
        for job in claimed_list.jobs
        if not job.safe and job.row_state is None and not job.unwritable and job.phase in _WAITING
    ]


def _is_only_queued(job: ClaimedJob) -> bool:
    """True when it runs and its row is ASSIGNED."""
    return job.row_state is JobState.ASSIGNED and _may_begin(job) and not job.unwritable


def _may_begin(job: ClaimedJob) -> bool:
    """False until the write before its start is accepted: its slot may run only to wait for that."""
    return job.row_state is JobState.PROCESSING or not needs_write(job)


def _in_flight(job: ClaimedJob, late_seconds: float | None = None) -> InFlightRow:
    """The row of a job that only waits; or of one that has begun, and when another agent gets it (``inf``: never)."""
    entry, owned = job.entry, job.claimed_list.owned
    state = JobState.ASSIGNED if late_seconds is None else JobState.PROCESSING
    return InFlightRow(
        entry.id, state, owned.priority, owned.lane, entry.handler, entry.token, entry.attempt, entry.rescues,
        entry.due_us, entry.args, entry.headers, None if late_seconds == inf else late_seconds,
    )  # fmt: skip


def _mark_at_most_once(job: ClaimedJob) -> None:
    """Set ``at_most_once`` in the headers of a job that has it from its handler alone, before its start is written: a rescuer
    must find it in the row."""
    headers = decode_headers(job.entry.headers)
    if not headers.at_most_once:
        job.headers = msgspec.structs.replace(headers, at_most_once=True)
        job.entry = msgspec.structs.replace(job.entry, headers=encode_headers(job.headers))
