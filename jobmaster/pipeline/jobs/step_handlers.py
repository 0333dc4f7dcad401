"""Handlers for the pipeline's own steps. Name this module's package under ``handlers``, and give them schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from jobmaster.handlers import Fail, Handlers, JobContext, Limit
from jobmaster.model.errors import InputError
from jobmaster.pipeline.jobs.driver_call import PROGRESS, call_driver
from jobmaster.pipeline.jobs.functions import settings_of_job
from jobmaster.pipeline.jobs.orders import StepOrder
from jobmaster.pipeline.spark.session import DEFAULT_MASTER
from jobmaster.units import parse_duration

pipeline_handlers = Handlers()
"""``pipeline.archive``, ``pipeline.audit``, ``pipeline.compact``, ``pipeline.rollup``, ``pipeline.vacuum``."""
F = TypeVar("F", bound=Callable[..., Any])


class PipelineRun(msgspec.Struct, frozen=True):
    """Where a step runs."""

    master: str = DEFAULT_MASTER
    """Of Spark."""
    conf: dict[str, str] = {}
    """Settings of Spark."""
    lake: str | None = None
    """Directory or URL of the lake; ``None``: ``lake`` in the data directory of the agent."""
    dsn_env: str | None = None
    """Variable of the agent's environment with the address of the master for the step; ``None``: the agent's own. Where there
    are roles, the agent's may neither read the whole history nor retire ranges."""


_HERE = PipelineRun()


def _step(name: str) -> Callable[[F], F]:
    """Declare the handler of a step."""
    return pipeline_handlers.job(
        name=f"pipeline.{name}",
        timeout=6 * 3600.0,
        max_attempts=3,
        backoff=60.0,
        backoff_factor=5.0,
        # Each of them is a JVM of 2 GB, and steps that change one lake would wait for each other.
        limit=Limit("jobmaster.pipeline", 1),
    )


@_step("archive")
async def archive(
    ctx: JobContext[Any],
    older_than: str = "7d",
    keep: bool = False,
    lost_stores: list[str] | None = None,
    spark: PipelineRun = _HERE,
) -> dict[str, Any]:
    """Move old ranges of jobs from the master to the lake."""
    seconds = _duration("older_than", older_than)
    given = {"older_than": seconds, "keep": keep, "lost_stores": lost_stores or []}
    return await _run(ctx, "archive", spark, given)


@_step("audit")
async def audit(ctx: JobContext[Any], evidence: int = 20, spark: PipelineRun = _HERE) -> dict[str, Any]:
    """Check the invariants over the whole history. Violations fail the job."""
    return await _run(ctx, "audit", spark, {"evidence": evidence})


@_step("compact")
async def compact(ctx: JobContext[Any], spark: PipelineRun = _HERE) -> dict[str, Any]:
    """Merge small files of the lake."""
    return await _run(ctx, "compact", spark, {})


@_step("rollup")
async def rollup(ctx: JobContext[Any], rebuild: bool = False, spark: PipelineRun = _HERE) -> dict[str, Any]:
    """Compute the hourly figures of what has changed, and write the report."""
    return await _run(ctx, "rollup", spark, {"rebuild": rebuild})


@_step("vacuum")
async def vacuum(ctx: JobContext[Any], older_than: str = "1d", spark: PipelineRun = _HERE) -> dict[str, Any]:
    """Delete files of unfinished runs from the lake."""
    return await _run(ctx, "vacuum", spark, {"older_than": _duration("older_than", older_than)})


async def _run(ctx: JobContext[Any], step: str, where: PipelineRun, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        settings = settings_of_job(where.dsn_env)
    except InputError as error:
        raise Fail(f"argument 'spark': {error}") from None
    conf = {**PROGRESS, **where.conf}
    order = StepOrder(step, arguments, where.master, conf, f"pipeline.{step}", where.lake, settings)
    found: dict[str, Any] = await call_driver(ctx, order)
    return found


def _duration(name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except (ValueError, InputError) as error:
        raise Fail(f"argument {name!r}: {error}") from None
