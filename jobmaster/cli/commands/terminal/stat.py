"""``jobmaster stat``: a line with the figures of the cluster, again and again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import with_cluster
from jobmaster.cli.commands.terminal.figures import Figures, FiguresReader, rate_text
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_item, iso_at, refuse_csv_stream, render, thousands
from jobmaster.clock import SystemClock
from jobmaster.units import rounded_duration

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

HEADING_LINES = 20
"""On a terminal the titles stand above every so many lines."""
COLUMNS = (
    Column("TIME (UTC)", "at"),
    Column("SUBMITTED/S", "submitted_per_second", rate_text, right=True),
    Column("STARTED/S", "started_per_second", rate_text, right=True),
    Column("ENDED/S", "ended_per_second", rate_text, right=True),
    Column("FAILED/S", "failed_per_second", rate_text, right=True),
    Column("    READY", "ready", thousands, right=True),
    Column("     HELD", "held", thousands, right=True),
    Column(" OLDEST", "oldest_seconds", rounded_duration, right=True),
    Column("RUNNING", "running", thousands, right=True),
    Column("  SLOTS", "slots", thousands, right=True),
    Column("AGENTS", "agents", right=True),
)


@click.command("stat")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two lines.")
@click.option("--count", type=click.IntRange(1), help="End after so many lines.")
@pass_invocation
def stat(invocation: Invocation, every: float, count: int | None) -> None:
    """Print a line with the figures of the cluster each second.

    SUBMITTED, STARTED, ENDED, FAILED: jobs a second, averages of about 10 s; retries and jobs that were given back count as
    submitted again. READY: jobs that could start. HELD: jobs that wait in the master, and OLDEST how long the first of them
    has been due. RUNNING, SLOTS: of the living agents, as they have published it.

    \b
    Examples:
      jobmaster stat
      jobmaster stat --every 10 -o jsonl
    """
    refuse_csv_stream(invocation.output)

    async def work(cluster: Cluster) -> None:
        clock = SystemClock()
        reader = FiguresReader(cluster, clock)
        lines = 0
        while True:
            began = clock.boottime()
            record = _record(await reader.read())
            if not emit_item(record, invocation.output, name="at"):
                _print(record, titles=lines == 0 or (sys.stdout.isatty() and lines % HEADING_LINES == 0))
            sys.stdout.flush()
            lines += 1
            if lines == count:
                return
            await reader.rest(every, began)

    run_async(with_cluster(invocation.settings, work))


def _print(record: dict[str, Any], *, titles: bool) -> None:
    title, line = render([record], COLUMNS).split("\n")
    click.echo(f"{title}\n{line}" if titles else line)


def _record(found: Figures) -> dict[str, Any]:
    seen = found.overview
    return {
        "at": iso_at(seen.at),
        "submitted_per_second": found.submitted_per_second,
        **found.rates,
        "ready": seen.ready,
        "held": found.held,
        "oldest_seconds": None if found.oldest_seconds is None else round(found.oldest_seconds, 3),
        "running": seen.running,
        "slots": seen.slots,
        "agents": seen.agents_alive,
    }
