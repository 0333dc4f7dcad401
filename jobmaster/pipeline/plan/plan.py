"""``plan``: proposes buckets, slots and agents from the history; with ``check``, tries the plan on a day it did not use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jobmaster.clock import new_id
from jobmaster.model.errors import InputError
from jobmaster.model.ids import text
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.full_history import FullHistory, open_history
from jobmaster.pipeline.lake.lake import Lake, lake_errors
from jobmaster.pipeline.plan.chooser import Choice, Chooser
from jobmaster.pipeline.plan.facts import Facts, WeeklyArrivals
from jobmaster.pipeline.plan.gather import StartedJobs, between, days_of, gather, started_since
from jobmaster.pipeline.plan.model import Group, ObjectiveStatus
from jobmaster.pipeline.plan.options import PlanOptions, require_lanes
from jobmaster.pipeline.plan.plan_file import (
    PLAN_FORMAT,
    PlanDocument,
    PlannedGroup,
    PlanWaits,
    record_of,
    write_plan,
)
from jobmaster.pipeline.plan.plan_yaml import difference, present_settings, proposed_settings, yaml_of
from jobmaster.pipeline.plan.transient_threshold import ThresholdAdvice, advise_threshold
from jobmaster.pipeline.report.arrivals import arrival_curves, hourly_arrivals
from jobmaster.pipeline.report.build import PLAN, rolled_up_until, write_report
from jobmaster.settings.loader import load_settings
from jobmaster.units import format_duration, rounded_us

_RUNS_MIN = 30
_LATER_MANY = 0.01


def plan(context: PipelineContext, options: PlanOptions) -> StepResult:
    """Make a plan, write the configuration and the report; with ``check`` try the plan on the last day.

    Raises:
        InputError: there is no such kind of agent or lane, too little history, or a file that a check does not write.
        Refused, Unavailable: as for every reader of the lake.
    """
    if options.check and options.out is not None:
        raise InputError(
            f"--check writes no configuration, and --out names {options.out}",
            hint="leave one of them out: the plan that is checked lacks the last day, so it is not the one to deploy",
        )
    kind = _kind(context, options)
    lake = Lake(context.lake)
    with open_history(context) as history, lake_errors(lake), _started(context, history, options) as jobs:
        first = history.as_of - timedelta(days=options.days)
        if options.check:
            return _check(context, options, kind, jobs, history)
        facts, choice = _choose(context, options, kind, jobs, history)
    advice = advise_threshold(facts.scheduled, context.settings.thresholds.transient_threshold_seconds)
    document = _document(context, options, kind, first, facts, choice, advice)
    _validate(document.yaml)
    summary = _summary(document)
    if not context.dry_run:
        summary |= _write(context, lake, options, document)
    return StepResult(
        rows=sum(one.jobs for one in document.groups),
        summary=summary,
        note="; ".join(document.notes) or None,
        items=[_line(one) for one in document.groups],
        details={"groups": [record_of(one) for one in document.groups]},
    )


def _kind(context: PipelineContext, options: PlanOptions) -> str:
    kind = options.kind or next(iter(context.settings.agents))
    if kind not in context.settings.agents:
        known = ", ".join(context.settings.agents)
        raise InputError(f"the configuration has no agents of kind {kind!r}", hint=f"--kind is one of {known}")
    return kind


@contextmanager
def _started(context: PipelineContext, history: FullHistory, options: PlanOptions) -> Iterator[StartedJobs]:
    jobs = started_since(context.spark, history, history.as_of - timedelta(days=options.days))
    jobs.started.cache()
    try:
        yield jobs
    finally:
        jobs.started.unpersist()


def _choose(
    context: PipelineContext, options: PlanOptions, kind: str, jobs: StartedJobs, history: FullHistory
) -> tuple[Facts, Choice]:
    facts, replay = gather(jobs, history.owners(), options.hours)
    _require_enough(facts, options)
    facts = facts._replace(rolled_up=_rolled_up(context, history.lake))
    agent = context.settings.agents[kind]
    require_lanes(options, {*agent.bucket_counts(), *(lane for lane, _ in facts.starts)})
    if facts.agents is None:
        living = int(context.connection.fetch("export/living_agents")[0]["agents"])
        facts = facts._replace(agents=max(1, living))
    return facts, Chooser(facts, options, agent, replay, context.progress).choose()


def _rolled_up(context: PipelineContext, lake: Lake) -> dict[Group, WeeklyArrivals]:
    """The weeks of the figures; none before the first roll-up."""
    from jobmaster.pipeline.steps.rollup import read

    if (until := rolled_up_until(lake)) is None:
        return {}
    curves = arrival_curves(hourly_arrivals(read(context, lake)["throughput"]), until=until)
    return {
        (one.lane, one.priority): WeeklyArrivals(one.growth, 0.0 if one.busiest is None else one.busiest[1].median)
        for one in curves
    }


def _require_enough(facts: Facts, options: PlanOptions) -> None:
    runs = round(sum(sum(counts.values()) for counts in facts.starts.values()))
    if runs < _RUNS_MIN:
        raise InputError(
            f"the last {options.days} days have {runs} runs of jobs, and a plan needs {_RUNS_MIN}",
            hint="give more --days, or wait until there are more",
        )


# ---------------------------------------------------------------- texts


def _document(
    context: PipelineContext,
    options: PlanOptions,
    kind: str,
    first: datetime,
    facts: Facts,
    choice: Choice,
    advice: ThresholdAdvice,
) -> PlanDocument:
    agent = context.settings.agents[kind]
    present = present_settings(
        kind, agent, choice.present_agents, context.settings.thresholds.transient_threshold_seconds
    )
    proposed = proposed_settings(present, choice.groups, choice.agents, advice.seconds)
    name = new_id().hex()
    head = [
        f"Plan {name}, made by `jobmaster pipeline plan` from the measured history. `jobmaster pipeline review {name}`",
        "compares it later with what has happened.",
        f"History: {facts.days[0]} to {facts.days[-1]}, the busiest {options.hours} hours of each lane and priority.",
        f"Objectives hold at quantile {options.quantile:g} of waiting. Counts are those of one of {choice.agents} agents"
        f" ({choice.present_agents} in the history).",
        f"Transient threshold: {format_duration(advice.seconds)}. {advice.reason[:1].upper()}{advice.reason[1:]}.",
    ]
    if choice.limits:
        head.append(f"Beside queues: {choice.limits}.")
    if asked := _asked(options):
        head.append(f"What if: {asked}.")
    return PlanDocument(
        format=PLAN_FORMAT,
        cluster=text(context.connection.master.cluster.uid),
        name=name,
        made_at=datetime.fromtimestamp(context.clock.wall_us() / 1e6, UTC),
        first=first,
        last_day=facts.days[-1].isoformat(),
        quantile=options.quantile,
        hours=options.hours,
        kind=kind,
        present_agents=choice.present_agents,
        agents=choice.agents,
        limits=choice.limits,
        ahead=options.ahead,
        what_if=asked,
        groups=choice.groups,
        threshold_seconds=advice.seconds,
        said=" ".join(head[2:]),
        notes=tuple(_notes(options, facts, choice)),
        diff=difference(present, proposed, agent),
        yaml=yaml_of(present, proposed, agent, choice.groups, head),
    )


def _asked(options: PlanOptions) -> str:
    """The load and the agents that were asked for, for people."""
    asked = [f"arrivals {f'of {name} ' if name else ''}x{factor:g}" for name, factor in options.arrivals.items()]
    asked += [f"{share:.0%} {name}" for name, share in options.mix.items()]
    if options.agents:
        asked.append(f"{options.agents} agents")
    return ", ".join(asked)


def _notes(options: PlanOptions, facts: Facts, choice: Choice) -> list[str]:
    """Sentences about objectives that are not met or unknown, and about the limits of the history."""
    notes = []
    for one in choice.groups:
        if one.status is not ObjectiveStatus.MET:
            measured = f"waited {rounded_us(one.measured.objective)} among {one.present} buckets"
            notes.append(f"{one.name} {measured}, {one.status.value}: {one.why}")
    if choice.limits:
        notes.append(choice.limits)
    if choice.agents > choice.present_agents and not options.agents:
        notes.append(f"no number of buckets is enough for {choice.present_agents} agents")
    if facts.later > _LATER_MANY:
        notes.append(
            f"{facts.later:.0%} of the jobs were created for a later time; as many that were created before the"
            f" {options.days} days are missing (more --days read them)"
        )
    return notes


def _summary(document: PlanDocument) -> dict[str, Any]:
    statuses = {one.status for one in document.groups}
    tested = [one.backtest.factor for one in document.groups if one.backtest is not None]
    found = {
        "name": document.name,
        "plan": {one.name: one.buckets for one in document.groups},
        "agents": document.agents,
        "present_agents": document.present_agents,
        "transient_threshold": format_duration(document.threshold_seconds),
        "met": statuses == {ObjectiveStatus.MET},
        "unknown": [one.name for one in document.groups if one.status is ObjectiveStatus.UNKNOWN],
        "quantile": document.quantile,
        "backtest_factor": round(max(tested), 2) if tested else None,
    }
    if document.what_if:
        found["what_if"] = document.what_if
    return found | {"diff": document.diff or "the present configuration fits"}


def _line(one: PlannedGroup) -> dict[str, str]:
    """A row of the table for people: waits are ``p50 / p99``, buckets ``number x slots``."""
    return {
        "group": one.name,
        "objective": rounded_us(one.objective_us),
        "measured": _waits(one.measured),
        "model": _waits(one.model),
        "load": f"x{one.factor:.2g}",
        "as_is": _waits(one.as_is),
        "present": f"{one.present}x{one.present_slots}",
        "planned": f"{one.buckets}x{one.slots}",
        "predicted": _waits(one.waits_us),
        "error": "-" if one.backtest is None else f"x{one.backtest.factor:.2g}",
        "status": one.status.value,
    }


def _waits(waits: PlanWaits) -> str:
    return f"{rounded_us(waits.p50)} / {rounded_us(waits.p99)}"


# ---------------------------------------------------------------- check


def _check(
    context: PipelineContext, options: PlanOptions, kind: str, jobs: StartedJobs, history: FullHistory
) -> StepResult:
    """Plan without the last day, then replay that day among the proposed buckets."""
    days = days_of(jobs)
    if len(days) < 2:
        raise InputError(
            f"a check needs two days of history at least, and there are {len(days)}",
            hint="leave --check out, or wait a day",
        )
    last = datetime(days[-1].year, days[-1].month, days[-1].day, tzinfo=UTC)
    before = between(jobs, history.as_of - timedelta(days=options.days), last)
    _, choice = _choose(context, options, kind, before, history)
    # The last day with its own load, under the plan that the others gave.
    that_day = between(jobs, last, last + timedelta(days=1))
    facts, replay = gather(that_day, history.owners(), options.hours)
    facts = facts._replace(agents=facts.agents or choice.present_agents)
    chooser = Chooser(facts, options, context.settings.agents[kind], replay, context.progress)
    waits = chooser.tried({one.group: one for one in choice.groups if one.group in facts.starts}, choice.agents)
    missed = ["/".join(group) for group, wait in waits.items() if wait > options.objective_us(group)]
    note = f"the plan would have missed the objective of {', '.join(missed)} on {days[-1]}" if missed else None
    return StepResult(
        rows=sum(one.jobs for one in choice.groups),
        summary={"checked_on": days[-1].isoformat(), "missed": missed},
        failed=bool(missed),
        note=note,
        items=[
            {
                "group": "/".join(group),
                "objective": rounded_us(options.objective_us(group)),
                "waited": rounded_us(wait),
                "held": "no" if "/".join(group) in missed else "yes",
            }
            for group, wait in waits.items()
        ],
    )


# ---------------------------------------------------------------- writing


def _validate(content: str) -> None:
    """Load the configuration with the strict loader: an error here is a defect of the planner."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        load_settings(Path(file.name), {}, [])


def _write(context: PipelineContext, lake: Lake, options: PlanOptions, document: PlanDocument) -> dict[str, Any]:
    from jobmaster.pipeline.steps.rollup import read

    path = write_plan(lake, document)
    if options.out is not None:
        try:
            options.out.write_text(document.yaml, encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"cannot write {options.out}: {error.strerror}", hint="name another file with --out"
            ) from error
    lake.write_json(PLAN, record_of(document))
    with lake_errors(lake):
        report = write_report(context, lake, read(context, lake))
    return {"yaml": str(options.out or lake.url(path)), "report": report}
