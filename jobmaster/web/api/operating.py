"""What operators do to many jobs at once, to locks and to unique keys, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.model.errors import WaitTimeout
from jobmaster.model.flow.bulk_operation import BulkKind, BulkState, BulkView, SkipCause
from jobmaster.model.flow.uniqueness import UniqueTerm
from jobmaster.model.job import JobState
from jobmaster.rules.access import Scope
from jobmaster.web.api.jobs import ChangeBody
from jobmaster.web.api.operation import Body, Call, Operations, Query
from jobmaster.web.api.records import (
    LockRecord,
    OnceRecord,
    Record,
    ReleaseRecord,
    record_of,
    records_of,
)
from jobmaster.web.api.submitting import Moment, WaitQuery
from jobmaster.web.authentication import require

OPERATIONS = Operations()

Name = Annotated[str, Meta(min_length=1, max_length=200)]


class FiltersBody(Body, frozen=True, kw_only=True):
    """Which jobs; at least one filter. As the parameters of the list of jobs."""

    state: list[str] | None = None
    handler: str | None = None
    lane: str | None = None
    priority: str | None = None
    tag: str | None = None
    metadata: dict[str, str] | None = None
    batch: UUID | None = None
    workflow: UUID | None = None
    schedule: str | None = None
    tenant: str | None = None
    error: str | None = None
    due_after: Moment | float | None = None
    due_before: Moment | float | None = None
    since: Moment | float | None = None
    until: Moment | float | None = None


class BulkBody(Body, frozen=True, kw_only=True):
    """One change of every job that fits. ``delete`` needs the scope ``servers``."""

    kind: BulkKind
    filters: FiltersBody
    change: ChangeBody | None = None
    """What ``reschedule`` sets."""
    reason: Annotated[str, Meta(max_length=1000)] = ""


class BulkOperationsQuery(Query, frozen=True, kw_only=True):
    """Which operations."""

    state: list[str] | None = None
    before: UUID | None = None
    """``next`` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class UniqueKeysQuery(Query, frozen=True, kw_only=True):
    """Which unique keys."""

    handler: str | None = None
    key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class UniqueKeyQuery(Query, frozen=True, kw_only=True):
    """One unique key."""

    handler: str
    key: str


class UniqueKeyRecord(Record, frozen=True, kw_only=True):
    """A unique key that a job holds."""

    handler: str
    key: str
    job: UUID
    """The job that holds it."""
    state: JobState | None
    """Of the job; null: it has no row any more, and holds the key until the end of a window."""
    term: UniqueTerm
    """How long the key is held: while the job lives (``live``), until it starts (``waiting``), for a time (``window``)."""
    held_at: datetime
    until: datetime | None
    """End of a window."""


class UniqueReleaseRecord(Record, frozen=True, kw_only=True):
    """A unique key that was taken from its job. The job goes on."""

    handler: str
    key: str


class BulkPreviewRecord(Record, frozen=True, kw_only=True):
    """What a bulk operation would do now."""

    kind: BulkKind
    eligible: int
    """Jobs that it would try to change. Some may be left alone: what a submit refuses, or what changes meanwhile."""
    skipped: dict[SkipCause, int]
    """Jobs that fit and would be left alone, by the cause, as far as their rows show it."""
    capped: bool
    """There are more: the count was ended."""
    unsearched: int
    """Buckets with jobs that may have no row yet; those are not found."""


class BulkOperationRecord(Record, frozen=True, kw_only=True):
    """A bulk operation."""

    id: UUID
    kind: BulkKind
    state: BulkState
    filter: dict[str, Any]
    actor: str
    reason: str
    changed: int
    skipped: dict[str, int]
    unsearched: int
    error: str
    created_at: datetime | None
    ended_at: datetime | None
    done: float
    """Share of its range that it has looked at."""


class BulkOperationPage(Record, frozen=True, kw_only=True):
    """A page of bulk operations, the newest first."""

    operations: list[BulkOperationRecord]
    next: UUID | None
    """Give it as ``before`` to get the next page."""


class BulkWaitRecord(Record, frozen=True, kw_only=True):
    """The answer to a wait for a bulk operation."""

    ended: bool
    operation: BulkOperationRecord


# ---------------------------------------------------------------- bulk operations


@OPERATIONS.post("/bulk/preview", scope=Scope.JOBS)
async def preview_bulk(call: Call, body: BulkBody) -> BulkPreviewRecord:
    """Count the jobs that an operation would change now, and those that it would leave alone. Nothing is changed."""
    preview = await call.cluster.bulk.preview(body.kind, change=_given(body.change), **(_given(body.filters) or {}))
    return record_of(BulkPreviewRecord, preview)


@OPERATIONS.post("/bulk", scope=Scope.JOBS, status=202)
async def start_bulk(call: Call, body: BulkBody) -> BulkOperationRecord:
    """Request one change of every job that fits. The leader makes it, page by page; each job is changed at most once."""
    if body.kind is BulkKind.DELETE:
        require(call.principal, Scope.SERVERS)
    view = await call.cluster.bulk.start(
        body.kind, change=_given(body.change), reason=body.reason, actor=call.actor, **(_given(body.filters) or {})
    )
    return _operation(view)


@OPERATIONS.get("/bulk", scope=Scope.VIEW)
async def list_bulk(call: Call, query: BulkOperationsQuery) -> BulkOperationPage:
    """Bulk operations, the newest first, page by page."""
    page = await call.cluster.bulk.list(state=query.state, before=query.before, limit=query.limit)
    return BulkOperationPage(
        operations=[_operation(view) for view in page], next=page[-1].id if len(page) == query.limit else None
    )


@OPERATIONS.get("/bulk/{operation}", scope=Scope.VIEW)
async def get_bulk(call: Call, operation: UUID) -> BulkOperationRecord:
    """One bulk operation."""
    return _operation(await call.cluster.bulk.get(operation))


@OPERATIONS.get("/bulk/{operation}/wait", scope=Scope.VIEW)
async def wait_for_bulk(call: Call, operation: UUID, query: WaitQuery) -> BulkWaitRecord:
    """Wait until the operation has ended, at most ``timeout`` seconds."""
    ended = True
    try:
        view = await call.cluster.bulk.wait(operation, timeout=query.timeout)
    except WaitTimeout:
        ended, view = False, await call.cluster.bulk.get(operation)
    return BulkWaitRecord(ended=ended, operation=_operation(view))


@OPERATIONS.post("/bulk/{operation}/cancel", scope=Scope.JOBS)
async def cancel_bulk(call: Call, operation: UUID) -> BulkOperationRecord:
    """End an operation. What it has changed stays so."""
    return _operation(await call.cluster.bulk.cancel(operation, actor=call.actor))


def _operation(view: BulkView) -> BulkOperationRecord:
    return record_of(BulkOperationRecord, view, filter=msgspec.json.decode(view.filter_json))


def _given(body: Body | None) -> Any:
    """What is given, as the client takes it; ``None`` for nothing."""
    if body is None:
        return None
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not None}


# ---------------------------------------------------------------- locks


@OPERATIONS.get("/locks", scope=Scope.VIEW)
async def list_locks(call: Call) -> list[LockRecord]:
    """Locks that have a holder."""
    return records_of(LockRecord, await call.cluster.locks())


@OPERATIONS.delete("/locks/{name:path}", scope=Scope.SERVERS)
async def release_lock(call: Call, name: Name) -> ReleaseRecord:
    """Take a lock from its holder; the holder may work on for a third of the ttl."""
    released = await call.cluster.release_lock(name, actor=call.actor)
    return ReleaseRecord(released=None if released is None else record_of(LockRecord, released))


@OPERATIONS.get("/once", scope=Scope.VIEW)
async def list_once_actions(call: Call) -> list[OnceRecord]:
    """Actions that run once for each version: those that run, then failed ones, then done ones."""
    actions = await call.cluster.once_actions()
    if call.may(Scope.PAYLOAD):
        return records_of(OnceRecord, actions)
    return [record_of(OnceRecord, each, error=None) for each in actions]


# ---------------------------------------------------------------- unique keys


@OPERATIONS.get("/unique-keys", scope=Scope.VIEW)
async def list_unique_keys(call: Call, query: UniqueKeysQuery) -> list[UniqueKeyRecord]:
    """Unique keys that jobs hold now, by handler and key."""
    held = await call.cluster.inspect.unique_keys(query.handler, query.key, limit=query.limit)
    return records_of(UniqueKeyRecord, held)


@OPERATIONS.delete("/unique-keys", scope=Scope.JOBS)
async def release_unique_key(call: Call, query: UniqueKeyQuery) -> UniqueReleaseRecord:
    """Take a unique key from the job that holds it. The job goes on, and the next submit of the key makes another one."""
    await call.cluster.operate.release_unique_key(query.handler, query.key, actor=call.actor)
    return UniqueReleaseRecord(handler=query.handler, key=query.key)
