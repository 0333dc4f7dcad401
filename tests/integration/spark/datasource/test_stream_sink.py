"""A streaming query writes each row as one job, whatever is killed, and its progress shows what a stream lags behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobmaster.model.errors import Conflict, InputError
from jobmaster.pipeline.spark.errors import error_of_spark
from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.integration.spark.datasource.test_streams import Stream
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.spark]
_SCHEMA = "key string, args string"


class Query:
    """A streaming query over a directory of JSON files."""

    def __init__(self, published: PublishedCluster, where: Path, **options: str) -> None:
        self._published = published
        self._options = {"handler": "images.resize", "rejects": str(where / "rejects"), **options}
        self.source, self.checkpoint = where / "in", where / "checkpoint"
        self.source.mkdir()

    def add(self, name: str, keys: Iterator[str] | list[str], *, width: object = 1) -> None:
        lines = [json.dumps({"key": key, "args": json.dumps({"path": key, "width": width})}) for key in keys]
        new = self.source / f".{name}"
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.source / f"{name}.json")

    def run(self) -> Any:
        """Until everything is written; returns the query."""
        rows = self._published.spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", "1").json(str(self.source))
        writer = rows.writeStream.format("jobmaster").options(**self._published.options, **self._options)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination(PATIENCE_SECONDS)
        finally:
            query.stop()
        return query

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died when the jobs were in and Spark had not recorded it: the micro-batch runs again."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def test_each_row_of_a_stream_is_one_job_also_when_a_micro_batch_is_repeated(
    published: PublishedCluster, tmp_path: Path
) -> None:
    query = Query(published, tmp_path)
    query.add("a", [f"a{n}" for n in range(30)])
    query.run()
    query.add("b", [f"b{n}" for n in range(20)])
    query.add("c", ["wrong"], width="wide")
    query.run()
    assert published.value("SELECT count(*) FROM job") == 50
    runs = "SELECT array_agg((offered, inserted, rejected)::text) FROM pipeline_write"
    assert published.value(runs) == ["(1,0,1)"], "of the latest micro-batch"
    query.forget_commit(2)
    query.run()
    assert published.value("SELECT count(*) FROM job") == 50
    assert published.spark.read.parquet(str(tmp_path / "rejects")).count() == 1
    # One that was cut off in the middle: some of its jobs are in, and nothing has recorded its end.
    query.forget_commit(2)
    query.add("d", [f"d{n}" for n in range(10)])
    query.run()
    published.value("DELETE FROM job WHERE id IN (SELECT id FROM job ORDER BY id DESC LIMIT 4)")
    published.value("UPDATE pipeline_write SET ended_at = NULL, offered = NULL, inserted = NULL")
    query.forget_commit(3)
    query.run()
    assert published.value("SELECT count(*) FROM job") == 60
    assert published.value("SELECT count(*) FROM pipeline_batch") == 1, "one row a query, however many micro-batches"


def test_rows_that_an_earlier_micro_batch_has_brought_are_left_out_if_the_stream_remembers(
    published: PublishedCluster, tmp_path: Path
) -> None:
    query = Query(published, tmp_path, remember="pictures")
    query.add("a", ["x", "y"])
    query.add("b", ["y", "z"])
    query.run()
    assert published.value("SELECT count(*) FROM job") == 3


def test_a_second_query_on_a_copy_of_the_checkpoint_adds_nothing(published: PublishedCluster, tmp_path: Path) -> None:
    query = Query(published, tmp_path)
    query.add("a", ["a"])
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    query.add("b", ["b"])
    query.add("c", ["c"])
    query.run()
    query.checkpoint = tmp_path / "copy"
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        query.run()
    error = error_of_spark(caught.value)
    assert isinstance(error, Conflict)
    assert "micro-batch 1 of stream" in str(error)
    assert "is over: number 2 has begun" in str(error)
    assert published.value("SELECT count(*) FROM job") == 3


def test_wrong_options_of_a_stream_are_one_sentence_each(published: PublishedCluster) -> None:
    from pyspark.sql.types import StringType, StructType

    from jobmaster.pipeline.datasource.source import JobMasterSource

    schema = StructType().add("key", StringType())
    given = {**published.options, "handler": "images.resize"}
    for options, overwrite, said in (
        ({**given, "batch": "b"}, False, "option batch does not go with a stream"),
        ({**given, "onDuplicate": "fail"}, False, "option onDuplicate does not go with a stream"),
        (given, True, "jobs are not overwritten"),
        (published.options, False, "a write needs a handler"),
    ):
        with pytest.raises(InputError, match=said):
            JobMasterSource(options).streamWriter(schema, overwrite)
    for options, said in (
        ({"startingOffsets": "soon"}, "option startingOffsets is 'soon'"),
        ({"startingOffsets": '{"xid": "1"}'}, "option startingOffsets is"),
        ({"startingOffsets": "latest", "startingPosition": "latest"}, "both startingOffsets and startingPosition"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger is '0'"),
        ({"maxRowsPerBatch": "none"}, "option maxRowsPerBatch is 'none'"),
    ):
        with pytest.raises(InputError, match=said):
            Stream(published, **options)


def test_a_stream_begins_where_another_one_has_ended_or_with_what_comes_next(published: PublishedCluster) -> None:
    published.ended(5)
    first = Stream(published)
    assert len(first.all()) == 5
    published.ended(3)
    assert len(Stream(published, startingOffsets=json.dumps(first.at)).all()) == 3
    assert Stream(published, startingOffsets="latest").all() == []
    assert len(Stream(published, startingPosition="earliest").all()) == 8


def test_the_progress_of_a_stream_shows_what_it_lags_behind_and_why(
    published: PublishedCluster, tmp_path: Path
) -> None:
    """A transaction that stays open holds the stream up."""
    import asyncpg

    stream = Stream(published)

    async def held(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, Any]:
        import asyncio

        async with connection.transaction():
            await connection.execute("UPDATE watermark SET floor = floor")
            await connection.execute("SELECT pg_sleep(1.1)")
            await asyncio.to_thread(published.ended, 5)
            assert await asyncio.to_thread(stream.all) == []
        report = stream.reader.reportLatestOffset()
        assert report is not None
        return report

    report = published.sql(held)
    assert report["xid"] > report["readable_xid"]
    assert report["oldest_write_seconds"] >= 1
    published.ended(5)
    frame = published.spark.readStream.format("jobmaster").options(**published.options, maxRowsPerTrigger="5").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(PATIENCE_SECONDS)
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [5, 5]
    (source,) = progress[0]["sources"]
    assert json.loads(source["endOffset"])["xid"] < json.loads(source["latestOffset"])["xid"]
    query.stop()
