"""``jobmaster bucket``: the buckets and what lies in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.freezing import NO_REASON, freeze, one_choice, unfreeze
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import pick, reader_of, run_async
from jobmaster.cli.tables import Column, duration, emit_json, emit_record, emit_rows, iso, render
from jobmaster.model.job import Priority

if TYPE_CHECKING:
    from jobmaster.settings.model import ClusterSettings

COLUMNS = (
    Column("ID", "id"),
    Column("LANE", "lane"),
    Column("PRIORITY", "priority"),
    Column("STATE", "state"),
    Column("EPOCH", "epoch", right=True),
    Column("STORE", "store"),
    Column("OWNER", "owner_name"),
    Column("PENDING", "pending", right=True),
    Column("ASSIGNED", "assigned", right=True),
    Column("CLAIMED", "claimed_lists", right=True),
    Column("SPILLED", "spilled", right=True),
    Column("SINCE", "unchanged_seconds", duration, right=True),
)

STOP_COLUMNS = COLUMNS[:6]

EVENT_COLUMNS = (
    Column("TIME (UTC)", "at"),
    Column("FROM", "from_state"),
    Column("TO", "to_state"),
    Column("EPOCH", "epoch", right=True),
    Column("BY", "actor"),
    Column("MOVED", "jobs_moved", right=True),
    Column("RESCUED", "jobs_rescued", right=True),
    Column("WHY", "reason"),
)


@click.group("bucket")
def bucket_group() -> None:
    """See the buckets and what lies in them; stop them in an emergency."""


@bucket_group.command("list")
@click.option("--all", "all_", is_flag=True, help="Retired ones that are still remembered, too.")
@click.option("--lane", help="Only this lane.")
@pass_invocation
def list_(invocation: Invocation, all_: bool, lane: str | None) -> None:
    """List the buckets with their depths in the stores.

    PENDING waits unclaimed, ASSIGNED came from the master and waits for its due time, CLAIMED counts lists that the owner
    works on, SPILLED counts outcomes kept while the master is down. A dash means that the store could not be asked.

    \b
    Examples:
      jobmaster bucket list
      jobmaster bucket list --lane payroll -o json
    """
    records, failures = run_async(buckets_with_depths(invocation.settings, all_))
    for failure in failures:
        invocation.note(f"warning: {failure}", level=-1)
    shown = [record for record in records if lane is None or record["lane"] == lane]
    emit_rows(shown, COLUMNS, as_json=invocation.json, empty="no buckets (an agent makes them: jobmaster agent run)")


@bucket_group.command("show")
@click.argument("bucket")
@pass_invocation
def show(invocation: Invocation, bucket: str) -> None:
    """Show one bucket and its history, by its id or the beginning of it.

    \b
    Example:
      jobmaster bucket show 0199a1f0-1
    """
    record = run_async(_bucket_with_history(invocation.settings, bucket))
    events = record.pop("events")
    if invocation.json:
        emit_json({**record, "events": events})
        return
    emit_record(record, as_json=False)
    if events:
        click.echo("\n" + render(events, EVENT_COLUMNS))


WHICH = (
    click.argument("buckets", nargs=-1, metavar="[BUCKET]..."),
    click.option("--lane", help="All buckets of this lane."),
    click.option("--all", "all_", is_flag=True, help="All buckets of the cluster."),
    click.option("--reason", default=NO_REASON, help="Why: kept in the bucket's history and the operator's log."),
)


def _which(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in reversed(WHICH):
        command = decorate(command)
    return command


@bucket_group.command("freeze")
@_which
@pass_invocation
def freeze_(invocation: Invocation, buckets: tuple[str, ...], lane: str | None, all_: bool, reason: str) -> None:
    """Emergency stop: buckets take no jobs and start none until they are unfrozen.

    What runs may end, and its outcome is recorded; what waits stays where it is. Producers use other buckets or the master.
    Buckets that agents open later are not frozen, and a frozen bucket whose owner leaves or dies is rescued: its jobs then
    wait in the master for the other buckets of their lane.

    \b
    Examples:
      jobmaster bucket freeze 0199a1f0-1 --reason "charges twice"
      jobmaster bucket freeze --lane payroll
    """
    one_choice(buckets, lane, all_)
    records, failures = run_async(freeze(invocation.settings, buckets, lane, reason))
    for failure in failures:
        invocation.note(f"warning: {failure}", level=-1)
    emit_rows(records, STOP_COLUMNS, as_json=invocation.json, empty="nothing to freeze: no bucket of these is ACTIVE")


@bucket_group.command("unfreeze")
@_which
@pass_invocation
def unfreeze_(invocation: Invocation, buckets: tuple[str, ...], lane: str | None, all_: bool, reason: str) -> None:
    """Let frozen buckets go on, under a new epoch. Their owners take them up within leases.renew.

    \b
    Example:
      jobmaster bucket unfreeze --all --reason "fixed in 4.2"
    """
    one_choice(buckets, lane, all_)
    records = run_async(unfreeze(invocation.settings, buckets, lane, reason))
    emit_rows(records, STOP_COLUMNS, as_json=invocation.json, empty="nothing to unfreeze: no bucket of these is FROZEN")


async def buckets_with_depths(settings: ClusterSettings, all_: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Every bucket with what lies in its store, and the stores that could not be asked."""
    async with reader_of(settings) as reader:
        rows = await reader.report("buckets", all_)
        flying = {row["bucket_id"]: row for row in await reader.report("in_flight")}
    depths, failures = await _depths(settings, rows)
    records = []
    for row in rows:
        record = dict(row)
        record |= {"id": str(row["id"]), "owner": str(row["owner"]), "priority": Priority(row["priority"]).label}
        record["changed"] = iso(record.pop("changed_us"))
        record["unchanged_seconds"] = round(record["unchanged_seconds"], 3)
        record |= depths.get(row["id"].bytes, dict.fromkeys(("pending", "assigned", "claimed_lists", "spilled")))
        counts = flying.get(row["id"])
        record["rows_assigned"] = counts["assigned"] if counts else 0
        record["rows_processing"] = counts["processing"] if counts else 0
        records.append(record)
    return records, failures


async def _depths(
    settings: ClusterSettings, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[bytes, dict[str, int | None]], list[str]]:
    from jobmaster.agentstore.store import AgentStore
    from jobmaster.model.errors import JobMasterError
    from jobmaster.wiring import addresses

    urls = addresses(settings).urls
    depths: dict[bytes, dict[str, int | None]] = {}
    failures = []
    for name in sorted({row["store"] for row in rows}):
        here = [row["id"].bytes for row in rows if row["store"] == name]
        if name not in urls:
            failures.append(f"store {name} is not in the configuration")
            continue
        try:
            store = await AgentStore.connect(
                cluster=settings.cluster, name=name, url=urls[name], settings=settings.stores[name]
            )
        except JobMasterError as error:
            failures.append(str(error))
            continue
        try:
            for bucket_id, depth in zip(here, await store.depths(here), strict=True):
                if depth is not None:
                    depths[bucket_id] = {
                        "pending": depth.pending,
                        "assigned": depth.assigned,
                        "claimed_lists": depth.claimed_lists,
                        "spilled": depth.spilled,
                    }
        except JobMasterError as error:
            failures.append(str(error))
        finally:
            await store.close()
    return depths, failures


async def _bucket_with_history(settings: ClusterSettings, bucket: str) -> dict[str, Any]:
    from uuid import UUID

    records, _ = await buckets_with_depths(settings, True)
    chosen = dict(pick([{**record, "id": UUID(record["id"])} for record in records], bucket, "bucket"))
    async with reader_of(settings) as reader:
        history = await reader.report("bucket_history", chosen["id"])
    events = []
    for row in history:
        event = dict(row)
        event["at"] = iso(event.pop("at_us"))
        event["actor"] = str(event["actor"]) if event["actor"] else None
        events.append(event)
    return {**chosen, "id": str(chosen["id"]), "events": events}
