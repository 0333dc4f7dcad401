"""``jobmaster status``: the cluster on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.bucket import buckets_with_depths
from jobmaster.cli.commands.pause import explained, pause_record, paused_schedules, remedy
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import Column, emit_json, iso, render, terminal_width, thousands
from jobmaster.model.job import Priority
from jobmaster.units import rounded_duration

if TYPE_CHECKING:
    from jobmaster.model.pause import Pause
    from jobmaster.settings.model import ClusterSettings

OVERDUE_SECONDS = 5.0
"""Seconds after its due time at which a HELD job counts as overdue (onboarding takes a second)."""

COLUMNS = (
    Column("LANE", "lane"),
    Column("PRIORITY", "priority"),
    Column("BUCKETS", "buckets", thousands, right=True),
    Column("PENDING", "pending", thousands, right=True),
    Column("ASSIGNED", "assigned", thousands, right=True),
    Column("RUNNING", "running", thousands, right=True),
    Column("HELD", "held", thousands, right=True),
    Column("DUE", "due", thousands, right=True),
    Column("OVERDUE", "overdue", thousands, right=True),
)


@click.command("status")
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show the cluster on one screen.

    Agents, buckets by lane and priority, jobs held on the master, and warnings.

    PENDING: jobs in the stores without a row in the master. ASSIGNED: jobs in the stores with a row. RUNNING: jobs that run
    and have a row. HELD: jobs that wait on the master. DUE: those of them that are due. OVERDUE: those that are due for more
    than a few seconds.

    \b
    Examples:
      jobmaster status
      jobmaster status -o json
    """
    report = run_async(cluster_status(invocation.settings))
    if invocation.json:
        emit_json(report)
        return
    agents = report["agents"]
    parts = [
        f"CLUSTER {report['cluster']}",
        f"agents {agents['alive']}/{agents['known']} alive",
        f"leader {report['leader'] or 'none'}",
        str(report["now"]),
    ]
    click.echo("   ".join(parts))
    if report["groups"]:
        click.echo(render(report["groups"], COLUMNS, terminal_width()))
    else:
        click.echo("no buckets and no jobs held", err=True)
    for warning in report["warnings"]:
        click.echo(f"! {warning}")


async def cluster_status(settings: ClusterSettings) -> dict[str, Any]:
    """Everything that ``status`` prints."""
    buckets, failures = await buckets_with_depths(settings, False)
    async with reader_of(settings) as reader:
        server = (await reader.report("server"))[0]
        agents = await reader.report("agents", False)
        held = await reader.report("held", OVERDUE_SECONDS)
        paused = (await reader.pauses()).pauses
        schedules = await reader.report("paused_schedules")
    alive = [agent for agent in agents if agent["lease_left_seconds"] > 0]
    groups = _groups(buckets, held, server["now_us"])
    lead = next((agent["name"] for agent in agents if agent["id"] == server["leader"]), None)
    return {
        "cluster": settings.cluster,
        "now": iso(server["now_us"]),
        "leader": lead,
        "agents": {"alive": len(alive), "known": len(agents)},
        "groups": groups,
        "buckets": {
            state: sum(1 for bucket in buckets if bucket["state"] == state)
            for state in sorted({b["state"] for b in buckets})
        },
        "pauses": [pause_record(each) for each in paused],
        "warnings": [
            *failures,
            *_paused(paused),
            *([paused_schedules(schedules)] if schedules else []),
            *_warnings(groups, buckets, agents),
        ],
    }


def _paused(pauses: Sequence[Pause]) -> list[str]:
    """What does not start, and until when."""
    lines = []
    for each in pauses:
        end = f" for {rounded_duration(each.left_seconds)} more" if each.left_seconds is not None else ""
        lines.append(f"{explained([each])}{end} ({remedy(each)})")
    return lines


def _groups(buckets: list[dict[str, Any]], held: list[dict[str, Any]], now_us: int) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int], dict[str, Any]] = {}

    def group(lane: str, level: int) -> dict[str, Any]:
        empty = dict.fromkeys(
            ("buckets", "frozen", "pending", "assigned", "running", "held", "due", "overdue", "kept"), 0
        )
        return groups.setdefault((lane, level), {"lane": lane, "priority": Priority(level).label, **empty})

    for bucket in buckets:
        found = group(bucket["lane"], int(Priority.parse(bucket["priority"])))
        found["buckets"] += bucket["state"] == "ACTIVE"
        found["frozen"] += bucket["state"] == "FROZEN"
        for name in ("pending", "assigned", "kept"):
            found[name] += bucket[name] or 0
        found["running"] += bucket["rows_processing"]
    for row in held:
        found = group(row["lane"], row["priority"])
        found |= {"held": row["held"], "due": row["due"], "overdue": row["overdue"]}
        if row["due"]:
            found["oldest_seconds"] = (now_us - row["oldest_us"]) / 1_000_000
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1]))]


def _warnings(groups: list[dict[str, Any]], buckets: list[dict[str, Any]], agents: list[dict[str, Any]]) -> list[str]:
    warnings = []
    for group in groups:
        name = f"{group['lane']}/{group['priority']}"
        if not group["buckets"] and group["held"] and group["frozen"]:
            warnings.append(
                f"{name}: {group['held']} job(s) held and every bucket is frozen (jobmaster bucket unfreeze)"
            )
        elif not group["buckets"] and group["held"]:
            warnings.append(f"{name}: {group['held']} job(s) held and no bucket serves them")
        elif group["overdue"]:
            warnings.append(
                f"{name}: {group['overdue']} job(s) overdue, the oldest by {rounded_duration(group['oldest_seconds'])}"
            )
        if group["kept"]:
            warnings.append(f"{name}: {group['kept']} outcome(s) wait in the store for the master")
    for bucket in buckets:
        if bucket["state"] in ("LOST", "FROZEN"):
            since = rounded_duration(bucket["unchanged_seconds"])
            warnings.append(
                f"bucket {bucket['id']} ({bucket['lane']}/{bucket['priority']}) is {bucket['state']} for {since}"
            )
    for agent in agents:
        if agent["lease_left_seconds"] <= 0:
            warnings.append(f"agent {agent['name']} ({agent['id']}) has not renewed its lease")
    if not agents:
        warnings.append("no agent is running (start one: jobmaster agent run)")
    return warnings
