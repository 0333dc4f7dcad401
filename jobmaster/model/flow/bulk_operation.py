"""A bulk operation: one change of every job that fits a filter, made page by page by the leader."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.ids import created_ms
from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter, moment


class BulkKind(StrEnum):
    """What a bulk operation does to a job."""

    RETRY = "retry"
    """Runs it again as a new job, as a retry of one job does."""
    CANCEL = "cancel"
    """Cancels it; in flight: requests that."""
    RESCHEDULE = "reschedule"
    """Gives it another due time, priority or lane while it waits in the master."""
    DELETE = "delete"
    """Deletes its contents. The row stays, with state and times, until its range leaves the master: it refuses late
    copies."""


ELIGIBLE: dict[BulkKind, frozenset[JobState]] = {
    BulkKind.RETRY: frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    BulkKind.CANCEL: frozenset({JobState.HELD, JobState.WAITING, JobState.ASSIGNED, JobState.PROCESSING}),
    BulkKind.RESCHEDULE: frozenset({JobState.HELD, JobState.ASSIGNED, JobState.WAITING}),
    BulkKind.DELETE: frozenset(FINAL_STATES),
}
"""States of the jobs that each kind looks at."""

IMPLIED: dict[BulkKind, frozenset[JobState]] = {**ELIGIBLE, BulkKind.RETRY: frozenset({JobState.FAILED})}
"""The states of a filter that names none. A retry does not run again what was cancelled, unless it is asked to."""


class BulkState(StrEnum):
    """State of a bulk operation: WAITING, RUNNING, and then one of the others."""

    WAITING = "WAITING"
    """It has changed nothing yet. One operation is worked on at a time, in the order of their starts."""
    RUNNING = "RUNNING"
    DONE = "DONE"
    """It has looked at every job of its range."""
    CANCELLED = "CANCELLED"
    """It was cancelled before that; what it has changed stays so."""
    FAILED = "FAILED"
    """The master has refused a page; ``error`` has the reason."""

    @property
    def final(self) -> bool:
        """True for the states that an operation does not leave."""
        return self not in (BulkState.WAITING, BulkState.RUNNING)


class SkipCause(StrEnum):
    """Why a job that fits the filter is left alone."""

    RETRIED = "RETRIED"
    """It has been run again before."""
    REFUSED = "REFUSED"
    """A submit refuses it now: no agent has its handler, or its arguments do not fit any more."""
    SIGNAL = "SIGNAL"
    """It waits for a signal, or its retry would."""
    REQUESTED = "REQUESTED"
    """Its cancellation was requested before."""
    IN_BUCKET = "IN_BUCKET"
    """It lies in a bucket; ``Cluster.change`` takes one job out of it."""
    EXPIRES = "EXPIRES"
    """It would be due after it has expired."""
    WORKFLOW = "WORKFLOW"
    """It is a step of a workflow, whose other steps may need its result."""
    CHANGED = "CHANGED"
    """It has changed since it was read."""


SKIPPED: dict[SkipCause, str] = {
    SkipCause.RETRIED: "have been run again before",
    SkipCause.REFUSED: "are refused by a submit",
    SkipCause.SIGNAL: "wait for a signal",
    SkipCause.REQUESTED: "have a cancel request",
    SkipCause.IN_BUCKET: "lie in a bucket",
    SkipCause.EXPIRES: "would be due after they have expired",
    SkipCause.WORKFLOW: "are steps of workflows",
    SkipCause.CHANGED: "have changed meanwhile",
}
"""Why jobs are left alone, for people: they ..."""


class NewBulk(NamedTuple):
    """A bulk operation on its way into the master."""

    id: bytes
    kind: BulkKind
    chosen: JobFilter
    change: NewValues
    lowest: bytes
    highest: bytes
    actor: str
    reason: str
    unsearched: int


class BulkWork(NamedTuple):
    """What the leader needs of a bulk operation."""

    id: bytes
    kind: BulkKind
    chosen: JobFilter
    change: NewValues
    lowest: bytes
    highest: bytes
    cursor: bytes | None
    unreadable: str = ""
    """Fields of the filter that this program does not know: a later version is to do the work."""
    ended_per_second: float = 0.0
    """Jobs that all agents end, by what they have published."""


class FoundBulkJob(NamedTuple):
    """A job that fits the filter of a bulk operation."""

    id: bytes
    skip: SkipCause | None
    """Why it is left alone; ``None``: it is not."""
    holder: bytes | None = None
    """Id that is reserved for its retry, without a row."""
    handler: str = ""
    lane: str = ""
    priority: int = 0
    args: bytes = b""
    headers: bytes = b""


class BulkStep(NamedTuple):
    """A part of the range of a bulk operation."""

    read_to: bytes | None
    """The highest id that was read; ``None``: there is no job."""
    jobs: list[FoundBulkJob]


class BulkRetry(NamedTuple):
    """A new job of a bulk retry. Handler, priority and lane are copied from the row of the old one."""

    old: bytes
    id: bytes
    reserved: bool
    """Its id is reserved for the retry already."""
    headers: bytes
    digest: bytes
    """Of the payload, kept with the idempotency key."""
    args: bytes | None = None
    """``None``: those of the old job, copied as well. Arguments that are sealed for the old job alone are sealed anew."""


class BulkPage(NamedTuple):
    """The place of one page in its operation."""

    operation: bytes
    cursor: bytes | None
    """Before the page."""
    read_to: bytes
    """The cursor after it."""
    skipped: dict[SkipCause, int]


class BulkEnd(NamedTuple):
    """What a bulk operation has done."""

    changed: int
    skipped: dict[str, int]


class BulkPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk operation would do now."""

    kind: BulkKind
    eligible: int
    """Jobs that it would try to change, or to run again. The operation may leave some of them alone: those that a submit
    refuses, whose retry would wait for a signal, or that change meanwhile."""
    skipped: dict[SkipCause, int]
    """Jobs that fit the filter and would be left alone, by the cause, as far as their rows show it."""
    capped: bool
    """There are more: the count was ended."""
    unsearched: int
    """Buckets with jobs that may have no row yet; those are not found."""


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation as it is now. Times are microseconds since 1970 by the master's clock; the properties with ``_at`` are
    the same times as aware ``datetime`` in UTC."""

    id_bytes: bytes
    kind: BulkKind
    state: BulkState
    filter_json: bytes
    """The filter as it is stored: a JSON object."""
    change_json: bytes
    """What a reschedule sets; an empty object for other kinds."""
    lowest: bytes
    highest: bytes
    """Ids between which it looks for jobs."""
    cursor: bytes | None
    """The last id that it has looked at."""
    actor: str
    reason: str
    changed: int
    """Jobs that it has changed, or run again."""
    skipped: dict[str, int]
    """Jobs that fit the filter and were left alone, by the ``SkipCause``."""
    unsearched: int
    """Buckets at its start. Jobs that have no row yet, because only a bucket has them, are not found."""
    error: str
    """Why it FAILED."""
    created_us: int
    started_us: int | None
    moved_us: int | None
    """The last page."""
    ended_us: int | None

    @property
    def id(self) -> UUID:
        """Id of the operation; no job has it."""
        return UUID(bytes=self.id_bytes)

    @property
    def created_at(self) -> datetime | None:
        """When it was requested."""
        return moment(self.created_us)

    @property
    def ended_at(self) -> datetime | None:
        """When it has ended, however."""
        return moment(self.ended_us)

    @property
    def done(self) -> float:
        """Share of its range that it has looked at, 0 to 1, by the times at which the jobs were created."""
        if self.state is BulkState.DONE:
            return 1.0
        if self.cursor is None:
            return 0.0
        first, last = created_ms(self.lowest), created_ms(self.highest)
        return min(max((created_ms(self.cursor) - first) / (last - first), 0.0), 1.0) if last > first else 0.0
