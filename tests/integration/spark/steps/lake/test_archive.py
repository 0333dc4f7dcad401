"""Archiving for real: a real master, Spark, files; every fault ends in a correct result or in one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.support.synthetic_history import fill_day
from jobmaster.model.errors import Refused
from tests.integration.spark.steps.conftest import SeededCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
ROWS = 400


@pytest.fixture
def filled(seeded: SeededCluster) -> SeededCluster:
    """Two days of jobs, the younger one with odd text in it."""

    async def fill(connection: Any) -> None:
        await fill_day(connection, 3, ROWS)
        await fill_day(connection, 2, ROWS)
        await connection.execute(
            r"""UPDATE job SET args = convert_to('{"a":"\\u0000, \"quoted\" | tab\\t ü€𝄞 \\N"}', 'UTF8'),
                result = convert_to('""', 'UTF8')
            WHERE id = (SELECT min(id::text)::uuid FROM job WHERE state = 'SUCCEEDED')"""
        )

    seeded.sql(fill)
    return seeded


def archive(seeded: SeededCluster, **words: Any) -> Any:
    from jobmaster.pipeline.steps.archive import archive

    return archive(seeded.run(), 2.0, keep=words.pop("keep", False), **words)


def states(seeded: SeededCluster) -> list[tuple[str, str]]:
    rows = seeded.sql(lambda c: c.fetch("SELECT name, state::text FROM archive_manifest ORDER BY lo, name"))
    return [tuple(row) for row in rows]


def published(seeded: SeededCluster) -> dict[str, Any]:
    """Documents of the lake."""
    return {p.stem: json.loads(p.read_text()) for p in sorted((seeded.lake / "_manifest" / "jobs").glob("*.json"))}


def files_of(seeded: SeededCluster, dataset: str = "jobs") -> list[str]:
    return [
        str(seeded.lake / file["path"])
        for document in published(seeded).values()
        for file in document["files"]
        if file["dataset"] == dataset
    ]


def test_every_job_and_attempt_is_in_the_lake_as_it_was_and_gone_from_the_master(
    filled: SeededCluster, spark: SparkSession
) -> None:
    query = "SELECT id, state, handler, args::text, headers::text, result::text, error::text, ended_at FROM jobs"
    before = {str(row["id"]): tuple(row)[1:] for row in filled.sql(lambda c: c.fetch(query))}
    attempts = filled.value("SELECT count(*) FROM attempt")
    outcome = archive(filled)
    assert (outcome.rows, len(outcome.summary["dropped"])) == (2 * ROWS, 3), "the empty range of yesterday left, too"
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


def test_log_lines_leave_with_their_jobs_and_those_of_other_jobs_stay(
    filled: SeededCluster, spark: SparkSession
) -> None:
    text = 'one\ntwo\r\x01 \x02" \\N ü€𝄞'
    write = """INSERT INTO job_log SELECT id, 1, line, to_timestamp(5.000007), 20, $1 || line
               FROM (SELECT id FROM job WHERE state = 'SUCCEEDED' LIMIT 50) AS j, generate_series(1, 3) AS line"""
    filled.sql(lambda c: c.execute(write, text))
    filled.sql(lambda c: c.execute("INSERT INTO job_log VALUES (uuid_floor(now()), 1, 1, now(), 20, 'stays')"))
    query = "SELECT job_id::text, token, number, to_us(at), level, text FROM job_log WHERE text <> 'stays'"
    before = {tuple(row) for row in filled.sql(lambda c: c.fetch(query))}
    assert len(before) == 150
    archive(filled)
    columns = "job_id, token, number, unix_micros(at) AS at_us, level, text"
    lines = spark.read.parquet(*files_of(filled, "logs")).selectExpr(*columns.split(", ")).collect()
    assert {tuple(row) for row in lines} == before
    assert len(lines) == 150
    assert filled.value("SELECT count(*) FROM job_log") == 151, "maintenance deletes them"


def test_a_log_line_that_the_files_lack_is_exported_with_the_next_run_of_them(
    filled: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the export and its verification."""
    from jobmaster.pipeline.steps.archive import Archiver

    verify, written = Archiver._verify, "INSERT INTO job_log SELECT $1, 1, count(*) + 1, now(), 20, 'late' FROM job_log"
    job = filled.value("SELECT id FROM job WHERE state = 'SUCCEEDED' LIMIT 1")
    late: list[str] = []

    def after_a_line(self: Any, found: Any, **words: Any) -> Any:
        if not late and found.lo <= job.bytes < found.hi:
            late.append(found.name)
            filled.sql(lambda c: c.execute(written, job))
        return verify(self, found, **words)

    monkeypatch.setattr(Archiver, "_verify", after_a_line)
    archive(filled)
    assert any("0 log lines, the tables" in said and "1 log lines" in said for said in filled.said)
    assert len(files_of(filled, "logs")) == 1
    assert {state for _, state in states(filled)} == {"DROPPED"}


def test_a_published_range_whose_files_lack_log_lines_is_exported_again(filled: SeededCluster) -> None:
    """As an earlier version has left it, which had no files of log lines."""
    archive(filled, keep=True)
    write = "INSERT INTO job_log SELECT id, 1, 1, now(), 20, 'kept' FROM jobs WHERE state = 'SUCCEEDED' LIMIT 1"
    filled.sql(lambda c: c.execute(write))
    with pytest.raises(Refused, match=r"hold 0 log lines, its tables 1; it stays in the master") as raised:
        archive(filled)
    assert "run the command again" in (raised.value.hint or "")
    assert filled.value("SELECT count(*) FROM jobs") >= ROWS
    archive(filled)
    assert len(files_of(filled, "logs")) == 1
    assert {state for _, state in states(filled)} == {"DROPPED"}


def test_what_is_kept_stays_in_the_views_until_a_later_run_drops_it(filled: SeededCluster) -> None:
    outcome = archive(filled, keep=True)
    assert outcome.summary["dropped"] == []
    assert {state for _, state in states(filled)} == {"PUBLISHED"}
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    assert len(archive(filled).summary["dropped"]) == 3
    assert filled.value("SELECT count(*) FROM jobs") == 0


def test_what_spark_cannot_read_stays_in_the_master(filled: SeededCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow writes and verifies to a file system that this Spark has no library for."""
    archive(filled, keep=True)
    with monkeypatch.context() as patch:
        patch.setattr("jobmaster.pipeline.lake.lake.Lake.url", lambda self, path: f"s3a://a-bucket/{path}")
        with pytest.raises(
            Refused, match=r"is not taken from the master: Spark could not read .*S3AFileSystem"
        ) as caught:
            archive(filled)
        assert "hadoop-aws" in (caught.value.hint or "")
    assert {state for _, state in states(filled)} == {"PUBLISHED"}
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    assert len(archive(filled).summary["dropped"]) == 3


def test_a_lake_that_spark_cannot_read_is_refused_before_anything_leaves(
    filled: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.pipeline.lake.lake.Lake.url", lambda self, path: f"s3a://a-bucket/{path}")
    monkeypatch.setattr("jobmaster.pipeline.lake.lake.Lake.local", None)
    with pytest.raises(Refused, match="the lake is not taken from the master"):
        archive(filled)
    assert states(filled) == []


def test_a_dry_run_changes_nothing(filled: SeededCluster) -> None:
    from jobmaster.pipeline.steps.archive import archive

    outcome = archive(filled.run(dry_run=True), 2.0, keep=False)
    attached = filled.sql(lambda c: c.fetch("SELECT name FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo"))
    assert outcome.summary["to_leave"] == [row["name"] for row in attached[:3]], "three days are over"
    assert states(filled) == []
    assert not filled.lake.exists()


def _damage(path: Path) -> None:
    """Flip one byte in the middle; the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_file_that_changes_after_it_was_verified_is_noticed_and_its_range_is_exported_anew(
    filled: SeededCluster,
) -> None:
    archive(filled, keep=True)
    _damage(Path(files_of(filled)[0]))
    with pytest.raises(Refused, match=r"has changed since it was verified; job_day_[0-9]+ stays in the master"):
        archive(filled)
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    assert archive(filled).summary["archived_jobs"] == ROWS, "the damaged one once more"
    assert filled.value("SELECT count(*) FROM jobs") == 0


def _harmed(table: Any, harm: str) -> Any:
    """The rows of a file as another program might have written them."""
    import pyarrow as pa
    from pyarrow import compute as pc

    def instead(name: str, values: Any) -> Any:
        return table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)

    match harm:
        case "a row too few":
            return table.slice(1)
        case "a row twice":
            return pa.concat_tables([table.slice(1), table.slice(1, 1)])
        case "another value":
            return instead("ran_us", pc.add(table["ran_us"], 1))
        case "two rows have swapped a value":
            first, second, *others = table["args"].to_pylist()
            return instead("args", pa.chunked_array([[second, first, *others]]))
        case "an empty text for none":
            return instead("error", pc.fill_null(table["error"], ""))
        case "another time of creation":
            return instead("created_at", table["changed_at"])
        case _:
            return instead("started_at", pa.nulls(len(table), table.schema.field("started_at").type))


@pytest.mark.parametrize(
    "harm",
    [
        "a row too few",
        "two rows have swapped a value",
        *(
            pytest.param(harm, marks=pytest.mark.long)
            for harm in (
                "a row twice",
                "another value",
                "an empty text for none",
                "another time of creation",
                "no time of start",
            )
        ),
    ],
)
def test_files_that_do_not_hold_what_the_tables_hold_are_never_published(
    filled: SeededCluster, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A file holds something else than it was given: once, and then for good."""
    from pyarrow import parquet

    from jobmaster.pipeline.lake import parquet_export

    real = parquet_export.write

    def harming(spark: SparkSession, parts: Any, lake: Any, run_id: str) -> None:
        real(spark, parts, lake, run_id)
        path = next((filled.lake / parquet_export.folder_of("jobs", run_id)).rglob("*.parquet"))
        parquet.write_table(_harmed(parquet.ParquetFile(path).read(), harm), path)

    monkeypatch.setattr(parquet_export, "write", harming)
    with pytest.raises(Refused, match="do not hold what its tables hold"):
        archive(filled)
    assert "DROPPED" not in {state for _, state in states(filled)}
    assert filled.value("SELECT count(*) FROM jobs") == 2 * ROWS
    monkeypatch.setattr(parquet_export, "write", real)
    assert archive(filled).rows == 2 * ROWS


@pytest.mark.parametrize("harm", [pytest.param("torn", marks=pytest.mark.long), "a byte"])
def test_a_file_that_is_damaged_before_it_is_verified_is_written_again(
    filled: SeededCluster, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """As after a power cut: the state EXPORTED is committed, and the file is not all on the disk."""
    from jobmaster.pipeline.lake import parquet_export

    damaged: list[Path] = []
    real = parquet_export.write

    def damaging(spark: SparkSession, parts: Any, lake: Any, run_id: str) -> None:
        real(spark, parts, lake, run_id)
        for path in (filled.lake / parquet_export.folder_of("jobs", run_id)).rglob("*.parquet"):
            if len(damaged) < 2:
                damaged.append(path)
                if harm == "torn":
                    path.write_bytes(path.read_bytes()[:-100])
                else:
                    _damage(path)

    monkeypatch.setattr(parquet_export, "write", damaging)
    assert archive(filled).rows == 2 * ROWS
    assert len(damaged) == 2
    assert not {str(path) for path in damaged} & set(files_of(filled))


def test_what_a_task_that_was_repeated_has_left_is_no_part_of_the_run(
    filled: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first attempt wrote its file, and its answer was lost."""
    from jobmaster.pipeline.lake import parquet_export

    real = parquet_export.PartFiles.write
    real_write, runs = parquet_export.write, []

    def repeated(spark: SparkSession, parts: Any, lake: Any, run_id: str) -> None:
        first = parquet_export.PartFiles(lake, parts[0].dataset, run_id, "part-00000-lost.parquet")
        runs.extend(real(first, parquet_export.rows_of(parts[0])))
        real_write(spark, parts, lake, run_id)

    monkeypatch.setattr(parquet_export, "write", repeated)
    assert archive(filled).rows == 2 * ROWS
    assert runs
    assert not any((filled.lake / path).exists() for path in runs)


def test_jobs_of_several_days_lie_in_the_folders_of_their_days(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    import pyarrow as pa

    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.lake.parquet_export import PartFiles
    from jobmaster.pipeline.lake.schema import copied_schema, dataset_schema, with_derived_columns
    from jobmaster.pipeline.lake.verify import measure_file

    def job(day: int) -> dict[str, Any]:
        created = datetime(2026, 11, day, tzinfo=UTC)
        digits = f"{int(created.timestamp() * 1000):012x}"
        told = {"id": f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000", "state": "SUCCEEDED", "priority_level": 3}
        return dict.fromkeys(copied_schema("jobs").names) | told | {"changed_at": created, "ran_us": 1}

    batch = pa.RecordBatch.from_pylist([job(day) for day in (2, 1, 2)], schema=copied_schema("jobs"))
    lake = Lake(str(tmp_path))
    paths = PartFiles(lake, "jobs", "x", "part.parquet").write(iter([with_derived_columns(batch, "jobs")]))
    assert paths == [f"jobs/v1/run=x/day=2026-11-0{day}/part.parquet" for day in (1, 2)]
    assert [measure_file(lake, "jobs", path)[0] for path in paths] == [1, 2]
    assert dataset_schema("jobs").names[:3] == ["id", "state", "priority"]


def test_a_lake_of_a_newer_version_and_one_of_another_cluster_are_refused(filled: SeededCluster) -> None:
    filled.lake.mkdir()
    mark = filled.lake / "_lake.json"
    mark.write_text(json.dumps({"format": 2, "cluster": "x"}))
    with pytest.raises(Refused, match=r"was written by a newer version \(layout 2, ours is 1\)"):
        archive(filled)
    mark.write_text(json.dumps({"format": 1, "cluster": "x"}))
    with pytest.raises(Refused, match="belongs to another cluster"):
        archive(filled)
    assert states(filled) == []


def test_a_range_that_another_archiver_works_on_is_left_alone(filled: SeededCluster) -> None:
    import asyncio

    from jobmaster.master.history.archive import Archive

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
        assert outcome.summary["at_work_elsewhere"] == [name]
        assert name not in outcome.summary["dropped"]
        runner.run(second.close())
    assert archive(filled).summary["dropped"] == [name]
