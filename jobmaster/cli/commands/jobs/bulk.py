"""``jobmaster bulk``: one change of every job that fits a filter."""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, PRIORITIES, moment, with_cluster
from jobmaster.cli.commands.jobs.filter_options import filter_options, filters_of
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import (
    Column,
    Output,
    emit_data,
    emit_item,
    emit_record,
    emit_rows,
    refuse_csv_stream,
    thousands,
)
from jobmaster.clock import SystemClock
from jobmaster.model.errors import InputError
from jobmaster.model.flow.bulk_operation import SKIPPED, BulkKind, BulkPreview, BulkState, BulkView
from jobmaster.model.job_view import iso
from jobmaster.units import format_duration

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

BAR_CHARS = 40
_PACE_LOOKS = 30
_COLUMNS = (
    Column("ID", "id", whole=True),
    Column("KIND", "kind"),
    Column("STATE", "state"),
    Column("DONE", "done", lambda share: f"{share:.0%}", right=True),
    Column("CHANGED", "changed", thousands, right=True),
    Column("CREATED (UTC)", "created_at"),
    Column("ACTOR", "actor"),
    Column("REASON", "reason"),
)


@click.group("bulk")
def bulk_group() -> None:
    """Retry, cancel, reschedule or delete every job that fits a filter; list and stop such operations."""


_OPTIONS = (
    click.option("--reason", default="", help="For the operator's log."),
    click.option("--dry-run", is_flag=True, help="Count what would be changed, and change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--watch", is_flag=True, help="Show the progress until the operation has ended."),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of all kinds: the filter, and how it is asked for."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return filter_options(command)


@bulk_group.command("retry")
@_options
@pass_invocation
def retry(invocation: Invocation, **given: Any) -> None:
    """Run jobs that have ended without success again, as new jobs.

    Without --state: those that have FAILED. A job that has been retried before is left alone.

    \b
    Examples:
      jobmaster bulk retry --handler images.resize --since 2h --dry-run
      jobmaster bulk retry --handler images.resize --since 2h --yes --watch
    """
    _run(invocation, BulkKind.RETRY, None, given)


@bulk_group.command("cancel")
@_options
@pass_invocation
def cancel(invocation: Invocation, **given: Any) -> None:
    """Cancel jobs that have not ended.

    What waits in the master is cancelled at once; agents end what is in flight. Jobs without a row in the master, which only
    a bucket has, are not found.

    \b
    Example:
      jobmaster bulk cancel --tag import-17 --reason "wrong file"
    """
    _run(invocation, BulkKind.CANCEL, None, given)


@bulk_group.command("reschedule")
@_options
@click.option("--after", type=DURATION, help="Due in 30s, 5m, 1h30m ... from now.")
@click.option("--at", metavar="TIME", help="Due at an ISO 8601 time with zone; one in the past means now.")
@click.option("--to-priority", type=click.Choice(PRIORITIES), help="The new priority.")
@click.option("--to-lane", help="The new lane.", shell_complete=known(Known.LANES))
@pass_invocation
def reschedule(
    invocation: Invocation,
    after: float | None,
    at: str | None,
    to_priority: str | None,
    to_lane: str | None,
    **given: Any,
) -> None:
    """Give jobs that wait in the master another due time, priority or lane.

    \b
    Example:
      jobmaster bulk reschedule --handler mail.send --after 1h --yes
    """
    change = {
        "after": after,
        "at": None if at is None else moment(at, "--at"),
        "priority": to_priority,
        "lane": to_lane,
    }
    _run(invocation, BulkKind.RESCHEDULE, {name: value for name, value in change.items() if value is not None}, given)


@bulk_group.command("delete")
@_options
@pass_invocation
def delete(invocation: Invocation, **given: Any) -> None:
    """Delete the contents of jobs that have ended: arguments, results, errors, tags, metadata and logs.

    The rows stay, with states and times, until retention drops them: they refuse late copies of their jobs. No list shows
    them.

    \b
    Example:
      jobmaster bulk delete --handler mail.send --until 30d --dry-run
    """
    _run(invocation, BulkKind.DELETE, None, given)


@bulk_group.command("list")
@click.option("--state", "states", multiple=True, help="WAITING, RUNNING, DONE, CANCELLED or FAILED; several times.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@pass_invocation
def list_(invocation: Invocation, states: tuple[str, ...], limit: int) -> None:
    """List bulk operations, the newest first.

    DONE: share of the time in which the jobs of its range were created that it has looked through.

    \b
    Example:
      jobmaster bulk list --state RUNNING
    """
    found = run_async(with_cluster(invocation.settings, lambda cluster: cluster.bulk.list(state=states, limit=limit)))
    empty = "there is no such bulk operation"
    emit_rows([_record(each) for each in found], _COLUMNS, invocation.output, empty=empty)


@bulk_group.command("show")
@click.argument("operation")
@pass_invocation
def show(invocation: Invocation, operation: str) -> None:
    """Show a bulk operation: its filter, what it has changed, and what it has left alone.

    \b
    Example:
      jobmaster bulk show 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    view = run_async(with_cluster(invocation.settings, lambda cluster: cluster.bulk.get(operation)))
    emit_record(_record(view), invocation.output)


@bulk_group.command("stop")
@click.argument("operation")
@pass_invocation
def stop(invocation: Invocation, operation: str) -> None:
    """Cancel a bulk operation. What it has changed stays so, and nothing more is changed.

    \b
    Example:
      jobmaster bulk stop 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    view = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.bulk.cancel(operation, actor=operator_name()))
    )
    emit_record(_record(view), invocation.output)


@bulk_group.command("watch")
@click.argument("operation")
@pass_invocation
def watch(invocation: Invocation, operation: str) -> None:
    """Show the progress of a bulk operation until it has ended; exit code 1 if it is not DONE.

    With `-o json` one line for each look.

    \b
    Example:
      jobmaster bulk watch 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    refuse_csv_stream(invocation.output)
    _watch(invocation, operation)


def _run(invocation: Invocation, kind: BulkKind, change: Any, given: Mapping[str, Any]) -> None:
    """Preview, question and start of an operation."""
    options = dict(given)
    reason, dry_run, yes, watched = (options.pop(name) for name in ("reason", "dry_run", "yes", "watch"))
    filters = filters_of(options)
    if watched and not dry_run:
        refuse_csv_stream(invocation.output)
    if not dry_run and not yes and (not invocation.output.for_people or not sys.stdin.isatty()):
        raise InputError(
            f"a bulk {kind} asks before it starts, and there is no terminal",
            hint="give --yes, or --dry-run to see what it would change",
        )
    if dry_run or not yes:
        preview: BulkPreview = run_async(
            with_cluster(invocation.settings, lambda cluster: cluster.bulk.preview(kind, change=change, **filters))
        )
        _emit_preview(preview, invocation.output)
        if dry_run:
            return
        click.confirm(f"{kind} these jobs?", abort=True)

    async def work(cluster: Cluster) -> BulkView:
        return await cluster.bulk.start(kind, change=change, reason=reason, actor=operator_name(), **filters)

    view: BulkView = run_async(with_cluster(invocation.settings, work))
    if watched:
        _watch(invocation, str(view.id))
    else:
        emit_record(_record(view), invocation.output)


def _emit_preview(preview: BulkPreview, output: Output) -> None:
    more = "+" if preview.capped else ""
    record = {
        "kind": preview.kind.value,
        "eligible": preview.eligible,
        "skipped": {cause.value: count for cause, count in preview.skipped.items()},
        "capped": preview.capped,
        "buckets_not_searched": preview.unsearched,
    }
    if emit_data(record, output):
        return
    click.echo(f"{thousands(preview.eligible)}{more} jobs: {preview.kind}")
    for cause, count in sorted(preview.skipped.items()):
        click.echo(f"{thousands(count)}{more} jobs are left alone: they {SKIPPED[cause]}")
    if preview.unsearched:
        click.echo(f"{preview.unsearched} buckets are not searched: jobs that have no row yet stay as they are")


def _watch(invocation: Invocation, operation: str) -> None:
    looks: deque[tuple[float, float, int]] = deque(maxlen=_PACE_LOOKS)
    clock = SystemClock()

    def look(view: BulkView) -> None:
        looks.append((clock.boottime(), view.done, view.changed))
        (began, first_done, first), (now, done, last) = looks[0], looks[-1]
        took = now - began
        per_second = round((last - first) / took, 1) if took > 0 else None
        left = math.ceil((1 - done) * took / (done - first_done)) if done > first_done else None
        if not emit_item({**_record(view), "per_second": per_second, "left_seconds": left}, invocation.output):
            _draw(view, per_second, left)

    view: BulkView = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.bulk.wait(operation, on_progress=look))
    )
    if view.state is not BulkState.DONE:
        sys.exit(1)


def _draw(view: BulkView, per_second: float | None, left: int | None) -> None:
    """A progress bar on a terminal; a line for each look elsewhere."""
    filled = round(view.done * BAR_CHARS)
    progress = f"[{'#' * filled}{'.' * (BAR_CHARS - filled)}] {view.done:4.0%}  {thousands(view.changed)} jobs"
    skipped = sum(view.skipped.values())
    alone = f", {thousands(skipped)} left alone" if skipped else ""
    pace = "" if view.state.final or per_second is None else f"  {thousands(round(per_second))}/s"
    rest = "" if left is None or view.state.final else f"  {format_duration(left)} left"
    terminal = sys.stdout.isatty()
    line = f"{view.kind} {progress}{alone}  {view.state.value}{pace}{rest}"
    click.echo(f"\r{line}\x1b[K" if terminal else line, nl=not terminal or view.state.final)


def _record(view: BulkView) -> dict[str, Any]:
    return {
        "id": str(view.id),
        "kind": view.kind.value,
        "state": view.state.value,
        "done": round(view.done, 4),
        "changed": view.changed,
        "skipped": view.skipped,
        "buckets_not_searched": view.unsearched,
        "filter": json.loads(view.filter_json),
        "change": json.loads(view.change_json),
        "actor": view.actor,
        "reason": view.reason,
        "error": view.error,
        "created_at": iso(view.created_us),
        "started_at": iso(view.started_us),
        "moved_at": iso(view.moved_us),
        "ended_at": iso(view.ended_us),
    }
