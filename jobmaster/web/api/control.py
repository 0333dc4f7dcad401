"""What shall run when, over HTTP: schedules, pauses, limits, circuit breakers, tenants."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from jobmaster.model.errors import WaitTimeout
from jobmaster.model.inspection.schedule_view import ScheduleView
from jobmaster.model.job import PriorityLabel
from jobmaster.model.job_view import moment
from jobmaster.model.pause import PauseChange, PauseKind
from jobmaster.model.schedule import Misfire, Overlap
from jobmaster.rules.access import Scope
from jobmaster.web.api.operation import Body, Call, Operations, Query
from jobmaster.web.api.records import (
    BreakerRecord,
    FireRecord,
    LimitRecord,
    NamesRecord,
    PauseChangeRecord,
    PauseRecord,
    ReceiptRecord,
    ResetRecord,
    ScheduleRecord,
    TenantRecord,
    record_of,
    records_of,
)
from jobmaster.web.api.submitting import Arguments, Moment

OPERATIONS = Operations()

CONFIRM_SECONDS_MAX = 50.0
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Reason = Annotated[str, Meta(max_length=1000)]
PausableKind = Literal["handler", "lane", "priority", "tag", "schedule"]
Confirm = Annotated[float, Meta(ge=0, le=CONFIRM_SECONDS_MAX)]


class ReasonBody(Body, frozen=True, kw_only=True):
    """Why."""

    reason: Reason = ""


class SchedulesQuery(Query, frozen=True, kw_only=True):
    """Which schedules."""

    tag: str | None = None
    retired: bool = False
    """Also those that were removed, or that no living agent declares any more."""


class CountQuery(Query, frozen=True, kw_only=True):
    """How many."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 10


class ScheduleBody(Body, frozen=True, kw_only=True):
    """A recurring job. Durations are seconds."""

    when: str | float
    """A cron expression, a duration such as ``5m``, or seconds."""
    handler: str
    args: Arguments = msgspec.field(default_factory=dict)
    zone: str | None = None
    start: Moment | None = None
    end: Moment | None = None
    jitter: float | None = None
    misfire: Misfire | None = None
    misfire_max: int | None = None
    overlap: Overlap | None = None
    tags: list[str] | None = None
    priority: PriorityLabel | None = None
    lane: str | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    expires: float | None = None
    tenant: str | None = None


class PauseBody(Body, frozen=True, kw_only=True):
    """What is paused."""

    kind: PausableKind
    value: Name
    """Name of the handler, lane, priority or schedule; or the tag."""
    until: Moment | Annotated[float, Meta(gt=0)] | None = None
    """End of the pause: a time, or seconds from now."""
    reason: Reason = ""
    timeout: Confirm = 10.0
    """Seconds to wait until every living agent obeys."""
    force: bool = False
    """Also a handler that no agent has, or a lane that none serves."""


class ResumeQuery(Query, frozen=True, kw_only=True):
    """Of a resume."""

    reason: Reason = ""
    timeout: Confirm = 10.0
    """Seconds to wait until every living agent obeys."""


class LimitBody(Body, frozen=True, kw_only=True):
    """Values of a limit that stand over those of the code."""

    running: int | None = None
    """Jobs that may run at once, of each key."""
    rate: str | float | None = None
    """Starts in a time, of each key: ``50/s``, ``600/m``, or starts a second."""
    burst: float | None = None
    reason: Reason = ""
    force: bool = False
    """Also a limit that no agent has declared yet."""


class OpenBody(Body, frozen=True, kw_only=True):
    """How a breaker is opened."""

    open_for: float | None = None
    """Seconds until it is half-open; without: until it is closed."""
    reason: Reason = ""
    epoch: int | None = None
    """Only if the breaker still has the epoch that the caller has read; else the answer is a conflict."""


class CloseBody(ReasonBody, frozen=True, kw_only=True):
    """How a breaker is closed."""

    epoch: int | None = None
    """As of ``open``."""


class TenantsQuery(Query, frozen=True, kw_only=True):
    """Which tenants."""

    lane: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


# ---------------------------------------------------------------- schedules


@OPERATIONS.get("/schedules", scope=Scope.VIEW)
async def list_schedules(call: Call, query: SchedulesQuery) -> list[ScheduleRecord]:
    """Schedules by name."""
    views = await call.cluster.schedules.list(tag=query.tag, retired=query.retired)
    return [await _schedule(call, view) for view in views]


@OPERATIONS.get("/schedules/{name:path}/next", scope=Scope.VIEW)
async def list_next_fires(call: Call, name: Name, query: CountQuery) -> list[datetime]:
    """The next nominal times of a schedule, also of a paused one."""
    return await call.cluster.schedules.next(name, query.limit)


@OPERATIONS.get("/schedules/{name:path}/fires", scope=Scope.VIEW)
async def list_fires(call: Call, name: Name, query: CountQuery) -> list[FireRecord]:
    """The newest decided fires of a schedule."""
    return records_of(FireRecord, await call.cluster.schedules.fires(name, limit=query.limit))


@OPERATIONS.post("/schedules/{name:path}/pause", scope=Scope.SCHEDULES)
async def pause_schedule(call: Call, name: Name, body: ReasonBody) -> NamesRecord:
    """Nothing of the schedule fires until it is resumed."""
    names = await call.cluster.schedules.pause(name, reason=body.reason, actor=call.actor)
    return NamesRecord(names=names)


@OPERATIONS.post("/schedules/{name:path}/resume", scope=Scope.SCHEDULES)
async def resume_schedule(call: Call, name: Name) -> NamesRecord:
    """The schedule fires again, from its next nominal time on."""
    return NamesRecord(names=await call.cluster.schedules.resume(name, actor=call.actor))


@OPERATIONS.post("/schedules/{name:path}/run", scope=Scope.SCHEDULES, status=201)
async def run_schedule(call: Call, name: Name) -> ReceiptRecord:
    """One fire now, beside the recurrence."""
    return record_of(ReceiptRecord, await call.cluster.schedules.run(name, actor=call.actor))


@OPERATIONS.get("/schedules/{name:path}", scope=Scope.VIEW)
async def get_schedule(call: Call, name: Name) -> ScheduleRecord:
    """One schedule."""
    return await _schedule(call, await call.cluster.schedules.get(name))


@OPERATIONS.put("/schedules/{name:path}", scope=Scope.SCHEDULES)
async def put_schedule(call: Call, name: Name, body: ScheduleBody) -> ScheduleRecord:
    """Store a schedule under a name, new or in place of the one that is there."""
    options: Any = {
        field: value
        for field in body.__struct_fields__
        if field not in ("when", "handler", "args") and (value := getattr(body, field)) is not None
    }
    view = await call.cluster.schedules.put(name, body.when, body.handler, body.args, **options)
    await call.note("schedule put", name, {"expression": view.expression, "handler": view.handler})
    return await _schedule(call, view)


@OPERATIONS.delete("/schedules/{name:path}", scope=Scope.SCHEDULES)
async def remove_schedule(call: Call, name: Name) -> NamesRecord:
    """Retire a schedule, and cancel its jobs whose time lies ahead."""
    return NamesRecord(names=await call.cluster.schedules.remove(name, actor=call.actor))


async def _schedule(call: Call, view: ScheduleView) -> ScheduleRecord:
    view = await call.cluster.redacted(view)
    return record_of(ScheduleRecord, view, arguments=view.arguments if call.may(Scope.PAYLOAD) else None)


# ---------------------------------------------------------------- pauses


@OPERATIONS.get("/pauses", scope=Scope.VIEW)
async def list_pauses(call: Call) -> list[PauseRecord]:
    """The pauses in force."""
    return records_of(PauseRecord, await call.cluster.pauses())


@OPERATIONS.post("/pauses", scope=Scope.CONTROL)
async def pause(call: Call, body: PauseBody) -> PauseChangeRecord:
    """Stop the starts of a handler, a lane, a priority or a tag, or the fires of a schedule. ``confirmed`` is false when the
    pause is stored, and some agents have not confirmed it within ``timeout``."""
    subject: Any = {body.kind: body.value}
    try:
        change = await call.cluster.pause(
            until=body.until, reason=body.reason, timeout=body.timeout, force=body.force, actor=call.actor, **subject
        )
    except WaitTimeout:
        return _unconfirmed(body.kind, body.value)
    return _pause_change(change)


@OPERATIONS.delete("/pauses/{kind}/{value:path}", scope=Scope.CONTROL)
async def resume(call: Call, kind: PausableKind, value: Name, query: ResumeQuery) -> PauseChangeRecord:
    """End a pause. ``changed`` is false when there was none."""
    subject: Any = {kind: value}
    try:
        change = await call.cluster.resume(reason=query.reason, timeout=query.timeout, actor=call.actor, **subject)
    except WaitTimeout:
        return _unconfirmed(kind, value)
    return _pause_change(change)


def _pause_change(change: PauseChange) -> PauseChangeRecord:
    return record_of(PauseChangeRecord, change, confirmed=change.agents == change.obeying)


def _unconfirmed(kind: str, value: str) -> PauseChangeRecord:
    """Of a change that is stored. The list of agents shows those that have not confirmed it."""
    return PauseChangeRecord(
        kind=PauseKind(kind), value=value, changed=True, confirmed=False, until_at=None, agents=None, obeying=None
    )


# ---------------------------------------------------------------- limits, breakers, tenants


@OPERATIONS.get("/limits", scope=Scope.VIEW)
async def list_limits(call: Call) -> list[LimitRecord]:
    """Limits, with what is taken of them."""
    return records_of(LimitRecord, await call.cluster.limits.list())


@OPERATIONS.get("/limits/{name:path}", scope=Scope.VIEW)
async def get_limit(call: Call, name: Name) -> LimitRecord:
    """One limit."""
    return record_of(LimitRecord, await call.cluster.limits.get(name))


@OPERATIONS.put("/limits/{name:path}", scope=Scope.CONTROL)
async def set_limit(call: Call, name: Name, body: LimitBody) -> LimitRecord:
    """Give a limit other values, until they are taken back."""
    view = await call.cluster.limits.set(
        name,
        body.running,
        rate=body.rate,
        burst=body.burst,
        reason=body.reason,
        actor=call.actor,
        force=body.force,
    )
    return record_of(LimitRecord, view)


@OPERATIONS.delete("/limits/{name:path}", scope=Scope.CONTROL)
async def reset_limit(call: Call, name: Name) -> ResetRecord:
    """Take set values back: those of the code count again."""
    return ResetRecord(changed=await call.cluster.limits.reset(name, actor=call.actor))


@OPERATIONS.get("/breakers", scope=Scope.VIEW)
async def list_breakers(call: Call) -> list[BreakerRecord]:
    """Circuit breakers."""
    return records_of(BreakerRecord, await call.cluster.breakers.list())


@OPERATIONS.post("/breakers/{name:path}/open", scope=Scope.CONTROL)
async def open_breaker(call: Call, name: Name, body: OpenBody) -> BreakerRecord:
    """Open a breaker: the jobs of its handlers wait."""
    view = await call.cluster.breakers.open(
        name, open_for=body.open_for, reason=body.reason, actor=call.actor, epoch=body.epoch
    )
    return record_of(BreakerRecord, view)


@OPERATIONS.post("/breakers/{name:path}/close", scope=Scope.CONTROL)
async def close_breaker(call: Call, name: Name, body: CloseBody) -> BreakerRecord:
    """Close a breaker: its jobs start again."""
    view = await call.cluster.breakers.close(name, reason=body.reason, actor=call.actor, epoch=body.epoch)
    return record_of(BreakerRecord, view)


@OPERATIONS.get("/breakers/{name:path}", scope=Scope.VIEW)
async def get_breaker(call: Call, name: Name) -> BreakerRecord:
    """One circuit breaker."""
    return record_of(BreakerRecord, await call.cluster.breakers.get(name))


@OPERATIONS.get("/tenants", scope=Scope.VIEW)
async def list_tenants(call: Call, query: TenantsQuery) -> list[TenantRecord]:
    """Tenants with waiting or running jobs."""
    views = await call.cluster.tenants.list(lane=query.lane, limit=query.limit)
    return [record_of(TenantRecord, view, oldest_due_at=moment(view.oldest_due_us)) for view in views]
