"""``audit``: checks the invariants over the whole history, with evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jobmaster.audit.invariants import Subject, history_checks
from jobmaster.clock import new_id
from jobmaster.model.archive import ArchiveState
from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.lake.full_history import FullHistory, LakeRange, open_history
from jobmaster.pipeline.lake.lake import FORMAT, Lake, lake_errors
from jobmaster.pipeline.report.build import write_report
from jobmaster.pipeline.steps.archive import MANIFEST
from jobmaster.pipeline.steps.invariants import (
    BATCHES,
    CLEAN_EXIT,
    FIGURES,
    FIRES,
    JOB_CHECKS,
    LAKE,
    MASTER,
    ORDER,
    STEPS,
    lines_of,
    miscounted_batches,
    named_jobs,
    overlapping_runs,
    second_jobs_of_fires,
    shrunken_hours,
    tries_of_steps,
    unclean_exits,
    violations_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LAST = "_manifest/audit.json"
_LINES_A_PARTITION = 400_000
_PARTITIONS_MIN = 4
(_FILES_CHECK,) = history_checks(Subject.FILE)
(_DOCUMENTS_CHECK,) = history_checks(Subject.DOCUMENT)
_JOBS = (
    "id", "state", "token", "bucket_id", "bucket_epoch", "created_at", "changed_at", "ran_us", "waited_us", "result", "error",
)  # fmt: skip
_NAMED = ("id", "state", "headers", "changed_at", "ran_us")
"""Of jobs whose headers name a schedule, a workflow or an ordering key, or have the mark of a batch."""
_ENDED = ("state", "changed_at")
_EVENTS = ("bucket_id", "from_state", "to_state", "actor", "reason")
_ATTEMPTS = ("job_id", "token", "bucket_id", "bucket_epoch", "outcome", "at", "refused_at")


def audit(context: PipelineContext, evidence_rows: int) -> StepResult:
    """Run every check; ``failed`` when one finds a violation.

    Args:
        evidence_rows: violations in the result; the lake has all of them.

    Raises:
        Refused: the lake belongs to another cluster. Unavailable: the master or the lake does not work.
    """
    lake, run_id = Lake(context.lake), new_id().hex()
    with open_history(context) as history, lake_errors(lake):
        broken = broken_files(lake, history)
        whole = [one for one in history.archived if one.name not in broken]
        differing = differing_documents(context, lake)
        jobs, counts, evidence = _check_history(context, history, whole, evidence_rows, run_id)
    for check, faults in ((_DOCUMENTS_CHECK, differing), (_FILES_CHECK, broken)):
        counts[check.name] = len(faults)
        evidence = [{"check": check.name, "job_id": name, "detail": why} for name, why in faults.items()] + evidence
    found: dict[str, Any] = {
        "audited_jobs": jobs,
        "audit_violations": sum(counts.values()),
        "checks": counts,
        "evidence": evidence[:evidence_rows],
    }
    if not context.dry_run:
        lake.write_json(LAST, {"at": history.as_of.isoformat(), "run": run_id, **found})
        from jobmaster.pipeline.steps.rollup import read

        with lake_errors(lake):
            found["report"] = write_report(context, lake, read(context, lake))
    return StepResult(rows=jobs, summary=found, failed=found["audit_violations"] > 0)


def _check_history(
    context: PipelineContext, history: FullHistory, archived: list[LakeRange], evidence_rows: int, run_id: str
) -> tuple[int, dict[str, int], list[dict[str, str]]]:
    """Number of jobs, violations of each check, and the first of them."""
    from pyspark import StorageLevel
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    lines = lines_of(
        history.archived_frame("jobs", _JOBS, archived), history.archived_frame("attempts", _ATTEMPTS, archived), LAKE
    ).unionByName(lines_of(history.live_frame("jobs", _JOBS), history.live_frame("attempts", _ATTEMPTS), MASTER))
    seen = Observation("audit")
    known = sum(one.rows("jobs") + one.rows("attempts") for one in archived)
    live = int(context.connection.fetch("export/live_rows")[0]["rows"])
    partitions = max(_PARTITIONS_MIN, (known + live) // _LINES_A_PARTITION + 1)
    counted = lines.observe(seen, F.sum(F.col("in_lake") + F.col("in_master")).alias("jobs"))
    # Four checks read the headers: one scan, not four. What it leaves, few rows as a rule, is kept on disks.
    named = named_jobs(_jobs_of(history, archived, _NAMED)).persist(StorageLevel.DISK_ONLY)
    violations = (
        violations_of(counted, partitions)
        .unionByName(unclean_exits(history.live_frame("events", _EVENTS)))
        .unionByName(second_jobs_of_fires(named))
        .unionByName(tries_of_steps(named))
        .unionByName(miscounted_batches(named, history.ended_batches()))
        .unionByName(overlapping_runs(named))
        .unionByName(shrunken_hours(_jobs_of(history, archived, _ENDED), _counted_hours(context, history)))
    )
    counts: dict[str, int] = {}
    try:
        if context.dry_run:
            rows = violations.collect()
            for row in rows:
                counts[row["check"]] = counts.get(row["check"], 0) + 1
        else:
            url = history.lake.url(f"violations/v{FORMAT}/run={run_id}")
            # Not coalesce(1): one task would then do all that follows the shuffle of the lines.
            violations.repartition(1).write.mode("append").parquet(url)
            found = context.spark.read.parquet(url)
            rows = found.orderBy("check", "job_id").limit(evidence_rows).collect()
            counts = {row["check"]: row["count"] for row in found.groupBy("check").count().collect()}
    finally:
        named.unpersist()
    by_check = {
        check.name: counts.get(check.name, 0)
        for check in (*JOB_CHECKS, CLEAN_EXIT, FIRES, STEPS, BATCHES, ORDER, FIGURES)
    }
    return int(seen.get["jobs"] or 0), by_check, [row.asDict() for row in rows[:evidence_rows]]


def _jobs_of(history: FullHistory, archived: list[LakeRange], columns: Sequence[str]) -> DataFrame:
    """Columns of the jobs of the lake and of the master, together."""
    return history.archived_frame("jobs", columns, archived).unionByName(history.live_frame("jobs", columns))


def _counted_hours(context: PipelineContext, history: FullHistory) -> DataFrame:
    """Figures of roll-ups over the hours of which no job was discarded, and that lie wholly before this moment."""
    from pyspark.sql import functions as F

    from jobmaster.pipeline.steps.rollup import read

    figures = read(context, history.lake)["throughput"]
    if history.discarded_since is None:
        return figures
    return figures.where(F.col("hour") < F.lit(history.discarded_since - timedelta(hours=1)))


def differing_documents(context: PipelineContext, lake: Lake) -> dict[str, str]:
    """Published ranges of which the master and the document of the lake differ, and how."""
    states = (ArchiveState.PUBLISHED, ArchiveState.DROPPED)
    rows = {str(row["name"]): row for row in context.connection.fetch("archive/manifest")}
    documents, found = lake.documents(MANIFEST), {}
    for name, document in documents.items():
        row = rows.get(name)
        if row is None:
            found[name] = "the lake has a document of a range that the master does not know"
        elif row["state"] not in states:
            continue  # it is exported again, and its document will be replaced
        elif row["run_id"] != document.get("run") or json.loads(row["files"] or "[]") != document.get("files"):
            found[name] = "the master names other files than the document of the lake"
    for name, row in rows.items():
        if row["state"] in states and not row["discarded"] and name not in documents:
            found[name] = "the lake has no document of a range that the master has published"
    return found


def broken_files(lake: Lake, history: FullHistory) -> dict[str, str]:
    """Archived ranges with a file that is not as it was verified, and the first such file."""
    return {one.name: why for one in history.archived if (why := _fault(lake, one)) is not None}


def _fault(lake: Lake, one: LakeRange) -> str | None:
    """The first fault in the files of a range."""
    for file in one.files:
        size = lake.size(file.path)
        if size is None:
            return f"{file.path} is missing"
        if size != file.bytes:
            return f"{file.path} has {size} bytes, {file.bytes} were verified"
        if lake.local is not None and file.sha256 and lake.digest(file.path) != file.sha256:
            return f"{file.path} differs from what was verified"
    return None
