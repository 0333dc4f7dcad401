"""Reading a cluster through Spark: whole, consistent, and never less than there is."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from benchmarks.support.synthetic_history import lower_floor
from jobmaster.model.errors import InputError, JobMasterError, Refused, Unavailable
from tests.integration.spark.datasource.conftest import PublishedCluster, published_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from jobmaster.embedded import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def failure(work: Any) -> JobMasterError:
    """The error that a user gets."""
    from jobmaster.pipeline.spark.errors import run_spark

    with pytest.raises(JobMasterError) as caught:
        run_spark(work)
    return caught.value


def test_all_rows_and_columns_come_as_the_view_has_them(published: PublishedCluster) -> None:
    published.ended(500)
    published.ended(20, "FAILED")
    published.ended(5, "EXPIRED")
    published.write(published.rows(5))
    rows = {row["id"]: row for row in published.read(numPartitions="4").collect()}
    views = published.sql(lambda connection: connection.fetch("SELECT * FROM jobs"))
    assert len(rows) == len(views) == 530
    for view in views:
        row = rows[str(view["id"])].asDict()
        assert {
            name: row[name] for name in ("state", "priority", "handler", "waited_us", "ran_us", "args", "error")
        } == {name: view[name] for name in ("state", "priority", "handler", "waited_us", "ran_us", "args", "error")}
        for name in ("created_at", "due_at", "started_at", "ended_at", "changed_at"):
            moment = view[name]
            assert row[name] == (None if moment is None else moment.astimezone().replace(tzinfo=None)), name


@pytest.mark.parametrize(
    "columns", ["started_at", "ended_at,state", "priority", "created_at,ran_us", "priority,started_at,state"]
)
def test_columns_that_follow_from_others_come_without_them(published: PublishedCluster, columns: str) -> None:
    published.ended(30)
    published.ended(5, "CANCELLED")
    found = published.read(columns=columns).collect()
    views = published.sql(lambda connection: connection.fetch(f"SELECT {columns} FROM jobs"))

    def plain(value: Any) -> Any:
        return value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value

    assert sorted(map(repr, map(tuple, found))) == sorted(repr(tuple(map(plain, view))) for view in views)


def test_a_scan_is_one_process_of_the_server(published: PublishedCluster) -> None:
    """The planner would give the scan of a large range two workers, also where each task has a range of its own."""
    from jobmaster.master.history.export import open_scan
    from jobmaster.pipeline.datasource.cluster_ref import cluster_ref_of

    published.ended(50)

    async def plan() -> str:
        connection = await open_scan(cluster_ref_of(published.options).reading_factory())
        try:
            for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
                await connection.execute(f"SET LOCAL {name} = 0")
            return "\n".join(row[0] for row in await connection.fetch("EXPLAIN SELECT * FROM jobs"))
        finally:
            connection.terminate()

    assert "Worker" not in asyncio.run(plan())


def test_ranges_cover_every_row_once_and_are_about_even(published: PublishedCluster) -> None:
    from pyspark.sql import functions as F

    published.ended(4000)
    parts = published.read(numPartitions="4", columns="id").groupBy(F.spark_partition_id()).count().collect()
    assert sum(part["count"] for part in parts) == 4000
    assert len(parts) == 4
    assert max(part["count"] for part in parts) < 2000


def test_ranges_of_minutes_and_of_what_has_left_the_table_are_about_even_too(published: PublishedCluster) -> None:
    """A detached range is in no partition of the table of jobs; minutes are few pages of the whole."""
    from jobmaster.master.history.export import bounds, open_scan
    from jobmaster.pipeline.datasource.cluster_ref import cluster_ref_of
    from jobmaster.pipeline.datasource.selection import HIGHEST, floor_id
    from tests.integration.spark.datasource.test_streams import archived, old, retire

    def sizes(low: UUID, pages: int) -> list[int]:
        async def look() -> list[UUID]:
            connection = await open_scan(cluster_ref_of(published.options).connection_factory())
            try:
                return await bounds(connection, low, HIGHEST, 4, pages)
            finally:
                connection.terminate()

        cuts = asyncio.run(look())
        query = "SELECT count(*) FROM jobs WHERE id >= $1 AND id < $2"
        return [published.value(query, *pair) for pair in pairwise([low, *cuts, HIGHEST])]

    published.sql(lambda connection: lower_floor(connection, 3))
    old(published, 2000)
    archived(published, retire)
    assert published.value("SELECT count(*) FROM job") == 0
    assert [size > 300 for size in sizes(floor_id(datetime.now(UTC) - timedelta(days=3)), 400)] == [True] * 4
    published.ended(4000)
    assert [size > 15 for size in sizes(floor_id(datetime.now(UTC) - timedelta(seconds=200)), 8)] == [True] * 4


def test_choices_go_into_the_statement(published: PublishedCluster) -> None:
    published.ended(400)
    published.ended(40, "FAILED")
    assert published.read(states="failed").count() == 40
    assert published.read(states="FAILED,SUCCEEDED", handlers="h1,h2").count() == 220
    assert published.read(priorities="critical", columns="priority").distinct().collect()[0][0] == "critical"
    half = (datetime.now(UTC) - timedelta(seconds=200)).isoformat()
    late, early = published.read(since=half).count(), published.read(until=half).count()
    assert 0 < late < 440
    assert late + early == 440
    assert published.read(until="2000-01-01").count() == 0


def test_a_schema_of_the_users_own_reads_these_columns_only(published: PublishedCluster) -> None:
    published.ended(10)
    reader = published.spark.read.format("jobmaster").options(**published.options)
    assert reader.schema("handler string, created_at timestamp").load().count() == 10
    wrong = failure(lambda: reader.schema("handler int").load().collect())
    assert "column 'handler' of table 'jobs' is string" in str(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tabel": "jobs"}, "no option 'tabel'"),
        ({"table": "job"}, "no table 'job'"),
        ({"columns": "id,colour"}, "no column 'colour'"),
        ({"since": "soon"}, "option since is no time"),
        ({"priorities": "urgent"}, "'urgent' is none"),
        ({"numPartitions": "many"}, "option numPartitions is 'many'"),
        ({"table": "attempts", "handlers": "x"}, "cannot be chosen from by 'handlers'"),
        ({"pushdown": "true"}, "no longer has option 'pushdown'"),
        ({"dsn": "postgresql://nobody@127.0.0.1:1/x"}, "cannot be reached"),
        ({"schema": "nowhere"}, "does not fit this program"),
    ],
)
def test_a_wrong_option_is_one_sentence(published: PublishedCluster, options: dict[str, str], said: str) -> None:
    given = {**published.options, **options}
    error = failure(lambda: published.spark.read.format("jobmaster").options(**given).load().collect())
    assert said in str(error)
    assert "Traceback" not in str(error)


def test_every_table_can_be_read(published: PublishedCluster) -> None:
    published.ended(5)
    assert published.read("ledger").count() == 5
    for table in ("attempts", "buckets", "events"):
        assert published.read(table).collect() == []


def test_all_tasks_see_one_state(published: PublishedCluster) -> None:
    published.ended(300)
    run = published.run()
    with run.snapshot() as name:
        frame = published.read(numPartitions="3", snapshot=name)
        published.ended(300)
        assert frame.count() == 300
        assert published.read(numPartitions="3").count() == 600
    error = failure(lambda: published.read(numPartitions="3", snapshot=name).collect())
    assert "the snapshot is gone" in str(error)


def test_each_query_of_one_dataframe_has_its_own_filter(published: PublishedCluster) -> None:
    """With push-down of filters Spark 4.3 gives those of the first query to the second one, and to both halves of a union."""
    published.ended(40)
    published.ended(4, "FAILED")
    published.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = published.read(columns="handler,state", numPartitions="1")
        assert frame.where("state = 'FAILED'").count() == 4
        assert frame.count() == 44
        assert frame.where("handler = 'h1'").unionAll(frame.where("handler = 'h2'")).count() == 22
    finally:
        published.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_of_sql(published: PublishedCluster) -> None:
    published.ended(30)
    listed = ", ".join(f"{name} '{value}'" for name, value in published.options.items())
    published.spark.sql(f"CREATE TABLE history USING jobmaster OPTIONS ({listed}, handlers 'h1')")
    try:
        assert published.spark.sql("SELECT count(*) FROM history").collect()[0][0] == 8
    finally:
        published.spark.sql("DROP TABLE history")
    published.spark.sql(f"CREATE TEMPORARY VIEW lately USING jobmaster OPTIONS ({listed}, handlers 'h2')")
    assert published.spark.sql("SELECT count(*) FROM lately").collect()[0][0] == 8
    secret = "CREATE TABLE told USING jobmaster OPTIONS (url 'postgresql://u:secret@h/d')"
    assert "would keep the password" in str(failure(lambda: published.spark.sql(secret)))


def test_a_server_that_goes_away_in_the_middle_is_an_error_not_an_end(
    spark: object, new_postgres: Any, cluster_name: str, tmp_path: Path
) -> None:
    """A COPY that just ends would look like the end of the data."""
    from jobmaster.pipeline.datasource.cluster_ref import cluster_ref_of
    from jobmaster.pipeline.datasource.range_scan import RangeScan
    from jobmaster.pipeline.datasource.selection import HIGHEST, LOWEST, Selection

    server: PostgresServer = new_postgres()
    published = published_cluster(server.dsn, cluster_name, tmp_path)
    published.ended(20_000)
    batches = RangeScan(cluster_ref_of(published.options), Selection("jobs", ("id", "args")), 10_000).batches(
        LOWEST, HIGHEST
    )
    assert next(batches).num_rows > 0
    server.kill()
    with pytest.raises(Unavailable):
        list(batches)
    server.start()
    again = RangeScan(cluster_ref_of(published.options), Selection("jobs", ("id",)), 10_000).batches(LOWEST, HIGHEST)
    assert sum(batch.num_rows for batch in again) == 20_000


def test_nothing_of_a_reader_that_stops_early_stays_connected(published: PublishedCluster) -> None:
    from jobmaster.pipeline.datasource.cluster_ref import cluster_ref_of
    from jobmaster.pipeline.datasource.range_scan import RangeScan
    from jobmaster.pipeline.datasource.selection import HIGHEST, LOWEST, Selection

    published.ended(20_000)
    batches = RangeScan(cluster_ref_of(published.options), Selection("jobs", ("id",)), 1000).batches(LOWEST, HIGHEST)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobmaster-spark' AND state = 'active'"
    for _ in range(50):
        if published.value(count) == 0:
            return
    raise AssertionError("a COPY goes on without a reader")


def test_another_postgresql_without_jdbc(published: PublishedCluster) -> None:
    async def make(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await connection.execute("CREATE TABLE orders (n int, paid boolean, at timestamptz, note text, price numeric)")
        await connection.execute(
            "INSERT INTO orders VALUES (1, true, '2030-01-01T00:00Z', 'a\nb', 1.50), (2, null, null, '', null)"
        )

    published.sql(make)
    reader = published.spark.read.format("jobmaster_postgres").option("dsn", published.options["dsn"])
    table = f"{published.options['schema']}.orders"
    rows = sorted(reader.option("dbtable", table).load().collect())
    assert [tuple(row)[:2] + tuple(row)[3:] for row in rows] == [(1, True, "a\nb", "1.50"), (2, None, "", None)]
    query = published.spark.read.format("jobmaster_postgres").options(dsn=published.options["dsn"], query="SELEC 1")
    assert "does not take the query" in str(failure(query.load))


def test_options_find_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobmaster.pipeline.datasource.cluster_ref import cluster_ref_of

    monkeypatch.setitem(os.environ, "SOME_DSN", "postgresql://u:secret@h/d")
    place = cluster_ref_of({"dsnEnv": "SOME_DSN", "cluster": "pay-roll"})
    assert (place.dsn, place.schema) == ("postgresql://u:secret@h/d", "jobmaster_pay_roll")
    assert "secret" not in repr(place)
    with pytest.raises(InputError):
        cluster_ref_of({"dsnEnv": "SOME_DSN", "dsn": "postgresql://h/d"})
    with pytest.raises(InputError):
        cluster_ref_of({"dsnEnv": "NO_SUCH_DSN"})
    assert Refused.exit_code == 77
