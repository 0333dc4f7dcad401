"""``jobmaster rescue``: lost buckets and their rescues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_rows, iso_at
from jobmaster.units import rounded_us

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.inspection.views import RescueView

COLUMNS = (
    Column("LOST (UTC)", "lost"),
    Column("BUCKET", "bucket_id"),
    Column("LANE", "lane"),
    Column("PRIORITY", "priority"),
    Column("OWNER", "owner_name"),
    Column("TAKEN BY", "rescuer_name"),
    Column("AFTER", "waited_us", rounded_us, right=True),
    Column("TOOK", "took_us", rounded_us, right=True),
    Column("MOVED", "jobs_moved", right=True),
    Column("RESCUED", "jobs_rescued", right=True),
    Column("STATE", "state"),
    Column("WHY", "reason", whole=True),
)


@click.group("rescue")
def rescue_group() -> None:
    """Show lost buckets and their rescues."""


@rescue_group.command("list")
@click.option("--since", type=DURATION, help="Lost within the last 30m, 2h, 7d ...")
@click.option("--open", "only_open", is_flag=True, help="Only rescues that are not finished.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@pass_invocation
def list_(invocation: Invocation, since: float | None, only_open: bool, limit: int) -> None:
    """List the buckets that were lost, the latest first.

    AFTER is the time from the loss until another agent took the bucket, TOOK the time from then until it was empty. MOVED
    counts jobs that went back to the master, RESCUED those of them that the dead agent had claimed. STATE is waiting,
    draining, drained, or lost again (its rescuer died or exited; the next line has the next rescuer).

    \b
    Examples:
      jobmaster rescue list --since 1h
      jobmaster rescue list --open -o json
    """

    async def work(cluster: Cluster) -> list[RescueView]:
        return await cluster.inspect.rescues(since=since, unfinished=only_open, limit=limit)

    records = [_record(view) for view in run_async(with_cluster(invocation.settings, work))]
    emit_rows(records, COLUMNS, invocation.output, empty="nothing was lost", name="bucket_id")


def _record(view: RescueView) -> dict[str, Any]:
    """One rescue as it is printed."""
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(view)
    for name in ("lost", "taken", "over"):
        del record[f"{name}_at"]
        record[name] = iso_at(getattr(view, f"{name}_at"))
    return {**record, "priority": None if view.priority is None else view.priority.label}
