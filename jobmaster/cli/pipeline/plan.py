"""``jobmaster pipeline plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("plan")
@click.option(
    "--objective", "objectives", multiple=True, metavar="[LANE/]PRIORITY=TIME", help="Waiting that is allowed."
)
@click.option("--quantile", type=click.FloatRange(0.5, 0.9999), default=0.99, show_default=True, help="Of the waits.")
@click.option("--slots", type=click.IntRange(1), help="Slots of a bucket.  [default: as configured]")
@click.option("--agents", type=click.IntRange(1), help="Agents that share the buckets.  [default: those that live]")
@click.option("--kind", help="Kind of agent in the configuration.  [default: the first]")
@click.option("--days", type=click.IntRange(1, 400), default=14, show_default=True, help="Days of history.")
@click.option("--hours", type=click.IntRange(1, 10_000), default=24, show_default=True, help="Busiest hours to replay.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the configuration, too.")
@click.option(
    "--check", is_flag=True, help="Plan without the last day and try the plan on it; exit code 1 when it fails."
)
def plan(run: PipelineRun, objectives: tuple[str, ...], **words: Any) -> Outcome:
    """Recommend how many buckets each lane and priority needs.

    From the measured history: a formula finds where to look, then the arrivals of the busiest hours are replayed among
    different numbers of buckets. Writes a configuration that agents read, with the expected waits beside the numbers, and
    the curves into the report. Without objectives: critical=1s high=5s medium=30s low=2m very_low=10m.

    \b
    Examples:
      jobmaster pipeline plan --objective critical=200ms --objective payroll/medium=5s --out buckets.yaml
      jobmaster pipeline plan --check
    """
    from jobmaster.pipeline.plan.plan import PlanOptions, parse_objectives, plan

    return plan(run, PlanOptions(parse_objectives(objectives), **words))
