"""Batches, workflows and signals over HTTP."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.client.batches.batch import Batch
from jobmaster.client.bulk import BulkFailed
from jobmaster.handlers import Call as HandlerCall
from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Unavailable, WaitTimeout
from jobmaster.model.flow.batch import BatchView
from jobmaster.model.flow.signal import Recipients
from jobmaster.model.flow.workflow import WorkflowView
from jobmaster.model.job_view import moment
from jobmaster.rules.access import Scope
from jobmaster.web.answers import ErrorDetail, PartlyStored
from jobmaster.web.api.operation import Body, Call, Operations, Query
from jobmaster.web.api.records import (
    BatchPage,
    BatchRecord,
    BatchWaitRecord,
    KeptSignalRecord,
    SignalSentRecord,
    SignalsRecord,
    StepRecord,
    WaitingJobsRecord,
    WorkflowPage,
    WorkflowRecord,
    WorkflowStartRecord,
    WorkflowWaitRecord,
    record_of,
    records_of,
)
from jobmaster.web.api.submitting import (
    PARTLY_STORED,
    CallBody,
    SubmitOptionsBody,
    WaitQuery,
    nothing_stored,
    stored_words,
)
from jobmaster.web.api.workflow_body import WorkflowBody, flow_of

OPERATIONS = Operations()

JOBS_MAX = 10_000
"""Jobs of a batch that is submitted in one request."""
Limit = Annotated[int, Meta(ge=1, le=1000)]


class BatchesQuery(Query, frozen=True, kw_only=True):
    """Which batches."""

    state: list[str] | None = None
    name: str | None = None
    key: str | None = None
    before: UUID | None = None
    """``next`` of the page before."""
    limit: Limit = 100


class BatchQuery(Query, frozen=True, kw_only=True):
    """How a batch is read."""

    count: bool = False
    """Count its jobs: about a second for a million."""


class BatchBody(SubmitOptionsBody, frozen=True, kw_only=True):
    """A whole batch. The options are those of each of its jobs; ``timeout`` is that of an attempt."""

    name: str
    jobs: Annotated[list[CallBody], Meta(min_length=1, max_length=JOBS_MAX)]
    description: str | None = None
    key: str | None = None
    """There is one batch of a key: sent again, the same jobs are not stored twice."""
    on_complete: CallBody | None = None
    on_success: CallBody | None = None
    on_failure: CallBody | None = None


class WorkflowsQuery(Query, frozen=True, kw_only=True):
    """Which workflows."""

    state: list[str] | None = None
    name: str | None = None
    before: UUID | None = None
    """``next`` of the page before."""
    limit: Limit = 100


class SignalsQuery(Query, frozen=True, kw_only=True):
    """Which signals."""

    key: str | None = None


class SignalBody(Body, frozen=True, kw_only=True):
    """A signal."""

    key: str
    payload: Any = None
    to: Recipients = Recipients.ALL
    keep_for: float | None = None
    """Seconds for which jobs that are submitted later receive it, too."""
    signal_id: UUID | None = None
    """The same id again delivers nothing new."""


# ---------------------------------------------------------------- batches


@OPERATIONS.get("/batches", scope=Scope.VIEW)
async def list_batches(call: Call, query: BatchesQuery) -> BatchPage:
    """Batches, the newest first, page by page."""
    page = await call.cluster.batches.list(
        state=query.state, name=query.name, key=query.key, before=query.before, limit=query.limit
    )
    return BatchPage(
        batches=[record_of(BatchRecord, view) for view in page], next=page[-1].id if len(page) == query.limit else None
    )


@OPERATIONS.post("/batches", scope=Scope.SUBMIT, status=201)
async def submit_batch(call: Call, body: BatchBody) -> BatchRecord:
    """Submit a batch with all of its jobs. When it stops after some are stored, the error is ``partly_stored`` and the batch
    is cancelled; one with a ``key`` stays, and goes on when the same request is sent again."""
    given = body.options()
    of_batch = {name: given.pop(name) for name in _OF_BATCH if name in given}
    batch = call.cluster.batch(body.name, **of_batch)
    try:
        async with batch:
            await batch.submit_many([HandlerCall(each.handler, each.args) for each in body.jobs], **given)
        return record_of(BatchRecord, await batch.get())
    except JobMasterError as error:
        stopped = _stopped(error, batch, body)
        raise stopped from None if stopped is error else error


def _stopped(error: JobMasterError, batch: Batch, body: BatchBody) -> PartlyStored | JobMasterError:
    """The error of a batch of which some jobs may be stored."""
    unknown = sorted(error.unknown_ids) if isinstance(error, BulkFailed) else []
    plain = nothing_stored(error) if isinstance(error, BulkFailed) else error
    if not batch.submitted and not unknown:
        return plain
    if body.key is not None:  # what is stored is not stored again
        return Unavailable(error.message) if unknown or isinstance(error, OutcomeUnknown) else plain
    detail = ErrorDetail(
        code=PARTLY_STORED,
        message=f"batch {batch.id}: {stored_words(batch.submitted, len(unknown), len(body.jobs))}",
        hint="look what has become of the batch before it is sent again; a batch with a key may be sent again as it is",
        job_ids=[str(each) for each in unknown],
        submitted=batch.submitted,
    )
    return PartlyStored(error.__cause__ if isinstance(error, BulkFailed) else error, detail)


_OF_BATCH = ("description", "key", "on_complete", "on_success", "on_failure")


@OPERATIONS.get("/batches/{batch}", scope=Scope.VIEW)
async def get_batch(call: Call, batch: UUID, query: BatchQuery) -> BatchRecord:
    """One batch."""
    batches = call.cluster.batches
    return record_of(BatchRecord, await (batches.progress(batch) if query.count else batches.get(batch)))


@OPERATIONS.get("/batches/{batch}/wait", scope=Scope.VIEW)
async def wait_for_batch(call: Call, batch: UUID, query: WaitQuery) -> BatchWaitRecord:
    """Wait until the batch has ended, at most ``timeout`` seconds."""
    ended = True
    try:
        view: BatchView = await call.cluster.batches.wait(batch, timeout=query.timeout)
    except WaitTimeout:
        ended, view = False, await call.cluster.batches.get(batch)
    return BatchWaitRecord(ended=ended, batch=record_of(BatchRecord, view))


@OPERATIONS.post("/batches/{batch}/cancel", scope=Scope.JOBS)
async def cancel_batch(call: Call, batch: UUID) -> BatchRecord:
    """Cancel a batch, and those inside it."""
    return record_of(BatchRecord, await call.cluster.batches.cancel(batch, actor=call.actor))


@OPERATIONS.post("/batches/{batch}/retry", scope=Scope.JOBS, status=201)
async def retry_batch(call: Call, batch: UUID) -> BatchRecord:
    """Run the jobs of an ended batch that have not succeeded again, as a new batch."""
    again = await call.cluster.batches.retry_failed(batch, actor=call.actor)
    return record_of(BatchRecord, await again.get())


# ---------------------------------------------------------------- workflows


@OPERATIONS.get("/workflows", scope=Scope.VIEW)
async def list_workflows(call: Call, query: WorkflowsQuery) -> WorkflowPage:
    """Workflows without their steps, the newest first, page by page."""
    page = await call.cluster.workflows.list(state=query.state, name=query.name, before=query.before, limit=query.limit)
    return WorkflowPage(
        workflows=[_workflow(call, view) for view in page], next=page[-1].id if len(page) == query.limit else None
    )


@OPERATIONS.post("/workflows", scope=Scope.SUBMIT, status=201)
async def start_workflow(call: Call, body: WorkflowBody) -> WorkflowStartRecord:
    """Check a workflow as a whole, store it, and start the steps that wait for no other one.

    After status 503 with ``job_ids`` it may have been stored: send the same again with that ``workflow_id``.
    """
    workflows = call.cluster.workflows
    of = workflows.new_id() if body.workflow_id is None else body.workflow_id
    call.job_ids.append(of.bytes)
    try:
        return WorkflowStartRecord(id=await workflows.start(body.name, flow_of(body.steps), workflow_id=of))
    except OutcomeUnknown as error:
        raise OutcomeUnknown(error.message, id_bytes=[of.bytes]) from error


@OPERATIONS.get("/workflows/{workflow}", scope=Scope.VIEW)
async def get_workflow(call: Call, workflow: UUID) -> WorkflowRecord:
    """One workflow with its steps."""
    return _workflow(call, await call.cluster.workflows.get(workflow))


@OPERATIONS.get("/workflows/{workflow}/wait", scope=Scope.VIEW)
async def wait_for_workflow(call: Call, workflow: UUID, query: WaitQuery) -> WorkflowWaitRecord:
    """Wait until the workflow has ended, at most ``timeout`` seconds."""
    ended = True
    try:
        await call.cluster.workflows.wait(workflow, timeout=query.timeout)
    except WaitTimeout:
        ended = False
    return WorkflowWaitRecord(ended=ended, workflow=_workflow(call, await call.cluster.workflows.get(workflow)))


@OPERATIONS.post("/workflows/{workflow}/cancel", scope=Scope.JOBS)
async def cancel_workflow(call: Call, workflow: UUID) -> WorkflowRecord:
    """Begin no further step, cancel what runs, undo what was done."""
    return _workflow(call, await call.cluster.workflows.cancel(workflow, actor=call.actor))


@OPERATIONS.post("/workflows/{workflow}/retry", scope=Scope.JOBS)
async def retry_workflow(call: Call, workflow: UUID) -> WorkflowRecord:
    """Resume a workflow at the steps that failed."""
    return _workflow(call, await call.cluster.workflows.retry(workflow, actor=call.actor))


def _workflow(call: Call, view: WorkflowView) -> WorkflowRecord:
    steps = records_of(StepRecord, view.steps)
    if not call.may(Scope.PAYLOAD):
        steps = [msgspec.structs.replace(step, error="") for step in steps]
    return record_of(WorkflowRecord, view, steps=steps)


# ---------------------------------------------------------------- signals


@OPERATIONS.get("/signals", scope=Scope.VIEW)
async def list_signals(call: Call, query: SignalsQuery) -> SignalsRecord:
    """How many jobs wait for the signal of each key, and the signals that are kept."""
    signals = call.cluster.signals
    return SignalsRecord(
        waiting=records_of(WaitingJobsRecord, await signals.waiting(query.key)),
        kept=[
            record_of(KeptSignalRecord, each, id=UUID(bytes=each.id_bytes)) for each in await signals.kept(query.key)
        ],
    )


@OPERATIONS.post("/signals", scope=Scope.SUBMIT)
async def send_signal(call: Call, body: SignalBody) -> SignalSentRecord:
    """Start the jobs that wait for the key."""
    sent = await call.cluster.signals.send(
        body.key, body.payload, to=body.to, keep_for=body.keep_for, signal_id=body.signal_id, actor=call.actor
    )
    return record_of(SignalSentRecord, sent, id=UUID(bytes=sent.id_bytes), kept_until=moment(sent.kept_until_us))
