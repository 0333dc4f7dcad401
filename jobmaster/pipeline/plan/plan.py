"""``plan``: recommends bucket counts from the history; with ``check``, tests the plan on a day it did not use."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.full_history import open_history
from jobmaster.pipeline.lake.lake import Lake, lake_errors
from jobmaster.pipeline.plan import simulation
from jobmaster.pipeline.plan.plan_yaml import Recommendation, yaml_of
from jobmaster.pipeline.plan.queueing import (
    Load,
    buckets_by_formula,
    candidates_around,
    candidates_between,
    utilisation,
    wait_seconds,
)
from jobmaster.pipeline.report.build import PLAN, write_report
from jobmaster.pipeline.report.histograms import quantiles
from jobmaster.settings.loader import load_settings
from jobmaster.units import parse_duration, rounded_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OBJECTIVES = {"critical": 1.0, "high": 5.0, "medium": 30.0, "low": 120.0, "very_low": 600.0}
"""Default objectives, in seconds of waiting."""
_RESAMPLES = 200
_INTERVAL = (0.05, 0.95)
_JOB_COLUMNS = ("id", "lane", "priority", "ended_at", "waited_us", "ran_us", "bucket_id")
_ATTEMPT_COLUMNS = ("job_id", "at", "outcome", "ran_us")
Group = tuple[str, str]
Histograms = Mapping[tuple[Group, int], Mapping[date, Sequence[tuple[int, int]]]]


class MeasuredGroup(NamedTuple):
    """Measured waits of a group (lane, priority)."""

    buckets: int
    days: dict[date, list[tuple[int, int]]]
    """Histograms of waiting."""

    def wait(self, quantile: float) -> float:
        """Microseconds."""
        return quantiles([one for day in self.days.values() for one in day], (quantile,))[0] or 0.0


class PlanOptions(NamedTuple):
    """Options of a plan."""

    objectives: Mapping[str, float] = {}
    """``priority`` or ``lane/priority`` to seconds of waiting."""
    quantile: float = 0.99
    slots: int | None = None
    """Slots of a bucket; ``None``: as configured."""
    agents: int | None = None
    """Processes that share the buckets; ``None``: those that are alive."""
    kind: str | None = None
    days: int = 14
    hours: int = 24
    """Number of busiest hours to replay, of each lane and priority."""
    out: Path | None = None
    check: bool = False

    def objective_us(self, lane: str, priority: str) -> float:
        """Objective for a group: microseconds of waiting."""
        asked = self.objectives.get(f"{lane}/{priority}", self.objectives.get(priority, OBJECTIVES[priority]))
        return asked * 1e6


def parse_objectives(texts: Iterable[str]) -> dict[str, float]:
    """``critical=1s`` and ``payroll/medium=30s``.

    Raises:
        InputError: a text has another form.
    """
    found = {}
    labels = [priority.label for priority in Priority]
    for text in texts:
        name, _, value = text.partition("=")
        if name.rpartition("/")[2] not in labels:
            raise InputError(f"--objective {text!r} names no priority", hint=f"they are {', '.join(labels)}")
        try:
            found[name] = parse_duration(value)
        except ValueError as error:
            raise InputError(
                f"--objective {text!r}: {error}", hint="such as critical=1s or payroll/medium=500ms"
            ) from None
    return found


def plan(context: PipelineContext, options: PlanOptions) -> StepResult:
    """Recommend bucket counts, write the configuration and the report; with ``check`` test the plan on the last day.

    Raises:
        InputError: there is no such kind of agent, or too little history for a check.
        Refused, Unavailable: as for every reader of the lake.
    """
    kind, slots = _kind(context, options)
    lake = Lake(context.lake)
    with open_history(context) as history, lake_errors(lake):
        jobs, attempts = history.jobs(_JOB_COLUMNS), history.attempts(_ATTEMPT_COLUMNS)
        beyond = history.as_of + timedelta(days=1)
        started = _between(
            simulation.arrivals(jobs, attempts), beyond - timedelta(days=options.days + 1), beyond
        ).cache()
        try:
            days = _days_of(started)
            if options.check:
                return _check(context, options, started, days, slots)
            choices = _choose(context, options, started, slots)
        finally:
            started.unpersist()
    agents = options.agents or _live_agents(context)
    summary_lines = _summary_lines(options, days, slots, agents)
    text = yaml_of(choices, kind, context.settings.agents[kind], agents, summary_lines)
    found = _found(choices, options)
    if not context.dry_run:
        _validate(text)
        found |= _write(context, lake, options, choices, text, summary_lines)
    return StepResult(rows=sum(one.jobs for one in choices), summary=found, note=_unmet(choices))


def _unmet(choices: Sequence[Recommendation]) -> str | None:
    """Note about objectives that no number of buckets meets, with the cause; ``None`` when all are met."""
    elsewhere = [one for one in choices if not one.met and one.unexplained_us >= one.objective_us]
    others = [f"{one.lane}/{one.priority}" for one in choices if not one.met and one not in elsewhere]
    summary_lines = [
        f"{one.lane}/{one.priority} waited {rounded_us(one.measured_us)} among {one.present} buckets, of which"
        f" {rounded_us(one.unexplained_us)} have another cause than the number of buckets (cores, max_running, threads,"
        " a stalled server, agents that were away)"
        for one in elsewhere
    ]
    if others:
        summary_lines.append(f"no number of buckets meets the objective of {', '.join(others)}")
    return "; ".join(summary_lines) or None


def _kind(context: PipelineContext, options: PlanOptions) -> tuple[str, int]:
    kind = options.kind or next(iter(context.settings.agents))
    if kind not in context.settings.agents:
        known = ", ".join(context.settings.agents)
        raise InputError(f"the configuration has no agents of kind {kind!r}", hint=f"--kind is one of {known}")
    return kind, options.slots or context.settings.agents[kind].slots


def _live_agents(context: PipelineContext) -> int:
    return max(1, int(context.connection.fetch("export/living_agents")[0]["agents"]))


def _between(started: DataFrame, first: datetime, beyond: datetime) -> DataFrame:
    low, high = (int(moment.timestamp() * 1e6) for moment in (first, beyond))
    return started.where(f"ready_us >= {low} AND ready_us < {high}")


def _days_of(started: DataFrame) -> list[date]:
    rows = started.selectExpr("date(timestamp_micros(ready_us)) AS day").distinct().collect()
    return sorted(row["day"] for row in rows)


# ---------------------------------------------------------------- choosing


def _choose(context: PipelineContext, options: PlanOptions, started: DataFrame, slots: int) -> list[Recommendation]:
    """The fewest buckets of each lane and priority that meet its objective in the replay."""
    hours = simulation.busiest(started, options.hours)
    loads = {(row["lane"], row["priority"]): _load(row) for row in simulation.loads(started, hours).collect()}
    context.progress(f"replaying the busiest hours of {len(loads)} lanes and priorities")
    present = _present(started, hours)
    found = dict(_replay(context, started, hours, {group: [one.buckets] for group, one in present.items()}, slots))
    gaps = {group: _unexplained(found, group, present.get(group), options.quantile) for group in loads}
    first = {
        group: buckets_by_formula(load, slots, options.quantile, _left(group, gaps, options) / 1e6)
        for group, load in loads.items()
    }
    found |= _replay(
        context, started, hours, {group: candidates_around(buckets) for group, buckets in first.items()}, slots
    )
    closer = {}
    for group in loads:
        passing, failing = _bracket(found, group, options, gaps[group])
        if passing is not None and candidates_between(failing, passing):
            closer[group] = candidates_between(failing, passing)
    if closer:
        found |= _replay(context, started, hours, closer, slots)
    return [
        _choice(group, load, found, options, slots, first[group], present.get(group), gaps[group])
        for group, load in sorted(loads.items(), key=_by_urgency)
    ]


def _present(started: DataFrame, hours: DataFrame) -> dict[Group, MeasuredGroup]:
    """Every group as measured in its busy hours."""
    found: dict[Group, MeasuredGroup] = {}
    for row in simulation.measured(started, hours).collect():
        one = found.setdefault((row["lane"], row["priority"]), MeasuredGroup(row["present"], {}))
        one.days.setdefault(row["day"], []).append((row["bin"], row["jobs"]))
    return found


def _unexplained(found: Histograms, group: Group, present: MeasuredGroup | None, quantile: float) -> float:
    """Measured wait minus the wait of the same jobs in a replay with the same number of buckets; at least 0."""
    if present is None or (group, present.buckets) not in found:
        return 0.0
    return max(0.0, present.wait(quantile) - _wait(found, group, present.buckets, quantile))


def _left(group: Group, gaps: Mapping[Group, float], options: PlanOptions) -> float:
    """The part of the objective that is left for queues in buckets; the whole objective if none is left."""
    objective = options.objective_us(*group)
    return objective - gaps[group] if gaps[group] < objective else objective


def _by_urgency(item: tuple[Group, Load]) -> tuple[str, int]:
    (lane, priority), _ = item
    return lane, -Priority[priority.upper()].value


def _load(row: Any) -> Load:
    mean = row["service_us"] or 1.0
    return Load(
        per_second=row["count_mean"],
        service_seconds=mean / 1e6,
        service_cv2=(row["service_var"] or 0.0) / mean**2,
        arrival_cv2=max(row["count_var"], 0.0) / row["count_mean"] if row["count_mean"] else 1.0,
    )


def _replay(
    context: PipelineContext,
    started: DataFrame,
    hours: DataFrame,
    candidates: Mapping[Group, Sequence[int]],
    slots: int,
) -> dict[tuple[Group, int], dict[date, list[tuple[int, int]]]]:
    """Histograms of waiting by candidate and day."""
    rows = [(*group, buckets) for group, counts in candidates.items() for buckets in counts]
    if not rows:
        return {}
    wanted = context.spark.createDataFrame(rows, "lane string, priority string, buckets int")
    found: dict[tuple[Group, int], dict[date, list[tuple[int, int]]]] = {}
    for row in simulation.histogram(simulation.waits(simulation.spread(started, hours, wanted), slots)).collect():
        key = ((row["lane"], row["priority"]), row["buckets"])
        found.setdefault(key, {}).setdefault(row["day"], []).append((row["bin"], row["jobs"]))
    return found


def _wait(found: Histograms, group: Group, buckets: int, quantile: float) -> float:
    bins = [one for day in found[group, buckets].values() for one in day]
    return quantiles(bins, (quantile,))[0] or 0.0


def _bracket(found: Histograms, group: Group, options: PlanOptions, gap: float) -> tuple[int | None, int]:
    """The fewest buckets that pass, and the most below them that fail (0: none was tried)."""
    tried = sorted(buckets for one, buckets in found if one == group)
    objective = options.objective_us(*group)
    passing = [buckets for buckets in tried if _wait(found, group, buckets, options.quantile) + gap <= objective]
    if not passing:
        return None, tried[-1]
    return passing[0], max((buckets for buckets in tried if buckets < passing[0]), default=0)


def _choice(
    group: Group,
    load: Load,
    found: Histograms,
    options: PlanOptions,
    slots: int,
    by_formula: int,
    present: MeasuredGroup | None,
    gap: float,
) -> Recommendation:
    passing, failing = _bracket(found, group, options, gap)
    # If the wait has another cause than buckets, keep the present number.
    elsewhere = present is not None and gap >= options.objective_us(*group)
    buckets = present.buckets if present is not None and elsewhere else passing or failing
    days = found[group, buckets]
    bins = [one for day in days.values() for one in day]
    p50, p95, p99, asked = (value or 0.0 for value in quantiles(bins, (0.5, 0.95, 0.99, options.quantile)))
    tried = sorted(count for one, count in found if one == group)
    return Recommendation(
        lane=group[0],
        priority=group[1],
        buckets=buckets,
        objective_us=options.objective_us(*group),
        waits_us={"p50": p50, "p95": p95, "p99": p99, "objective": asked + gap},
        interval_us=bootstrap_interval(days, options.quantile),
        utilisation=utilisation(load, buckets, slots),
        screened=by_formula,
        screened_wait_us=_finite(wait_seconds(load, buckets, slots, options.quantile) * 1e6),
        jobs=sum(count for _, count in bins),
        curve=[(count, _wait(found, group, count, options.quantile) + gap) for count in tried],
        present=present.buckets if present is not None else 0,
        measured_us=present.wait(options.quantile) if present is not None else 0.0,
        unexplained_us=gap,
        met=passing is not None,
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -1.0


def bootstrap_interval(days: Mapping[date, Sequence[tuple[int, int]]], quantile: float) -> tuple[float, float] | None:
    """Bootstrap interval: 90 % of the quantiles over resampled days; ``None`` with one day only."""
    if len(days) < 2:
        return None
    dice, histograms = random.Random(1), [days[day] for day in sorted(days)]
    values = sorted(
        quantiles([one for day in dice.choices(histograms, k=len(histograms)) for one in day], (quantile,))[0] or 0.0
        for _ in range(_RESAMPLES)
    )
    low, high = (values[min(int(share * len(values)), len(values) - 1)] for share in _INTERVAL)
    return low, high


# ---------------------------------------------------------------- check


def _check(
    context: PipelineContext, options: PlanOptions, started: DataFrame, days: Sequence[date], slots: int
) -> StepResult:
    """Plan without the last day, then replay that day among the recommended buckets."""
    if len(days) < 2:
        raise InputError(
            f"a check needs two days of history at least, and there are {len(days)}",
            hint="leave --check out, or wait a day",
        )
    last = datetime(days[-1].year, days[-1].month, days[-1].day, tzinfo=UTC)
    before = _between(started, last - timedelta(days=options.days + 1), last)
    choices = _choose(context, options, before, slots)
    that_day = _between(started, last, last + timedelta(days=1))
    hours = simulation.busiest(that_day, options.hours)
    present = _present(that_day, hours)
    wanted = {(one.lane, one.priority): {one.buckets} for one in choices}
    for group, as_it_was in present.items():
        wanted.setdefault(group, set()).add(as_it_was.buckets)
    found = _replay(context, that_day, hours, {group: sorted(counts) for group, counts in wanted.items()}, slots)
    answers = []
    for one in choices:
        key = ((one.lane, one.priority), one.buckets)
        if key in found:
            gap = _unexplained(found, key[0], present.get(key[0]), options.quantile)
            wait = _wait(found, *key, options.quantile) + gap
            answers.append(
                {**_record(one), "day": days[-1].isoformat(), "waited_us": wait, "held": wait <= one.objective_us}
            )
    missed = [f"{one['lane']}/{one['priority']}" for one in answers if not one["held"]]
    note = f"the plan would have missed the objective of {', '.join(missed)} on {days[-1]}" if missed else None
    return StepResult(
        rows=sum(one["jobs"] for one in answers),
        summary={"checked_on": days[-1].isoformat(), "missed": missed, "groups": answers},
        failed=bool(missed),
        note=note,
    )


# ---------------------------------------------------------------- writing


def _record(one: Recommendation) -> dict[str, Any]:
    return {
        **one._asdict(),
        "curve": [{"buckets": buckets, "wait_us": wait} for buckets, wait in one.curve],
        "interval_us": list(one.interval_us) if one.interval_us else None,
    }


def _found(choices: Sequence[Recommendation], options: PlanOptions) -> dict[str, Any]:
    return {
        "plan": {f"{one.lane}/{one.priority}": one.buckets for one in choices},
        "met": all(one.met for one in choices),
        "quantile": options.quantile,
    }


def _summary_lines(options: PlanOptions, days: Sequence[date], slots: int, agents: int) -> list[str]:
    span = f"{days[0]} to {days[-1]}" if days else "an empty history"
    return [
        "Made by `jobmaster pipeline plan`: bucket counts for stated waits, from the measured history.",
        f"History: {span}, the busiest {options.hours} hours of each lane and priority; {slots} slots a bucket.",
        f"Objectives hold at quantile {options.quantile:g} of waiting. Counts are those of one of {agents} agents.",
    ]


def _validate(text: str) -> None:
    """Load the configuration with the strict loader: an error here is a defect of the planner."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        load_settings(Path(file.name), {}, [])


def _write(
    context: PipelineContext,
    lake: Lake,
    options: PlanOptions,
    choices: Sequence[Recommendation],
    text: str,
    summary: Sequence[str],
) -> dict[str, Any]:
    from jobmaster.pipeline.steps.rollup import read

    path = f"plans/{new_id().hex()}.yaml"
    lake.write(path, text.encode())
    if options.out is not None:
        try:
            options.out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"cannot write {options.out}: {error.strerror}", hint="name another file with --out"
            ) from error
    document = {
        "groups": [_record(one) for one in choices],
        "quantile": options.quantile,
        "said": " ".join(summary[1:]),
        "yaml": text,
    }
    lake.write_json(PLAN, document)
    with lake_errors(lake):
        report = write_report(context, lake, read(context, lake))
    return {"yaml": str(options.out or lake.url(path)), "report": report}
