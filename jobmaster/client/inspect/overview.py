"""A cluster on one screen, made of what was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from jobmaster.model.bucket import BucketState
from jobmaster.model.inspection.views import AgentView, Backlog, Buckets, Overview
from jobmaster.model.job import Priority
from jobmaster.model.job_view import EPOCH, moment
from jobmaster.model.pause import Pause
from jobmaster.ports.inspection import HeldGroup, Inspected
from jobmaster.rules.pause_text import explained, remedy, schedules_paused
from jobmaster.units import rounded_duration


def overview_of(
    cluster: str,
    now: Inspected,
    agents: Sequence[AgentView],
    buckets: Buckets,
    held: Sequence[HeldGroup],
    pauses: Sequence[Pause],
    schedules: Sequence[str],
) -> Overview:
    """The overview of a cluster.

    Args:
        agents: those that have not ended.
        schedules: names of those that are paused.
    """
    backlog = _backlog(buckets, held, now.now_us)
    ready = sum(group.ready for group in backlog)
    working = [agent.statistics for agent in agents if agent.alive and agent.statistics is not None]
    rate = sum(each.ended_per_second for each in working)
    return Overview(
        cluster=cluster,
        at=_at(now.now_us),
        leader=next((agent.name for agent in agents if agent.leads), None),
        agents_alive=sum(agent.alive for agent in agents),
        agents_known=len(agents),
        slots=sum(each.slots for each in working),
        running=sum(each.running for each in working),
        ended_per_second=round(rate, 3),
        backlog=tuple(backlog),
        ready=ready,
        drain_seconds=0.0 if ready == 0 else round(ready / rate, 1) if rate > 0 else None,
        buckets=dict(sorted(Counter(bucket.state.value for bucket in buckets.buckets).items())),
        pauses=tuple(pauses),
        schedules_paused=tuple(schedules),
        warnings=(
            *buckets.silent,
            *_paused(pauses, schedules),
            *_of_backlog(backlog),
            *_of_buckets(buckets),
            *_of_agents(agents),
        ),
    )


def _at(us: int) -> datetime:
    return moment(us) or EPOCH


def _backlog(buckets: Buckets, held: Sequence[HeldGroup], now_us: int) -> list[Backlog]:
    groups: dict[tuple[str, int], Backlog] = {}

    def group(lane: str, level: int) -> Backlog:
        names = ("buckets", "frozen", "pending", "assigned", "running", "kept", "held", "due", "overdue")
        empty = Backlog(lane=lane, priority=Priority(level), oldest_seconds=None, **dict.fromkeys(names, 0))
        return groups.setdefault((lane, level), empty)

    for bucket in buckets.buckets:
        key = bucket.lane, int(bucket.priority)
        found = group(*key)
        groups[key] = msgspec.structs.replace(
            found,
            buckets=found.buckets + (bucket.state is BucketState.ACTIVE),
            frozen=found.frozen + (bucket.state is BucketState.FROZEN),
            pending=found.pending + (bucket.pending or 0),
            assigned=found.assigned + (bucket.assigned or 0),
            running=found.running + bucket.rows_processing,
            kept=found.kept + (bucket.kept or 0),
        )
    for row in held:
        groups[row.lane, row.priority] = msgspec.structs.replace(
            group(row.lane, row.priority),
            held=row.held,
            due=row.due,
            overdue=row.overdue,
            oldest_seconds=(now_us - row.oldest_us) / 1_000_000 if row.due else None,
        )
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1]))]


# ------------------------------------------------------------ warnings


def _paused(pauses: Sequence[Pause], schedules: Sequence[str]) -> Iterator[str]:
    """What does not start, and until when."""
    for each in pauses:
        end = f" for {rounded_duration(each.left_seconds)} more" if each.left_seconds is not None else ""
        yield f"{explained([each])}{end} ({remedy(each)})"
    if schedules:
        yield schedules_paused(len(schedules))


def _of_backlog(backlog: Sequence[Backlog]) -> Iterator[str]:
    for group in backlog:
        name = f"{group.lane}/{group.priority.label}"
        if not group.buckets and group.held and group.frozen:
            yield f"{name}: {group.held} job(s) held and every bucket is frozen (jobmaster bucket unfreeze)"
        elif not group.buckets and group.held:
            yield f"{name}: {group.held} job(s) held and no bucket serves them"
        elif group.overdue:
            oldest = rounded_duration(group.oldest_seconds or 0.0)
            yield f"{name}: {group.overdue} job(s) overdue, the oldest by {oldest}"
        if group.kept:
            yield f"{name}: {group.kept} outcome(s) wait in the store for the master"


def _of_buckets(buckets: Buckets) -> Iterator[str]:
    for bucket in buckets.buckets:
        if bucket.state in (BucketState.LOST, BucketState.FROZEN):
            since = rounded_duration(bucket.unchanged_seconds)
            yield f"bucket {bucket.id} ({bucket.lane}/{bucket.priority.label}) is {bucket.state.value} for {since}"


def _of_agents(agents: Sequence[AgentView]) -> Iterator[str]:
    for agent in agents:
        if not agent.alive:
            yield f"agent {agent.name} ({agent.id}) has not renewed its lease"
    if not agents:
        yield "no agent is running (start one: jobmaster agent run)"
