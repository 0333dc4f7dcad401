"""``rollup``: the figures of whole days, replaced and never added to, so that doing it again changes nothing.

A day is named by one document in the lake; its files are those of the run that the document names. Only days that something
touched since the last time are computed again, from every job that touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from jobmaster.clock import new_id
from jobmaster.pipeline.archiving import lake_errors
from jobmaster.pipeline.figures import COUNTS, GROUPS, latencies, throughput, touched_days
from jobmaster.pipeline.history import Archived, History, history_of, union
from jobmaster.pipeline.lake import FORMAT, Lake
from jobmaster.pipeline.reporting import write_report
from jobmaster.pipeline.running import Outcome, PipelineRun

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
    "id", "state", *GROUPS, "created_at", "due_at", "ended_at", "changed_at", "waited_us", "ran_us", "attempt", "bucket_id",
    "bucket_epoch",
)  # fmt: skip
ATTEMPT_COLUMNS = ("job_id", "at", "outcome", "refused_at", "ran_us", "bucket_id", "bucket_epoch")


def rollup(run: PipelineRun, *, rebuild: bool = False) -> Outcome:
    """Bring the figures up to now.

    Args:
        rebuild: compute every day again, not only those that were touched.

    Raises:
        Refused: the lake is not ours. Unavailable: the master or the lake does not work; run it again.
    """
    with history_of(run) as history, lake_errors(Lake(run.lake)):
        state = None if rebuild else history.lake.read_json(_STATE)
        days = _days(history, state)
        run.tell(f"{len(days)} days to roll up")
        if run.dry_run or not days:
            jobs = 0
        else:
            jobs = _roll(run, history, days)
            history.lake.write_json(_STATE, {"as_of": history.as_of.isoformat(), "ranges": _names(history.archived)})
        found: dict[str, Any] = {"days": [day.isoformat() for day in days], "rolled_up_jobs": jobs}
    if not run.dry_run:
        with lake_errors(Lake(run.lake)):
            found["report"] = write_report(run, Lake(run.lake), read(run, Lake(run.lake)))
    return Outcome(rows=jobs, found=found)


def read(run: PipelineRun, lake: Lake) -> dict[str, DataFrame]:
    """The figures of every day, by dataset."""
    documents = lake.documents(DAYS).values()
    frames = {}
    for dataset, schema in DATASETS.items():
        paths = [lake.url(path) for document in documents for path in document["files"][dataset]]
        reader = run.spark.read.schema(schema)
        base = lake.url(f"rollup/{dataset}/v{FORMAT}")
        frames[dataset] = (
            reader.option("basePath", base).parquet(*paths).drop("run")
            if paths
            else run.spark.createDataFrame([], schema)
        )
    return frames


def _names(archived: Sequence[Archived]) -> list[str]:
    return [one.name for one in archived]


def _days(history: History, state: dict[str, Any] | None) -> list[date]:
    """Days that something touched since the last time; all of them the first time."""
    from pyspark.sql import functions as F

    ranges = history.archived
    jobs_since, attempts_since = F.lit(True), F.lit(True)
    if state is not None:
        as_of = F.lit(datetime.fromisoformat(state["as_of"]))
        ranges = [one for one in history.archived if one.name not in state["ranges"]]
        jobs_since = F.col("changed_at") >= as_of
        attempts_since = F.greatest("at", "refused_at") >= as_of
    jobs = union(
        [
            history.archived_frame("jobs", JOB_COLUMNS, ranges),
            history.live_frame("jobs", JOB_COLUMNS),
        ]
    ).where(jobs_since)
    attempts = union(
        [
            history.archived_frame("attempts", ATTEMPT_COLUMNS, ranges),
            history.live_frame("attempts", ATTEMPT_COLUMNS),
        ]
    ).where(attempts_since)
    return sorted(row["day"] for row in touched_days(jobs, attempts).collect())


def _roll(run: PipelineRun, history: History, days: Sequence[date]) -> int:
    """Compute some days and name their new files; how many jobs ended in them."""
    from pyspark.sql import functions as F

    ranges = [one for one in history.archived if _touches(one, days)]
    jobs = union([history.archived_frame("jobs", JOB_COLUMNS, ranges), history.live_frame("jobs", JOB_COLUMNS)])
    attempts = union(
        [history.archived_frame("attempts", ATTEMPT_COLUMNS, ranges), history.live_frame("attempts", ATTEMPT_COLUMNS)]
    )
    frames = {"throughput": throughput(jobs, attempts, history.owners()), "latency": latencies(jobs)}
    run_id, lake = new_id().hex(), history.lake
    files: dict[str, dict[str, list[str]]] = {day.isoformat(): {name: [] for name in DATASETS} for day in days}
    for dataset, frame in frames.items():
        folder = f"rollup/{dataset}/v{FORMAT}/run={run_id}"
        wanted = (
            frame.where(F.col("day").isin(list(days))).repartition("day").sortWithinPartitions("day", "hour", *GROUPS)
        )
        wanted.write.partitionBy("day").mode("append").parquet(lake.url(folder))
        for path in lake.files(folder):
            if path.endswith(".parquet"):
                lake.sync(path)
                files[path.split("day=")[1][:10]][dataset].append(path)
    for day, named in files.items():
        lake.write_json(
            f"{DAYS}/{day}.json",
            {"dataset": "rollup", "format": FORMAT, "run": run_id, "as_of": history.as_of.isoformat(), "files": named},
        )
    ended = sum((F.sum(name) for name in COUNTS[1:5]), start=F.lit(0))
    written = read(run, lake)["throughput"].where(F.col("day").isin(list(days)))
    return int(written.agg(ended.alias("jobs")).collect()[0]["jobs"] or 0)


def _touches(one: Archived, days: Sequence[date]) -> bool:
    first = datetime.combine(min(days), time(), UTC)
    beyond = datetime.combine(max(days), time(), UTC) + timedelta(days=1)
    return one.first < beyond and one.last >= first
