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
from jobmaster.pipeline.report.aggregates import COUNTS, GROUPS, grown, latencies, throughput, touched_days
from jobmaster.pipeline.report.build import write_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAYS = "_manifest/rollup"
_STATE = "_manifest/rollup_state.json"
DATASETS = {
    "throughput": "day date, hour timestamp, "
    + ", ".join(f"{name} string" for name in (*GROUPS, "agent", "bucket_id"))
    + ", "
    + ", ".join(f"{name} bigint" for name in (*COUNTS, "ran_us", "waited_us")),
    "latency": "day date, hour timestamp, "
    + ", ".join(f"{name} string" for name in (*GROUPS, "metric"))
    + ", bin int, jobs bigint",
}
"""Columns of the two datasets, version 1."""
JOB_COLUMNS = (
    "id", "state", *GROUPS, "created_at", "due_at", "ended_at", "changed_at", "waited_us", "ran_us", "attempt", "rescues",
    "bucket_id", "bucket_epoch",
)  # fmt: skip
ATTEMPT_COLUMNS = ("job_id", "at", "outcome", "refused_at", "ran_us", "bucket_id", "bucket_epoch")


def rollup(context: PipelineContext, *, rebuild: bool = False) -> StepResult:
    """Update the aggregates, and write the report.

    Args:
        rebuild: compute every day again, not only those that changed.

    Raises:
        Refused: the lake belongs to another cluster. Unavailable: the master or the lake does not work; run it again.
    """
    with open_history(context) as history, lake_errors(Lake(context.lake)):
        state = None if rebuild else history.lake.read_json(_STATE)
        # The first roll-up computes every day, so it need not find the changed ones.
        days = _days(history, state) if context.dry_run or state is not None else None
        if days is not None:
            context.progress(f"{len(days)} days to roll up")
        jobs = 0
        if not context.dry_run and days != []:
            days, jobs = _roll(context, history, days)
            history.lake.write_json(_STATE, {"as_of": history.as_of.isoformat(), "ranges": _names(history.archived)})
        found: dict[str, Any] = {"days": [day.isoformat() for day in days or ()], "rolled_up_jobs": jobs}
    if not context.dry_run:
        with lake_errors(Lake(context.lake)):
            found["report"] = write_report(context, Lake(context.lake), read(context, Lake(context.lake)))
    return StepResult(rows=jobs, summary=found)


def read(context: PipelineContext, lake: Lake) -> dict[str, DataFrame]:
    """The aggregates of every day, by dataset."""
    documents = lake.documents(DAYS).values()
    frames = {}
    for dataset, schema in DATASETS.items():
        paths = [lake.url(path) for document in documents for path in document["files"][dataset]]
        reader = context.spark.read.schema(schema)
        base = lake.url(f"rollup/{dataset}/v{FORMAT}")
        frames[dataset] = (
            reader.option("basePath", base).parquet(*paths).drop("run")
            if paths
            else context.spark.createDataFrame([], schema)
        )
    return frames


def rolled_up_until(lake: Lake) -> datetime | None:
    """What happened before that moment is in the aggregates; ``None``: there was no roll-up."""
    state = lake.read_json(_STATE)
    return None if state is None else datetime.fromisoformat(state["as_of"])


def _names(archived: Sequence[LakeRange]) -> list[str]:
    return [one.name for one in archived]


def _days(history: FullHistory, state: dict[str, Any] | None) -> list[date]:
    """Days that changed since the last roll-up; all days the first time."""
    from pyspark.sql import functions as F

    ranges = history.archived
    jobs_since, attempts_since = F.lit(True), F.lit(True)
    if state is not None:
        as_of = F.lit(datetime.fromisoformat(state["as_of"]))
        ranges = [one for one in history.archived if one.name not in state["ranges"]]
        jobs_since = F.col("changed_at") >= as_of
        attempts_since = F.greatest("at", "refused_at") >= as_of
    jobs = [part.where(jobs_since) for part in _parts(history, "jobs", JOB_COLUMNS, ranges)]
    attempts = union_all(_parts(history, "attempts", ATTEMPT_COLUMNS, ranges)).where(attempts_since)
    return sorted(row["day"] for row in touched_days(jobs, attempts).collect())


def _parts(history: FullHistory, table: str, columns: Sequence[str], ranges: Sequence[LakeRange]) -> list[DataFrame]:
    """A table as frames: from the lake, if it has files of it, and from the master."""
    archived = [history.archived_frame(table, columns, ranges)] if any(one.paths(table) for one in ranges) else []
    return [*archived, history.live_frame(table, columns)]


def _roll(context: PipelineContext, history: FullHistory, days: Sequence[date] | None) -> tuple[list[date], int]:
    """Compute some days or all, and publish their files; returns the days, and how many jobs ended in them."""
    ranges = [one for one in history.archived if days is None or _touches(one, days)]
    with _kept() as keep:
        # The lake is cheap to read again, by columns. The master is read once.
        jobs = _parts(history, "jobs", JOB_COLUMNS, ranges)
        jobs[-1] = keep(jobs[-1])
        attempts = keep(union_all(_parts(history, "attempts", ATTEMPT_COLUMNS, ranges)))
        frames = {
            "throughput": throughput(jobs, attempts, attempts.count(), history.owners()),
            "latency": latencies(jobs),
        }
        if history.discarded_since is not None:
            frames = _never_smaller(context, history, frames, days)
        run_id = new_id().hex()
        files = {dataset: _written(history.lake, dataset, run_id, frame, days) for dataset, frame in frames.items()}
    # A day without rows gets a document, too: it may have had rows before.
    found = sorted({day for named in files.values() for day in named}) if days is None else list(days)
    for day in found:
        named = {dataset: files[dataset].get(day, []) for dataset in DATASETS}
        history.lake.write_json(
            f"{DAYS}/{day.isoformat()}.json",
            {"dataset": "rollup", "format": FORMAT, "run": run_id, "as_of": history.as_of.isoformat(), "files": named},
        )
    return found, _ended(context, history.lake, found)


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
    ordered = wanted.repartition("day").sortWithinPartitions("day", "hour", *GROUPS)
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

    ended = sum((F.sum(name) for name in COUNTS[1:5]), start=F.lit(0))
    written = read(context, lake)["throughput"].where(F.col("day").isin(list(days)))
    return int(written.agg(ended.alias("jobs")).collect()[0]["jobs"] or 0)


def _touches(one: LakeRange, days: Sequence[date]) -> bool:
    first = datetime.combine(min(days), time(), UTC)
    beyond = datetime.combine(max(days), time(), UTC) + timedelta(days=1)
    return one.first < beyond and one.last >= first
