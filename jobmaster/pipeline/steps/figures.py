"""``objectives``, ``anomalies`` and ``cost``: questions to the figures of roll-ups. They read the lake alone, and no jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.model.errors import Refused
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.lake import Lake, lake_errors
from jobmaster.pipeline.report.anomalies import Anomaly, Measure, Observation, find_anomalies, weeks_before
from jobmaster.pipeline.report.build import ANOMALIES, OBJECTIVES, rolled_up_until, write_report
from jobmaster.pipeline.report.histograms import bins_within, quantile_bins, value_of
from jobmaster.pipeline.report.objectives import (
    BURN_HOURS,
    HourOfPromise,
    Objective,
    ObjectiveResult,
    Promise,
    result_of,
)
from jobmaster.pipeline.report.page_data import COSTS
from jobmaster.pipeline.report.tables import costs_by
from jobmaster.pipeline.steps.rollup import read
from jobmaster.rules.recurrence import zone_of
from jobmaster.units import rounded_us

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR_SECONDS = 3600
_MISSING_EXPIRED = (Promise.WAITING, Promise.TOTAL)
"""Promises that an expired job has missed, though it is in no histogram."""
_QUANTILE = 0.95


# ---------------------------------------------------------------- objectives


def objectives(
    context: PipelineContext,
    wanted: Sequence[Objective],
    *,
    window_seconds: float,
    check: bool = False,
    burn_limit: float | None = None,
) -> StepResult:
    """Compare what jobs had with what was promised, over the last ``window_seconds`` of the figures.

    Args:
        check: fail when an objective is missed.
        burn_limit: with ``check``, fail also when a budget burns faster.

    Raises:
        Refused: there are no figures yet.
    """
    lake = Lake(context.lake)
    with lake_errors(lake):
        until = _until(lake)
        until_hour, window_hours = (
            int(until.timestamp()) // _HOUR_SECONDS,
            max(1, round(window_seconds / _HOUR_SECONDS)),
        )
        frames = read(context, lake)
        begin = datetime.fromtimestamp((until_hour - window_hours) * _HOUR_SECONDS, UTC)
        recent = {name: _since(frames[name], begin).cache() for name in ("throughput", "latency")}
        results = [
            result_of(one, _hours(one, recent), until_hour=until_hour, window_hours=window_hours) for one in wanted
        ]
        for frame in recent.values():
            frame.unpersist()
        items = [_line(one) for one in results]
        summary: dict[str, Any] = {
            "window_hours": window_hours,
            "missed": [one.objective.name for one in results if not one.met],
            "burning": [one.objective.name for one in results if burn_limit is not None and one.burns(burn_limit)],
        }
        if not context.dry_run:
            document = [{**line, "left": one.left} for line, one in zip(items, results, strict=True)]
            lake.write_json(OBJECTIVES, {"at": until.isoformat(), "window_hours": window_hours, "items": document})
            summary["report"] = write_report(context, lake, frames)
    failed = check and bool(summary["missed"] or summary["burning"])
    return StepResult(summary=summary, items=items, failed=failed)


def _hours(objective: Objective, frames: Mapping[str, DataFrame]) -> list[HourOfPromise]:
    """Jobs of an objective by the hour of their end."""
    from pyspark.sql import functions as F

    def of(name: str) -> DataFrame:
        scope = (F.col(key) == value for key, value in objective.scope.items())
        return frames[name].where(reduce(lambda one, other: one & other, scope, F.lit(True)))

    counts = of("throughput")
    if objective.promise is Promise.SUCCESS:
        found = counts.select(
            "hour", F.expr("succeeded + failed + expired").alias("jobs"), F.col("succeeded").alias("kept")
        )
    else:
        assert objective.within_us is not None
        kept = F.when(F.col("bin") <= bins_within(objective.within_us), F.col("jobs")).otherwise(0)
        found = (
            of("latency").where(F.col("metric") == objective.promise.value).select("hour", "jobs", kept.alias("kept"))
        )
        if objective.promise in _MISSING_EXPIRED:
            found = found.unionByName(
                counts.select("hour", F.col("expired").alias("jobs"), F.lit(0).cast("long").alias("kept"))
            )
    rows = (
        found.groupBy(_hour().alias("at"))
        .agg(F.sum("jobs").alias("jobs"), F.sum("kept").alias("kept"))
        .where("jobs > 0")
        .collect()
    )
    return [HourOfPromise(row["at"], row["jobs"], row["kept"]) for row in rows]


def _line(one: ObjectiveResult) -> dict[str, Any]:
    objective = one.objective
    rates = {f"burn_{hours}h": rate for hours, rate in zip(BURN_HOURS, one.burn, strict=True)}
    return {
        "name": objective.name, "promise": objective.promise.value, "within_us": objective.within_us,
        "share": objective.share, "jobs": one.jobs, "missed": one.missed, "allowed": one.allowed,
        "achieved": one.achieved, **rates, "met": one.met,
    }  # fmt: skip


# ---------------------------------------------------------------- anomalies


class AnomalyOptions(NamedTuple):
    """Options of the step."""

    hours: int = 24
    """Hours to look at: the last whole ones of the figures."""
    weeks: int = 8
    """Earlier weeks to compare with."""
    threshold: float = 5.0
    """Deviation from which on an hour is an anomaly."""
    zone: str = "UTC"
    """Of the hours of the week."""
    check: bool = False
    """Fail when there is an anomaly."""


def anomalies(context: PipelineContext, options: AnomalyOptions) -> StepResult:
    """Compare the last hours with the same hours of earlier weeks, by lane and priority and by handler.

    Raises:
        Refused: there are no figures yet. InputError: there is no such time zone.
    """
    lake, zone = Lake(context.lake), zone_of(options.zone)
    with lake_errors(lake):
        until = _until(lake)
        beyond = int(until.timestamp()) // _HOUR_SECONDS
        hours = range(beyond - options.hours, beyond)
        wanted = sorted({*hours, *(past for hour in hours for past in weeks_before(hour, options.weeks, zone))})
        frames = read(context, lake)
        first = _first_hour(frames["throughput"])
        seen = _observations(frames, wanted) if first is not None else []
        found = find_anomalies(
            seen, hours, first_hour=first or 0, weeks=options.weeks, threshold=options.threshold, zone=zone
        )
        items = [_anomaly(one) for one in found]
        summary: dict[str, Any] = {
            "hours": options.hours, "compared": len({(one.subject, one.measure) for one in seen}), "anomalies": len(items)
        }  # fmt: skip
        if not context.dry_run:
            lake.write_json(
                ANOMALIES,
                {
                    "from": _moment(hours.start).isoformat(), "until": _moment(beyond).isoformat(),
                    "weeks": options.weeks, "threshold": options.threshold, "items": items,
                },
            )  # fmt: skip
            summary["report"] = write_report(context, lake, frames)
    return StepResult(summary=summary, items=items, failed=options.check and bool(items))


def _observations(frames: Mapping[str, DataFrame], hours: Sequence[int]) -> list[Observation]:
    """Every measure of the given hours, by handler, and by lane and priority."""
    from pyspark.sql import functions as F

    chosen = {
        name: frames[name].withColumn("at", _hour()).where(F.col("at").isin(hours))
        for name in ("throughput", "latency")
    }
    found = []
    for subject in (F.concat(F.lit("handler "), "handler"), F.concat("lane", F.lit(" / "), "priority")):
        counts = chosen["throughput"].groupBy(subject.alias("subject"), "at").agg(
            F.sum("submitted").alias("created"), F.sum("failed").alias("failed"),
            F.sum(F.expr("succeeded + failed")).alias("ran"),
        )  # fmt: skip
        for row in counts.collect():
            key = (row["subject"], row["at"])
            found.append(Observation(key[0], Measure.CREATED, key[1], float(row["created"]), row["created"]))
            if row["ran"]:
                found.append(Observation(key[0], Measure.FAILED, key[1], row["failed"] / row["ran"], row["ran"]))
        named = chosen["latency"].where("metric IN ('waiting', 'running')").withColumn("subject", subject)
        for row in quantile_bins(named, ("subject", "at", "metric"), (_QUANTILE,)).collect():
            measure = Measure.WAITING if row["metric"] == "waiting" else Measure.RUNNING
            found.append(Observation(row["subject"], measure, row["at"], value_of(row["q0"]), row["jobs"]))
    return found


def _first_hour(throughput: DataFrame) -> int | None:
    """The first whole hour of the history."""
    from pyspark.sql import functions as F

    first = throughput.agg(F.min(_hour()).alias("first")).collect()[0]["first"]
    return None if first is None else int(first) + 1


def _anomaly(one: Anomaly) -> dict[str, Any]:
    seen = one.observation
    return {
        "subject": seen.subject, "measure": seen.measure.value, "at": _moment(seen.hour).isoformat(),
        "value": seen.value, "usual": one.usual, "value_text": _value(seen.measure, seen.value),
        "usual_text": _value(seen.measure, one.usual), "deviation": round(one.deviation, 2), "weeks": one.weeks,
    }  # fmt: skip


def _value(measure: Measure, value: float) -> str:
    match measure:
        case Measure.CREATED:
            return f"{value:.0f}"
        case Measure.FAILED:
            return f"{value:.1%}"
        case _:
            return rounded_us(value)


# ---------------------------------------------------------------- cost


def cost(
    context: PipelineContext, by: Sequence[str], *, days: int | None = None, price: float | None = None
) -> StepResult:
    """Time that jobs have used, and its price, by some of tenant, lane, priority and handler.

    Args:
        by: the columns, in their order.
        days: the last days of the figures (UTC, the last one as far as it goes); ``None``: all.
        price: of a second in a handler.

    Raises:
        Refused: there are no figures yet.
    """
    from pyspark.sql import functions as F

    lake = Lake(context.lake)
    with lake_errors(lake):
        until = _until(lake)
        frame = read(context, lake)["cost"]
        if days is not None:
            frame = frame.where(F.col("day") > F.lit(until.date() - timedelta(days=days)))
        rows = frame.groupBy(*by).agg(*(F.sum(name).alias(name) for name in COSTS)).collect()
        items = costs_by([row.asDict() for row in rows], by, price)
    note = "ran: time in handlers of all attempts, by the clock; retried: the part of it that concluded no job"
    lines = [
        {
            **{name: line[name] or "-" for name in by}, "jobs": line["jobs"], "failed": line["failed"],
            "retries": line["retries"], "ran_seconds": line["ran_us"] / 1e6,
            "retried_seconds": line["retried_us"] / 1e6, "waited_seconds": line["waited_us"] / 1e6,
            **({"price": round(line["price"], 6)} if price is not None else {}),
        }
        for line in items
    ]  # fmt: skip
    return StepResult(summary={"until": until.isoformat()}, items=lines, note=note)


# ---------------------------------------------------------------- figures


def _until(lake: Lake) -> datetime:
    until = rolled_up_until(lake)
    if until is None:
        raise Refused(f"the lake {lake.where} has no figures yet", hint="run jobmaster pipeline rollup first")
    return until


def _since(frame: DataFrame, moment: datetime) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.where(F.col("hour") >= F.lit(moment))


def _hour() -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"unix_seconds(hour) DIV {_HOUR_SECONDS}")


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * _HOUR_SECONDS, UTC)
