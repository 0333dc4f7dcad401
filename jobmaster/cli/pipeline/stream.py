"""``jobmaster pipeline stream``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("stream")
@click.argument("table", type=click.Choice(["jobs", "attempts", "events"]), default="jobs")
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(1), help="Go on for ever, a batch every so often.")
@click.option("--rows", type=click.IntRange(1), default=500_000, show_default=True, help="Of one batch, about.")
@click.option("--from", "position", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
def stream(run: PipelineRun, table: str, interval: float | None, rows: int, position: str) -> Outcome:
    """Copy what ends in the master to the lake, each job once.

    Copies everything recorded since the last call and ends; with --interval it goes on until it is stopped. Where it has
    come is kept in the lake. It never waits for a number or a time to be the highest, but until every earlier transaction
    has ended, so no job is passed over.

    \b
    Examples:
      jobmaster pipeline stream
      jobmaster pipeline stream attempts --interval 60
    """
    from jobmaster.pipeline.steps.stream import carry_out

    return carry_out(run, table, interval, rows, position)
