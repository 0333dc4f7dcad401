"""Jobs over HTTP: list, read, wait, change, cancel, retry."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.client.jobs.listing import LIMIT, LIMIT_MAX
from jobmaster.model.errors import InputError, WaitTimeout
from jobmaster.model.job import ErrorInfo, PriorityLabel
from jobmaster.model.job_log import LogLevel, LogLine
from jobmaster.model.job_view import JobView
from jobmaster.rules.access import Scope
from jobmaster.web.api.operation import Body, Call, Operations, Query
from jobmaster.web.api.records import (
    AttemptRecord,
    CancelRecord,
    ChangeRecord,
    ConfirmRecord,
    CountRecord,
    ErrorRecord,
    JobDetail,
    JobPage,
    JobRecord,
    LogLineRecord,
    ProgressRecord,
    ReceiptRecord,
    WaitRecord,
    record_of,
    records_of,
)
from jobmaster.web.api.submitting import Arguments, Moment, WaitQuery

OPERATIONS = Operations()

LOG_LINES_MAX = 10_000


class JobFiltersQuery(Query, frozen=True, kw_only=True):
    """Which jobs. ``state`` with HELD, ASSIGNED and PROCESSING alone, ``due_after`` and ``due_before`` are cheap however long
    the history is; ``batch``, ``workflow``, ``since`` and ``until`` are ranges of it; the others are compared row by row."""

    whole = frozenset({"metadata"})

    state: list[str] | None = None
    handler: str | None = None
    lane: str | None = None
    priority: str | None = None
    tag: str | None = None
    metadata: list[str] | None = None
    """``name=text``; a job has all of them."""
    batch: UUID | None = None
    workflow: UUID | None = None
    schedule: str | None = None
    tenant: str | None = None
    error: str | None = None
    """The type of the recorded error, or the fingerprint of a group of failures."""
    due_after: Moment | float | None = None
    """HELD, and due at this time or later; a number: so many seconds from now."""
    due_before: Moment | float | None = None
    """HELD, and due before this time; a number: so many seconds from now."""
    since: Moment | Annotated[float, Meta(ge=0)] | None = None
    """Created at this time or later; a number: so many seconds ago."""
    until: Moment | Annotated[float, Meta(ge=0)] | None = None
    """Created before this time; a number: so many seconds ago."""

    def filters(self) -> Any:
        """As the client takes them."""
        given = {name: getattr(self, name) for name in JobFilters.__annotations__ if getattr(self, name) is not None}
        if self.metadata is not None:
            pairs = [each.partition("=") for each in self.metadata]
            if wrong := next((name for name, sign, _ in pairs if not sign), None):
                raise InputError(f"'metadata' {wrong!r:.60} is not name=text")
            given["metadata"] = {name: value for name, _, value in pairs}
        return given


class JobsQuery(JobFiltersQuery, frozen=True, kw_only=True):
    """Which page of a list."""

    after: UUID | None = None
    """``next`` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT


class CountQuery(JobFiltersQuery, frozen=True, kw_only=True):
    """Where a count ends."""

    at_most: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000


class LogsQuery(Query, frozen=True, kw_only=True):
    """Which lines of a log."""

    after_token: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """``token`` of the last line of the page before."""
    after_number: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """``number`` of that line."""
    limit: Annotated[int, Meta(ge=1, le=LOG_LINES_MAX)] = 1000


class RetryBody(Body, frozen=True, kw_only=True):
    """What the new job has in place of the old one's."""

    args: Arguments | None = None


class ConfirmBody(Body, frozen=True, kw_only=True):
    """The confirmation of a run."""

    confirmation: str
    """``ctx.confirmation`` of the run."""
    result: Any = None


class ChangeBody(Body, frozen=True, kw_only=True):
    """New values of a job that waits; at least one of them."""

    at: Moment | None = None
    after: float | None = None
    """Due this many seconds from now; 0: now."""
    priority: PriorityLabel | None = None
    lane: str | None = None


@OPERATIONS.get("/jobs", scope=Scope.VIEW)
async def list_jobs(call: Call, query: JobsQuery) -> JobPage:
    """Jobs that have a row in the master, the newest first, page by page."""
    page = await call.cluster.jobs(limit=query.limit, after=query.after, payload=False, **query.filters())
    jobs = [_listed(call, view) for view in page]
    return JobPage(jobs=jobs, next=page[-1].id if len(page) == query.limit else None)


@OPERATIONS.get("/jobs/count", scope=Scope.VIEW)
async def count_jobs(call: Call, query: CountQuery) -> CountRecord:
    """How many jobs that have a row in the master fit; ``exact`` is false when there are more."""
    counted = await call.cluster.count(at_most=query.at_most, **query.filters())
    return CountRecord(count=counted.jobs, exact=counted.exact)


@OPERATIONS.post("/jobs/confirm", scope=Scope.JOBS)
async def confirm_run(call: Call, body: ConfirmBody) -> ConfirmRecord:
    """Confirm a run of a handler that is declared with explicit confirmation: its job has succeeded. Safe to repeat."""
    await call.cluster.confirm_run(body.confirmation, body.result, actor=call.actor)
    return ConfirmRecord(confirmed=True)


@OPERATIONS.get("/jobs/{job}", scope=Scope.VIEW)
async def get_job(call: Call, job: UUID) -> JobDetail:
    """One job, wherever it is: in a bucket or in the master."""
    return await _detail(call, job)


@OPERATIONS.get("/jobs/{job}/attempts", scope=Scope.VIEW)
async def list_attempts(call: Call, job: UUID) -> list[AttemptRecord]:
    """What the master has recorded about the runs of a job, oldest first."""
    attempts = await call.cluster.attempts(job)
    return [record_of(AttemptRecord, each, error=error_record(call, each.error)) for each in attempts]


@OPERATIONS.get("/jobs/{job}/logs", scope=Scope.PAYLOAD)
async def list_logs(call: Call, job: UUID, query: LogsQuery) -> list[LogLineRecord]:
    """Lines that the runs of a job have written, run by run."""
    after = None
    if query.after_token:
        after = LogLine(token=query.after_token, number=query.after_number, at_us=0, level=LogLevel.INFO, text="")
    return records_of(LogLineRecord, await call.cluster.logs(job, after=after, limit=query.limit))


@OPERATIONS.get("/jobs/{job}/wait", scope=Scope.VIEW)
async def wait_for_job(call: Call, job: UUID, query: WaitQuery) -> WaitRecord:
    """Wait until the job has ended, at most ``timeout`` seconds; the job then, with its result."""
    ended = True
    try:
        await call.cluster.wait(job, timeout=query.timeout)
    except WaitTimeout:
        ended = False
    return WaitRecord(ended=ended, job=await _detail(call, job))


@OPERATIONS.post("/jobs/{job}/retry", scope=Scope.JOBS, status=201)
async def retry_job(call: Call, job: UUID, body: RetryBody) -> ReceiptRecord:
    """Run a FAILED, CANCELLED or EXPIRED job again, as a new job. Asked twice, it is one new job."""
    return record_of(ReceiptRecord, await call.cluster.retry(job, body.args, actor=call.actor))


@OPERATIONS.post("/jobs/{job}/cancel", scope=Scope.JOBS)
async def cancel_job(call: Call, job: UUID) -> CancelRecord:
    """Request the cancellation of a job; its state after that."""
    return CancelRecord(id=job, state=await call.cluster.cancel(job, actor=call.actor))


@OPERATIONS.post("/jobs/{job}/change", scope=Scope.JOBS)
async def change_job(call: Call, job: UUID, body: ChangeBody) -> ChangeRecord:
    """Give a job that waits another due time, priority or lane, in one write. ``changed`` is false when that came too
    late."""
    options: Any = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not None}
    return record_of(ChangeRecord, await call.cluster.change(job, actor=call.actor, **options))


# ---------------------------------------------------------------- records


def error_record(call: Call, info: ErrorInfo | None) -> ErrorRecord | None:
    """Why an attempt failed, as far as the caller may read it."""
    if info is None:
        return None
    return ErrorRecord(
        type=info.type,
        reason=info.reason,
        message=info.message if call.may(Scope.PAYLOAD) else None,
        traceback=info.traceback if call.may(Scope.TRACEBACK) else None,
    )


def _own(call: Call, view: JobView) -> dict[str, Any]:
    headers = view.headers
    return {
        "tenant": headers.tenant[0] if headers.tenant else None,
        "workflow": UUID(headers.workflow[0]) if headers.workflow else None,
        "error": error_record(call, view.error),
    }


def _listed(call: Call, view: JobView) -> JobRecord:
    return record_of(JobRecord, view, **_own(call, view))


async def _detail(call: Call, job: UUID) -> JobDetail:
    view = await call.cluster.redacted(await call.cluster.get(job))
    shown = call.may(Scope.PAYLOAD)
    progress = None if view.progress is None else record_of(ProgressRecord, view.progress)
    if progress is not None and not shown:
        progress = msgspec.structs.replace(progress, text=None)
    return record_of(
        JobDetail,
        view,
        **_own(call, view),
        arguments=view.arguments if shown else None,
        result=view.result_value if shown else None,
        progress=progress,
    )
