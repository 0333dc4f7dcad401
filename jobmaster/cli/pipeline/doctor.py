"""``jobmaster pipeline doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("doctor")
def doctor(run: PipelineRun) -> Outcome:
    """Check Java, Spark, the master and the lake.

    Says which Java is used and why, starts Spark, reads a row of every table, and looks whether the lake can be written.
    Exit code 1 when something does not work.

    \b
    Examples:
      jobmaster pipeline doctor
      jobmaster pipeline doctor --master spark://host:7077 -o json
    """
    from jobmaster.pipeline.steps.doctor import examine

    return examine(run)
