"""Archiving for real: a real master, Spark, files; every fault ends in a correct result or in one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.history import fill_day
from jobmaster.model.errors import Refused
from tests.pipeline.conftest import Past

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
ROWS = 400


@pytest.fixture
def filled(past: Past) -> Past:
    """Two days of jobs, the younger one with odd text in it."""

    async def fill(connection: Any) -> None:
        await fill_day(connection, 3, ROWS)
        await fill_day(connection, 2, ROWS)
        await connection.execute(
            r"""UPDATE job SET args = convert_to('{"a":"\\u0000, \"quoted\" | tab\\t ü€𝄞 \\N"}', 'UTF8'),
                result = convert_to('""', 'UTF8')
            WHERE id = (SELECT min(id::text)::uuid FROM job WHERE state = 'SUCCEEDED')"""
        )

    past.sql(fill)
    return past


def archive(past: Past, **words: Any) -> Any:
    from jobmaster.pipeline.archiving import archive

    return archive(past.run(), 2.0, keep=words.pop("keep", False), **words)


def states(past: Past) -> list[tuple[str, str]]:
    rows = past.sql(lambda c: c.fetch("SELECT name, state::text FROM archive_manifest ORDER BY lo, name"))
    return [tuple(row) for row in rows]


def published(past: Past) -> dict[str, Any]:
    """Documents of the lake."""
    return {p.stem: json.loads(p.read_text()) for p in sorted((past.lake / "_manifest" / "jobs").glob("*.json"))}


def files_of(past: Past, dataset: str = "jobs") -> list[str]:
    return [
        str(past.lake / file["path"])
        for document in published(past).values()
        for file in document["files"]
        if file["dataset"] == dataset
    ]


def test_every_job_and_attempt_is_in_the_lake_as_it_was_and_gone_from_the_master(
    filled: Past, spark: SparkSession
) -> None:
    query = "SELECT id, state, handler, args::text, headers::text, result::text, error::text, ended_at FROM jobs"
    before = {str(row["id"]): tuple(row)[1:] for row in filled.sql(lambda c: c.fetch(query))}
    attempts = filled.value("SELECT count(*) FROM attempt")
    outcome = archive(filled)
    assert (outcome.rows, len(outcome.found["dropped"])) == (2 * ROWS, 3), "the empty range of yesterday left, too"
    assert filled.value("SELECT count(*) FROM jobs") == filled.value("SELECT count(*) FROM ledger") == 0
    assert {state for _, state in states(filled)} == {"DROPPED"}
    frame = spark.read.parquet(*files_of(filled))
    after = {
        row["id"]: (*(row[name] for name in ("state", "handler", "args")), row["headers"] or "{}", row["result"],
                    row["error"], row["ended_at"])
        for row in frame.collect()
    }  # fmt: skip
    assert {id_: row[:-1] for id_, row in after.items()} == {id_: row[:-1] for id_, row in before.items()}
    assert {row[-1].timestamp() for row in after.values()} == {row[-1].timestamp() for row in before.values()}
    assert spark.read.parquet(*files_of(filled, "attempts")).count() == attempts > 0
    assert archive(filled).rows == 0, "again does nothing"


def test_what_is_kept_stays_in_the_views_until_a_later_run_drops_it(filled: Past) -> None:
    outcome = archive(filled, keep=True)
    assert outcome.found["dropped"] == []
    assert {state for _, state in states(filled)} == {"PUBLISHED"}
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    assert len(archive(filled).found["dropped"]) == 3
    assert filled.value("SELECT count(*) FROM jobs") == 0


def test_a_dry_run_changes_nothing(filled: Past) -> None:
    from jobmaster.pipeline.archiving import archive

    outcome = archive(filled.run(dry_run=True), 2.0, keep=False)
    assert outcome.found["next_to_leave"].startswith("job_day_")
    assert states(filled) == []
    assert not filled.lake.exists()


def _damage(path: Path) -> None:
    """Flip one byte in the middle; the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_file_that_changes_after_it_was_verified_is_noticed_and_its_range_is_exported_anew(filled: Past) -> None:
    archive(filled, keep=True)
    _damage(Path(files_of(filled)[0]))
    with pytest.raises(Refused, match=r"has changed since it was verified; job_day_[0-9]+ stays in the master"):
        archive(filled)
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    assert archive(filled).found["archived_jobs"] == ROWS, "the damaged one once more"
    assert filled.value("SELECT count(*) FROM jobs") == 0


@pytest.mark.parametrize("harm", ["a row too few", "another value"])
def test_files_that_do_not_hold_what_the_tables_hold_are_never_published(
    filled: Past, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Spark loses a row, or changes one, between the COPY and the file: once, and then for good."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from jobmaster.pipeline import exporting

    real, times = exporting.detached, []

    def harmed(*arguments: Any) -> DataFrame:
        frame = real(*arguments)
        times.append(1)
        if "id" not in frame.columns or len(times) > limit:
            return frame
        if harm == "a row too few":
            return frame.limit(ROWS - 1)
        return frame.withColumn("ran_us", F.col("ran_us") + 1)

    monkeypatch.setattr(exporting, "detached", harmed)
    limit = 99
    with pytest.raises(Refused, match="do not hold what its tables hold"):
        archive(filled)
    assert "DROPPED" not in {state for _, state in states(filled)}
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    limit = 0
    assert archive(filled).rows == 2 * ROWS


def test_a_lake_of_a_newer_version_and_one_of_another_cluster_are_refused(filled: Past) -> None:
    filled.lake.mkdir()
    mark = filled.lake / "_lake.json"
    mark.write_text(json.dumps({"format": 2, "cluster": "x"}))
    with pytest.raises(Refused, match=r"was written by a newer version \(layout 2, ours is 1\)"):
        archive(filled)
    mark.write_text(json.dumps({"format": 1, "cluster": "x"}))
    with pytest.raises(Refused, match="belongs to another cluster"):
        archive(filled)
    assert states(filled) == []


def test_a_range_that_another_archiver_works_on_is_left_alone(filled: Past) -> None:
    import asyncio

    from jobmaster.master.archive import Archive

    archive(filled, keep=True)
    name = states(filled)[0][0]

    async def other() -> Archive:
        dsn = filled.settings.master.dsn
        assert dsn is not None
        second = await Archive.connect(dsn=dsn, schema=filled.settings.schema_name(), settings=filled.settings.master)
        assert await second.take(name)
        return second

    with asyncio.Runner() as runner:
        second = runner.run(other())
        outcome = archive(filled)
        assert outcome.found["at_work_elsewhere"] == [name]
        assert name not in outcome.found["dropped"]
        runner.run(second.close())
    assert archive(filled).found["dropped"] == [name]
