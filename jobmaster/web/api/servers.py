"""Agents and buckets over HTTP: drain, freeze, unfreeze."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from jobmaster.client.operate.operating import Frozen
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import Priority, PriorityLabel
from jobmaster.rules.access import Scope
from jobmaster.web.api.operation import Body, Call, Operations
from jobmaster.web.api.records import Record, record_of

OPERATIONS = Operations()


class DrainRecord(Record, frozen=True, kw_only=True):
    """A drain that was requested; the agent reads it with its next renewal."""

    id: UUID
    drain_requested: bool


class FreezeBody(Body, frozen=True, kw_only=True):
    """Which buckets: ``buckets``, or those of a ``lane``, or ``every``: exactly one of the three."""

    buckets: Annotated[list[UUID], Meta(max_length=10_000)] | None = None
    lane: str | None = None
    every: bool = False
    reason: Annotated[str, Meta(max_length=1000)] = ""


class FrozenBucketRecord(Record, frozen=True, kw_only=True):
    """A bucket after the change."""

    id: UUID
    lane: str
    priority: PriorityLabel
    state: BucketState
    epoch: int
    store: str
    owner: UUID


class FrozenRecord(Record, frozen=True, kw_only=True):
    """What a freeze or an unfreeze has changed."""

    buckets: list[FrozenBucketRecord]
    warnings: list[str]
    """A sentence for each store that could not be told."""


@OPERATIONS.post("/agents/{agent}/drain", scope=Scope.SERVERS)
async def drain_agent(call: Call, agent: UUID) -> DrainRecord:
    """Request the graceful exit of an agent: it completes its buckets, gives the remaining jobs back and exits."""
    await call.cluster.operate.drain(agent, actor=call.actor)
    return DrainRecord(id=agent, drain_requested=True)


@OPERATIONS.post("/buckets/freeze", scope=Scope.SERVERS)
async def freeze_buckets(call: Call, body: FreezeBody) -> FrozenRecord:
    """Emergency stop: these buckets take no jobs and start none until they are unfrozen."""
    return _frozen(
        await call.cluster.operate.freeze(
            body.buckets, lane=body.lane, every=body.every, reason=body.reason, actor=call.actor
        )
    )


@OPERATIONS.post("/buckets/unfreeze", scope=Scope.SERVERS)
async def unfreeze_buckets(call: Call, body: FreezeBody) -> FrozenRecord:
    """End the stop: frozen buckets continue under a new epoch."""
    return _frozen(
        await call.cluster.operate.unfreeze(
            body.buckets, lane=body.lane, every=body.every, reason=body.reason, actor=call.actor
        )
    )


def _frozen(changed: Frozen) -> FrozenRecord:
    buckets = [record_of(FrozenBucketRecord, each, priority=Priority(each.priority).label) for each in changed.buckets]
    return FrozenRecord(buckets=buckets, warnings=changed.warnings)
