"""Rows of jobs that have not ended: the promise of SavePending, and the authority of a fenced start.

Within ``persist_within`` of its claim a job has its row in the master, or has ended. The duty looks at claimed lists that
are half that old and gives the jobs in them that have not ended their in-flight rows, one statement per bucket. In quick
times there is nothing to do: lists are settled long before.

What a rescuer finds must tell who may have brought the agent down. A job whose row says only that it is queued keeps its
claimed list: it may start and kill this process before its row says PROCESSING, and then the list counts the rescue. A job
that was rescued before is written PROCESSING before it starts, so that of those only the one that really ran is counted.
A job that waits for a thread, a worker process or a task has not begun, whatever its slot has done with it.

A job whose handler says ``start="fenced"`` waits for the same statement before it is called. While one write is under way
the next starts pile up for the following one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgspec

from jobmaster.clock import Clock
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model.job import InFlightRow, JobState
from jobmaster.ports import Outcomes, Written
from jobmaster_agents.outcomes.outcome import StopCause, is_at_most_once, needs_write
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobPhase, JobTable, by_bucket
from jobmaster_agents.state.ownership import OwnedBucket

_BATCH_JOBS = 1000
_WAITING = (JobPhase.QUEUED, JobPhase.RUNNING)
_NONE: frozenset[bytes] = frozenset()


class InFlightRows:
    """Writes in-flight rows.

    Args:
        stop: stop a job whose row says so (cancelled, or another assignment's).
        waits: true of a job that its slot has passed on, and that waits for a thread, a worker process or a task.
    """

    def __init__(
        self,
        master: Outcomes,
        job_table: JobTable,
        outcome_writer: OutcomeWriter,
        stop: Callable[[ClaimedJob, StopCause], None],
        waits: Callable[[ClaimedJob], bool],
    ) -> None:
        self._master = master
        self._job_table = job_table
        self._outcome_writer = outcome_writer
        self._stop = stop
        self._waits = waits
        self._starts: list[tuple[ClaimedJob, asyncio.Future[bool | None]]] = []
        self._asking: list[asyncio.Future[bool | None]] = []
        self._work = asyncio.Event()

    # ------------------------------------------------------------ fenced starts

    async def authorise(self, job: ClaimedJob) -> bool | None:
        """True when the master accepted a PROCESSING write for this job, under the bucket lock; None when it does not
        answer and the job is to be asked about again later."""
        if is_at_most_once(job):
            _mark_at_most_once(job)
        allowed: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._starts.append((job, allowed))
        self._work.set()
        return await allowed

    async def run(self) -> None:
        """Answer ``authorise`` until cancelled."""
        while True:
            if not self._starts:
                self._work.clear()
                await self._work.wait()
            starts, self._starts = self._starts[:_BATCH_JOBS], self._starts[_BATCH_JOBS:]
            waiting = {job: allowed for job, allowed in starts if not allowed.done()}
            self._asking = list(waiting.values())
            for owned, jobs in by_bucket(list(waiting)):
                accepted = await self.write(owned, jobs, starting=True)
                for job in jobs:
                    if accepted is None and job.phase is JobPhase.RUNNING and job.claimed_list.owned.successor is None:
                        job.phase = JobPhase.QUEUED  # not started; it goes on when the word on its bucket is there
                    if not waiting[job].done():
                        waiting[job].set_result(accepted is not None and job.entry.id in accepted)

    def put_off(self) -> None:
        """The master does not answer: nobody waits for it in a slot. A write that was sent may still be accepted; asked
        for again it is the same write."""
        starts, self._starts = self._starts, []
        for allowed in (*self._asking, *(allowed for _, allowed in starts)):
            if not allowed.done():
                allowed.set_result(None)

    # ------------------------------------------------------------ the statement

    async def write(
        self, owned: OwnedBucket, jobs: Sequence[ClaimedJob], *, starting: bool = False
    ) -> Collection[bytes] | None:
        """Give jobs that have not ended their rows (and so free the claimed lists of those that run); the accepted ids.

        ``None``: the bucket binds nothing now, or its lock refused it; none of the jobs is settled.
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
        written = await self._outcome_writer.send(
            "persist", jobs, lambda some: self._master.persist(fence, [_in_flight(job, job in begun) for job in some])
        )
        if not written.bucket_ok:
            if fence == owned.fence:
                self._outcome_writer.refused_by_bucket(owned, "an in-flight write was refused by the bucket's lock")
            return None
        for job in jobs:
            self._note(job, written, begun=job in begun)
        self._outcome_writer.acknowledger.publish(
            owned, [job.entry.id for job in jobs if job.entry.id in written.accepted]
        )
        return written.accepted - written.cancelled

    def _counts_as_begun(self, job: ClaimedJob) -> bool:
        return _may_begin(job) and not self._waits(job)

    def _note(self, job: ClaimedJob, written: Written, *, begun: bool) -> None:
        job_id = job.entry.id
        if job_id in written.accepted or job_id in written.cancelled:
            if job_id in written.accepted:
                job.row_state = JobState.PROCESSING if begun else job.row_state or JobState.ASSIGNED
            # The row bears our identity and the whole payload: the list is not needed for this job any more.
            if begun and (claimed_list := self._job_table.make_safe(job)) is not None:
                self._outcome_writer.acknowledger.delete([claimed_list])
            if job_id in written.cancelled and job.phase in _WAITING:
                self._stop(job, StopCause.CANCEL)
        elif job_id in written.refused or job_id in written.quarantined:
            self._superseded(job)

    def _superseded(self, job: ClaimedJob) -> None:
        """The row belongs to another assignment, or is final: stop the handler, record nothing."""
        if job.phase not in _WAITING:
            return  # it has ended meanwhile, and the row may be final by its own outcome: that write will tell
        self._outcome_writer.refused += 1
        was_running = job.phase is JobPhase.RUNNING
        self._outcome_writer.settle_refused(job)
        if was_running:
            self._stop(job, StopCause.SUPERSEDED)


class InFlightWriter:
    """A duty: ticks four times per ``persist_within``; memory only, unless something is slow.

    Args:
        running_before: jobs that run and were started before a moment (CLOCK_BOOTTIME seconds). Their rows must say so: a
            rescue counts what it finds PROCESSING, and not what was merely queued.
    """

    name = "persisting"

    def __init__(
        self,
        job_table: JobTable,
        in_flight: InFlightRows,
        running_before: Callable[[float], Sequence[ClaimedJob]],
        clock: Clock,
        persist_within_seconds: float,
    ) -> None:
        self._job_table = job_table
        self._in_flight = in_flight
        self._running_before = running_before
        self._now = clock.boottime
        self._within_seconds = persist_within_seconds

    async def tick(self) -> float:
        """Persist what is old; returns seconds until the next look."""
        moment = self._now() - self._within_seconds / 2
        slow = _slow(self._job_table.unpersisted(moment))
        slow += [job for job in self._running_before(moment) if _is_only_queued(job)]
        for owned, jobs in by_bucket(slow):
            for first in range(0, len(jobs), _BATCH_JOBS):
                await self._in_flight.write(owned, jobs[first : first + _BATCH_JOBS])
        return self._within_seconds / 4


def _slow(claimed_lists: Sequence[ClaimedList]) -> list[ClaimedJob]:
    return [
        job
        for claimed_list in claimed_lists
        for job in claimed_list.jobs
        if not job.safe and job.row_state is None and not job.unwritable and job.phase in _WAITING
    ]


def _is_only_queued(job: ClaimedJob) -> bool:
    """It runs, and its row does not say so."""
    return job.row_state is JobState.ASSIGNED and _may_begin(job) and not job.unwritable


def _may_begin(job: ClaimedJob) -> bool:
    """False while the write that stands before its start is not accepted: its slot may run and yet only ask for that."""
    return job.row_state is JobState.PROCESSING or not needs_write(job)


def _in_flight(job: ClaimedJob, begun: bool) -> InFlightRow:
    entry, owned = job.entry, job.claimed_list.owned
    state = JobState.PROCESSING if begun else JobState.ASSIGNED
    return InFlightRow(
        entry.id, state, owned.priority, owned.lane, entry.handler, entry.token, entry.attempt, entry.rescues,
        entry.due_us, entry.args, entry.headers,
    )  # fmt: skip


def _mark_at_most_once(job: ClaimedJob) -> None:
    """Before its start is written: a job whose handler alone says ``at_most_once`` says so in its headers from now on, for
    whoever finds its row must see it there."""
    headers = decode_headers(job.entry.headers)
    if not headers.at_most_once:
        job.headers = msgspec.structs.replace(headers, at_most_once=True)
        job.entry = msgspec.structs.replace(job.entry, headers=encode_headers(job.headers))
