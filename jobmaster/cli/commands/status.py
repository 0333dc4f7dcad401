"""``jobmaster status``: the cluster on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.commands.pause import pause_record
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_data, iso_at, render, terminal_width, thousands
from jobmaster.units import rounded_duration

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.views import Backlog, Overview

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
    and have a row. HELD: jobs that wait on the master, up to 100 000. DUE: those of them that are due. OVERDUE: those that
    are due for more than a few seconds. READY: jobs that could start now, and how long they take at the present rate.

    \b
    Examples:
      jobmaster status
      jobmaster status -o json
    """

    async def work(cluster: Cluster) -> Overview:
        return await cluster.inspect.overview()

    report = _record(run_async(with_cluster(invocation.settings, work)))
    if emit_data(report, invocation.output):
        return
    agents = report["agents"]
    parts = [
        f"CLUSTER {report['cluster']}",
        f"agents {agents['alive']}/{agents['known']} alive",
        f"leader {report['leader'] or 'none'}",
        str(report["now"]),
    ]
    if report["ready"] and report["drain_seconds"] is not None:
        ready, seconds = thousands(report["ready"]), rounded_duration(report["drain_seconds"])
        parts.insert(3, f"{ready} ready, {seconds} at {report['ended_per_second']:g}/s")
    click.echo("   ".join(parts))
    if report["groups"]:
        click.echo(render(report["groups"], COLUMNS, terminal_width()))
    else:
        click.echo("no buckets and no jobs held", err=True)
    for warning in report["warnings"]:
        click.echo(f"! {warning}")


def _record(seen: Overview) -> dict[str, Any]:
    """Everything that ``status`` prints."""
    return {
        "cluster": seen.cluster,
        "now": iso_at(seen.at),
        "leader": seen.leader,
        "agents": {"alive": seen.agents_alive, "known": seen.agents_known},
        "slots": seen.slots,
        "running": seen.running,
        "ended_per_second": seen.ended_per_second,
        "ready": seen.ready,
        "drain_seconds": seen.drain_seconds,
        "groups": [group_record(group) for group in seen.backlog],
        "buckets": seen.buckets,
        "pauses": [pause_record(each) for each in seen.pauses],
        "warnings": list(seen.warnings),
    }


def group_record(group: Backlog) -> dict[str, Any]:
    """One lane and priority as it is printed."""
    import msgspec

    return {**msgspec.to_builtins(group), "priority": group.priority.label}
