"""Reads for operators, by the statements of the reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.model.agent import AgentState
from jobmaster.model.bucket import BucketState
from jobmaster.model.inspection.failures import FailureGroup
from jobmaster.model.inspection.views import (
    AgentStatistics,
    AgentView,
    BucketEvent,
    BucketView,
    OperatorAct,
    RescueView,
)
from jobmaster.model.job import JobState, Priority
from jobmaster.model.job_view import EPOCH, JobFilter, moment
from jobmaster.ports.inspection import FailureStep, FullLimit, HeldGroup, Inspected, OrderedJob

_STATISTICS = msgspec.json.Decoder(AgentStatistics)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ENDED = (AgentState.DEAD, AgentState.RETIRED)
_BECAME = {BucketState.READY_TO_DELETE: "drained", BucketState.LOST: "lost again"}


class InspectionQueries:
    """``jobmaster.ports.inspection.InspectionQueries`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def now(self) -> Inspected:
        """The master's clock and the leader."""
        row = (await self._data.read("reports/server"))[0]
        return Inspected(row["now_us"], row["leader"])

    async def agents(self, *, ended: bool) -> list[AgentView]:
        """Agents, the living first; ``ended``: also those that have ended."""
        leader = (await self.now()).leader
        return [_agent(row, leader) for row in await self._data.read("reports/agents", ended)]

    async def cordoned_hosts(self, deaths: int, cordon_seconds: float) -> dict[str, float]:
        """Hosts that are cordoned, with the seconds that are left."""
        rows = await self._data.read("reports/flapping_hosts", deaths, cordon_seconds)
        return {row["host"]: round(row["left_seconds"], 3) for row in rows}

    async def buckets(self, *, retired: bool) -> list[BucketView]:
        """Buckets without their depths; ``retired``: also those that are about to lose their rows."""
        in_flight = {row["bucket_id"]: row for row in await self._data.read("reports/in_flight")}
        return [_bucket(row, in_flight.get(row["id"])) for row in await self._data.read("reports/buckets", retired)]

    async def bucket_history(self, bucket_id: bytes) -> list[BucketEvent]:
        """What has become of one bucket, oldest first."""
        return [
            BucketEvent(
                at=_at(row["at_us"]),
                from_state=None if row["from_state"] is None else BucketState(row["from_state"]),
                to_state=BucketState(row["to_state"]),
                epoch=row["epoch"],
                actor=_id(row["actor"]),
                reason=row["reason"],
                jobs_moved=row["jobs_moved"],
                jobs_rescued=row["jobs_rescued"],
            )
            for row in await self._data.read("reports/bucket_history", bucket_id)
        ]

    async def rescues(self, seconds: float | None, *, unfinished: bool, limit: int) -> list[RescueView]:
        """Buckets that were lost within some seconds, the latest first; ``unfinished``: those that are not over."""
        return [_rescue(row) for row in await self._data.read("reports/rescues", seconds, unfinished, limit)]

    async def held(self, grace_seconds: float, count_max: int) -> list[HeldGroup]:
        """What waits in the master, by lane and priority."""
        return [HeldGroup(*row) for row in await self._data.read("reports/backlog", grace_seconds, count_max)]

    async def paused_schedules(self) -> list[str]:
        """Names of the schedules that a person has paused."""
        return [row["name"] for row in await self._data.read("reports/paused_schedules")]

    async def acts(
        self, subject: str | None, actor: str | None, seconds: float | None, limit: int
    ) -> list[OperatorAct]:
        """The operator log, the latest line first."""
        rows = await self._data.read("reports/operations", subject, actor, seconds, limit)
        return [
            OperatorAct(
                at=_at(row["at_us"]),
                actor=row["actor"],
                action=row["action"],
                subject=row["subject"],
                detail=_OBJECT.decode(row["detail"]),
            )
            for row in rows
        ]

    async def failures(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int) -> FailureStep:
        """Jobs of a range of ids that fit and have an error, by kind: one step, which reads at most ``reads`` rows."""
        rows = await self._data.read("queries/failures", chosen.as_json, lowest, highest, reads)
        return FailureStep(rows[0]["read_to"], [_failures(row) for row in rows if row["fingerprint"] is not None])

    async def ordered_before(self, key: str, job_id: bytes) -> OrderedJob | None:
        """The first job of an ordering key that keeps another one from starting."""
        rows = await self._data.read("queries/ordered_before", key, job_id)
        return OrderedJob(rows[0]["id"], JobState(rows[0]["state"])) if rows else None

    async def ahead(self, lane: str, priority: int, due_us: int, count_max: int) -> int:
        """How many jobs of a lane and priority that wait in the master are due before a time; at most ``count_max``."""
        rows = await self._data.read("queries/ahead", lane, priority, due_us, count_max)
        return int(rows[0]["jobs"])

    async def full_limits(self, bucket_id: bytes, seconds: float) -> list[FullLimit]:
        """Limits of which a job of a bucket was denied a permit within some seconds."""
        return [FullLimit(*row) for row in await self._data.read("queries/full_limits", bucket_id, seconds)]


def _at(us: int) -> datetime:
    return moment(us) or EPOCH


def _id(id_: bytes | None) -> UUID | None:
    return None if id_ is None else UUID(bytes=id_)


def _agent(row: Row, leader: bytes | None) -> AgentView:
    state = AgentState(row["state"])
    return AgentView(
        id=UUID(bytes=row["id"]),
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        mode=row["mode"],
        store=row["store"],
        weight=row["weight"],
        state=state,
        leads=row["id"] == leader,
        lanes=tuple(row["lanes"]),
        handlers=tuple(row["handlers"]),
        drain_requested=row["drain_requested"],
        beats=row["beats"],
        lease_seconds=row["lease_seconds"],
        lease_left_seconds=None if state in _ENDED else round(row["lease_left_seconds"], 3),
        ended_reason=row["ended_reason"],
        started_at=_at(row["started_us"]),
        ended_at=moment(row["ended_us"]),
        buckets=row["buckets"],
        settings=_OBJECT.decode(row["settings"]),
        clock_ahead_seconds=row["clock_ahead_seconds"],
        statistics=None if row["statistics"] is None else _STATISTICS.decode(row["statistics"]),
        statistics_at=moment(row["statistics_us"]),
    )


def _bucket(row: Row, in_flight: Row | None) -> BucketView:
    return BucketView(
        id=UUID(bytes=row["id"]),
        store=row["store"],
        lane=row["lane"],
        priority=Priority(row["priority"]),
        state=BucketState(row["state"]),
        epoch=row["epoch"],
        owner=UUID(bytes=row["owner"]),
        owner_name=row["owner_name"],
        owner_state=None if row["owner_state"] is None else AgentState(row["owner_state"]),
        owner_leased=row["owner_leased"],
        changed_at=_at(row["changed_us"]),
        unchanged_seconds=round(row["unchanged_seconds"], 3),
        pending=None,
        assigned=None,
        claimed_lists=None,
        kept=None,
        rows_assigned=in_flight["assigned"] if in_flight is not None else 0,
        rows_processing=in_flight["processing"] if in_flight is not None else 0,
    )


def _failures(row: Row) -> FailureGroup:
    return FailureGroup(
        fingerprint=row["fingerprint"],
        handler=row["handler"],
        error_type=row["error_type"],
        line=row["line"],
        jobs=row["jobs"],
        first_at=moment(to_us(row["first_at"])),
        last_at=moment(to_us(row["last_at"])),
        sample=UUID(bytes=row["sample"]),
    )


def _rescue(row: Row) -> RescueView:
    taken_us, over_us = row["taken_us"], row["over_us"]
    return RescueView(
        bucket_id=UUID(bytes=row["bucket_id"]),
        lane=row["lane"],
        priority=None if row["priority"] is None else Priority(row["priority"]),
        store=row["store"],
        epoch=row["epoch"],
        lost_at=_at(row["lost_us"]),
        reason=row["reason"],
        owner=_id(row["owner"]),
        owner_name=row["owner_name"],
        taken_at=moment(taken_us),
        rescuer=_id(row["rescuer"]),
        rescuer_name=row["rescuer_name"],
        waited_us=taken_us - row["lost_us"] if taken_us else None,
        over_at=moment(over_us),
        took_us=over_us - taken_us if over_us else None,
        jobs_moved=row["jobs_moved"],
        jobs_rescued=row["jobs_rescued"],
        state=_BECAME.get(row["became"], "draining" if taken_us else "waiting"),
    )
