"""``jobmaster pipeline rollup``, and the questions to its figures: ``objectives``, ``anomalies``, ``cost``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobmaster.cli.commands.job_inputs import DURATION
from jobmaster.cli.commands.pipeline.step import step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import PipelineContext, StepResult


@step("rollup")
@click.option("--rebuild", is_flag=True, help="Compute every day again, not only those that changed.")
@click.option(
    "--minutes",
    type=DURATION,
    default="2d",
    show_default=True,
    metavar="TIME",
    help="Figures by the minute, too, of days that are not older; 0: none.",
)
@click.option("--zone", metavar="NAME", help="Time zone of the report, such as Europe/Berlin.  [default: UTC]")
@click.option("--last", type=DURATION, metavar="TIME", help="Report on so much time.  [default: the whole history]")
@click.option("--price", type=click.FloatRange(0, min_open=True), help="Of a second in a handler, for the report.")
def rollup(
    context: PipelineContext, rebuild: bool, minutes: float, zone: str | None, last: float | None, price: float | None
) -> StepResult:
    """Compute aggregates by hour, minute and day, and write a report.

    Throughput, failures, cost, and latencies as histograms that can be merged, from the lake and the master together.
    Days that changed since the last roll-up are computed again as a whole and replaced. The report is one HTML file in the
    lake; its figures lie beside it as CSV and Parquet. With --zone, --last or --price the three are set anew, also for the
    steps that write the report again; without any of them they stay as they were.

    \b
    Examples:
      jobmaster pipeline rollup
      jobmaster pipeline rollup --zone Europe/Berlin --last 1d
      jobmaster pipeline rollup --rebuild -o json
    """
    from jobmaster.pipeline.report.build import PageOptions
    from jobmaster.pipeline.steps.rollup import rollup
    from jobmaster.rules.recurrence import zone_of

    page = None
    if (zone, last, price) != (None, None, None):
        page = PageOptions(zone_of(zone or "UTC").key, last, price)
    return rollup(context, rebuild=rebuild, minutes_seconds=minutes, page=page)


@step("objectives")
@click.option("--objective", "texts", multiple=True, metavar="WORDS", help="One objective; may be repeated.")
@click.option(
    "--objectives", "path", type=click.Path(path_type=Path, dir_okay=False), help="A file of YAML with objectives."
)
@click.option("--window", type=DURATION, default="30d", show_default=True, help="Of the error budget.")
@click.option("--check", is_flag=True, help="Exit code 1 when an objective is missed.")
@click.option(
    "--burn",
    type=click.FloatRange(0, min_open=True),
    metavar="RATE",
    help="With --check, also when a budget burned faster in the last hour and in the last six.",
)
def objectives(
    context: PipelineContext, texts: tuple[str, ...], path: Path | None, window: float, check: bool, burn: float | None
) -> StepResult:
    """Compare what jobs had with what was promised: error budgets, and how fast they burn.

    An objective is the share of the jobs of a lane, priority or handler (as far as given) that waits, runs, or is done in all
    within a time, or succeeds. It reads the figures of the last roll-up and writes the report again.

    \b
    Examples:
      jobmaster pipeline objectives --objective "priority=critical waiting=1s share=99.9"
      jobmaster pipeline objectives --objective "handler=bill success=true share=99" --window 7d --check
      jobmaster pipeline run rollup "objectives --objectives objectives.yaml --check --burn 14.4"
    """
    from jobmaster.model.errors import InputError
    from jobmaster.pipeline.report.objectives import parse_objective, read_objectives
    from jobmaster.pipeline.steps.figures import objectives as carry_out

    wanted = [*map(parse_objective, texts), *(read_objectives(path) if path is not None else ())]
    if not wanted:
        raise InputError("there is no objective", hint="give --objective, or a file with --objectives")
    return carry_out(context, wanted, window_seconds=window, check=check, burn_limit=burn)


@step("anomalies")
@click.option(
    "--hours", type=click.IntRange(1, 168), default=24, show_default=True, help="The last whole hours to look at."
)
@click.option(
    "--weeks", type=click.IntRange(3, 52), default=8, show_default=True, help="Earlier weeks to compare with."
)
@click.option(
    "--threshold", type=click.FloatRange(1), default=5.0, show_default=True, help="Deviation, in usual spreads."
)
@click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="Time zone of the hours of the week.")
@click.option("--check", is_flag=True, help="Exit code 1 when there is an anomaly.")
def anomalies(context: PipelineContext, hours: int, weeks: int, threshold: float, zone: str, check: bool) -> StepResult:
    """Find hours that differ from the same hour of earlier weeks.

    Jobs created, the share that failed, and the 95th percentiles of waiting and running, by handler and by lane and priority,
    against median and median absolute deviation of the earlier weeks. At least three of these are needed. It reads the
    figures of the last roll-up and writes the report again.

    \b
    Examples:
      jobmaster pipeline anomalies
      jobmaster pipeline run rollup "anomalies --hours 1 --check --zone Europe/Berlin"
    """
    from jobmaster.pipeline.steps.figures import AnomalyOptions
    from jobmaster.pipeline.steps.figures import anomalies as carry_out

    return carry_out(context, AnomalyOptions(hours, weeks, threshold, zone, check))


@step("cost")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["tenant", "lane", "priority", "handler"]),
    default=["tenant"],
    show_default=True,
    help="What to sum by; may be repeated.",
)
@click.option("--days", type=click.IntRange(1, 10_000), help="The last days only.  [default: all]")
@click.option("--price", type=click.FloatRange(0, min_open=True), help="Of a second in a handler.")
def cost(context: PipelineContext, by: tuple[str, ...], days: int | None, price: float | None) -> StepResult:
    """Sum up the time that jobs have used, by tenant, handler, lane or priority.

    Time in handlers is measured by the clock; processor time is not recorded. It reads the figures of the last roll-up.

    \b
    Examples:
      jobmaster pipeline cost --by tenant --by handler --days 30
      jobmaster pipeline cost --price 0.00002 -o json
    """
    from jobmaster.pipeline.steps.figures import cost as carry_out

    return carry_out(context, tuple(dict.fromkeys(by)), days=days, price=price)
