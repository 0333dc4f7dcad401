"""Submit jobs over HTTP: what a producer in another language needs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.client.bulk import BulkFailed
from jobmaster.client.options import FreshId
from jobmaster.client.signals.wait import signal
from jobmaster.clock import new_id
from jobmaster.handlers import Call as HandlerCall
from jobmaster.handlers import Unique
from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.signal import OnTimeout
from jobmaster.model.job import OnFull, PriorityLabel
from jobmaster.rules.access import Scope
from jobmaster.web.answers import ErrorDetail, PartlyStored
from jobmaster.web.api.operation import Body, Call, Operations, Query
from jobmaster.web.api.records import BulkRecord, ReceiptRecord, record_of

OPERATIONS = Operations()

WAIT_SECONDS_MAX = 50.0
JOBS_MAX = 10_000
"""Jobs of one request."""
Arguments = dict[str, Any]
Moment = Annotated[datetime, Meta(tz=True)]
"""A time with its zone."""


class CallBody(Body, frozen=True, kw_only=True):
    """A handler with its arguments."""

    handler: str
    args: Arguments = msgspec.field(default_factory=dict)


class UniqueBody(Body, frozen=True, kw_only=True):
    """At most one job of the handler and a key at a time. Of ``window``, ``throttle`` and ``debounce`` (seconds) one at
    most."""

    key: str | None = None
    args: list[str] | None = None
    """Names of the arguments that make the key."""
    window: float | None = None
    throttle: float | None = None
    debounce: float | None = None
    on_conflict: Literal["existing", "reject", "replace"] = "existing"


class WaitForBody(Body, frozen=True, kw_only=True):
    """The signal that a job waits for before its first run."""

    key: str
    timeout: float | None = None
    """Seconds."""
    on_timeout: OnTimeout = OnTimeout.EXPIRE


class WaitQuery(Query, frozen=True, kw_only=True):
    """How long a wait may last."""

    timeout: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 20.0
    """Seconds."""


class SubmitOptionsBody(Body, frozen=True, kw_only=True):
    """Options of a submit, as of ``Cluster.submit``. Durations are seconds."""

    at: Moment | None = None
    """Due at this time."""
    after: float | None = None
    """Due this many seconds from now."""
    priority: PriorityLabel | None = None
    lane: str | None = None
    durability: Literal["store", "store_fsync", "master"] | None = None
    tags: list[str] | None = None
    metadata: dict[str, str] | None = None
    timeout: float | None = None
    """How long one attempt may run."""
    accept_time: float | None = None
    complete_time: float | None = None
    cancel_slow: bool | None = None
    max_attempts: int | None = None
    delivery: Literal["at_most_once"] | None = None
    expires: Moment | float | None = None
    """The job must not start after this time, or after so many seconds."""
    on_full: OnFull | None = None
    on_unserved: Literal["hold", "raise"] | None = None
    tenant: str | None = None
    ordering_key: str | None = None
    traceparent: str | None = None
    """W3C trace context, in place of the header ``traceparent`` of the request."""
    tracestate: str | None = None
    unique: UniqueBody | None = None
    wait_for: WaitForBody | None = None
    allow_unregistered: bool | None = None
    allow_volatile: bool | None = None

    def options(self) -> dict[str, Any]:
        """As the client takes them; what is left out is not there."""
        given: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and name not in _NO_OPTIONS:
                given[name] = as_option(value)
        return given


class SubmitBody(SubmitOptionsBody, frozen=True, kw_only=True):
    """One job."""

    handler: str
    args: Arguments = msgspec.field(default_factory=dict)
    idempotency_key: str | None = None
    """The same key and payload again is the same job."""
    job_id: UUID | None = None
    """A UUIDv7 made now by the caller, to be able to send the same job again."""
    on_success: CallBody | None = None
    on_failure: CallBody | None = None


class SubmitManyBody(SubmitOptionsBody, frozen=True, kw_only=True):
    """Many jobs; the options are those of each of them."""

    jobs: Annotated[list[CallBody], Meta(min_length=1, max_length=JOBS_MAX)]


_NO_OPTIONS = ("handler", "args", "jobs", "name")


def as_option(value: object) -> Any:
    """An option of a body, as the client takes it."""
    match value:
        case UniqueBody():
            return Unique(**msgspec.structs.asdict(value))
        case WaitForBody():
            return signal(value.key, timeout=value.timeout, on_timeout=value.on_timeout)
        case CallBody():
            return HandlerCall(value.handler, value.args)
    return value


def nothing_stored(error: BulkFailed) -> JobMasterError:
    """The error that has stopped a submit of many jobs of which none is stored."""
    return error.__cause__ if isinstance(error.__cause__, JobMasterError) else error


def stored_words(submitted: int, unknown: int, total: int) -> str:
    """What is stored of a submit of many jobs, in words."""
    doubt = f", of {unknown} it is not known" if unknown else ""
    return f"{submitted} of {total} jobs are stored{doubt}"


def _stopped(error: BulkFailed, total: int) -> PartlyStored | JobMasterError:
    """The error of a submit of ``total`` jobs that has stopped."""
    submitted, unknown = error.summary.submitted, sorted(error.unknown_ids)
    if not submitted and not unknown:
        return nothing_stored(error)
    places = error.stored_places()
    detail = ErrorDetail(
        code=PARTLY_STORED,
        message=stored_words(submitted, len(unknown), total),
        hint="look which of the jobs exist before any of them is sent again",
        job_ids=[str(each) for each in unknown],
        submitted=submitted,
    )
    if places is not None:
        there = {*places.stored, *places.unknown}
        hint = "send only the jobs again that are not stored: 'not_stored' has their places in 'jobs', from 0"
        if unknown:
            hint += "; those of 'unknown' are stored if 'job_ids' are found"
        missing = [place for place in range(total) if place not in there]
        detail = msgspec.structs.replace(detail, hint=hint, not_stored=missing, unknown=places.unknown)
    return PartlyStored(error.__cause__, detail)


PARTLY_STORED = "partly_stored"
_NAMED = frozenset({"job_id", "idempotency_key", "on_success", "on_failure"})
"""Options that give a job its id."""


@OPERATIONS.post("/jobs", scope=Scope.SUBMIT, status=201)
async def submit_job(call: Call, body: SubmitBody) -> ReceiptRecord:
    """Submit one job. Status 201 says that it is as safe as ``level``.

    After status 503 with ``job_ids`` it may have been stored: send the same again with that ``job_id``.
    """
    options = body.options()
    if not options.keys() & _NAMED:
        options["job_id"] = FreshId(new_id())
    if (job_id := options.get("job_id")) is not None:
        call.job_ids.append(job_id.bytes if isinstance(job_id, UUID) else job_id)
    receipt = await call.cluster.submit(body.handler, body.args, **options)
    return record_of(ReceiptRecord, receipt)


@OPERATIONS.post("/jobs/bulk", scope=Scope.SUBMIT, status=201)
async def submit_jobs(call: Call, body: SubmitManyBody) -> BulkRecord:
    """Submit many jobs with the same options. When it stops after some are stored, because one is refused or a server does
    not answer, the error is ``partly_stored``: it has the places of those that are not stored."""
    calls: list[HandlerCall[Any]] = [HandlerCall(each.handler, each.args) for each in body.jobs]
    try:
        done = await call.cluster.submit_many(calls, **body.options())
    except BulkFailed as error:
        raise _stopped(error, len(calls)) from error.__cause__
    return BulkRecord(
        ids=list(done.ids), submitted=done.submitted, by_level={level.value: n for level, n in done.by_level.items()}
    )
