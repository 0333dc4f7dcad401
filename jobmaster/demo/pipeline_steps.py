"""The demo's own history, through the data pipeline: rolled up, audited, planned from, in one Spark session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.settings.model import ClusterSettings

if TYPE_CHECKING:
    from jobmaster.pipeline.context import StepResult


_SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
}
"""Compiling each query would cost more than running it over a demo's history."""


class PlannedWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan says of one lane and priority; waits are those of 99 % of the jobs, in microseconds."""

    group: str
    """``lane/priority``."""
    present: int
    """Buckets in the busiest hour."""
    buckets: int
    """Proposed."""
    objective_us: float
    measured_us: float
    model_us: float
    """Of the same jobs and buckets, in the model."""
    difference: float
    """Factor between both, as the plan compares them: waits far below the objective count as equal."""
    predicted_us: float
    """With the proposal."""
    status: str
    """Whether the objective will be met: ``met``, ``not met`` or ``unknown``."""


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the three steps found."""

    rolled_up_jobs: int
    audited_jobs: int
    audit_violations: int
    plan: dict[str, int]
    """``lane/priority`` -> buckets."""
    waits: list[PlannedWaits]
    report: str
    """Where the HTML page lies."""
    seconds: float

    def balances(self, files: int) -> bool:
        """Every job was seen, and no rule was broken."""
        return self.rolled_up_jobs == self.audited_jobs == files and not self.audit_violations


def require_pipeline() -> None:
    """Refuse before anything has started when Spark or a Java is missing."""
    from jobmaster.pipeline.spark.java import find_java
    from jobmaster.pipeline.spark.session import require_extra

    require_extra()
    find_java(os.environ)


def run_pipeline(settings: ClusterSettings, lake: Path, report: Path, log: Callable[[str], None]) -> PipelineSummary:
    """Run ``rollup audit plan`` over what is in the master.

    Args:
        lake: a directory of the demo's own.
        report: where the page is copied to; it survives the demo.
    """
    from jobmaster.pipeline.context import PipelineContext, PipelineOptions
    from jobmaster.pipeline.plan.options import PlanOptions
    from jobmaster.pipeline.plan.plan import plan
    from jobmaster.pipeline.spark.session import SessionOptions
    from jobmaster.pipeline.steps.audit import audit
    from jobmaster.pipeline.steps.rollup import rollup

    context = PipelineContext(settings, PipelineOptions(SessionOptions("local[*]", _SMALL), str(lake)), log)
    began = context.clock.boottime()
    try:
        log("the data pipeline rolls the history up, audits it, and plans from it")
        rolled = rollup(context)
        audited = audit(context, 20)
        planned: StepResult = plan(context, PlanOptions())
    finally:
        context.close()
    shutil.copyfile(planned.summary["report"], report)
    return PipelineSummary(
        rolled_up_jobs=rolled.summary["rolled_up_jobs"],
        audited_jobs=audited.summary["audited_jobs"],
        audit_violations=audited.summary["audit_violations"],
        plan=planned.summary["plan"],
        waits=[_waits(one) for one in planned.details["groups"]],
        report=str(report.absolute()),
        seconds=round(context.clock.boottime() - began, 1),
    )


def _waits(one: Mapping[str, Any]) -> PlannedWaits:
    return PlannedWaits(
        group=f"{one['lane']}/{one['priority']}",
        present=one["present"],
        buckets=one["buckets"],
        objective_us=one["objective_us"],
        measured_us=one["measured"]["p99"],
        model_us=one["model"]["p99"],
        difference=round(one["difference"], 2),
        predicted_us=one["waits_us"]["p99"],
        status=one["status"],
    )
