"""``review``: compares a plan that was kept with what has happened since."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jobmaster.model.errors import InputError
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.full_history import open_history
from jobmaster.pipeline.lake.lake import Lake, lake_errors
from jobmaster.pipeline.plan.findings import Finding, GroupReview, compare_with
from jobmaster.pipeline.plan.gather import gather, started_since
from jobmaster.pipeline.plan.model import jobs_of
from jobmaster.pipeline.plan.plan_file import PlanDocument, PlanWaits, read_plan
from jobmaster.pipeline.report.build import PLAN
from jobmaster.units import rounded_us


def review(context: PipelineContext, named: str | None = None) -> StepResult:
    """Compare a plan with the time since it was made.

    Args:
        named: a plan, or a file of one; ``None``: the latest plan of the lake.

    Raises:
        InputError: it is no plan, of a newer version, or nothing has happened since.
        NotFound: there is no such plan. Refused: it is a plan of another cluster.
    """
    lake, cluster = Lake(context.lake), text(context.connection.master.cluster.uid)
    document = read_plan(lake, named or _latest(lake), cluster)
    with open_history(context) as history, lake_errors(lake):
        jobs = started_since(context.spark, history, document.made_at)
        jobs.started.cache()
        try:
            facts, _ = gather(jobs, history.owners(), document.hours)
        finally:
            jobs.started.unpersist()
    if not facts.starts:
        raise InputError(
            f"no job has run since plan {document.name} was made ({_moment(document.made_at)})",
            hint="review it later",
        )
    found = compare_with(document, facts)
    bad = [one for one in found if one.missed or one.finding is Finding.LONGER]
    return StepResult(
        rows=sum(jobs_of(facts.measured.get(one.group)) for one in found),
        summary={
            "name": document.name,
            "made_at": _moment(document.made_at),
            "since": f"{_moment(facts.first)} to {_moment(facts.last)}",
            "held": not bad,
        },
        failed=bool(bad),
        note=_note(document, found),
        items=[_line(one) for one in found],
        details={"groups": [_record(one) for one in found]},
    )


def _latest(lake: Lake) -> str:
    document = lake.read_json(PLAN)
    if document is None or not isinstance(document.get("name"), str):
        raise InputError(
            f"the lake {lake.where} has no plan that can be reviewed", hint="make one with `jobmaster pipeline plan`"
        )
    return str(document["name"])


def _note(document: PlanDocument, found: list[GroupReview]) -> str | None:
    missed = [_name(one) for one in found if one.missed]
    notes = []
    if missed:
        notes.append(f"the objective of {', '.join(missed)} was missed at quantile {document.quantile:g}")
    for finding in (Finding.LONGER, Finding.OTHER_LOAD, Finding.OTHER_CONFIGURATION):
        names = [_name(one) for one in found if one.finding is finding]
        if names:
            notes.append(f"{finding.value}: {', '.join(names)}")
    return "; ".join(notes) or None


def _line(one: GroupReview) -> dict[str, str]:
    """A row of the table for people; waits are ``p50 / p99``."""
    return {
        "group": _name(one),
        "configuration": one.configuration,
        "load": "-" if one.load is None else f"x{one.load:.2g}",
        "predicted": _waits(one.predicted),
        "measured": _waits(one.measured),
        "objective": "missed" if one.missed else "-",
        "finding": one.finding.value,
    }


def _record(one: GroupReview) -> Mapping[str, Any]:
    return {
        **one._asdict(),
        "group": _name(one),
        "predicted": _quantiles(one.predicted),
        "measured": _quantiles(one.measured),
        "finding": one.finding.value,
    }


def _name(one: GroupReview) -> str:
    return "/".join(one.group)


def _waits(waits: PlanWaits | None) -> str:
    return "-" if waits is None else f"{rounded_us(waits.p50)} / {rounded_us(waits.p99)}"


def _quantiles(waits: PlanWaits | None) -> Mapping[str, float] | None:
    return None if waits is None else {"p50": waits.p50, "p99": waits.p99, "objective": waits.objective}


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
