"""``submit`` and ``stream`` on what people really have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from jobmaster.model.errors import InputError, InvalidArguments, JobMasterError, Refused, UnknownHandler
from jobmaster.pipeline.steps.backfills import SubmitRequest
from jobmaster.pipeline.steps.inputs import SourceSpec
from jobmaster.pipeline.steps.mapping import RowMapping
from jobmaster.pipeline.steps.submit import submit
from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROOT = Path(__file__).parents[4]


def order(source: SourceSpec, *keys: str, **given: object) -> SubmitRequest:
    wanted = RowMapping(keys, **given)  # type: ignore[arg-type]  # as the test says
    return SubmitRequest(source, "images.resize", wanted, None, {})


def test_csv_with_bad_rows_is_accounted_for_row_by_row(published: PublishedCluster, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text('path,width,due\na,1,2030-01-31T12:00:00Z\n"b,""x""\ny",,\nc,wide,\nd,,soon\na,2,\n')
    wanted = order(SourceSpec(str(file)), "path", due="due")
    dry = submit(published.run(dry_run=True), wanted)
    assert (dry.rows, dry.summary["rejected"], published.value("SELECT count(*) FROM job")) == (5, 2, 0)
    assert published.value("SELECT count(*) FROM pipeline_batch") == 0
    done = submit(published.run(), wanted)
    assert [done.summary[name] for name in ("offered", "inserted", "duplicates", "rejected")] == [5, 2, 1, 2]
    assert sorted(done.summary["reasons"]) == [
        "argument 'width': expected integer, got string",
        "due_at 'soon' is no time; write 2030-01-31T12:00:00Z",
    ]
    again = submit(published.run(), wanted)
    assert [again.summary[name] for name in ("offered", "inserted", "duplicates", "rejected")] == [5, 0, 3, 2]
    assert sum(again.summary["reasons"].values()) == 2
    args = published.sql(lambda c: c.fetch("SELECT args::text AS args FROM jobs ORDER BY args::text"))
    assert [json.loads(row["args"]) for row in args] == [{"path": "a", "width": 1}, {"path": 'b,"x"\ny'}]


def test_json_with_a_broken_line_and_expressions(published: PublishedCluster, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": 1, "name": "a", "size": 1.9}\n{"id": 2, "name": \n{"id": 3, "name": "c", "size": 3}\n')
    arguments = {"path": "concat('img/', name)", "width": "cast(size AS int)"}
    done = submit(published.run(), order(SourceSpec(str(file)), "*", arguments=arguments))
    assert (done.summary["inserted"], done.summary["rejected"]) == (2, 1)
    assert "no JSON" in next(iter(done.summary["reasons"]))
    assert published.value("SELECT args::text FROM jobs WHERE args->>'path' = 'img/a'") == '{"path":"img/a","width":1}'


def test_a_file_of_other_types_is_refused_row_by_row_and_one_without_a_common_schema_at_once(
    published: PublishedCluster, tmp_path: Path
) -> None:
    rows = published.spark.range(0, 1000, 1, 1)
    floats, numbers = str(tmp_path / "floats.parquet"), str(tmp_path / "numbers.parquet")
    rows.selectExpr("concat('p', id) AS path", "IF(id % 100 = 7, id + 0.5D, id) AS width").write.parquet(floats)
    done = submit(published.run(), order(SourceSpec(floats), "path")).summary
    assert [done[name] for name in ("offered", "inserted", "rejected")] == [1000, 990, 10]
    assert list(done["reasons"].values()) == [10]
    rows.selectExpr("id AS path", "1 AS width").limit(5).write.parquet(numbers)
    done = submit(published.run(), order(SourceSpec(numbers), "path")).summary
    assert ([done[name] for name in ("inserted", "rejected")], done["reasons"]) == (
        [0, 5],
        {"argument 'path': expected string, got integer": 5},
    )
    with pytest.raises(
        JobMasterError, match=r"^Spark: \[FAILED_READ_FILE.*numbers.parquet/.* Expected Spark type string, actual"
    ):
        submit(published.run(), order(SourceSpec(f"{tmp_path}/*.parquet"), "path"))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no parquet at all")
    with pytest.raises(JobMasterError) as failed:
        submit(published.run(), order(SourceSpec(str(broken)), "path"))
    assert ("broken.parquet" in str(failed.value), "Traceback" in str(failed.value)) == (True, False)


def test_a_table_of_another_database_and_a_query_over_files(published: PublishedCluster, tmp_path: Path) -> None:
    async def make(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await connection.execute(
            "CREATE TABLE pictures AS SELECT 'p' || n AS path, n AS width FROM generate_series(1, 7) n"
        )

    published.sql(make)
    dsn = published.options["dsn"]
    table = f"{published.options['schema']}.pictures"
    assert submit(published.run(), order(SourceSpec(dsn, table=table), "path")).summary["inserted"] == 7
    folder = str(tmp_path / "p.parquet")
    published.rows(5).selectExpr("key AS path", "1 AS width").write.parquet(folder)
    query = SourceSpec(folder, sql="SELECT * FROM source WHERE path < 'k3'")
    assert submit(published.run(), order(query, "path")).summary["inserted"] == 3


def test_wrong_orders_are_one_sentence_each(published: PublishedCluster, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("name,width\na,1\n")
    for wrong, kind, said in (
        (order(SourceSpec(str(tmp_path / "no.csv")), "name"), InputError, "no.csv cannot be read"),
        (order(SourceSpec(str(tmp_path / "in")), "name"), InputError, "has no known format"),
        (order(SourceSpec(str(file)), "name"), InvalidArguments, "needs argument 'path'"),
        (order(SourceSpec(str(file)), "nam", arguments={"path": "name"}), InputError, "no column 'nam' for the key"),
        (order(SourceSpec(str(file)), "name", arguments={"path": "nam"}), InputError, "does not fit"),
        (order(SourceSpec(str(file)), "name", arguments={"pfad": "name"}), InvalidArguments, "no argument 'pfad'"),
        (order(SourceSpec(str(file)), "name")._replace(handler="images.resise"), UnknownHandler, "images.resise"),
    ):
        with pytest.raises(kind) as caught:
            submit(published.run(), wrong)
        assert said in str(caught.value)


def test_a_stream_passes_over_nothing_that_commits_late(published: PublishedCluster) -> None:
    """Two transactions get their numbers in one order and commit in the other."""
    from jobmaster.pipeline.steps.stream import folder_of, stream

    def copied() -> int:
        return stream(published.run(), "jobs", None, 100_000, "earliest").rows

    insert = """INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, waited_us, ran_us, args)
                VALUES (uuid_floor(clock_timestamp()), 'SUCCEEDED', 3, 'default', $1, 1, gen_random_uuid(), 1, 0, 0, '{}')"""
    published.ended(50)
    assert copied() == 50
    assert copied() == 0

    async def late(connection: asyncpg.Connection[asyncpg.Record]) -> list[int]:
        import asyncio

        counts = []
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(insert, "first to begin")
        await asyncio.to_thread(published.sql, lambda other: other.execute(insert, "first to commit"))
        counts.append(await asyncio.to_thread(copied))
        await transaction.commit()
        counts.append(await asyncio.to_thread(copied))
        return counts

    assert published.sql(late) == [0, 2]
    files = published.spark.read.parquet(str(published.lake / folder_of("jobs")))
    assert (files.count(), files.select("id").distinct().count()) == (52, 52)


def test_a_stream_that_has_missed_a_range_ends_with_one_sentence(published: PublishedCluster) -> None:
    """Its checkpoint is from before, the range was dropped since, and the trigger is that of the command."""
    from jobmaster.pipeline.steps.stream import stream
    from tests.integration.spark.datasource.test_streams import archived, drop, old

    old(published, 10)
    assert stream(published.run(), "jobs", None, 100_000, "earliest").rows == 10
    old(published, 5)
    archived(published, drop)
    with pytest.raises(
        Refused, match=r"^job_day_\d+ left the master before this stream had read all of it \(read what"
    ):
        stream(published.run(), "jobs", None, 100_000, "earliest")


def test_a_stream_starts_again_when_its_python_was_too_slow_for_spark(
    published: PublishedCluster, tmp_path: Path
) -> None:
    """Spark waits ten seconds for the Python of a streaming source: the first one here never calls back."""
    from jobmaster.pipeline.datasource.source import JobMasterSource
    from jobmaster.pipeline.steps.stream import stream

    program, calls = tmp_path / "python", tmp_path / "calls"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$2" in *python_streaming_source_runner) echo >>{calls}; [ $(wc -l <{calls}) -gt 1 ] || exit 0 ;; esac\n'
        f'exec "{os.environ["PYSPARK_PYTHON"]}" "$@"\n'
    )
    program.chmod(0o755)
    published.ended(40)
    context = published.spark.sparkContext
    usual, context.pythonExec = context.pythonExec, str(program)
    try:
        published.spark.dataSource.register(JobMasterSource)
        assert stream(published.run(), "jobs", None, 100_000, "earliest").rows == 40
    finally:
        context.pythonExec = usual
        published.spark.dataSource.register(JobMasterSource)
    starts = calls.read_text().count("\n")
    assert starts >= 2, "and more of them on a machine that is as slow as that"
    assert sum("started again" in line for line in published.said) == starts - 1


def test_a_stream_admits_about_as_many_rows_as_its_limit(published: PublishedCluster) -> None:
    from jobmaster.pipeline.steps.stream import stream

    for _ in range(5):
        published.ended(40)
    done = stream(published.run(), "jobs", None, 90, "earliest")
    assert (done.rows, done.summary["batches"]) == (200, 3)  # whole transactions: two, two, one


def test_a_checkpoint_of_another_server_is_refused(published: PublishedCluster) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import StructType

    from jobmaster.pipeline.datasource.read_options import read_options, read_plan
    from jobmaster.pipeline.datasource.source import JobMasterSource
    from jobmaster.pipeline.datasource.stream_reader import JobMasterStreamReader

    stream = JobMasterStreamReader(read_plan(read_options(published.options), StructType()))
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable())["xid"] >= start["xid"]
    with pytest.raises(Refused):
        stream.latestOffset({**start, "system": "1"}, ReadAllAvailable())
    with pytest.raises(InputError):
        JobMasterSource({**published.options, "table": "buckets"}).streamReader(StructType())


@pytest.mark.long
def test_the_example_runs(published: PublishedCluster, tmp_path: Path) -> None:
    """As a user runs it: its own process, its own session; twice, and the second time adds nothing."""
    published.write(published.rows(4))
    published.value("UPDATE job SET state = 'FAILED', bucket_id = gen_random_uuid(), bucket_epoch = 1 WHERE true")
    env = {
        **os.environ,
        "MASTER_DSN": published.options["dsn"],
        # The example finds the schema by the name of the cluster.
        "JOBMASTER_CLUSTER": published.settings.schema_name().removeprefix("jobmaster_"),
        "REJECTS": str(tmp_path / "no"),
        # Its few rows lie in one or two of the two hundred partitions that Spark makes by itself.
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
        + os.environ["PYSPARK_SUBMIT_ARGS"],
    }
    example = ROOT / "examples" / "spark" / "failures_by_hour.py"
    done = subprocess.run(
        [sys.executable, str(example)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|FAILED|4" in done.stdout.replace(" ", "")
    assert published.value("SELECT count(*) FROM job WHERE state = 'HELD'") == 4
