"""What the API shows: one struct for each thing, made from the views of the library.

A field has the name of the attribute of the view that it shows. Times are RFC 3339, in UTC; ``_us`` are microseconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar, get_args, get_origin
from uuid import UUID

import msgspec

from jobmaster.model.event import EventKind
from jobmaster.model.flow.batch import BatchState
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.flow.lock import OnceState
from jobmaster.model.flow.signal import Recipients
from jobmaster.model.flow.uniqueness import SubmitAnswer
from jobmaster.model.flow.workflow import RunsOn, StepState, WorkflowState
from jobmaster.model.inspection.schedule_view import ScheduleState
from jobmaster.model.job import Durability, JobState, Priority, PriorityLabel
from jobmaster.model.job_change import ChangeEffect
from jobmaster.model.job_log import LogLevel, LogLevelName
from jobmaster.model.pause import PauseKind
from jobmaster.model.schedule import FireOutcome, Misfire, Overlap, ScheduleSource

R = TypeVar("R", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that the API shows."""


def record_of(kind: type[R], view: object, **given: object) -> R:
    """A record with the values of a view. A field with a default may be missing there.

    Args:
        given: fields that the view does not have, or that are to be other ones.
    """
    values = dict(given)
    for field in msgspec.structs.fields(kind):
        if field.name not in values and (field.required or hasattr(view, field.name)):
            values[field.name] = _plain(field.type, getattr(view, field.name))
    return kind(**values)


def records_of(kind: type[R], views: Any) -> list[R]:
    """A record of each view."""
    return [record_of(kind, view) for view in views]


def _plain(kind: Any, value: Any) -> Any:
    """A value of a view as a record has it."""
    match value:
        case Priority() | LogLevel():
            return value.label
        case bytes():
            return UUID(bytes=value)
        case list() | tuple():
            (inner, *_) = get_args(kind) or (Any,)
            return [_plain(inner, each) for each in value]
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and get_origin(each) is None and issubclass(each, Record) and value is not None:
            return record_of(each, value)
    return value


# ---------------------------------------------------------------- jobs


class ReceiptRecord(Record, frozen=True, kw_only=True):
    """An acknowledged submit."""

    id: UUID
    level: Durability
    """What has acknowledged it."""
    answer: SubmitAnswer
    duplicate: bool
    """The key or the id was known already, with the same payload: this is that job."""
    unserved: bool
    """No agent has a bucket of its lane and priority now: it waits."""
    bucket_id: UUID | None


class ErrorRecord(Record, frozen=True, kw_only=True):
    """Why an attempt failed. ``message`` needs the scope ``payload``, ``traceback`` the scope ``traceback``."""

    type: str
    reason: str
    message: str | None
    traceback: str | None


class ProgressRecord(Record, frozen=True, kw_only=True):
    """How far a run is, as its handler has reported it. ``text`` needs the scope ``payload``."""

    done: float | None
    total: float | None
    text: str | None
    at: datetime | None


class JobRecord(Record, frozen=True, kw_only=True):
    """A job as it is listed."""

    id: UUID
    state: JobState
    handler: str
    lane: str
    priority: PriorityLabel
    attempt: int
    """Attempts that are over."""
    rescues: int
    token: int
    bucket_id: UUID | None
    bucket_epoch: int | None
    cancel_requested: bool
    created_at: datetime
    due_at: datetime | None
    """When it may run; ``null``: at once."""
    changed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    waited_us: int | None
    ran_us: int | None
    tags: list[str]
    metadata: dict[str, str]
    tenant: str | None
    trace_id: str | None
    """Id of the trace that it was submitted in."""
    unique_key: str | None
    superseded_by: UUID | None
    workflow: UUID | None
    error: ErrorRecord | None


class JobDetail(JobRecord, frozen=True, kw_only=True):
    """A job by its id. ``arguments`` and ``result`` need the scope ``payload``, and are ``null`` without it."""

    arguments: dict[str, Any] | None
    result: Any
    progress: ProgressRecord | None


class JobPage(Record, frozen=True, kw_only=True):
    """A page of jobs, the newest first."""

    jobs: list[JobRecord]
    next: UUID | None
    """Give it as ``after`` to get the next page; ``null``: this is the last one."""


class CountRecord(Record, frozen=True, kw_only=True):
    """A count of jobs."""

    count: int
    exact: bool
    """False: there are more."""


class WaitRecord(Record, frozen=True, kw_only=True):
    """The answer to a wait."""

    ended: bool
    """False: the job has not ended within the time; it goes on."""
    job: JobDetail


class AttemptRecord(Record, frozen=True, kw_only=True):
    """One line of the history of a job."""

    token: int
    bucket_id: UUID | None
    bucket_epoch: int | None
    concluding: bool
    """The line that ended the job."""
    outcome: str
    started_at: datetime | None
    ended_at: datetime | None
    ran_us: int | None
    error: ErrorRecord | None
    refused_count: int
    """Late writes of this assignment that were refused."""


class LogLineRecord(Record, frozen=True, kw_only=True):
    """One line that a run has written."""

    token: int
    number: int
    at: datetime
    level: LogLevelName
    text: str


class BulkRecord(Record, frozen=True, kw_only=True):
    """The answer to a submit of many jobs."""

    ids: list[UUID]
    submitted: int
    by_level: dict[str, int]


class CancelRecord(Record, frozen=True, kw_only=True):
    """The state of a job after a request to cancel it."""

    id: UUID
    state: JobState


class ConfirmRecord(Record, frozen=True, kw_only=True):
    """A run is confirmed."""

    confirmed: bool


class ChangeRecord(Record, frozen=True, kw_only=True):
    """Whether a change took effect before the job started, and the job after it."""

    id: UUID
    changed: bool
    effect: ChangeEffect
    state: JobState
    due_at: datetime | None
    priority: PriorityLabel
    lane: str
    unserved: bool


class EventRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Something that has happened. What does not belong to its kind is left out."""

    kind: EventKind
    at: datetime
    cursor: str
    """The place after it: ``after`` of the next request, or ``Last-Event-ID``."""
    id: UUID | None = None
    """Of a job."""
    handler: str | None = None
    lane: str | None = None
    priority: PriorityLabel | None = None
    token: int | None = None
    attempt: int | None = None
    outcome: str | None = None
    """Of an attempt, or of a fire of a schedule."""
    bucket_id: UUID | None = None
    waited_us: int | None = None
    ran_us: int | None = None
    tags: list[str] = []
    error: ErrorRecord | None = None
    state: str | None = None
    """Of a job that has ended, or of a bucket."""
    reason: str | None = None
    schedule: str | None = None
    job_id: UUID | None = None
    """The job that a fire has become."""
    action: str | None = None
    """Of an operator."""
    actor: str | None = None
    subject: str | None = None
    detail: dict[str, Any] | None = None


class EventPage(Record, frozen=True, kw_only=True):
    """Events, the oldest first."""

    events: list[EventRecord]
    cursor: str | None
    """Give it as ``after`` to continue."""
    more: bool
    """There are further ones already."""


# ---------------------------------------------------------------- schedules, pauses


class ScheduleRecord(Record, frozen=True, kw_only=True):
    """A recurring job. ``arguments`` needs the scope ``payload``."""

    name: str
    state: ScheduleState
    source: ScheduleSource
    expression: str
    zone: str
    handler: str
    arguments: dict[str, Any] | None
    lane: str
    priority: PriorityLabel
    misfire: Misfire
    overlap: Overlap
    tenant: str | None
    tags: list[str]
    next_at: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    declared_at: datetime | None
    paused_at: datetime | None
    paused_by: str
    paused_reason: str
    retired_at: datetime | None
    retired_reason: str


class FireRecord(Record, frozen=True, kw_only=True):
    """One decided fire of a schedule."""

    nominal_at: datetime
    outcome: FireOutcome
    job_id: UUID | None
    decided_at: datetime | None
    until_at: datetime | None
    manual: bool


class NamesRecord(Record, frozen=True, kw_only=True):
    """What has changed, by name."""

    names: list[str]


class PauseRecord(Record, frozen=True, kw_only=True):
    """A pause in force."""

    kind: PauseKind
    value: str
    actor: str
    reason: str
    since_at: datetime | None
    until_at: datetime | None
    """``null``: until it is resumed."""
    left_seconds: float | None


class PauseChangeRecord(Record, frozen=True, kw_only=True):
    """What a pause or a resume has brought about."""

    kind: PauseKind
    value: str
    changed: bool
    """False: there was nothing to resume."""
    confirmed: bool
    """Every living agent obeys. False: the change is stored, and some agents have not confirmed it in time."""
    until_at: datetime | None
    agents: int | None
    """Living agents that run jobs; ``null``: see ``confirmed``."""
    obeying: int | None


# ---------------------------------------------------------------- flow


class LimitRecord(Record, frozen=True, kw_only=True):
    """A limit, and what is taken of it."""

    name: str
    running: int | None
    rate: float | None
    """Starts a second, of each key."""
    burst: float | None
    declared: bool
    declared_running: int | None
    declared_rate: float | None
    declared_burst: float | None
    set_at: datetime | None
    set_by: str
    set_reason: str
    taken: int
    keys: int
    fullest_key: str
    fullest: int


class ResetRecord(Record, frozen=True, kw_only=True):
    """Whether there was something to take back."""

    changed: bool


class BreakerRecord(Record, frozen=True, kw_only=True):
    """A circuit breaker."""

    name: str
    state: BreakerState
    failures: float
    window_seconds: float
    min_calls: int
    open_seconds: float
    half_open: int
    handlers: list[str]
    calls: int
    failed: int
    trial_jobs: list[UUID]
    succeeded: int
    changed_at: datetime | None
    until_at: datetime | None
    actor: str
    reason: str
    epoch: int
    """Grows with every change of the state."""


class TenantRecord(Record, frozen=True, kw_only=True):
    """What waits and runs for a tenant in one lane."""

    name: str
    lane: str
    held: int
    in_flight: int
    oldest_due_at: datetime | None
    weight: int


class BatchCountsRecord(Record, frozen=True, kw_only=True):
    """Jobs of a batch by what has become of them."""

    succeeded: int
    failed: int
    cancelled: int
    expired: int
    held: int
    in_flight: int
    missing: int


class BatchRecord(Record, frozen=True, kw_only=True):
    """A batch."""

    id: UUID
    name: str
    state: BatchState
    description: str
    size: int
    nested: int
    reason: str
    cancel_requested: bool
    key: str | None
    parent: UUID | None
    retry_of: UUID | None
    created_at: datetime | None
    ended_at: datetime | None
    done: float
    """Share of its jobs that have ended."""
    counts: BatchCountsRecord | None
    callbacks: dict[str, str | None]


class BatchWaitRecord(Record, frozen=True, kw_only=True):
    """The answer to a wait for a batch."""

    ended: bool
    batch: BatchRecord


class BatchPage(Record, frozen=True, kw_only=True):
    """A page of batches, the newest first."""

    batches: list[BatchRecord]
    next: UUID | None
    """Give it as ``before`` to get the next page."""


class StepRecord(Record, frozen=True, kw_only=True):
    """A step of a workflow. ``error`` needs the scope ``payload``."""

    number: int
    name: str
    state: StepState
    runs_on: RunsOn
    parents: list[int]
    handler: str
    job: UUID | None
    tries: int
    error: str


class WorkflowRecord(Record, frozen=True, kw_only=True):
    """A workflow; in a list it has no steps."""

    id: UUID
    name: str
    state: WorkflowState
    started_at: datetime | None
    ended_at: datetime | None
    steps_total: int
    steps_ended: int
    steps_failed: int
    steps: list[StepRecord]


class WorkflowStartRecord(Record, frozen=True, kw_only=True):
    """A workflow that was stored."""

    id: UUID


class WorkflowWaitRecord(Record, frozen=True, kw_only=True):
    """The answer to a wait for a workflow."""

    ended: bool
    workflow: WorkflowRecord


class WorkflowPage(Record, frozen=True, kw_only=True):
    """A page of workflows, the newest first."""

    workflows: list[WorkflowRecord]
    next: UUID | None
    """Give it as ``before`` to get the next page."""


class WaitingJobsRecord(Record, frozen=True, kw_only=True):
    """How many jobs wait for the signal of a key."""

    key: str
    jobs: int
    since: datetime | None


class KeptSignalRecord(Record, frozen=True, kw_only=True):
    """A signal that is kept for jobs to come."""

    id: UUID
    key: str
    recipients: Recipients
    actor: str
    sent_at: datetime | None
    kept_until: datetime | None
    delivered: int


class SignalsRecord(Record, frozen=True, kw_only=True):
    """What waits for signals, and what is kept."""

    waiting: list[WaitingJobsRecord]
    kept: list[KeptSignalRecord]


class SignalSentRecord(Record, frozen=True, kw_only=True):
    """What a signal has reached."""

    id: UUID
    key: str
    delivered: int
    repeated: bool
    kept_until: datetime | None


# ---------------------------------------------------------------- locks


class LockRecord(Record, frozen=True, kw_only=True):
    """A named lock that has a holder."""

    name: str
    holder: str
    fence: int
    acquired_at: datetime | None
    expires_at: datetime | None


class ReleaseRecord(Record, frozen=True, kw_only=True):
    """The lock as it was; ``null``: it was free."""

    released: LockRecord | None


class OnceRecord(Record, frozen=True, kw_only=True):
    """A version of an action that runs once. ``error`` needs the scope ``payload``."""

    name: str
    version: str
    holder: str
    state: OnceState
    failures: int
    error: str | None
    changed_at: datetime | None
