"""``jobmaster pipeline archive``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.job import DURATION
from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("archive")
@click.option(
    "--older-than", type=DURATION, default="7d", show_default=True, help="Ranges whose every job is older than that."
)
@click.option("--keep", is_flag=True, help="Leave what is archived in the master, too, until a later run.")
@click.option("--lost-store", "lost_stores", multiple=True, help="A store that is gone for good; may be repeated.")
def archive(run: PipelineRun, older_than: float, keep: bool, lost_stores: tuple[str, ...]) -> Outcome:
    """Move old ranges of jobs from the master to the lake.

    A range is detached, copied to Parquet, read again and compared with the master in count and checksum, published, and
    only then dropped. Killed at any point, run it again: it goes on. Unfinished jobs stay in the master.

    \b
    Examples:
      jobmaster pipeline archive --older-than 30d
      jobmaster pipeline archive --keep --lake /srv/lake
    """
    from jobmaster.pipeline.steps.archive import archive

    return archive(run, older_than, keep=keep, lost_stores=lost_stores)
