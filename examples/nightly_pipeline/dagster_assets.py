"""The same with Dagster: each step is an asset, materialised by the command line; its figures are the metadata."""

import json
import subprocess

from dagster import (
    AssetExecutionContext,
    Backoff,
    Definitions,
    Failure,
    MaterializeResult,
    RetryPolicy,
    ScheduleDefinition,
    asset,
    define_asset_job,
)

TRY_AGAIN = (69, 75)
"""Exit codes of a server that is away, and of an outcome that is not known."""


def pipeline(context: AssetExecutionContext, *step: str) -> MaterializeResult:
    """Run a step; its JSON becomes the metadata.

    Raises:
        Failure: a check found something, or the command is wrong; only a server that is away is worth a repetition.
    """
    ran = subprocess.run(
        ["jobmaster", "pipeline", *step, "--master", "local[2]", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    context.log.info(ran.stderr)
    if ran.returncode:
        raise Failure(ran.stderr.strip() or ran.stdout.strip(), allow_retries=ran.returncode in TRY_AGAIN)
    figures = json.loads(ran.stdout)
    return MaterializeResult(
        metadata={name: value for name, value in figures.items() if isinstance(value, int | float | str)}
    )


AGAIN = RetryPolicy(max_retries=3, delay=300, backoff=Backoff.EXPONENTIAL)


@asset(retry_policy=AGAIN)
def archived_ranges(context: AssetExecutionContext) -> MaterializeResult:
    """Old ranges of jobs, in the lake."""
    return pipeline(context, "archive", "--older-than", "30d")


@asset(deps=[archived_ranges], retry_policy=AGAIN)
def hourly_figures(context: AssetExecutionContext) -> MaterializeResult:
    """Figures by hour, and the report."""
    return pipeline(context, "rollup")


@asset(deps=[hourly_figures], retry_policy=AGAIN)
def audited_history(context: AssetExecutionContext) -> MaterializeResult:
    """The invariants over the whole history."""
    return pipeline(context, "audit")


nightly = define_asset_job("nightly", selection=[archived_ranges, hourly_figures, audited_history])
definitions = Definitions(
    assets=[archived_ranges, hourly_figures, audited_history],
    schedules=[ScheduleDefinition(job=nightly, cron_schedule="0 2 * * *")],
)
