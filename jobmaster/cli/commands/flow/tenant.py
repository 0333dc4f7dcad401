"""``jobmaster tenants``: what waits and runs for each tenant."""

from __future__ import annotations

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_rows, thousands
from jobmaster.model.flow.tenant import TenantView
from jobmaster.model.job_view import iso

COLUMNS = (
    Column("TENANT", "name", whole=True),
    Column("LANE", "lane"),
    Column("WEIGHT", "weight", right=True),
    Column("WAITING", "held", thousands, right=True),
    Column("IN FLIGHT", "in_flight", thousands, right=True),
    Column("OLDEST DUE (UTC)", "oldest_due"),
)


@click.command("tenants")
@click.option("--lane", help="Only this lane.", shell_complete=known(Known.LANES))
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many lines.")
@pass_invocation
def tenants(invocation: Invocation, lane: str | None, limit: int) -> None:
    """List tenants with their waiting and running jobs.

    The one with the most waiting jobs comes first. WAITING: jobs that are due and wait in the master. IN FLIGHT: jobs
    in an agent that have a row; a short job has none before it ends. Jobs in buckets are not counted; see
    `jobmaster bucket list`. The command reads all these rows.

    \b
    Example:
      jobmaster tenants --lane default -o json
    """
    found: list[TenantView] = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.tenants.list(lane=lane, limit=limit))
    )
    rows = [
        {
            "name": each.name,
            "lane": each.lane,
            "weight": each.weight,
            "held": each.held,
            "in_flight": each.in_flight,
            "oldest_due": iso(each.oldest_due_us) if each.oldest_due_us else None,
        }
        for each in found
    ]
    emit_rows(rows, COLUMNS, invocation.output, empty="no job of a tenant waits or runs")
