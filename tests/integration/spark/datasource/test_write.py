"""Rows become jobs once, or a reject with a reason; whatever is run twice."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobmaster.handlers import Handlers, Unique
from jobmaster.model.errors import Conflict, InputError, UnknownHandler
from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.integration.spark.datasource.test_read import failure

if TYPE_CHECKING:
    import pyarrow as pa

    from jobmaster.pipeline.datasource.writer import JobMasterWriter

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def counts(published: PublishedCluster) -> tuple[int, int]:
    """Rows, and rows as a held one should be."""
    held = "SELECT count(*) FROM job WHERE state = 'HELD' AND token = 1 AND bucket_id IS NULL AND due_at IS NOT NULL"
    return int(published.value("SELECT count(*) FROM job")), int(published.value(held))


def test_rows_become_held_jobs_and_again_nothing(published: PublishedCluster) -> None:
    frame = published.rows(3000, tasks=3).unionByName(published.rows(500))  # 500 keys come twice, in other tasks
    for run_id in ("first", "again"):
        published.write(frame, runId=run_id, chunkRows="400")
    assert counts(published) == (3000, 3000)
    runs = published.sql(
        lambda c: c.fetch("SELECT run_id, offered, inserted, rejected FROM pipeline_write ORDER BY began_at")
    )
    assert [tuple(run) for run in runs] == [("first", 3500, 3000, 0), ("again", 3500, 0, 0)]
    assert published.value("SELECT count(*) FROM pipeline_write_part") == 0
    row = published.sql(lambda c: c.fetchrow("SELECT * FROM jobs WHERE headers->>'key' = 'k7'"))
    assert (row["handler"], row["lane"], row["priority"]) == ("images.resize", "default", "medium")
    assert row["args"] == '{"path":"f7","width":7}'


def test_sql_inserts_with_the_options_of_the_statement(published: PublishedCluster) -> None:
    published.rows(20).createOrReplaceTempView("wanted")
    words = {**published.options, "handler": "images.resize", "batch": "sql"}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in words.items())
    published.spark.sql("CREATE TABLE orders (key string, args string) USING jobmaster")
    try:
        for _ in range(2):
            published.spark.sql(f"INSERT INTO orders WITH ({listed}) SELECT key, args FROM wanted")
        assert "a write needs a handler" in str(
            failure(lambda: published.spark.sql("INSERT INTO orders SELECT key, args FROM wanted"))
        )
    finally:
        published.spark.sql("DROP TABLE orders")
    assert counts(published) == (20, 20)


def test_another_batch_is_other_jobs(published: PublishedCluster) -> None:
    published.write(published.rows(10), batch="one")
    published.write(published.rows(10), batch="two")
    published.write(published.rows(10), batch="two", handler="images.resize")
    assert counts(published) == (20, 20)


def test_every_row_is_a_job_or_a_reject_with_its_reason(published: PublishedCluster, tmp_path: Path) -> None:
    rows = [
        ("good", '{"path":"a"}', None, None, None),
        ("due", '{"path":"a"}', "2031-01-31T12:00:00+01:00", "high", None),
        ("json", '{"path":', None, None, None),
        ("list", "[1]", None, None, None),
        ("type", '{"path":"a","width":"wide"}', None, None, None),
        ("missing", '{"width":1}', None, None, None),
        ("unknown", '{"path":"a","depth":1}', None, None, None),
        ("soon", '{"path":"a"}', "soon", None, None),
        ("zone", '{"path":"a"}', "2030-01-31T12:00:00", None, None),
        ("far", '{"path":"a"}', "2999-01-31T12:00:00Z", None, None),
        ("urgent", '{"path":"a"}', None, "urgent", None),
        ("lane", '{"path":"a"}', None, None, "payroll"),
        (None, '{"path":"a"}', None, None, None),
    ]
    frame = published.spark.createDataFrame(
        rows, "key string, args string, due_at string, priority string, lane string"
    )
    published.write(frame, rejects=str(tmp_path / "no"), runId="r")
    assert counts(published) == (2, 2)
    due = published.value("SELECT due_at FROM jobs WHERE headers->>'key' = 'due' AND priority = 'high'")
    assert due.isoformat() == "2031-01-31T11:00:00+00:00"
    rejects = {row["key"]: row["reason"] for row in published.spark.read.parquet(str(tmp_path / "no")).collect()}
    assert set(rejects) == {row[0] for row in rows} - {"good", "due"}
    for key, said in {
        "json": "no JSON", "list": "no JSON object", "type": "argument 'width': expected integer, got string",
        "missing": "missing argument 'path'", "unknown": "unknown argument 'depth'", "soon": "'soon' is no time",
        "zone": "no time zone", "far": "days ahead", "urgent": "'urgent' is no priority", "lane": "no agent serves lane",
        None: "the key is empty",
    }.items():  # fmt: skip
        assert said in rejects[key], key
    assert not list((tmp_path / "no").glob(".writing*"))
    assert published.value("SELECT rejected FROM pipeline_write") == 11


def test_without_a_place_for_rejects_the_first_one_is_the_error(published: PublishedCluster) -> None:
    frame = published.rows(10, tasks=1).unionByName(
        published.spark.createDataFrame([("x", "{}")], "key string, args string")
    )
    error = failure(lambda: published.write(frame))
    assert "row 'x'" in str(error)
    assert "missing argument 'path'" in str(error)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"handler": "images.resise"}, UnknownHandler, "images.resise"),
        ({"batch": ""}, InputError, "needs a name for its batch"),
        ({"lane": "payroll"}, InputError, "no agent serves lane"),
        ({"priority": "urgent"}, InputError, "urgent"),
        ({"dueAt": "soon"}, InputError, "option dueAt is no time"),
        ({"onDuplicate": "explode"}, InputError, "onDuplicate"),
        ({"colour": "red"}, InputError, "no option 'colour'"),
        ({"asOf": "2001-01-01", "batch": "old"}, Conflict, "has been retired"),
        ({"asOf": "2101-01-01", "batch": "new"}, InputError, "no partition yet"),
    ],
)
def test_a_wrong_write_is_refused_before_anything_is_written(
    published: PublishedCluster, options: dict[str, str], kind: type[Exception], said: str
) -> None:
    error = failure(lambda: published.write(published.rows(5), **options))
    assert type(error) is kind
    assert said in str(error)
    assert counts(published)[0] == 0


def test_a_wrong_schema_is_refused(published: PublishedCluster) -> None:
    for columns, said in {
        "id AS key, id AS colour": "column 'colour' means nothing",
        "to_json(struct(id AS path)) AS args": "needs a column key",
        "cast(id AS double) AS key": "column 'key' of a write is double",
    }.items():
        frame = published.spark.range(3).selectExpr(*columns.split(", "))
        assert said in str(failure(lambda frame=frame: published.write(frame)))
    overwrite = (
        published.rows(1).write.format("jobmaster").options(**published.options, handler="images.resize", batch="x")
    )
    assert "not overwritten" in str(failure(overwrite.mode("overwrite").save))


def test_arguments_may_be_a_struct_and_types_are_plain(published: PublishedCluster) -> None:
    from jobmaster.pipeline.datasource.rows.row_parser import column_values

    odd = published.spark.range(2).selectExpr(
        "named_struct('m', named_struct('m', map('x', id, 'y', null)), 'by', map(7, array(map(true, 1.50BD))),"
        " 'n', IF(id = 1, null, id), 'list', array(named_struct('n', IF(id = 1, null, id))), 'f', double('-infinity'),"
        " 'day', date'2030-01-31', 'data', X'00ff') AS args"
    )
    both = odd.selectExpr("args", "to_json(args) AS text").toArrow().combine_chunks()
    made = column_values(both["args"].combine_chunks(), "args")
    assert [json.loads(one) for one in made] == [json.loads(one) for one in both["text"].to_pylist()]
    frame = published.spark.range(3).selectExpr("id AS key", "struct(concat('p', id) AS path, id AS width) AS args")
    published.write(frame)
    assert published.value("SELECT args::text FROM jobs WHERE headers->>'key' = '2'") == '{"path":"p2","width":2}'


def test_duplicates_can_be_an_error(published: PublishedCluster) -> None:
    published.write(published.rows(10))
    assert "are there already" in str(failure(lambda: published.write(published.rows(10), onDuplicate="fail")))


def test_all_tasks_together_keep_a_rate_from_the_first_row_on(published: PublishedCluster) -> None:
    began = time.monotonic()
    published.write(published.rows(300, tasks=2), rowsPerSecond="100")
    assert (
        time.monotonic() - began > 2.5
    )  # the first chunk of a task is small, too: the last turn is 2.8 s after the first
    assert counts(published)[0] == 300


def local_writer(published: PublishedCluster, **options: str) -> JobMasterWriter:
    """A writer whose tasks run in this process."""
    from pyspark.sql.types import StringType, StructField, StructType

    from jobmaster.pipeline.datasource.write_options import write_plan
    from jobmaster.pipeline.datasource.writer import JobMasterWriter

    schema = StructType([StructField("key", StringType()), StructField("args", StringType())])
    return JobMasterWriter(
        write_plan({**published.options, "handler": "images.resize", "batch": "b", **options}, schema)
    )


def good_rows(first: int, beyond: int) -> pa.RecordBatch:
    import pyarrow as pa

    keys = [f"k{number}" for number in range(first, beyond)]
    return pa.record_batch({"key": keys, "args": ['{"path":"p"}'] * len(keys)})


@pytest.mark.parametrize("on_duplicate", [pytest.param("ignore", marks=pytest.mark.long), "fail"])
def test_a_task_that_ran_twice_is_counted_once(published: PublishedCluster, on_duplicate: str) -> None:
    """As after a kill behind the commit, and as two copies of a speculative task: its own rows are no duplicates."""
    writer = local_writer(published, runId="r", chunkRows="30", onDuplicate=on_duplicate)
    rows = good_rows(0, 100)

    def cut() -> Any:
        yield rows.slice(0, 60)
        raise InterruptedError("killed")

    with pytest.raises(InterruptedError):
        writer.write(cut())
    second = writer.write(iter([rows]))
    assert (second.offered, second.inserted) == (100, 40)
    third = writer.write(iter([rows]))
    writer.commit([third])
    assert published.value("SELECT inserted FROM pipeline_write") == 100
    writer.commit([third])
    assert published.value("SELECT inserted FROM pipeline_write") == 100
    if on_duplicate == "fail":
        again = local_writer(published, runId="s", chunkRows="30", onDuplicate="fail")
        with pytest.raises(Conflict, match="1 of 30 rows are there already"):
            again.write(iter([good_rows(99, 200)]))


def test_rows_that_are_there_are_left_out_wherever_they_are_in_a_chunk(published: PublishedCluster) -> None:
    """A sample of a chunk is looked for; a COPY of it meets the others. Afterwards chunks are copied again."""
    from jobmaster.pipeline.datasource.rows.row_parser import batch_id

    writer = local_writer(published, chunkRows="200")
    rows = good_rows(0, 600)
    first = sorted(range(200), key=lambda one: batch_id(writer.plan.rules.as_of_ms, "images.resize", f"k{one}"))
    unseen = first[1]
    assert writer.write(iter([rows.slice(unseen, 1)])).inserted == 1
    copies = "SELECT count(*) FROM (SELECT FROM job GROUP BY changed_at HAVING count(*) > 50) AS copied"
    assert writer.write(iter([rows])).inserted == 599
    assert counts(published) == (600, 600)
    assert published.value(copies) == 1, "the chunk after the one that was all new"
    assert writer.write(iter([rows])).inserted == 0


def test_copied_rows_are_due_when_they_say(published: PublishedCluster) -> None:
    frame = published.rows(40).selectExpr(
        "*", "IF(key LIKE '%7', timestamp'2031-01-31 12:00:00Z', timestamp'2021-01-31 12:00:00Z') AS due_at"
    )
    published.write(frame)
    due = """SELECT headers->>'key' LIKE '%7' AS later, count(*), min(due_at), max(abs(extract(epoch FROM due_at - now())))
             FROM jobs WHERE state = 'HELD' AND changed_at BETWEEN now() - interval '5 min' AND now() GROUP BY 1 ORDER BY 1"""
    now, later = published.sql(lambda c: c.fetch(due))
    assert (now["count"], later["count"]) == (36, 4)
    assert now["max"] < 300, "a time that has passed is at once"
    assert later["min"].isoformat() == "2031-01-31T12:00:00+00:00"


def test_the_tasks_of_a_write_share_a_bounded_number_of_connections(published: PublishedCluster) -> None:
    writer = local_writer(published, runId="r", chunkRows="20", maxConnections="1")
    most = [0]
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobmaster-spark'"
        " AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_stat_activity.pid AND l.locktype = 'advisory')"
    )

    def task(number: int) -> int:
        def rows() -> Any:
            for part in range(3):
                with ThreadPoolExecutor(1) as thread:  # this one has a loop that runs
                    most.append(thread.submit(published.value, count).result())
                yield good_rows(100 * number + 20 * part, 100 * number + 20 * part + 20)

        return writer.write(rows()).inserted

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(task, range(3))) == [60, 60, 60]
    assert max(most) == 1


def test_a_directory_for_rejects_that_a_machine_does_not_share_is_an_error_before_the_first_row(
    published: PublishedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the driver is not there where the task runs."""
    writer = local_writer(published, rejects=str(tmp_path / "no"))
    (tmp_path / "no").rename(tmp_path / "of the driver")
    with pytest.raises(InputError, match=r"is not the same one on .* as on the machine of the driver") as caught:
        writer.write(iter([good_rows(0, 10)]))
    assert "storage that every machine of the cluster shares" in (caught.value.hint or "")
    assert counts(published)[0] == 0
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="refused rows cannot be written to"):
        local_writer(published, rejects=str(tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    assert local_writer(published, rejects="here").plan.rejects == str(tmp_path / "here"), "executors work elsewhere"


def test_a_master_that_restarts_in_mid_write_is_waited_for(published: PublishedCluster) -> None:
    """The connection is cut by the server between two chunks; the chunk is sent again on a new one."""
    writer = local_writer(published, chunkRows="10")
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'jobmaster-spark'"

    def rows() -> Any:
        for part in range(4):
            if part:
                with ThreadPoolExecutor(1) as thread:  # this one has a loop that runs
                    assert thread.submit(published.value, cut).result() == 1
            yield good_rows(10 * part, 10 * part + 10)

    assert writer.write(rows()).inserted == 40


def test_jobs_that_failed_run_again_as_new_ones(published: PublishedCluster) -> None:
    from jobmaster.pipeline.steps.submit import replay

    published.write(published.rows(6))
    published.value("UPDATE job SET state = 'FAILED', bucket_id = gen_random_uuid(), bucket_epoch = 1 WHERE true")
    first = replay(published.run(), {"states": "FAILED"}, "after", {})
    second = replay(published.run(), {"states": "FAILED"}, "after", {})
    assert (first.summary["inserted"], second.summary["inserted"]) == (6, 0)
    missing = """SELECT count(*) FROM jobs new JOIN jobs old ON new.headers->'metadata'->>'replay_of' = old.id::text
                 WHERE old.state = 'FAILED' AND new.state = 'HELD' AND new.args::text = old.args::text"""
    assert published.value(missing) == 6
    with pytest.raises(InputError):
        replay(published.run(), {"states": "SUCCEEDED"}, "after", {})


def test_rows_follow_the_unique_key_that_their_handler_declares(published: PublishedCluster) -> None:
    """Tasks that run side by side have rows of the same customers."""
    handlers = Handlers()
    handlers.add(_sync, name="sync", unique=Unique(args=["customer"]))
    handlers.add(_sync, name="sync.new", unique=Unique(args=["customer"], on_conflict="replace"))
    handlers.add(_sync, name="sync.one", unique=Unique(args=["customer"], on_conflict="reject"))
    insert = "INSERT INTO handler VALUES ($1, $2, 'x', gen_random_uuid())"
    specs = [(each.name, msgspec.json.encode(each.spec).decode()) for each in handlers]
    published.sql(lambda c: c.executemany(insert, specs))
    frame = published.spark.range(0, 40, 1, 4).selectExpr(
        "concat('k', id) AS key", "to_json(struct(id % 5 AS customer, id AS change)) AS args"
    )

    def found(handler: str) -> dict[str, int]:
        query = "SELECT state::text, count(*) FROM job WHERE handler = $1 GROUP BY 1"
        return {row["state"]: row["count"] for row in published.sql(lambda c: c.fetch(query, handler))}

    def written(run_id: str) -> tuple[int, ...]:
        query = "SELECT offered, inserted, rejected FROM pipeline_write WHERE run_id = $1"
        return tuple(published.sql(lambda c: c.fetchrow(query, run_id)))

    published.write(frame, handler="sync", runId="first", chunkRows="4")
    published.write(frame, handler="sync", runId="again", chunkRows="4")
    published.write(frame, handler="sync.one", runId="one")
    assert (found("sync"), found("sync.one")) == ({"HELD": 5}, {"HELD": 5})
    assert (written("first"), written("again"), written("one")) == ((40, 5, 0), (40, 0, 0), (40, 5, 0))
    published.write(frame, handler="sync.new")
    assert found("sync.new") == {"HELD": 5, "CANCELLED": 35}
    end = """UPDATE job SET state = 'CANCELLED'
             WHERE id = (SELECT job_id FROM unique_key WHERE handler = 'sync' ORDER BY key LIMIT 1)"""
    published.sql(lambda c: c.execute(end))
    published.write(frame, handler="sync", batch="later")
    assert found("sync") == {"HELD": 5, "CANCELLED": 1}


async def _sync(customer: int, change: int) -> None: ...
