"""What operators see, over HTTP: overview, agents, hosts, buckets, rescues, failures, log, why a job does not run.

It is ``Cluster.inspect``. Its views that are JSON as they are are shown as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from jobmaster.model.bucket import BucketState
from jobmaster.model.inspection.explanation import Explanation
from jobmaster.model.inspection.failures import Failures
from jobmaster.model.inspection.views import AgentView, BucketEvent, HostView, OperatorAct, Rescue
from jobmaster.model.job import Priority, PriorityLabel
from jobmaster.rules.access import Scope
from jobmaster.web.api.jobs import JobFiltersQuery
from jobmaster.web.api.operation import Call, Operations, Query
from jobmaster.web.api.records import PauseRecord, Record, record_of, records_of

OPERATIONS = Operations()

SinceSeconds = Annotated[float, Meta(ge=0, le=1e11)]
Listed = Annotated[int, Meta(ge=1, le=10_000)]


class AgentsQuery(Query, frozen=True, kw_only=True):
    """Which agents."""

    ended: bool = False
    """Also those that have ended."""


class BucketsQuery(Query, frozen=True, kw_only=True):
    """Which buckets."""

    retired: bool = False
    """Also those that are about to lose their rows."""
    depths: bool = True
    """Read their depths from the stores."""
    lane: str | None = None


class RescuesQuery(Query, frozen=True, kw_only=True):
    """Which rescues."""

    since: SinceSeconds | None = None
    """Lost so many seconds ago at most."""
    unfinished: bool = False
    limit: Listed = 100


class LogQuery(Query, frozen=True, kw_only=True):
    """Which lines of the operator log."""

    subject: str | None = None
    """What was acted on: its name or id, or the beginning of it."""
    actor: str | None = None
    """The whole name, or the part before the ``@``."""
    since: SinceSeconds | None = None
    """Done so many seconds ago at most."""
    limit: Listed = 100


class FailuresQuery(JobFiltersQuery, frozen=True, kw_only=True):
    """Which failures; without ``since`` those of the last day."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Groups."""


class ScaleQuery(Query, frozen=True, kw_only=True):
    """Of which lane and priority; without: all."""

    lane: str | None = None
    priority: PriorityLabel | None = None


class BucketRecord(Record, frozen=True, kw_only=True):
    """A bucket with its depth."""

    id: UUID
    store: str
    lane: str
    priority: PriorityLabel
    state: BucketState
    epoch: int
    owner: UUID
    owner_name: str | None
    owner_leased: bool
    """Its owner holds its lease."""
    changed_at: datetime
    unchanged_seconds: float
    pending: int | None
    """Jobs in the store without a row that are not claimed. ``null``, as the next three: the store did not answer."""
    assigned: int | None
    claimed_lists: int | None
    kept: int | None
    rows_assigned: int
    rows_processing: int


class BucketsRecord(Record, frozen=True, kw_only=True):
    """The buckets of the cluster."""

    buckets: list[BucketRecord]
    silent: list[str]
    """A sentence for each store that did not answer."""


class RescueRecord(Rescue, Record, frozen=True, kw_only=True):
    """A bucket that was lost, and what became of it."""

    priority: PriorityLabel | None


class BacklogRecord(Record, frozen=True, kw_only=True):
    """What waits and runs in one lane and priority."""

    lane: str
    priority: PriorityLabel
    buckets: int
    frozen: int
    pending: int
    assigned: int
    running: int
    kept: int
    held: int
    due: int
    overdue: int
    oldest_seconds: float | None
    ready: int
    """Jobs that could start now."""


class OverviewRecord(Record, frozen=True, kw_only=True):
    """The cluster on one screen."""

    cluster: str
    at: datetime
    leader: str | None
    agents_alive: int
    agents_known: int
    slots: int
    running: int
    ended_per_second: float
    backlog: list[BacklogRecord]
    ready: int
    drain_seconds: float | None
    """When what is ready would have ended at the present rate, if no more came; ``null``: none ends."""
    buckets: dict[str, int]
    pauses: list[PauseRecord]
    schedules_paused: list[str]
    warnings: list[str]


class ScaleRecord(Record, frozen=True, kw_only=True):
    """Figures for an autoscaler, all numbers. As ``/scale`` of an agent, and also while there is none."""

    backlog_jobs: int
    """Jobs that could run and wait: the next three together."""
    pending: int
    assigned: int
    held_due: int
    held_jobs: int
    running: int
    oldest_due_seconds: float


@OPERATIONS.get("/overview", scope=Scope.VIEW)
async def get_overview(call: Call) -> OverviewRecord:
    """The cluster on one screen: agents, what waits and runs by lane and priority, warnings."""
    return record_of(OverviewRecord, await call.cluster.inspect.overview())


@OPERATIONS.get("/scale", scope=Scope.VIEW)
async def get_scale(call: Call, query: ScaleQuery) -> ScaleRecord:
    """Figures for an autoscaler, of the cluster, a lane, a priority or both."""
    priority = None if query.priority is None else Priority.parse(query.priority)
    found = [
        each
        for each in (await call.cluster.inspect.overview()).backlog
        if query.lane in (None, each.lane) and priority in (None, each.priority)
    ]
    return ScaleRecord(
        backlog_jobs=sum(each.ready for each in found),
        pending=sum(each.pending for each in found),
        assigned=sum(each.assigned for each in found),
        held_due=sum(each.due for each in found),
        held_jobs=sum(each.held for each in found),
        running=sum(each.running for each in found),
        oldest_due_seconds=max((each.oldest_seconds or 0.0 for each in found), default=0.0),
    )


@OPERATIONS.get("/agents", scope=Scope.VIEW)
async def list_agents(call: Call, query: AgentsQuery) -> list[AgentView]:
    """Agents with their leases and statistics, the living first."""
    return await call.cluster.inspect.agents(ended=query.ended)


@OPERATIONS.get("/hosts", scope=Scope.VIEW)
async def list_hosts(call: Call) -> list[HostView]:
    """The machines of the living agents."""
    return await call.cluster.inspect.hosts()


@OPERATIONS.get("/buckets", scope=Scope.VIEW)
async def list_buckets(call: Call, query: BucketsQuery) -> BucketsRecord:
    """Buckets with their owners and depths."""
    found = await call.cluster.inspect.buckets(retired=query.retired, depths=query.depths)
    chosen = [bucket for bucket in found.buckets if query.lane in (None, bucket.lane)]
    return BucketsRecord(buckets=records_of(BucketRecord, chosen), silent=[*found.silent])


@OPERATIONS.get("/buckets/{bucket}/history", scope=Scope.VIEW)
async def list_bucket_history(call: Call, bucket: UUID) -> list[BucketEvent]:
    """What has become of one bucket, oldest first."""
    return await call.cluster.inspect.bucket_history(bucket)


@OPERATIONS.get("/rescues", scope=Scope.VIEW)
async def list_rescues(call: Call, query: RescuesQuery) -> list[RescueRecord]:
    """Buckets that were lost, and what became of them, the latest loss first."""
    found = await call.cluster.inspect.rescues(since=query.since, unfinished=query.unfinished, limit=query.limit)
    return records_of(RescueRecord, found)


@OPERATIONS.get("/log", scope=Scope.VIEW)
async def list_operator_log(call: Call, query: LogQuery) -> list[OperatorAct]:
    """The actions of operators, the latest first."""
    return await call.cluster.inspect.operator_log(
        subject=query.subject, actor=query.actor, since=query.since, limit=query.limit
    )


@OPERATIONS.get("/failures", scope=Scope.VIEW)
async def list_failures(call: Call, query: FailuresQuery) -> Failures:
    """Failed jobs by handler, type of the error and first line of the message, the largest group first. The lines need the
    scope ``payload``."""
    found = await call.cluster.inspect.failures(limit=query.limit, **query.filters())
    if call.may(Scope.PAYLOAD):
        return found
    groups = tuple(msgspec.structs.replace(group, line="") for group in found.groups)
    return msgspec.structs.replace(found, groups=groups)


@OPERATIONS.get("/jobs/{job}/explanation", scope=Scope.VIEW)
async def explain_job(call: Call, job: UUID) -> Explanation:
    """Why a job does not run: what it waits for, the decisive cause first."""
    return await call.cluster.inspect.explain(job)
