"""The table of mutations of the audit: each is one edit of a master or of a lake, and each is found.

Edits that a job shows by itself are made at once, each of another job, and the audit names that job. All others are made one
at a time, and what they have changed is put back before the next one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.spark.steps.conftest import SeededCluster, forge

if TYPE_CHECKING:
    import pyarrow as pa

    from jobmaster.pipeline.context import StepResult

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROWS = 120
LIVE_ROWS = 600
"""Of which twelve were tried twice: of them dice cancel a hundredth, and the mutations need three."""
TABLES = ("job", "attempt", "archive_manifest")
ONCE = "state = 'SUCCEEDED' AND attempt = 1"
TRIED = "state = 'SUCCEEDED' AND attempt = 2"
FAILED = "state = 'FAILED'"


class JobMutation(NamedTuple):
    """An edit of one job, and the check that names it."""

    check: str
    edit: str
    """Statement; ``{id}`` is the job."""
    which: str = ONCE


def row(check: str, change: str, which: str = ONCE) -> JobMutation:
    return JobMutation(check, f"UPDATE job SET {change} WHERE id = '{{id}}'", which)


def attempt(check: str, outcome: str, values: str, which: str = ONCE) -> JobMutation:
    columns = "job_id, token, bucket_id, bucket_epoch, outcome, at, refused_at"
    select = f"SELECT id, {values.partition(',')[0]}, bucket_id, bucket_epoch, '{outcome}', {values.partition(',')[2]}"
    return JobMutation(check, f"INSERT INTO attempt ({columns}) {select} FROM job WHERE id = '{{id}}'", which)


JOBS = {
    "a job with attempts is deleted": JobMutation("i5_lost", "DELETE FROM job WHERE id = '{id}'", TRIED),
    "an outcome is an attempt, too": attempt("i1_attempts", "failed", "token, changed_at, NULL"),
    "a success becomes a failure without an error": row("i2_outcome", "state = 'FAILED', result = NULL"),
    "a success gets an error": row("i2_outcome", "error = '{}'"),
    "a success loses its bucket": row("i2_outcome", "bucket_id = NULL"),
    "a failure gets a result": row("i2_outcome", "result = '1'", FAILED),
    "an end before the beginning": row("t1_times", "changed_at = uuid_moment(id) - interval '3 hours'"),
    "a duration below zero": row("t1_times", "ran_us = -1"),
    "a wait far below zero": row("t1_times", "waited_us = -3 * 3600000000::bigint"),
    "an outcome with an older token": attempt("i4_stale", "failed", "token + 1, changed_at, NULL"),
    "a job that waits with an older token": JobMutation(
        "i3_token",
        "UPDATE job SET state = 'HELD', result = NULL, bucket_id = NULL, bucket_epoch = NULL, token = 1,"
        " waited_us = NULL, ran_us = NULL, due_at = changed_at"
        " WHERE id = '{id}'; UPDATE attempt SET token = 2 WHERE job_id = '{id}'",
        TRIED,
    ),
    "a job in flight without a bucket": JobMutation(
        "i7_bucket",
        "ALTER TABLE job DROP CONSTRAINT job_assigned_is_somewhere; UPDATE job SET state = 'PROCESSING', result = NULL,"
        " bucket_id = NULL, bucket_epoch = NULL WHERE id = '{id}'",
    ),
    "an attempt after the end": JobMutation(
        "t2_after", "UPDATE attempt SET at = at + interval '1 day' WHERE job_id = '{id}'", TRIED
    ),
    "a refused assignment that succeeded": attempt("i4_refused", "refused", "token, changed_at, changed_at"),
    "an archived job is in the master, too": JobMutation("i1_rows", "UPDATE job SET id = {archived} WHERE id = '{id}'"),
}
STAYING = (
    "a job that waits with an older token",
    "a job in flight without a bucket",
    "an archived job is in the master, too",
)
"""Edits of jobs that are not archived: they have not ended, or lie in both places."""
FIGURES = {
    "a job without attempts is deleted": f"DELETE FROM job WHERE id = (SELECT min(id::text)::uuid FROM job WHERE {ONCE})",
    "all jobs that failed are deleted": "DELETE FROM job WHERE state = 'FAILED' AND attempt = 1",
    "a success becomes a failure": "UPDATE job SET state = 'FAILED', result = NULL, error = '{}'"
    f" WHERE id = (SELECT min(id::text)::uuid FROM job WHERE {ONCE})",
    "an end in another hour": "UPDATE job SET changed_at = changed_at + interval '5 hours'"
    f" WHERE id = (SELECT min(id::text)::uuid FROM job WHERE {ONCE})",
}
_RANGE = "(SELECT min(name) FROM archive_manifest WHERE state = 'DROPPED' AND rows > 0)"
MANIFEST = {
    "a row of the manifest is deleted": f"DELETE FROM archive_manifest WHERE name = {_RANGE}",
    "the manifest names another run": f"UPDATE archive_manifest SET run_id = 'other' WHERE name = {_RANGE}",
    "the manifest names no files": f"UPDATE archive_manifest SET files = '[]' WHERE name = {_RANGE}",
}


def file_of(lake: Path, dataset: str) -> Path:
    return min((lake / dataset).rglob("*.parquet"))


def document_of(lake: Path) -> Path:
    return min(path for path in (lake / "_manifest/jobs").glob("*.json") if json.loads(path.read_text())["files"])


def flip(path: Path) -> None:
    """Another byte in the middle, and the same size."""
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 0xFF
    path.write_bytes(bytes(text))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def name_fewer_files(path: Path) -> None:
    document = json.loads(path.read_text())
    document["files"] = document["files"][1:]
    path.write_text(json.dumps(document))


def copy(path: Path, to: Path) -> None:
    shutil.copyfile(path, to)


LAKE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a file of jobs is missing": ("a1_files", lambda lake: file_of(lake, "jobs").unlink()),
    "a file of attempts is missing": ("a1_files", lambda lake: file_of(lake, "attempts").unlink()),
    "a byte of jobs": ("a1_files", lambda lake: flip(file_of(lake, "jobs"))),
    "a byte of attempts": ("a1_files", lambda lake: flip(file_of(lake, "attempts"))),
    "a shorter file": ("a1_files", lambda lake: shorten(file_of(lake, "jobs"))),
    "a file of another range": (
        "a1_files",
        lambda lake: copy(max((lake / "jobs").rglob("*.parquet")), file_of(lake, "jobs")),
    ),
    "a document is missing": ("a2_documents", lambda lake: document_of(lake).unlink()),
    "a document names fewer files": ("a2_documents", lambda lake: name_fewer_files(document_of(lake))),
    "a document of a range that is none": (
        "a2_documents",
        lambda lake: copy(document_of(lake), lake / "_manifest/jobs/job_d_none.json"),
    ),
}


@pytest.fixture
def whole(seeded: SeededCluster) -> SeededCluster:
    """Two days in the lake, one in the master, rolled up; the audit finds nothing. Copies of its tables are beside them."""
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.rollup import rollup

    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    seeded.fill_days(0, rows=LIVE_ROWS, rate=0.001)
    some_failed(seeded)
    rollup(seeded.run())
    for name in TABLES:
        seeded.execute(f"CREATE TABLE whole_{name} AS SELECT * FROM {name}")
    assert not audited(seeded).failed
    return seeded


def some_failed(seeded: SeededCluster) -> None:
    """The dice of the made-up history may have made none that failed."""
    unguarded(
        seeded,
        "UPDATE job SET state = 'FAILED', result = NULL, error = '{}'"
        f" WHERE id IN (SELECT id FROM job WHERE {ONCE} ORDER BY id LIMIT 2);"
        f" UPDATE job SET state = 'SUCCEEDED', error = NULL WHERE state = 'FAILED' AND attempt = 2",
    )


def unguarded(seeded: SeededCluster, statements: str) -> None:
    """An edit by hand: no trigger sees it."""
    seeded.execute(f"SET session_replication_role = replica; {statements}")


def put_back(seeded: SeededCluster) -> None:
    for name in TABLES:
        unguarded(seeded, f"DELETE FROM {name}; INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM whole_{name}")


def audited(seeded: SeededCluster) -> StepResult:
    from jobmaster.pipeline.steps.audit import audit

    return audit(seeded.run(dry_run=True), 1000)


def test_every_mutation_of_a_master_and_of_a_lake_is_found(whole: SeededCluster, tmp_path: Path) -> None:
    missed = {*mutated_jobs(whole)}
    put_back(whole)
    for name, statement in FIGURES.items():
        unguarded(whole, statement)
        if not audited(whole).summary["checks"]["a3_figures"]:
            missed.add(name)
        put_back(whole)
    missed |= mutated_files(whole, tmp_path / "copy")
    assert missed == set()
    assert not audited(whole).failed, "everything was put back"


def test_every_mutation_of_a_job_is_found_after_it_was_archived(seeded: SeededCluster) -> None:
    """The files hold what the tables held, so no digest shows it."""
    from jobmaster.pipeline.steps.archive import archive

    seeded.fill_days(3, rows=LIVE_ROWS)
    some_failed(seeded)
    jobs = edited(seeded, {name: mutation for name, mutation in JOBS.items() if name not in STAYING}, {})
    archive(seeded.run(), 2.0, keep=False)
    assert seeded.value("SELECT count(*) FROM jobs") == 0
    forge(seeded, waiting)
    done = audited(seeded).summary
    found = {(one["check"], one["job_id"]) for one in done["evidence"]}
    assert {name for name, id_ in jobs.items() if (JOBS[name].check, id_) not in found} == set()
    assert done["checks"]["i8_archived"] == 1
    assert (done["checks"]["a1_files"], done["checks"]["a2_documents"]) == (0, 0)


def waiting(table: pa.Table) -> pa.Table:
    """The last job of a file waits; the edits are of the first ones."""
    import pyarrow as pa

    at = table.schema.get_field_index("state")
    return table.set_column(at, "state", pa.array([*table["state"].to_pylist()[:-1], "HELD"], pa.string()))


def edited(seeded: SeededCluster, mutations: dict[str, JobMutation], values: dict[str, str]) -> dict[str, str]:
    """Make each edit, each of another job; the jobs."""
    jobs: dict[str, str] = {}
    for name, mutation in mutations.items():
        used = "', '".join(["00000000-0000-0000-0000-000000000000", *jobs.values()])
        id_ = seeded.value(f"SELECT id FROM job WHERE {mutation.which} AND id NOT IN ('{used}') ORDER BY id LIMIT 1")
        assert id_ is not None, f"no job is left for: {name}"
        jobs[name] = str(id_)
        statement = mutation.edit
        for place, value in {"{id}": jobs[name], **values}.items():
            statement = statement.replace(place, value)
        unguarded(seeded, statement)
    return jobs


def mutated_jobs(whole: SeededCluster) -> set[str]:
    """Edits of single jobs, all at once; the ones that the audit does not name."""
    from jobmaster.pipeline.lake.lake import Lake

    (archived,) = whole.run().spark.read.parquet(Lake(str(whole.lake)).url("jobs")).select("id").limit(1).collect()
    jobs = edited(whole, JOBS, {"{archived}": f"'{archived[0]}'"})
    jobs["an archived job is in the master, too"] = archived[0]
    found = {(one["check"], one["job_id"]) for one in audited(whole).summary["evidence"]}
    return {name for name, mutation in JOBS.items() if (mutation.check, jobs[name]) not in found}


def mutated_files(whole: SeededCluster, kept: Path) -> set[str]:
    """Edits of the lake and of the manifest, one at a time; the ones that the audit does not find."""
    from jobmaster.pipeline.lake.full_history import open_history
    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.steps.audit import broken_files, differing_documents

    context, lake = whole.run(), Lake(str(whole.lake))

    def found() -> set[str]:
        with open_history(context) as history:
            faults = {"a1_files": broken_files(lake, history), "a2_documents": differing_documents(context, lake)}
        return {check for check, ranges in faults.items() if ranges}

    missed = set()
    shutil.copytree(whole.lake, kept)
    for name, (check, edit) in LAKE.items():
        edit(whole.lake)
        if check not in found():
            missed.add(name)
        shutil.rmtree(whole.lake)
        shutil.copytree(kept, whole.lake)
    for name, statement in MANIFEST.items():
        unguarded(whole, statement)
        if "a2_documents" not in found():
            missed.add(name)
        put_back(whole)
    return missed
