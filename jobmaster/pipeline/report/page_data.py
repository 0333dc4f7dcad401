"""The figures of the report, queried from the datasets of roll-ups. Only sums leave Spark.

Their number grows with handlers, lanes, priorities, tenants and kinds of failures, and not with jobs. The points of a plot
are limited by the unit of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jobmaster.pipeline.report.aggregates import COUNTS, ENDED, GROUPS
from jobmaster.pipeline.report.arrivals import ArrivalCurve, arrival_curves, hourly_arrivals
from jobmaster.pipeline.report.histograms import quantile_bins, value_of
from jobmaster.pipeline.report.time_axis import DAY_SECONDS, HOUR_SECONDS, MINUTE_SECONDS, Unit, unit_for

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUANTILES = (0.5, 0.95, 0.99)
COSTS = ("jobs", "failed", "retries", "ran_us", "retried_us", "waited_us")
"""Sums of the costs."""
_SHARES_MAX = 100_000
_COST_ROWS_MAX = 50_000
_FAILURE_KINDS_MAX = 2_000
_ARRIVAL_WEEKS = 12
Bin = tuple[int, int]
K = TypeVar("K")


class Period(NamedTuple):
    """The time that the report is about."""

    unit: Unit
    zone: tzinfo
    first: int
    """The first unit with figures."""
    last: int

    def starts(self) -> list[float]:
        """Beginning of every unit, also of those without figures."""
        return [self.unit.start(number, self.zone) for number in range(self.first, self.last + 1)]


class ReportData(NamedTuple):
    """The data of the page; small."""

    period: Period
    counts: Mapping[int, Mapping[str, int]]
    """By unit of time: the ``COUNTS``."""
    open_before: int
    """Jobs that had been created before the period and had not ended."""
    groups: Sequence[Mapping[str, Any]]
    """By lane, priority and handler: the ``COUNTS``."""
    shares: Mapping[str, Mapping[str, int]]
    """``agent`` and ``bucket_id`` -> name -> jobs that ended there."""
    waiting: Mapping[int, tuple[float, ...]]
    """By unit of time: the ``QUANTILES`` of waiting, microseconds."""
    latency: Sequence[tuple[str, str, str, str, int, int]]
    """Lane, priority, handler, metric, bin, jobs."""
    arrivals: Sequence[ArrivalCurve]
    """Over the last weeks."""
    costs: Sequence[Mapping[str, Any]]
    """By tenant, lane, priority and handler: ``COSTS``; of whole days. Those with the most running time."""
    failures: Sequence[Mapping[str, Any]]
    """Kinds of failures, those with the most jobs and attempts; of whole days."""


def collect_data(
    frames: Mapping[str, DataFrame], *, zone: tuple[str, tzinfo], until: datetime | None, last_seconds: float | None
) -> ReportData | None:
    """Query the datasets; ``None`` when there is no figure.

    Args:
        zone: its IANA name, and the zone.
        until: the moment of the roll-up.
        last_seconds: length of the period, at the end of the history; ``None``: the whole history.
    """
    from pyspark.sql import functions as F

    hours, minutes = frames["throughput"], frames["throughput_minutes"]
    span = _span(hours, "hour", HOUR_SECONDS)
    if span is None:
        return None
    fine = _span(minutes, "minute", MINUTE_SECONDS)
    since = span[0] if last_seconds is None else max(span[0], _hour(span[1] - last_seconds))
    by_minutes = fine is not None and _hour(fine[0]) <= since
    if by_minutes and fine is not None:
        since, span = max(since, fine[0]), fine
    unit = unit_for(since, span[1], by_minutes=by_minutes)
    period = Period(unit, zone[1], unit.number(since, zone[1]), unit.number(span[1] - 1, zone[1]))
    # Sums are of whole units, too.
    start = _hour(unit.start(period.first, zone[1]))
    begins = F.timestamp_seconds(F.lit(start))
    days = F.lit(datetime.fromtimestamp(start, UTC).date())
    counts, latency = (frames[name].where(F.col("hour") >= begins).cache() for name in ("throughput", "latency"))
    fine_unit = unit.seconds < HOUR_SECONDS
    at = F.expr(unit.sql("minute" if fine_unit else "hour", zone[0]))
    try:
        return ReportData(
            period,
            _by_unit(frames["throughput_minutes"] if fine_unit else counts, at, period.first),
            0 if last_seconds is None else _open_before(hours.where(F.col("hour") < begins)),
            _summed(counts, GROUPS, COUNTS),
            _shares(counts),
            _waiting(frames["latency_minutes"] if fine_unit else latency, at, period.first),
            _bins(latency),
            _arrivals(hours, until, zone[1]),
            _summed(frames["cost"].where(F.col("day") >= days), ("tenant", *GROUPS), COSTS, ("ran_us", _COST_ROWS_MAX)),
            _failures(frames["failures"].where(F.col("day") >= days)),
        )
    finally:
        counts.unpersist()
        latency.unpersist()


def _hour(seconds: float) -> int:
    """Beginning of the hour of a time."""
    return int(seconds // HOUR_SECONDS) * HOUR_SECONDS


def _span(frame: DataFrame, column: str, seconds: int) -> tuple[float, float] | None:
    """Beginning of the first and end of the last time with figures."""
    from pyspark.sql import functions as F

    at = F.unix_seconds(column)
    row = frame.agg(F.min(at).alias("first"), F.max(at).alias("last")).collect()[0]
    return None if row["first"] is None else (float(row["first"]), float(row["last"] + seconds))


def _by_unit(counts: DataFrame, at: Column, first: int) -> dict[int, dict[str, int]]:
    from pyspark.sql import functions as F

    sums = (F.sum(name).alias(name) for name in COUNTS)
    rows = counts.groupBy(at.alias("unit")).agg(*sums).where(F.col("unit") >= first).collect()
    return {row["unit"]: {name: row[name] or 0 for name in COUNTS} for row in rows}


def _open_before(counts: DataFrame) -> int:
    from pyspark.sql import functions as F

    return int(counts.agg(F.sum(F.expr(f"submitted - {' - '.join(ENDED)}")).alias("open")).collect()[0]["open"] or 0)


def _summed(
    frame: DataFrame, keys: Sequence[str], values: Sequence[str], largest: tuple[str, int] | None = None
) -> list[dict[str, Any]]:
    """Sums by some keys.

    Args:
        largest: only so many rows, those with the largest value of a column.
    """
    from pyspark.sql import functions as F

    found = frame.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in values))
    if largest is not None:
        found = found.orderBy(F.desc(largest[0]), *keys).limit(largest[1])
    return [row.asDict() for row in found.collect()]


def _shares(counts: DataFrame) -> dict[str, dict[str, int]]:
    from pyspark.sql import functions as F

    ended = F.expr(" + ".join(ENDED))
    lying = counts.where("bucket_id IS NOT NULL").groupBy("agent", "bucket_id").agg(F.sum(ended).alias("jobs"))
    shares: dict[str, dict[str, int]] = {"agent": {}, "bucket_id": {}}
    for row in lying.orderBy(F.desc("jobs")).limit(_SHARES_MAX).collect():
        for name, named in shares.items():
            if row[name] is not None and row["jobs"]:
                named[row[name]] = named.get(row[name], 0) + row["jobs"]
    return shares


def _waiting(latency: DataFrame, at: Column, first: int) -> dict[int, tuple[float, ...]]:
    from pyspark.sql import functions as F

    waited = latency.where("metric = 'waiting'").withColumn("unit", at).where(F.col("unit") >= first)
    rows = quantile_bins(waited, ("unit",), QUANTILES).collect()
    return {row["unit"]: tuple(value_of(row[f"q{number}"]) for number in range(len(QUANTILES))) for row in rows}


def _bins(latency: DataFrame) -> list[tuple[str, str, str, str, int, int]]:
    rows = _summed(latency, (*GROUPS, "metric", "bin"), ("jobs",))
    return [(row["lane"], row["priority"], row["handler"], row["metric"], row["bin"], row["jobs"]) for row in rows]


def _arrivals(counts: DataFrame, until: datetime | None, zone: tzinfo) -> list[ArrivalCurve]:
    from pyspark.sql import functions as F

    if until is None:
        return []
    begin = int(until.timestamp()) - _ARRIVAL_WEEKS * 7 * DAY_SECONDS
    recent = counts.where(F.col("hour") >= F.timestamp_seconds(F.lit(begin)))
    return arrival_curves(hourly_arrivals(recent), until=until, zone=zone)


def _failures(frame: DataFrame) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    kinds = frame.groupBy("fingerprint", "handler", "error_type", "line").agg(
        F.sum("jobs").alias("jobs"),
        F.sum("attempts").alias("attempts"),
        F.min(F.unix_micros("first_at")).alias("first_us"),
        F.max(F.unix_micros("last_at")).alias("last_us"),
    )
    most = kinds.orderBy(F.desc(F.col("jobs") + F.col("attempts")), "fingerprint").limit(_FAILURE_KINDS_MAX)
    return [row.asDict() for row in most.collect()]


def summed_by(
    rows: Iterable[Mapping[str, Any]], values: Sequence[str], key: Callable[[Mapping[str, Any]], K]
) -> dict[K, dict[str, int]]:
    """Sums of some values by a key of the rows."""
    found: dict[K, dict[str, int]] = {}
    for row in rows:
        line = found.setdefault(key(row), dict.fromkeys(values, 0))
        for name in values:
            line[name] += row[name] or 0
    return found


def all_ended(line: Mapping[str, int]) -> int:
    """Jobs that have ended, in any state."""
    return sum(line[name] for name in ENDED)
