"""``jobmaster pipeline ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("ls")
def ls(run: PipelineRun) -> Outcome:
    """Show what the lake holds, and the latest batches.

    \b
    Example:
      jobmaster pipeline ls --lake lake -o json
    """
    from jobmaster.pipeline.steps.lake_admin import list_lake

    return list_lake(run)
