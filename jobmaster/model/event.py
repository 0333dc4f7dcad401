"""Events of a cluster: what ``cluster.listen`` and ``cluster.events`` give."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.model.job import FINAL_STATES, ErrorInfo, Headers, JobState, Priority
from jobmaster.model.job_view import moment

_HEADERS = msgspec.json.Decoder(Headers)


class EventKind(StrEnum):
    """What has happened."""

    JOB_SUCCEEDED = "job_succeeded"
    JOB_FAILED = "job_failed"
    JOB_CANCELLED = "job_cancelled"
    JOB_EXPIRED = "job_expired"
    ATTEMPT_ENDED = "attempt_ended"
    """An attempt is over and its job is not: it failed, was lost with its agent, was put off. Only of ``cluster.events``."""
    JOB_STARTED = "job_started"
    """A run goes on for longer than ``thresholds.persist_within``. Only of ``cluster.listen``."""
    JOB_WAITS = "job_waits"
    """A job waits in the master again: for another attempt, or because its agent has given it back. Only of
    ``cluster.listen``."""
    BUCKET_CHANGED = "bucket_changed"
    """A bucket has another state: opened, lost, taken, retired. Only of ``cluster.events``, as those that follow."""
    SCHEDULE_FIRED = "schedule_fired"
    """A nominal time of a schedule was decided."""
    OPERATOR_ACTED = "operator_acted"
    """An action of an operator, as in ``jobmaster log list``."""
    MISSED = "missed"
    """Events between the one before and the next one were missed. Only of ``cluster.listen``."""


ENDED = {f"job_{state.value.lower()}": state for state in JobState if state in FINAL_STATES}
"""Kind -> state of the jobs that have ended."""
LIVE_KINDS = frozenset({*(EventKind(kind) for kind in ENDED), EventKind.JOB_STARTED, EventKind.JOB_WAITS})
"""Kinds that ``cluster.listen`` can be asked for."""
RECORDED_KINDS = frozenset(EventKind) - {EventKind.JOB_STARTED, EventKind.JOB_WAITS, EventKind.MISSED}
"""Kinds that ``cluster.events`` can be asked for."""


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened in a cluster."""

    kind: EventKind
    at_us: int
    """When, by the master's clock: microseconds since 1970. Of events that were missed: when that was noticed."""
    cursor: str = ""
    """The place after this event in the stream of ``cluster.events``; empty: it is no event of that stream."""

    @property
    def at(self) -> datetime:
        """``at_us`` as a time (aware, UTC)."""
        at = moment(self.at_us)
        assert at is not None, "every event has its time"
        return at


class JobEvent(ClusterEvent, frozen=True, kw_only=True):
    """An event of a job. Result and arguments are not in it: ``cluster.get(event.id)`` reads them."""

    id_bytes: bytes
    """The job's id as its 16 bytes."""
    handler: str
    """Empty: the row of the job has left the master."""
    lane: str
    priority: Priority | None
    token: int
    attempt: int | None = None
    """Attempts that are over; ``None`` of an attempt."""
    outcome: str = ""
    """Of an attempt: a value of ``AttemptOutcome``."""
    bucket_id: bytes | None = None
    waited_us: int | None = None
    """Time between due and start of the run, in microseconds."""
    ran_us: int | None = None
    """Duration of the run in microseconds."""
    headers_json: bytes = b""
    error: ErrorInfo | None = None

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(bytes=self.id_bytes)

    @property
    def state(self) -> JobState | None:
        """The final state of a job that has ended; else ``None``."""
        return ENDED.get(self.kind)

    @property
    def headers(self) -> Headers:
        """Tags, metadata and options of the submit."""
        return _HEADERS.decode(self.headers_json) if self.headers_json else Headers()

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the submit."""
        return self.headers.tags


class BucketEvent(ClusterEvent, frozen=True, kw_only=True):
    """A bucket has changed its state."""

    bucket_id: bytes
    state: str
    reason: str


class ScheduleEvent(ClusterEvent, frozen=True, kw_only=True):
    """A nominal time of a schedule was decided."""

    schedule: str
    outcome: str
    """``fired``, ``skipped``, ``missed`` or ``withdrawn``."""
    job_id: UUID | None
    """The job that it has become."""


class OperatorEvent(ClusterEvent, frozen=True, kw_only=True):
    """An operator has done something."""

    action: str
    actor: str
    subject: str
    detail: dict[str, Any]


class MissedEvents(ClusterEvent, frozen=True, kw_only=True):
    """A reader was too slow, or a subscription broke: events are missing here."""

    count: int | None
    """Number of changes of jobs that were dropped; ``None``: unknown, a store did not answer for a while."""
