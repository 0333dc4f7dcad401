"""``jobmaster rescue``: lost buckets and their rescues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from jobmaster.cli.commands.job_inputs import DURATION
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import reader_of, run_async
from jobmaster.cli.tables import Column, emit_rows, iso
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import Priority
from jobmaster.units import rounded_us

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

_STATES = {BucketState.READY_TO_DELETE: "drained", BucketState.LOST: "lost again"}


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

    async def work() -> list[dict[str, Any]]:
        async with reader_of(invocation.settings) as reader:
            return [rescue_record(row) for row in await reader.report("rescues", since, only_open, limit)]

    emit_rows(run_async(work()), COLUMNS, as_json=invocation.json, empty="nothing was lost")


def rescue_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """One rescue as it is printed."""
    taken_us, over_us = row["taken_us"], row["over_us"]
    return {
        "bucket_id": str(row["bucket_id"]),
        "lane": row["lane"],
        "priority": Priority(row["priority"]).label if row["priority"] else None,
        "store": row["store"],
        "epoch": row["epoch"],
        "lost": iso(row["lost_us"]),
        "reason": row["reason"],
        "owner": str(row["owner"]) if row["owner"] else None,
        "owner_name": row["owner_name"],
        "taken": iso(taken_us),
        "rescuer": str(row["rescuer"]) if row["rescuer"] else None,
        "rescuer_name": row["rescuer_name"],
        "waited_us": taken_us - row["lost_us"] if taken_us else None,
        "over": iso(over_us),
        "took_us": over_us - taken_us if over_us else None,
        "jobs_moved": row["jobs_moved"],
        "jobs_rescued": row["jobs_rescued"],
        "state": _STATES.get(row["became"], "draining" if taken_us else "waiting"),
    }
