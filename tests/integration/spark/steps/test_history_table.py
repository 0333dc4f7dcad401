"""The table ``history`` has every job once, wherever it lies; and what reads may be asked to spare: the primary, and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from benchmarks.support.synthetic_history import fill_day
from jobmaster.embedded import PostgresServer
from jobmaster.master.schema.migrate import migrate
from jobmaster.model.errors import InputError, Refused, Unavailable
from jobmaster.settings.model import ClusterSettings, MasterSettings
from tests.integration.postgres.fixture import SCHEMA
from tests.integration.spark.steps.conftest import SeededCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 300


def options_of(seeded: SeededCluster, **more: str) -> dict[str, str]:
    settings = seeded.settings
    return {"url": settings.master.dsn or "", "schema": settings.schema_name(), "table": "history", **more}


def reader_of(options: dict[str, str], *more: str) -> Any:
    """The source's own reader, as Spark has it: of the ids, and of more columns of text."""
    from pyspark.sql.types import StringType, StructType

    from jobmaster.pipeline.datasource.source import JobMasterSource

    schema = StructType().add("id", StringType())
    for name in more:
        schema = schema.add(name, StringType())
    return JobMasterSource(options).reader(schema)


def ids_of(reader: Any, parts: Any) -> list[str]:
    return [key for part in parts for batch in reader.read(part) for key in batch.column("id").to_pylist()]


def test_lake_and_master_are_one_table(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.history_frame import history_frame
    from jobmaster.pipeline.steps.archive import archive

    for day in (3, 2, 0):
        seeded.fill_days(day, rows=ROWS, rate=0.0 if day == 0 else 1.0)
    counts = "SELECT handler, state, count(*) AS count FROM jobs WHERE state IN ('FAILED', 'EXPIRED') GROUP BY 1, 2"
    expected = {tuple(row) for row in seeded.sql(lambda connection: connection.fetch(counts))}
    assert archive(seeded.run(), 2.0, keep=False).rows == 2 * ROWS
    assert seeded.spark is not None
    frame = seeded.spark.read.format("jobmaster").options(**options_of(seeded, states="FAILED,EXPIRED")).load()
    assert {tuple(row) for row in frame.groupBy("handler", "state").count().collect()} == expected
    reader = reader_of(options_of(seeded))
    ids = ids_of(reader, reader.partitions())
    assert (len(ids), len(set(ids))) == (3 * ROWS, 3 * ROWS)
    # Files of other days are not opened.
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    one = reader_of(
        options_of(seeded, since=(today - timedelta(days=2)).isoformat(), until=(today - timedelta(days=1)).isoformat())
    )
    days = {part.path.split("day=")[1][:10] for part in one.partitions() if hasattr(part, "path")}
    assert days == {(today - timedelta(days=2)).date().isoformat()}
    assert len(ids_of(one, one.partitions())) == ROWS
    whole = history_frame(seeded.spark, options_of(seeded))
    assert (whole.count(), whole.select("id").distinct().count()) == (3 * ROWS, 3 * ROWS)
    counted = whole.where("state IN ('FAILED', 'EXPIRED')").groupBy("handler", "state").count()
    assert {tuple(row) for row in counted.collect()} == expected
    one_day = options_of(
        seeded, since=(today - timedelta(days=2)).isoformat(), until=(today - timedelta(days=1)).isoformat()
    )
    young = history_frame(seeded.spark, {**one_day, "columns": "state", "handlers": "h0,h1,h2,h3,h4"})
    assert young.columns == ["state"]
    assert len(young.inputFiles()) == len(one_day_of(seeded, today - timedelta(days=2)))
    next(seeded.lake.glob("jobs/v1/*/*/*.parquet")).unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        ids_of(reader, reader.partitions())


def one_day_of(seeded: SeededCluster, day: datetime) -> list[Path]:
    return list(seeded.lake.glob(f"jobs/v1/*/day={day:%Y-%m-%d}/*.parquet"))


def test_a_range_that_leaves_the_master_while_a_query_runs_is_an_error_and_no_gap(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.history_frame import history_frame
    from jobmaster.pipeline.spark.errors import run_spark
    from jobmaster.pipeline.steps.archive import archive

    seeded.fill_days(3, rows=ROWS)
    reader = reader_of(options_of(seeded))
    parts = reader.partitions()
    assert seeded.spark is not None
    stale = history_frame(seeded.spark, options_of(seeded, columns="id"))
    with seeded.run().connection.snapshot() as snapshot:
        shared = reader_of(options_of(seeded, snapshot=snapshot))
        shared_parts = shared.partitions()
        archive(seeded.run(), 2.0, keep=False)
        with pytest.raises(Refused, match=r"job_day_\d+ has left the master while the query ran"):
            ids_of(shared, shared_parts)
    with pytest.raises(Refused, match=r"job_day_\d+ has left the master while the query ran"):
        ids_of(reader, parts)
    assert len(ids_of(reader, reader.partitions())) == ROWS
    with pytest.raises(Refused, match="has left the master since the DataFrame was made"):
        run_spark(stale.count)
    assert history_frame(seeded.spark, options_of(seeded, columns="id")).count() == ROWS


def test_a_read_that_takes_too_long_is_ended_and_says_by_what(seeded: SeededCluster) -> None:
    """Another session keeps the table locked. The wait counts, and the limit is below that of a wait for a lock."""
    seeded.fill_days(1, rows=10)
    parts = reader_of(options_of(seeded, table="jobs", numPartitions="1")).partitions()
    reader = reader_of(options_of(seeded, table="jobs", maxStatementSeconds="1"))

    async def locked(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        import asyncio

        async with connection.transaction():
            await connection.execute("LOCK TABLE job_detached IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Refused, match="for 1 s, the limit of maxStatementSeconds"):
                await asyncio.to_thread(lambda: ids_of(reader, parts))

    seeded.sql(locked)


def test_runs_read_from_a_standby_and_say_how_old_it_is(tmp_path: Path, server_root: Path) -> None:
    """The primary of the configuration is not there at all: whatever reads does without it."""
    from jobmaster.pipeline.context import PipelineContext
    from jobmaster.pipeline.steps.doctor import _reading
    from tests.integration.spark.datasource.test_streams import Stream

    folder = server_root / "standby"

    async def prepared(dsn: str) -> None:
        await migrate(dsn=dsn, schema=SCHEMA, cluster="test", settings=MasterSettings())
        connection = await asyncpg.connect(dsn, server_settings={"search_path": SCHEMA})
        await fill_day(connection, 0, ROWS, 0.0)
        await connection.close()

    import asyncio

    with PostgresServer(folder, durable=False) as server:
        asyncio.run(prepared(server.dsn))
    (data,) = {path.parent for path in folder.glob("*/PG_VERSION")}
    (data / "standby.signal").touch()
    nowhere = "postgresql://localhost:1/none"
    with PostgresServer(folder, durable=False) as server:
        given = {"url": nowhere, "readUrl": server.dsn, "schema": SCHEMA}
        reader = reader_of({**given, "table": "jobs"})
        assert len(ids_of(reader, reader.partitions())) == ROWS

        class OfStandby:
            options = given

        stream = Stream(OfStandby())  # type: ignore[arg-type]  # only its options are asked for
        assert len(stream.all()) == ROWS
        with pytest.raises(InputError, match="both readUrl and readDsnEnv"):
            reader_of({**given, "readDsnEnv": "HOME"})
        master = MasterSettings(dsn=nowhere, read_dsn=server.dsn, schema=SCHEMA)
        context = PipelineContext(ClusterSettings(cluster="test", master=master))
        assert context.reading_options()["readUrl"] == server.dsn
        assert "a standby, 0 s behind" in _reading(context)
        context.close()
