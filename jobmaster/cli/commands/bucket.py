"""``jobmaster bucket``: list, show, freeze and unfreeze buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.completion import Known, known
from jobmaster.cli.id_prefix import pick
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_data, emit_record, emit_rows, iso_at, render
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError
from jobmaster.model.ids import text
from jobmaster.model.job import Priority
from jobmaster.units import rounded_duration

if TYPE_CHECKING:
    from uuid import UUID

    from jobmaster.client.cluster import Cluster
    from jobmaster.client.operate.operating import Frozen
    from jobmaster.model.bucket import Bucket
    from jobmaster.model.inspection.views import BucketEvent, Buckets, BucketView
    from jobmaster.settings.model import ClusterSettings

NO_REASON = "no reason given"

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
    Column("KEPT", "kept", right=True),
    Column("SINCE", "unchanged_seconds", rounded_duration, right=True),
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
    """Show buckets and their contents; freeze them in an emergency."""


@bucket_group.command("list")
@click.option("--all", "all_", is_flag=True, help="Include retired buckets that still have a row.")
@click.option("--lane", help="Only this lane.", shell_complete=known(Known.LANES))
@pass_invocation
def list_(invocation: Invocation, all_: bool, lane: str | None) -> None:
    """List the buckets with their depths in the stores.

    PENDING: jobs that are not claimed. ASSIGNED: jobs from the master that wait for their due time. CLAIMED: lists of jobs
    that the owner has claimed. KEPT: outcomes kept while the master is down. A dash: the store did not answer.

    \b
    Examples:
      jobmaster bucket list
      jobmaster bucket list --lane payroll -o json
    """
    found = run_async(_listed(invocation.settings, retired=all_))
    for sentence in found.silent:
        invocation.note(f"warning: {sentence}", level=-1)
    shown = [bucket_record(view) for view in found.buckets if lane is None or view.lane == lane]
    emit_rows(shown, COLUMNS, invocation.output, empty="no buckets (an agent makes them: jobmaster agent run)")


@bucket_group.command("show")
@click.argument("bucket")
@pass_invocation
def show(invocation: Invocation, bucket: str) -> None:
    """Show one bucket and its history, by its id or the beginning of it.

    \b
    Example:
      jobmaster bucket show 0199a1f0-1
    """
    view, history = run_async(_bucket_with_history(invocation.settings, bucket))
    record, events = bucket_record(view), [_event_record(event) for event in history]
    if emit_data({**record, "events": events}, invocation.output):
        return
    emit_record(record, invocation.output)
    if events:
        click.echo("\n" + render(events, EVENT_COLUMNS))


WHICH = (
    click.argument("buckets", nargs=-1, metavar="[BUCKET]..."),
    click.option("--lane", help="All buckets of this lane.", shell_complete=known(Known.LANES)),
    click.option("--all", "all_", is_flag=True, help="All buckets of the cluster."),
    click.option("--reason", default=NO_REASON, help="Reason, for the bucket's history and the operator's log."),
)


def _which(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in reversed(WHICH):
        command = decorate(command)
    return command


@bucket_group.command("freeze")
@_which
@pass_invocation
def freeze(invocation: Invocation, buckets: tuple[str, ...], lane: str | None, all_: bool, reason: str) -> None:
    """Emergency stop: buckets take no jobs and start none until they are unfrozen.

    Running jobs may end, and their outcomes are recorded; waiting jobs stay. Producers use other buckets or the master.
    Buckets that agents open later are not frozen. A frozen bucket whose owner exits or dies is rescued: its jobs then wait in
    the master for the other buckets of their lane.

    \b
    Examples:
      jobmaster bucket freeze 0199a1f0-1 --reason "charges twice"
      jobmaster bucket freeze --lane payroll
    """
    _check_choice(buckets, lane, all_)
    changed = run_async(_stopped(invocation.settings, buckets, lane, reason, frozen=True))
    for warning in changed.warnings:
        invocation.note(f"warning: {warning}", level=-1)
    records = [_record(bucket) for bucket in changed.buckets]
    emit_rows(records, STOP_COLUMNS, invocation.output, empty="nothing to freeze: no bucket of these is ACTIVE")


@bucket_group.command("unfreeze")
@_which
@pass_invocation
def unfreeze(invocation: Invocation, buckets: tuple[str, ...], lane: str | None, all_: bool, reason: str) -> None:
    """End the stop: frozen buckets continue under a new epoch, within leases.renew.

    \b
    Example:
      jobmaster bucket unfreeze --all --reason "fixed in 4.2"
    """
    _check_choice(buckets, lane, all_)
    changed = run_async(_stopped(invocation.settings, buckets, lane, reason, frozen=False))
    records = [_record(bucket) for bucket in changed.buckets]
    emit_rows(records, STOP_COLUMNS, invocation.output, empty="nothing to unfreeze: no bucket of these is FROZEN")


async def _listed(settings: ClusterSettings, *, retired: bool, depths: bool = True) -> Buckets:
    async def work(cluster: Cluster) -> Buckets:
        return await cluster.inspect.buckets(retired=retired, depths=depths)

    found: Buckets = await with_cluster(settings, work)
    return found


async def _bucket_with_history(settings: ClusterSettings, bucket: str) -> tuple[BucketView, list[BucketEvent]]:
    async def work(cluster: Cluster) -> tuple[BucketView, list[BucketEvent]]:
        chosen = pick((await cluster.inspect.buckets(retired=True)).buckets, bucket, "bucket")
        return chosen, await cluster.inspect.bucket_history(chosen.id)

    found: tuple[BucketView, list[BucketEvent]] = await with_cluster(settings, work)
    return found


def bucket_record(view: BucketView) -> dict[str, Any]:
    """One bucket as it is printed."""
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(view)
    del record["changed_at"]
    return {**record, "priority": view.priority.label, "changed": iso_at(view.changed_at)}


def _event_record(event: BucketEvent) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(event), "at": iso_at(event.at)}


# ---------------------------------------------------------------- freeze, unfreeze


def _check_choice(buckets: Sequence[str], lane: str | None, all_: bool) -> None:
    """Check that exactly one choice of buckets is given.

    Raises:
        InputError: no choice, or several.
    """
    given = [bool(buckets), lane is not None, all_]
    if sum(given) != 1:
        wrong = "name the buckets" if not any(given) else "give buckets, or --lane, or --all, not several of them"
        raise InputError(wrong, hint="BUCKET ... | --lane LANE | --all (see: jobmaster bucket list)")


async def _stopped(
    settings: ClusterSettings, buckets: Sequence[str], lane: str | None, reason: str, *, frozen: bool
) -> Frozen:
    """Freeze or unfreeze buckets.

    Raises:
        NotFound, InputError: a named bucket does not exist, or cannot be changed so.
    """
    from jobmaster.cli.operator_log import operator_name

    async def work(cluster: Cluster) -> Frozen:
        change = cluster.operate.freeze if frozen else cluster.operate.unfreeze
        ids = await _chosen(cluster, buckets, "frozen" if frozen else "unfrozen") if buckets else None
        every = ids is None and lane is None
        return await change(ids, lane=lane, every=every, reason=reason, actor=operator_name())

    found: Frozen = await with_cluster(settings, work)
    return found


async def _chosen(cluster: Cluster, buckets: Sequence[str], done: str) -> list[UUID]:
    """Ids of the named buckets."""
    views = (await cluster.inspect.buckets(retired=True, depths=False)).buckets
    chosen = [pick(views, bucket, "bucket") for bucket in buckets]
    for view in chosen:
        if view.state not in (BucketState.ACTIVE, BucketState.FROZEN):
            raise InputError(
                f"bucket {view.id} is {view.state} and cannot be {done}",
                hint="only an ACTIVE bucket can be frozen, and only a FROZEN one unfrozen; nothing was changed",
            )
    return [view.id for view in chosen]


def _record(bucket: Bucket) -> dict[str, Any]:
    return {
        "id": text(bucket.id),
        "lane": bucket.lane,
        "priority": Priority(bucket.priority).label,
        "state": bucket.state.value,
        "epoch": bucket.epoch,
        "store": bucket.store,
        "owner": text(bucket.owner),
    }
