"""``jobmaster pipeline forget``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("forget")
@click.argument("name")
def forget(run: PipelineRun, name: str) -> Outcome:
    """Remember the rows of a source no longer: handed in again, each of them is a new job.

    NAME is what `pipeline submit` was given with --remember, or the handler and the source (`pipeline ls` lists them).

    \b
    Example:
      jobmaster pipeline forget "bill from orders.parquet" --dry-run
    """
    from jobmaster.pipeline.steps.lake_admin import forget as carry_out

    return carry_out(run, name)
