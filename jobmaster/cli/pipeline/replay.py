"""``jobmaster pipeline replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.pipeline.step import note_batch, step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("replay")
@click.option(
    "--state", "states", type=click.Choice(["failed", "cancelled", "expired"]), multiple=True, default=["failed"]
)
@click.option("--since", help="Jobs created from then on, such as 2030-01-31.")
@click.option("--until", help="Jobs created before then.")
@click.option("--handler", "handlers", multiple=True)
@click.option("--lane", "lanes", multiple=True)
@click.option("--batch", help="Replayed twice under one name, a job is there once.  [default: replay and today's date]")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most so many jobs a second.")
def replay(
    run: PipelineRun,
    states: tuple[str, ...],
    since: str | None,
    until: str | None,
    handlers: tuple[str, ...],
    lanes: tuple[str, ...],
    batch: str | None,
    rate: int | None,
) -> Outcome:
    """Run jobs that failed again, each as a new job.

    What has ended stays as it ended; the new job bears metadata replay_of=ID.

    \b
    Examples:
      jobmaster pipeline replay --since 2030-01-31 --dry-run
      jobmaster pipeline replay --handler images.resize --batch after-the-outage --rate 1000
    """
    from jobmaster.pipeline.steps.submit import replay as carry_out

    choice = {"states": ",".join(states), "since": since, "until": until}
    choice |= {"handlers": ",".join(handlers) or None, "lanes": ",".join(lanes) or None}
    options = {"rowsPerSecond": str(rate)} if rate is not None else {}
    name = batch or f"replay {run.today()}"
    done = carry_out(run, {key: value for key, value in choice.items() if value}, name, options)
    return note_batch(run, "pipeline replay", done)
