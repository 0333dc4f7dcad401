"""``jobmaster batch``: batches of jobs."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.operator_log import operator_name
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, clean, emit_item, emit_record, emit_rows, refuse_csv_stream, thousands
from jobmaster.clock import SystemClock
from jobmaster.model import ids
from jobmaster.model.flow.batch import BatchState, BatchView
from jobmaster.model.job_view import iso
from jobmaster.units import format_duration

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

COLUMNS = (
    Column("ID", "id", whole=True),
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("JOBS", "size", thousands, right=True),
    Column("DONE", "done", lambda share: f"{share:.0%}", right=True),
    Column("CREATED (UTC)", "created_at"),
    Column("REASON", "reason"),
)
BAR_CHARS = 40
_PACE_LOOKS = 30


@click.group("batch")
def batch_group() -> None:
    """List, show, watch, cancel and retry batches of jobs."""


@batch_group.command("list")
@click.option("--state", "states", multiple=True, help="OPEN, CLOSED, SUCCEEDED, FAILED or CANCELLED; several times.")
@click.option("--name", help="Batches of this name.")
@click.option("--key", help="The batch of this key.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@pass_invocation
def list_(invocation: Invocation, states: tuple[str, ...], name: str | None, key: str | None, limit: int) -> None:
    """List batches, the newest first.

    DONE: share of the jobs that have ended, as agents have noted it; for a count see `jobmaster batch show`.

    \b
    Example:
      jobmaster batch list --state CLOSED
    """
    found = run_async(
        with_cluster(
            invocation.settings,
            lambda cluster: cluster.batches.list(state=states, name=name, key=key, limit=limit),
        )
    )
    emit_rows([_record(each) for each in found], COLUMNS, invocation.output, empty="there is no such batch")


@batch_group.command("show")
@click.argument("batch")
@pass_invocation
def show(invocation: Invocation, batch: str) -> None:
    """Show a batch, and count its jobs.

    missing: jobs of a closed batch without a row: in a bucket, or lost with their store.

    \b
    Example:
      jobmaster batch show 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    view = run_async(with_cluster(invocation.settings, lambda cluster: cluster.batches.progress(batch)))
    emit_record(_record(view), invocation.output)


@batch_group.command("watch")
@click.argument("batch")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@pass_invocation
def watch(invocation: Invocation, batch: str, every: float) -> None:
    """Show the progress of a batch until it has ended; exit code 1 if it has not succeeded.

    Beside the bar: jobs that end a second, over the last 30 looks, and the time that is left at this pace. With `-o json` one
    line for each look, with `per_second` and `left_seconds`. A look reads the notes of the agents, and counts no jobs.

    \b
    Example:
      jobmaster batch watch 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    refuse_csv_stream(invocation.output)

    async def work(cluster: Cluster) -> BatchView:
        pace, clock = Pace(), SystemClock()
        while True:
            view = await cluster.batches.get(batch)
            per_second = pace.per_second(view, clock.boottime())
            look = {**_record(view), "per_second": per_second, "left_seconds": left_seconds(view, per_second)}
            if not emit_item(look, invocation.output):
                _draw(view, per_second)
            if view.state.final:
                return view
            await asyncio.sleep(every)

    view: BatchView = run_async(with_cluster(invocation.settings, work))
    if view.state is not BatchState.SUCCEEDED:
        sys.exit(1)


@batch_group.command("cancel")
@click.argument("batch")
@pass_invocation
def cancel(invocation: Invocation, batch: str) -> None:
    """Cancel a batch, and the batches inside it.

    Jobs that wait do not start, jobs that run are stopped. It is CANCELLED when all of its jobs have ended. The action is
    written to the operator's log.

    \b
    Example:
      jobmaster batch cancel 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """
    view = run_async(
        with_cluster(invocation.settings, lambda cluster: cluster.batches.cancel(batch, actor=operator_name()))
    )
    emit_record(_record(view), invocation.output)


@batch_group.command("retry")
@click.argument("batch")
@pass_invocation
def retry(invocation: Invocation, batch: str) -> None:
    """Run the jobs of a batch that have not succeeded again, as a new batch with the same callbacks.

    \b
    Example:
      jobmaster batch retry 019a5c7e-53a0-7b1c-9f00-3d2a00000000
    """

    async def work(cluster: Cluster) -> BatchView:
        again = await cluster.batches.retry_failed(batch, actor=operator_name())
        return await again.get()

    emit_record(_record(run_async(with_cluster(invocation.settings, work))), invocation.output)


class Pace:
    """How many jobs of a batch end a second, over the last looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=_PACE_LOOKS)

    def per_second(self, view: BatchView, now: float) -> float | None:
        """After one more look at a moment (seconds); ``None`` at the first one."""
        self._looks.append((now, view.tallied))
        (began, first), (_, last) = self._looks[0], self._looks[-1]
        return round((last - first) / (now - began), 1) if now > began else None


def left_seconds(view: BatchView, per_second: float | None) -> int | None:
    """Seconds until the last job ends at this pace; ``None``: unknown."""
    if view.state is not BatchState.CLOSED or not per_second:
        return None
    return math.ceil(max(view.size - view.tallied, 0) / per_second)


def _draw(view: BatchView, per_second: float | None) -> None:
    """A progress bar on a terminal; a line for each look elsewhere."""
    if view.state is BatchState.OPEN:  # its size is not known
        progress = f"{thousands(view.tallied)} jobs have ended"
    else:
        filled = round(view.done * BAR_CHARS)
        jobs = f"{thousands(min(view.tallied, view.size))} of {thousands(view.size)}"
        progress = f"[{'#' * filled}{'.' * (BAR_CHARS - filled)}] {view.done:4.0%}  {jobs}"
    left = left_seconds(view, per_second)
    pace = "" if view.state.final or per_second is None else f"  {thousands(round(per_second))}/s"
    rest = "" if left is None else f"  {format_duration(left)} left"
    line = f"{clean(view.name)} {progress}  {view.state.value}{pace}{rest}"
    terminal = sys.stdout.isatty()
    click.echo(f"\r{line}\x1b[K" if terminal else line, nl=not terminal or view.state.final)


def _record(view: BatchView) -> dict[str, Any]:
    counts = view.counts
    return {
        "id": str(view.id),
        "name": view.name,
        "key": view.key,
        "description": view.description,
        "state": view.state.value,
        "reason": view.reason,
        "size": view.size,
        "done": round(view.done, 4),
        "noted": view.tallied,
        "succeeded": None if counts is None else counts.succeeded,
        "failed": None if counts is None else counts.failed,
        "cancelled": None if counts is None else counts.cancelled,
        "expired": None if counts is None else counts.expired,
        "unfinished": None if counts is None else counts.unfinished,
        "missing": None if counts is None else counts.missing,
        "nested": view.nested,
        "cancel_requested": view.cancel_requested,
        "parent": None if view.parent_bytes is None else ids.text(view.parent_bytes),
        "retry_of": None if view.retry_of_bytes is None else ids.text(view.retry_of_bytes),
        "created_at": iso(view.created_us),
        "closed_at": iso(view.closed_us),
        "ended_at": iso(view.ended_us),
        "expires_at": iso(view.expires_us),
        "callbacks": view.callbacks,
    }
