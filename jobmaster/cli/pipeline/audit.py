"""``jobmaster pipeline audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("audit")
@click.option("--evidence", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Violations to name.")
def audit(run: PipelineRun, evidence: int) -> Outcome:
    """Check the invariants over the whole history, archived and live together.

    One job, one outcome; nothing lost, nothing doubled, nothing written by an owner that had lost it; every file of the lake
    as it was verified. All violations are written to the lake. Exit code 1 when there is one.

    \b
    Examples:
      jobmaster pipeline audit
      jobmaster pipeline audit --evidence 100 -o json
    """
    from jobmaster.pipeline.steps.audit import audit

    return audit(run, evidence)
