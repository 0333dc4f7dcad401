"""A job and its attempts as a person, ``get`` or a list sees them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.model.ids import created_ms
from jobmaster.model.job import ErrorInfo, Headers, JobState, Priority
from jobmaster.model.redaction import SecretTexts, masked_arguments
from jobmaster.model.response import PRIORITY_LABEL, response_schema
from jobmaster.model.run_progress import RunProgress
from jobmaster.model.trace_context import trace_id_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON = msgspec.json.Decoder()
_HEADERS = msgspec.json.Decoder(Headers)
_FILTER = msgspec.json.Encoder()


def moment(us: int | None) -> datetime | None:
    """The time (aware, UTC) of microseconds since 1970; ``None`` for ``None`` and for 0. A time outside the years 1 to 9999,
    as another program may have stored it, is the last or the first that a datetime can have."""
    try:
        return EPOCH + timedelta(microseconds=us) if us else None
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if us is not None and us > 0 else datetime.min.replace(tzinfo=UTC)


def iso(us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; ``None`` for ``None`` and for 0 (which means "at once")."""
    if not us:
        return None
    try:
        return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us}us"


VIEW_RESPONSE = {
    "id": UUID, "state": JobState, "handler": str, "lane": str, "priority": PRIORITY_LABEL, "attempt": int,
    "created_at": datetime, "due_at": datetime | None, "started_at": datetime | None, "ended_at": datetime | None,
}  # fmt: skip
"""What a web response shows of a job. Arguments, results and error texts may be confidential: a route names them itself."""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when it was read. Nothing in it changes afterwards.

    Numbers of microseconds are times since 1970 by the master's clock; the properties with ``_at`` are the same times as
    aware ``datetime`` in UTC. Arguments, result and headers are decoded each time that their property is read.

    ``state``, ``token``, ``due_us`` and ``changed_us`` together are the version of the row: a statement that changes a
    waiting job only while they are the same overtakes no other change.
    """

    id_bytes: bytes
    """The id as its 16 bytes, for code that keeps or compares many."""
    state: JobState
    priority: Priority
    lane: str
    handler: str
    token: int
    """Grows with every assignment to a bucket."""
    attempt: int
    """Attempts that are over."""
    rescues: int
    bucket_id: bytes | None = None
    bucket_epoch: int | None = None
    cancel_requested: bool = False
    due_us: int | None = None
    """When it may run; ``None`` = at once. Of a job that waits for a retry: when that may run."""
    changed_us: int | None = None
    """The last change of the row; ``None`` for a job without one."""
    waited_us: int | None = None
    """Time between due and start of the last run, in microseconds."""
    ran_us: int | None = None
    """Duration of the last run in microseconds, once it is over."""
    with_payload: bool = True
    """False in a list that was asked for without arguments and results."""
    arguments_json: bytes = b"{}"
    """The arguments as they are stored: a JSON object."""
    headers_json: bytes = b""
    """Tags, metadata and options as they are stored: a JSON object, or empty."""
    result_json: bytes | None = None
    """The result as it is stored; ``None`` without one."""
    error: ErrorInfo | None = None
    """The recorded error: why the job ended, or why its last attempt failed."""
    progress: RunProgress | None = None
    """The last report of the run that the row shows (``ctx.progress``). Only in the view of one job, not in lists."""

    @property
    def id(self) -> UUID:
        """The job's id, a UUIDv7."""
        return UUID(bytes=self.id_bytes)

    def __repr__(self) -> str:
        reason = f": {self.failed_because}" if self.failed_because else ""
        return f"<JobView {self.id} {self.handler} {self.state.value}{reason}>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A job in a response of FastAPI."""
        return response_schema(cls, VIEW_RESPONSE, handler)

    def redacted(self, secret: Sequence[str]) -> JobView:
        """The job as it may be shown: ``***`` in place of secret arguments, and their values cut out of the error.

        Args:
            secret: names of arguments. ``Cluster.redacted`` takes those that the handler declares.
        """
        if not secret or not self.with_payload:
            return self
        texts = SecretTexts(self.arguments_json, secret)
        error = self.error and msgspec.structs.replace(
            self.error, message=texts.cut(self.error.message), traceback=texts.cut(self.error.traceback)
        )
        shown = masked_arguments(self.arguments_json, secret)
        return msgspec.structs.replace(self, arguments_json=shown, error=error)

    # ------------------------------------------------------------ what went in and came out

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as plain JSON values.

        Raises:
            InputError: the view was listed without its payload.
        """
        self._require_payload()
        arguments: dict[str, Any] = _JSON.decode(self.arguments_json)
        return arguments

    @property
    def result_value(self) -> Any:
        """The result as plain JSON values; ``None`` without one. ``Cluster.result`` gives the handler's own type.

        Raises:
            InputError: the view was listed without its payload.
        """
        self._require_payload()
        return None if self.result_json is None else _JSON.decode(self.result_json)

    @property
    def headers(self) -> Headers:
        """Tags, metadata and options of the submit."""
        return _HEADERS.decode(self.headers_json) if self.headers_json else Headers()

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the submit."""
        return self.headers.tags

    @property
    def unique_key(self) -> str | None:
        """Unique key of the submit; ``None`` without one."""
        return self.headers.unique_key

    @property
    def trace_id(self) -> str | None:
        """Id of the trace that the job was submitted in, 32 hexadecimal digits; ``None`` without one. A job with a later due
        time runs in a trace of its own, with a link to this one."""
        return trace_id_of(self.headers.traceparent)

    @property
    def superseded_by(self) -> UUID | None:
        """The job that has replaced it under its unique key; it was cancelled then. ``None``: none has."""
        by = self.headers.superseded_by
        return None if by is None else UUID(by)

    @property
    def deleted(self) -> bool:
        """True when a bulk operation has deleted its arguments, result, error, tags and metadata."""
        return self.headers.deleted

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the submit."""
        return self.headers.metadata

    @property
    def failed_because(self) -> str | None:
        """Why a job ended as FAILED, CANCELLED or EXPIRED, in one line; ``None`` in every other state."""
        if not self.state.final or self.state is JobState.SUCCEEDED:
            return None
        if self.error is None:
            return self.state.value.lower()
        return f"{self.error.type}: {self.error.message} [{self.error.reason}]"

    # ------------------------------------------------------------ times

    @property
    def created_at(self) -> datetime:
        """When it was submitted, by the producer's clock (in milliseconds)."""
        return EPOCH + timedelta(milliseconds=created_ms(self.id_bytes))

    @property
    def due_at(self) -> datetime | None:
        """``due_us`` as a time; ``None`` = at once."""
        return moment(self.due_us)

    @property
    def changed_at(self) -> datetime | None:
        """``changed_us`` as a time; ``None`` for a job without a row."""
        return moment(self.changed_us)

    @property
    def started_at(self) -> datetime | None:
        """When the last run of the handler began, as far as the row shows it; ``None`` before that.

        While it runs: when the row became PROCESSING, which is up to ``thresholds.persist_within`` after the start.
        """
        if self.changed_us is None:
            return None
        if self.state is JobState.PROCESSING:
            return moment(self.changed_us)
        ended = self.state in (JobState.SUCCEEDED, JobState.FAILED)
        return moment(self.changed_us - self.ran_us) if ended and self.ran_us is not None else None

    @property
    def ended_at(self) -> datetime | None:
        """When the job ended, however; ``None`` before that."""
        return moment(self.changed_us) if self.state.final else None

    def _require_payload(self) -> None:
        if not self.with_payload:
            raise InputError(
                f"job {self.id} was listed without its arguments and result",
                hint="cluster.get(view.id) reads them; jobs(payload=True) lists them",
            )


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded line of a job's history: an assignment to a bucket, and what became of it."""

    token: int
    """With the bucket and its epoch: the identity of the assignment."""
    bucket_id: bytes | None
    bucket_epoch: int | None
    concluding: bool
    """True for the line that ended the job; a job has at most one."""
    outcome: str
    """A value of ``AttemptOutcome`` (``failed``, ``timed_out``, ``lost``, ...); of the concluding line, of ``JobState``."""
    at_us: int
    """When it was recorded."""
    ran_us: int | None = None
    """Duration of the run in microseconds; ``None`` when none is known."""
    error: ErrorInfo | None = None
    refused_us: int | None = None
    """The last late write of this assignment that was refused."""
    refused_count: int = 0

    @property
    def ended_at(self) -> datetime | None:
        """``at_us`` as a time."""
        return moment(self.at_us)

    @property
    def started_at(self) -> datetime | None:
        """When the run began; ``None`` when none is known."""
        return moment(self.at_us - self.ran_us) if self.ran_us is not None else None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs a list, a count or a bulk operation means; checked. What is ``None`` or empty admits every job.

    Its JSON (``as_json``) is what the master compares jobs with (``job_matches``), and what may be stored.
    """

    states: tuple[JobState, ...] = ()
    handler: str | None = None
    lane: str | None = None
    priority: Priority | None = None
    tag: str | None = None
    metadata: dict[str, str] = {}
    """All of them, as name and text."""
    batch: UUID | None = None
    """Its id, or any id of one of its ranges."""
    workflow: UUID | None = None
    schedule: str | None = None
    tenant: str | None = None
    error_type: str | None = None
    """Name of the class, with or without its module."""
    error_group: str | None = None
    """Fingerprint of a group of failures (``rules.failure_group``)."""
    due_after_us: int | None = None
    """HELD, and due at this time or later: microseconds since 1970."""
    due_before_us: int | None = None
    """HELD, and due before this time."""
    since_us: int | None = None
    """Created at this time or later."""
    until_us: int | None = None
    """Created before this time."""

    @property
    def as_json(self) -> str:
        """The fields that are set, as a JSON object."""
        return _FILTER.encode(self).decode()

    @property
    def lowest(self) -> bytes:
        """The lowest id that a job may have."""
        return bytes(16) if self.since_us is None else _first_id(self.since_us)

    @property
    def highest(self) -> bytes:
        """The highest id that a job may have; the empty bytes when there is none."""
        return b"\xff" * 16 if self.until_us is None else id_before(_first_id(self.until_us))


def id_before(id_: bytes) -> bytes:
    """The next lower id; of the lowest one, one that no range begins with."""
    number = int.from_bytes(id_, "big")
    return (number - 1).to_bytes(16, "big") if number else b""


def _first_id(us: int) -> bytes:
    """The lowest id of a job that was created at a time or later."""
    return (min(max(us // 1000, 0), (1 << 48) - 1)).to_bytes(6, "big") + bytes(10)
