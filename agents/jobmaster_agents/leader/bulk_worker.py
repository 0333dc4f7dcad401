"""The leader's work on bulk operations: page by page, the oldest operation first, with a pause after each page.

A page is one transaction that changes its jobs, moves the cursor of the operation and adds to its counts. So a leader that
dies leaves whole pages, and its successor begins after the last one. Two leaders cannot both write a page: its statement
compares the cursor.

A page is as large as the time that it takes allows. The pause after it is a tenth of that time. While agents end jobs,
pages are a fifth as long, and the pause grows with the jobs that end: from 10,000 a second on it is nineteen times the time
of the page, so that a twentieth of the master, and of the event loop of the leader, works on the operation. (With nine times,
two drains of 110,000 jobs a second lost an eighth.) The leader counts the jobs that it ends itself; those of other agents it
knows from their statistics, ten seconds late.

While the master writes a page of a retry, the leader reads and builds the next one, unless agents end jobs: otherwise one
of the two waits for the other. Jobs that have ended stay as they are, so little is out of date by then, and the page is
compared with the rows when it is written, as every other. Pages of other kinds are of jobs that change: they are read when
they are due.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from jobmaster.client.bulk_operations.retried_jobs import RetriedJobs
from jobmaster.clock import Clock
from jobmaster.model import ids
from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Refused, Unavailable
from jobmaster.model.flow.bulk_operation import BulkKind, BulkPage, BulkRetry, BulkState, BulkWork, SkipCause
from jobmaster.ports import LeaderBulk
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

IDLE_SECONDS = 3600.0
PAGE_SECONDS, PAGE_SECONDS_BUSY = 0.25, 0.05
"""A page that takes longer is followed by a smaller one; the second while agents end jobs, whose outcomes wait for the
page."""
PAGE_JOBS, PAGE_JOBS_MIN, PAGE_JOBS_MAX = 500, 50, 5000
"""Jobs of the first page, and the least and the most."""
READS_MAX, READS_GROWTH = 64_000, 4
"""Rows that one page reads at most, and how much more the next one reads when few jobs fit."""
REST, REST_BUSY = 0.1, 19.0
"""Times the duration of a page until the next one: on an idle cluster, and where ``RATE_BUSY`` jobs a second end."""
BUSY_PER_SECOND, RATE_BUSY = 500.0, 10_000.0
"""Jobs that end a second: from the first on the cluster is busy, and from the second on the pause grows no more."""
_WINDOW_SECONDS = 0.1
"""Ended jobs are counted over this time at least: outcomes are written by the hundred."""


class _ReadPage(NamedTuple):
    """A page before it is written."""

    page: BulkPage
    looked_at: int
    """Jobs of the page, with those that are left alone."""
    full: bool
    """It has as many jobs as it may have."""
    job_ids: list[bytes]
    """Jobs to be changed, of other kinds than a retry."""
    retries: list[BulkRetry]


class BulkWorker:
    """Periodic task that works on bulk operations while this agent leads.

    Args:
        leads: returns True while this agent leads.
    """

    name = "bulk"

    def __init__(
        self,
        bulk: LeaderBulk,
        retried: RetriedJobs,
        leads: Callable[[], bool],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._bulk = bulk
        self._retried = retried
        self._leads = leads
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._look = False
        self._jobs = PAGE_JOBS
        self._reads = PAGE_JOBS
        self._ended, self._ended_at = 0, clock.boottime()
        self._rate = 0.0
        """Jobs that agents end a second."""
        self._next: _ReadPage | None = None
        self._unreadable: bytes | None = None
        self.kicked = asyncio.Event()

    def on_bulk(self) -> None:
        """The leader's tick has found an operation that has not ended."""
        if not self._look:
            self._look = True
            self.kicked.set()

    async def tick(self) -> float:
        """Write one page; seconds until the next one."""
        if not self._look or not self._leads():
            self._look, self._next = False, None
            return IDLE_SECONDS
        began = self._now()
        work = await self._bulk.next()
        if work is None or work.unreadable:
            self._look, self._next = False, None
            if work is not None:
                self._note_unreadable(work)
            return IDLE_SECONDS
        was_busy = self._is_busy
        self._note_rate(work.ended_per_second)
        if self._is_busy and not was_busy:
            self._jobs = min(self._jobs, PAGE_JOBS)
        try:
            written = await self._work_on(work)
            if written is None:
                return 0.0
        except Refused as error:
            await self._finish(work, BulkPage(work.id, work.cursor, work.highest, {}), error.message)
            return 0.0
        except Unavailable as error:
            if not isinstance(error, OutcomeUnknown):
                self._jobs = max(self._jobs // 2, PAGE_JOBS_MIN)
            raise
        took = self._now() - began
        self._note_rate(work.ended_per_second)
        self._resize(took, written)
        return took * self._rest

    async def _work_on(self, work: BulkWork) -> _ReadPage | None:
        """Write the next page; ``None``: the operation has ended."""
        ready, self._next = self._next, None
        if ready is None or (ready.page.operation, ready.page.cursor) != (work.id, work.cursor):
            ready = await self._read(work, work.cursor)
        if ready is None:
            await self._finish(work, BulkPage(work.id, work.cursor, work.highest, {}))
            return None
        following = None
        if work.kind is BulkKind.RETRY and ready.full and not self._is_busy:
            following = asyncio.create_task(self._read(work, ready.page.read_to))
        try:
            written = await self._write(work, ready)
            if following is not None:
                with contextlib.suppress(JobMasterError):  # its turn comes, and it is read again then
                    self._next = await following
        finally:
            if following is not None:
                following.cancel()
        if written is not None:
            self._telemetry.bulk_jobs[work.kind.value] += written
        return ready

    async def _read(self, work: BulkWork, cursor: bytes | None) -> _ReadPage | None:
        """The page after the cursor; ``None``: there is no job any more."""
        lowest = work.lowest if cursor is None else ids.following(cursor)
        limit, payload = self._jobs, work.kind is BulkKind.RETRY
        if lowest > work.highest:
            return None
        bounds = (work.kind, work.chosen, work.change, lowest, work.highest)
        step = await self._bulk.find(*bounds, reads=max(self._reads, limit), limit=limit, payload=payload)
        if step.read_to is None:
            return None
        full = len(step.jobs) == limit
        skipped: Counter[SkipCause] = Counter(job.skip for job in step.jobs if job.skip is not None)
        eligible = [job for job in step.jobs if job.skip is None]
        retries: list[BulkRetry] = []
        if payload:
            retries, refused = await self._retried.make(eligible, work.highest)
            skipped += refused
        page = BulkPage(work.id, cursor, step.jobs[-1].id if full else step.read_to, skipped)
        return _ReadPage(page, len(step.jobs), full, [job.id for job in eligible], retries)

    async def _write(self, work: BulkWork, ready: _ReadPage) -> int | None:
        states = work.chosen.states
        match work.kind:
            case BulkKind.RETRY:
                return await self._bulk.retry_page(ready.page, ready.retries, states)
            case BulkKind.CANCEL:
                return await self._bulk.cancel_page(ready.page, ready.job_ids, states)
            case BulkKind.RESCHEDULE:
                return await self._bulk.reschedule_page(ready.page, ready.job_ids, work.change)
            case BulkKind.DELETE:
                return await self._bulk.delete_page(ready.page, ready.job_ids, states)

    async def _finish(self, work: BulkWork, page: BulkPage, error: str = "") -> None:
        ended = await self._bulk.finish(page, error)
        if ended is None:
            return
        state = BulkState.FAILED if error else BulkState.DONE
        fields = {"bulk": work.id, "kind": work.kind.value, "state": state.value, "changed": ended.changed}
        if error:
            self._log.error(Event.BULK_ENDED, {**fields, "reason": error})
        else:
            self._log.info(Event.BULK_ENDED, {**fields, "skipped": sum(ended.skipped.values())})

    def _note_rate(self, published: float) -> None:
        """Count the jobs that agents have ended: this one since it was asked before, all as they have published it."""
        now, ended = self._now(), sum(self._telemetry.jobs_ended.values())
        if (passed := now - self._ended_at) >= _WINDOW_SECONDS:
            self._rate = max((ended - self._ended) / passed, published)
            self._ended, self._ended_at = ended, now

    @property
    def _is_busy(self) -> bool:
        return self._rate > BUSY_PER_SECOND

    @property
    def _rest(self) -> float:
        """The pause after a page, as a multiple of its time."""
        if not self._is_busy:
            return REST
        return max(REST, REST_BUSY * min(self._rate / RATE_BUSY, 1.0))

    def _resize(self, took: float, written: _ReadPage) -> None:
        """The size of the next page."""
        most = PAGE_SECONDS_BUSY if self._is_busy else PAGE_SECONDS
        if took > most:
            self._jobs = max(self._jobs // 2, PAGE_JOBS_MIN)
            self._reads = max(self._reads // 2, PAGE_JOBS_MIN)
            return
        if written.full:
            self._reads = self._jobs
            if took < most / 2 and written.looked_at >= self._jobs:
                self._jobs = min(self._jobs * 2, PAGE_JOBS_MAX)
        elif took < most / 2:
            self._reads = min(self._reads * READS_GROWTH, READS_MAX)

    def _note_unreadable(self, work: BulkWork) -> None:
        if self._unreadable != work.id:
            self._unreadable = work.id
            reason = f"this version does not know the filter {work.unreadable}; an agent of a later one has to lead"
            self._log.warning(Event.BULK_UNREADABLE, {"bulk": work.id, "reason": reason})
