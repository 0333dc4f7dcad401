"""``jobmaster pipeline rollup``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("rollup")
@click.option("--rebuild", is_flag=True, help="Every day again, not only those that something touched.")
def rollup(run: PipelineRun, rebuild: bool) -> Outcome:
    """Figures by the hour, and a report to look at.

    Throughput, failures, retries, and latencies as histograms that can be merged, from the lake and the master together.
    Days that something touched since the last time are computed anew as a whole and replace what was there. The report is
    one HTML file in the lake.

    \b
    Examples:
      jobmaster pipeline rollup
      jobmaster pipeline rollup --rebuild -o json
    """
    from jobmaster.pipeline.steps.rollup import rollup

    return rollup(run, rebuild=rebuild)
