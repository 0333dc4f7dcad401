"""``rollup``: aggregates of whole days. A day is replaced, never added to, so a repeated roll-up changes nothing.

One document in the lake per day names the run whose files are valid. Only days that changed since the last roll-up are
computed again, from every job that touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from jobmaster.clock import new_id
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.full_history import FullHistory, LakeRange, open_history, union_all
from jobmaster.pipeline.lake.lake import FORMAT, Lake, lake_errors
from jobmaster.pipeline.report import aggregates
from jobmaster.pipeline.report.aggregates import (
    COUNTS,
    ENDED,
    GROUPS,
    MINUTE,
    attempts_of,
    grown,
    touched_days,
    with_facts,
)
from jobmaster.pipeline.report.build import STATE, PageOptions, write_report
from jobmaster.pipeline.report.failure_kinds import failures
from jobmaster.pipeline.steps.live_ranges import LAG, LiveChanges, find_changes, live_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAYS = "_manifest/rollup"
_TEXT, _LONG, _MOMENT = "string", "bigint", "timestamp"
DATASETS = {
    "throughput": {"day": "date", "hour": _MOMENT, **dict.fromkeys((*GROUPS, "agent", "bucket_id"), _TEXT),
                   **dict.fromkeys((*COUNTS, "ran_us", "waited_us"), _LONG)},
    "latency": {"day": "date", "hour": _MOMENT, **dict.fromkeys((*GROUPS, "metric"), _TEXT), "bin": "int", "jobs": _LONG},
    "cost": {"day": "date", **dict.fromkeys(("tenant", *GROUPS), _TEXT),
             **dict.fromkeys(("jobs", "failed", "retries", "ran_us", "retried_us", "waited_us"), _LONG)},
    "failures": {"day": "date", **dict.fromkeys(("fingerprint", "handler", "error_type", "line"), _TEXT),
                 **dict.fromkeys(("jobs", "attempts"), _LONG), "first_at": _MOMENT, "last_at": _MOMENT},
    "throughput_minutes": {"day": "date", "minute": _MOMENT, **dict.fromkeys(GROUPS, _TEXT),
                           **dict.fromkeys((*COUNTS, "ran_us", "waited_us"), _LONG)},
    "latency_minutes": {"day": "date", "minute": _MOMENT, **dict.fromkeys((*GROUPS, "metric"), _TEXT), "bin": "int",
                        "jobs": _LONG},
}  # fmt: skip
"""Datasets of a roll-up and their columns, version 1. The last two have rows of recent days only."""
_BY_MINUTE = ("throughput_minutes", "latency_minutes")
MINUTES_SECONDS = 2 * 86_400.0
"""For how long there are figures by the minute, by default."""
JOB_COLUMNS = (
    "id", "state", *GROUPS, "created_at", "due_at", "ended_at", "changed_at", "waited_us", "ran_us", "attempt", "rescues",
    "bucket_id", "bucket_epoch", "headers", "error",
)  # fmt: skip
ATTEMPT_COLUMNS = ("job_id", "at", "outcome", "refused_at", "ran_us", "bucket_id", "bucket_epoch", "error")
_COLUMNS = {"jobs": JOB_COLUMNS, "attempts": ATTEMPT_COLUMNS}
_NOTHING = {"until": "1970-01-01T00:00:00Z"}
"""Options of the data source that select no row."""


def rollup(
    context: PipelineContext,
    *,
    rebuild: bool = False,
    minutes_seconds: float = MINUTES_SECONDS,
    page: PageOptions | None = None,
) -> StepResult:
    """Update the aggregates, and write the report.

    Args:
        rebuild: compute every day again, not only those that changed.
        minutes_seconds: days that are not older get figures by the minute, too; of older ones these are deleted. 0: no day.
        page: of the report; ``None``: as of the last time.

    Raises:
        Refused: the lake belongs to another cluster. Unavailable: the master or the lake does not work; run it again.
    """
    # First, so that a write after it changes the counters once more.
    ranges, read_at = live_ranges(context)
    with open_history(context) as history, lake_errors(Lake(context.lake)):
        state = None if rebuild else history.lake.read_json(STATE)
        minutes_from = (history.as_of - timedelta(seconds=minutes_seconds)).date() if minutes_seconds else date.max
        as_of = min(history.as_of, read_at)
        since = as_of if state is None else datetime.fromisoformat(state["as_of"])
        changes = find_changes(context, ranges, (state or {}).get("live", {}), since)
        # The first roll-up computes every day, so it need not find the changed ones.
        days = _days(history, state, changes, minutes_from) if context.dry_run or state is not None else None
        if days is not None:
            context.progress(f"{len(days)} days to roll up")
        jobs = 0
        if not context.dry_run:
            _expire_minutes(history.lake, minutes_from)
            if days != []:
                days, jobs = _roll(context, history, changes, days, minutes_from)
            names = [one.name for one in history.archived]
            history.lake.write_json(STATE, {"as_of": as_of.isoformat(), "ranges": names, "live": changes.state()})
        found: dict[str, Any] = {"days": [day.isoformat() for day in days or ()], "rolled_up_jobs": jobs}
    if not context.dry_run:
        lake = Lake(context.lake)
        with lake_errors(lake):
            found["report"] = write_report(context, lake, read(context, lake), page)
    return StepResult(rows=jobs, summary=found)


def read(context: PipelineContext, lake: Lake) -> dict[str, DataFrame]:
    """The aggregates of every day, by dataset."""
    documents = lake.documents(DAYS).values()
    frames = {}
    for dataset, columns in DATASETS.items():
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        # Earlier versions had fewer datasets.
        paths = [lake.url(path) for document in documents for path in document["files"].get(dataset, ())]
        reader = context.spark.read.schema(schema)
        base = lake.url(f"rollup/{dataset}/v{FORMAT}")
        frames[dataset] = (
            reader.option("basePath", base).parquet(*paths).drop("run")
            if paths
            else context.spark.createDataFrame([], schema)
        )
    return frames


def _days(history: FullHistory, state: dict[str, Any] | None, changes: LiveChanges, minutes_from: date) -> list[date]:
    """Days that changed since the last roll-up, and those that lack a dataset; every day if there was none."""
    from pyspark.sql import functions as F

    ranges = history.archived
    found = set() if state is None else set(changes.days)
    since = F.lit(datetime.fromtimestamp(0, UTC))
    if state is not None:
        ranges = [one for one in history.archived if one.name not in state["ranges"]]
        since = F.lit(datetime.fromisoformat(state["as_of"]) - LAG)
        found |= _lacking(history.lake, minutes_from)
    jobs, attempts = (_archived(history, table, columns, ranges) for table, columns in _COLUMNS.items())
    if state is None:
        jobs, attempts = (
            [*jobs, history.live_frame("jobs", JOB_COLUMNS)],
            [*attempts, history.live_frame("attempts", ATTEMPT_COLUMNS)],
        )
    if jobs or attempts:
        changed = [part.where(F.col("changed_at") >= since) for part in jobs]
        at = [part.where(F.greatest("at", "refused_at") >= since) for part in attempts]
        found |= {row["day"] for row in touched_days(changed, at).collect()}
    return sorted(found)


def _lacking(lake: Lake, minutes_from: date) -> set[date]:
    """Days with documents of an earlier version, or without the figures by the minute that they should have."""
    found = set()
    for name, document in lake.documents(DAYS).items():
        day = date.fromisoformat(name)
        wanted = [dataset for dataset in DATASETS if dataset not in _BY_MINUTE or day >= minutes_from]
        if any(dataset not in document["files"] for dataset in wanted):
            found.add(day)
    return found


def _expire_minutes(lake: Lake, minutes_from: date) -> None:
    """Delete figures by the minute of older days."""
    for name, document in lake.documents(DAYS).items():
        if date.fromisoformat(name) >= minutes_from:
            continue
        gone = [path for dataset in _BY_MINUTE for path in document["files"].pop(dataset, ())]
        if gone:
            lake.write_json(f"{DAYS}/{name}.json", document)
        for path in gone:
            lake.delete(path)


def _archived(history: FullHistory, table: str, columns: Sequence[str], ranges: Sequence[LakeRange]) -> list[DataFrame]:
    """A table of the lake as a frame, if it has files of it."""
    return [history.archived_frame(table, columns, ranges)] if any(one.paths(table) for one in ranges) else []


def _parts(
    history: FullHistory, table: str, ranges: Sequence[LakeRange], live: Sequence[dict[str, str]]
) -> list[DataFrame]:
    """A table as frames: from the lake, if it has files of it, and from the master.

    Args:
        live: options of the data source for the ranges of ids in the master.
    """
    columns = _COLUMNS[table]
    read = [history.live_frame(table, columns, options) for options in live]
    return [*_archived(history, table, columns, ranges), union_all(read)]


def _roll(
    context: PipelineContext,
    history: FullHistory,
    changes: LiveChanges,
    days: Sequence[date] | None,
    minutes_from: date,
) -> tuple[list[date], int]:
    """Compute some days or all, and publish their files; returns the days, and how many jobs ended in them."""
    ranges = [one for one in history.archived if days is None or _touches(one, days)]
    # A day may lie outside of every range of the master; a frame without rows is one, too.
    live = [{}] if days is None else changes.to_read(days) or [_NOTHING]
    with _kept() as keep:
        # The lake is cheap to read again, by columns. The master is read once.
        jobs = [with_facts(part) for part in _parts(history, "jobs", ranges, live)]
        jobs[-1] = keep(jobs[-1])
        attempts = keep(union_all(_parts(history, "attempts", ranges, live)))
        joined = [keep(part) for part in attempts_of(jobs, attempts, attempts.count())]
        counted = aggregates.tally(jobs, joined)
        counted = counted._replace(jobs=[keep(part) for part in counted.jobs])
        frames = {
            "throughput": aggregates.throughput(counted, history.owners()),
            "latency": aggregates.latencies(jobs),
            "cost": aggregates.costs(counted),
            "failures": failures(jobs, joined),
        }
        if minutes_from < date.max and (days is None or max(days) >= minutes_from):
            frames |= _by_minute(jobs, joined, minutes_from)
        if history.discarded_since is not None:
            frames = _never_smaller(context, history, frames, days)
        run_id = new_id().hex()
        files = {dataset: _written(history.lake, dataset, run_id, frame, days) for dataset, frame in frames.items()}
    # A day without rows gets a document, too: it may have had rows before.
    found = sorted({day for named in files.values() for day in named}) if days is None else list(days)
    for day in found:
        datasets = [one for one in DATASETS if one not in _BY_MINUTE or day >= minutes_from]
        named = {dataset: files.get(dataset, {}).get(day, []) for dataset in datasets}
        history.lake.write_json(
            f"{DAYS}/{day.isoformat()}.json",
            {"dataset": "rollup", "format": FORMAT, "run": run_id, "as_of": history.as_of.isoformat(), "files": named},
        )
    return found, _ended(context, history.lake, found)


def _by_minute(jobs: Sequence[DataFrame], attempts: Sequence[DataFrame], minutes_from: date) -> dict[str, DataFrame]:
    """The figures by the minute of the days from ``minutes_from`` on."""
    from pyspark.sql import functions as F

    start = F.lit(datetime.combine(minutes_from, time(), UTC))
    recent = [part.where((F.col("created_at") >= start) | (F.col("ended_at") >= start)) for part in jobs]
    counted = aggregates.tally(recent, [part.where(F.col("at") >= start) for part in attempts], MINUTE)
    frames = (aggregates.throughput_of_groups(counted), aggregates.latencies(recent, MINUTE))
    return {
        name: frame.where(F.col("day") >= F.lit(minutes_from)) for name, frame in zip(_BY_MINUTE, frames, strict=True)
    }


def _never_smaller(
    context: PipelineContext, history: FullHistory, frames: dict[str, DataFrame], days: Sequence[date] | None
) -> dict[str, DataFrame]:
    """The aggregates, with the former counts of days whose jobs were discarded since."""
    from pyspark.sql import functions as F

    assert history.discarded_since is not None
    known = map(date.fromisoformat, history.lake.documents(DAYS))
    incomplete = [day for day in known if day >= history.discarded_since.date() and (days is None or day in days)]
    if not incomplete:
        return frames
    context.progress(f"{len(incomplete)} days keep figures of jobs that were discarded since")
    ours, found = F.col("day").isin(incomplete), {}
    for name, old in read(context, history.lake).items():
        if name not in frames:
            continue
        new = frames[name]
        found[name] = new.where(~ours).unionByName(grown(old.where(ours), new.where(ours)))
    return found


@contextmanager
def _kept() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Persist frames on Spark's disks until the end: memory does not grow with the rows."""
    from pyspark import StorageLevel

    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return kept[-1]

    try:
        yield keep
    finally:
        for frame in kept:
            frame.unpersist()


def _written(
    lake: Lake, dataset: str, run_id: str, frame: DataFrame, days: Sequence[date] | None
) -> dict[date, list[str]]:
    """Write the aggregates of some days or all; returns the files of each day."""
    from pyspark.sql import functions as F

    wanted = frame if days is None else frame.where(F.col("day").isin(list(days)))
    folder = f"rollup/{dataset}/v{FORMAT}/run={run_id}"
    keys = [name for name, kind in DATASETS[dataset].items() if kind not in (_LONG, "int")]
    ordered = wanted.repartition("day").sortWithinPartitions(*keys)
    ordered.write.partitionBy("day").mode("append").parquet(lake.url(folder))
    found: dict[date, list[str]] = {}
    for path in lake.files(folder):
        if path.endswith(".parquet"):
            lake.sync(path)
            found.setdefault(date.fromisoformat(path.split("day=")[1][:10]), []).append(path)
    return found


def _ended(context: PipelineContext, lake: Lake, days: Sequence[date]) -> int:
    """Number of jobs that ended in some days, by the aggregates."""
    from pyspark.sql import functions as F

    ended = sum((F.sum(name) for name in ENDED), start=F.lit(0))
    written = read(context, lake)["throughput"].where(F.col("day").isin(list(days)))
    return int(written.agg(ended.alias("jobs")).collect()[0]["jobs"] or 0)


def _touches(one: LakeRange, days: Sequence[date]) -> bool:
    return any(one.first.astimezone(UTC).date() <= day <= one.last.astimezone(UTC).date() for day in days)
