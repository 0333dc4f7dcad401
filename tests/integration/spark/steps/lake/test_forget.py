"""Jobs are forgotten by new files that are verified; a run that is killed at any step is ended by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobmaster.master.driver.statements import sql
from jobmaster.master.history.archive import Archive
from jobmaster.model.errors import InputError, Refused
from jobmaster.pipeline.lake import rewrite
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.steps.archive import archive
from jobmaster.pipeline.steps.forget_jobs import Forgotten, compact, forget_jobs, forgotten
from tests.integration.spark.steps.conftest import SeededCluster

if TYPE_CHECKING:
    from jobmaster.pipeline.context import StepResult

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 300
_TENANTS = """
UPDATE job
SET headers = convert_to(json_build_object('metadata', json_build_object(
    'tenant', (CASE WHEN id IN (SELECT job_id FROM attempt) THEN 42 ELSE coalesce(ran_us % 6, 5) END)::text))::text, 'UTF8')
"""


def fill(seeded: SeededCluster) -> None:
    seeded.fill_days(3, 2, rows=ROWS)


@pytest.fixture
def archived(seeded: SeededCluster) -> SeededCluster:
    """Two days in the lake, with seven tenants; jobs that were tried again are of tenant 42."""
    fill(seeded)
    seeded.execute(_TENANTS)
    assert archive(seeded.run(), 2.0, keep=False).rows == 2 * ROWS
    return seeded


def parquet(archived: SeededCluster, dataset: str = "jobs") -> list[dict[str, Any]]:
    """What the manifest's files hold, and what lies in the lake: no other file."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    rows: list[dict[str, Any]] = []
    named = set()
    for document in Lake(str(archived.lake)).documents("_manifest/jobs").values():
        for file in document["files"]:
            named.add(file["path"])
            if file["dataset"] == dataset:
                rows += pa.concat_tables([pq.ParquetFile(archived.lake / file["path"]).read()]).to_pylist()
    lying = {str(path.relative_to(archived.lake)) for path in archived.lake.glob("*/v1/run=*/*/*.parquet")}
    assert lying == named
    return rows


def tenants(archived: SeededCluster) -> list[str]:
    import json

    return [json.loads(row["headers"])["metadata"]["tenant"] for row in parquet(archived)]


def test_a_tenant_is_forgotten_and_the_rest_is_as_it_was(archived: SeededCluster) -> None:
    from jobmaster.pipeline.steps.audit import audit

    number = tenants(archived).count("42")
    assert parquet(archived, "attempts")
    rest = sorted(row["id"] for row in parquet(archived) if '"42"' not in row["headers"])
    wanted = forgotten(["tenant=42"], None, 0)
    assert forget_jobs(archived.run(dry_run=True), wanted).rows == number
    assert len(parquet(archived)) == 2 * ROWS, "a dry run changes nothing"
    assert forget_jobs(archived.run(), wanted).rows == number
    assert sorted(row["id"] for row in parquet(archived)) == rest
    assert parquet(archived, "attempts") == [], "they were of that tenant"
    assert archived.value("SELECT sum(forgotten)::int FROM archive_manifest") == number
    assert forget_jobs(archived.run(), wanted).rows == 0
    done = audit(archived.run(), 10)
    assert (done.summary["audit_violations"], done.summary["audited_jobs"]) == (0, len(rest))


def test_what_is_older_is_forgotten_and_small_files_are_merged_also_after_runs_that_were_killed(
    seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    archived = seeded
    fill(archived)
    archive(archived.run(), 2.0, keep=False)
    days = (time.time() // 86400 - 1) * 86400
    seconds = time.time() - days  # of yesterday's begin: the day before it and the one before that are older
    files = len(list(archived.lake.glob("jobs/v1/run=*/*/*.parquet")))
    for at in ("the row is committed", "the intent is written", "the files are written"):
        end_at(at, monkeypatch, partial(compact, archived.run()))
        assert archived.value("SELECT sum(rows)::int FROM archive_manifest") == 2 * ROWS, at
    done = compact(archived.run())
    after = len(list(archived.lake.glob("jobs/v1/run=*/*/*.parquet")))
    assert files > after == 2
    assert len(done.summary["ranges"]) == 1, "the other one was merged by the run that was killed after its commit"
    assert (done.summary["files"] > done.summary["files_after"], len(parquet(archived))) == (True, 2 * ROWS)
    assert compact(archived.run()).summary["ranges"] == []
    assert forget_jobs(archived.run(), forgotten([], seconds + 86400, int(time.time() * 1e6))).rows == ROWS
    assert len(parquet(archived)) == ROWS
    assert forget_jobs(archived.run(), forgotten([], seconds, int(time.time() * 1e6))).rows == ROWS
    assert parquet(archived) == []


@pytest.mark.long
def test_after_old_days_are_forgotten_audit_and_figures_go_on(seeded: SeededCluster) -> None:
    """Of the youngest day: those before it are gone, files and all. And the next archive works."""
    from jobmaster.pipeline.steps.audit import audit
    from jobmaster.pipeline.steps.rollup import rollup

    fill(seeded)
    archive(seeded.run(), 2.0, keep=False)
    counted = rollup(seeded.run()).summary["rolled_up_jobs"]
    assert counted == 2 * ROWS
    forget_jobs(
        seeded.run(), Forgotten(before=seeded.value("SELECT date_trunc('day', now(), 'UTC') - interval '2 days'"))
    )
    assert len(parquet(seeded)) == ROWS
    seeded.fill_days(0, rows=ROWS)
    done = audit(seeded.run(), 10)
    assert (done.summary["audit_violations"], done.summary["audited_jobs"]) == (0, 2 * ROWS)
    rollup(seeded.run(), rebuild=True)
    assert audit(seeded.run(), 10).summary["audit_violations"] == 0


_STEPS: dict[str, tuple[type[Any] | Any, str]] = {
    "the intent is written": (rewrite, "rewrite"),
    "the files are written": (Archive, "rewritten"),
    "the row is committed": (Lake, "write_json"),
    "the document is written": (rewrite, "delete_run"),
    "the old files are deleted": (Lake, "delete"),
}


class Killed(BaseException):
    """The process ends here."""


def test_a_run_that_is_killed_at_any_step_is_ended_by_the_next_one(
    archived: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant, at in enumerate(_STEPS):
        before = archived.value("SELECT sum(forgotten)::int FROM archive_manifest")
        number = tenants(archived).count(str(tenant))
        wanted = Forgotten({"tenant": str(tenant)})
        end_at(at, monkeypatch, partial(forget_jobs, archived.run(), wanted))
        committed = archived.value("SELECT sum(forgotten)::int FROM archive_manifest") - before
        assert (committed == 0) == (at in ("the intent is written", "the files are written")), at
        assert forget_jobs(archived.run(), wanted).rows == number - committed, at
        assert str(tenant) not in tenants(archived), at
        assert Lake(str(archived.lake)).documents("_manifest/rewriting") == {}, at


def end_at(at: str, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let a run end just after a step."""
    where, name = _STEPS[at]
    with monkeypatch.context() as patched:
        patched.setattr(where, name, ending(name, getattr(where, name)))
        with pytest.raises(Killed):
            work()


def ending(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """In place of a call: the end of the process, but for calls of the same name at other steps."""

    def killed(*arguments: Any, **more: Any) -> Any:
        path = next((one for one in arguments if isinstance(one, str)), "")
        # The intent is a document, too; and files of the old run are deleted before the intent is.
        if (name == "write_json" and "rewriting" in path) or (name == "delete" and "rewriting" not in path):
            return real(*arguments, **more)
        raise Killed

    return killed


def test_a_file_that_has_changed_is_not_rewritten(archived: SeededCluster) -> None:
    files = archived.lake.glob("attempts/v1/run=*/*/*.parquet")
    other = next(files)
    other.write_bytes(next(files).read_bytes())
    with pytest.raises(Refused, match="do not hold what the manifest says"):
        forget_jobs(archived.run(), Forgotten({"tenant": "42"}))
    assert archived.value("SELECT count(*) FROM archive_manifest WHERE forgotten > 0") <= 1


def test_a_range_that_another_process_works_on_is_left_alone_and_one_that_it_has_replaced_is_read_again(
    archived: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobmaster.pipeline.steps.forget_jobs import _Rewriter

    wanted, before = Forgotten({"tenant": "1"}), tenants(archived)
    name = archived.value("SELECT name FROM archive_manifest WHERE rows > 0 ORDER BY lo LIMIT 1")

    async def beside(connection: asyncpg.Connection[asyncpg.Record]) -> StepResult:
        await connection.execute(sql("archive/lock_range").replace("$1", f"'{name}'"))
        return await asyncio.to_thread(forget_jobs, archived.run(), wanted)

    done: StepResult = archived.sql(beside)
    assert (done.failed, done.summary["at_work_elsewhere"]) == (True, [name])
    assert 0 < tenants(archived).count("1") < before.count("1"), "those of the other range are forgotten"
    other = forget_jobs
    ranges = _Rewriter.ranges

    def overtaken(self: _Rewriter) -> Any:
        found = ranges(self)
        monkeypatch.setattr(_Rewriter, "ranges", ranges)
        other(archived.run(), Forgotten({"tenant": "2"}))  # ends between our look and our lock
        return found

    monkeypatch.setattr(_Rewriter, "ranges", overtaken)
    assert not forget_jobs(archived.run(), wanted).failed
    assert set(tenants(archived)) == set(before) - {"1", "2"}


def test_a_lake_of_another_cluster_or_of_a_newer_version_is_not_rewritten(archived: SeededCluster) -> None:
    import json

    mark = archived.lake / "_lake.json"
    right = json.loads(mark.read_text())
    for wrong, said in (
        ({"format": 2}, "written by a newer version"),
        ({"cluster": "x"}, "belongs to another cluster"),
    ):
        mark.write_text(json.dumps(right | wrong))
        with pytest.raises(Refused, match=said):
            compact(archived.run())
        with pytest.raises(Refused, match=said):
            forget_jobs(archived.run(), Forgotten({"tenant": "1"}))


def test_wrong_options_are_one_sentence() -> None:
    with pytest.raises(InputError, match="is not NAME=VALUE"):
        forgotten(["tenant"], None, 0)
