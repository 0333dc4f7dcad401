"""``jobmaster pipeline vacuum``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.job import DURATION
from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun

HOUR = 3600.0


@step("vacuum")
@click.option(
    "--older-than", type=DURATION, default="1d", show_default=True, help="At least 1h: longer than any run takes."
)
def vacuum(run: PipelineRun, older_than: float) -> Outcome:
    """Delete what runs that did not end have left in the lake.

    No reader sees these files: none counts unless a document names its run.

    \b
    Example:
      jobmaster pipeline vacuum --older-than 2d --dry-run
    """
    from jobmaster.model.errors import InputError
    from jobmaster.pipeline.steps.lake_admin import vacuum as carry_out

    if older_than < HOUR:
        raise InputError("--older-than is less than an hour: the files of a run that is under way could go")
    return carry_out(run, older_than)
