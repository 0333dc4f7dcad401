"""A submit that continues a killed one does not read again the files that were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobmaster.model.errors import Conflict
from jobmaster.pipeline.datasource.source_files import FILE
from jobmaster.pipeline.steps.backfills import SubmitRequest, list_backfills
from jobmaster.pipeline.steps.inputs import SourceSpec
from jobmaster.pipeline.steps.mapping import RowMapping
from tests.integration.spark.datasource.conftest import PublishedCluster, published_cluster

if TYPE_CHECKING:
    import pyarrow as pa

    from jobmaster.pipeline.datasource.writer import JobMasterWriter

pytestmark = [pytest.mark.slow, pytest.mark.spark]
MARKS = "SELECT array_agg(rows ORDER BY rows) FROM pipeline_file"


def write_file(where: Path, name: str, rows: list[str]) -> None:
    (where / f"{name}.csv").write_text("path,width\n" + "".join(f"{row}\n" for row in rows))


def good(name: str, count: int) -> list[str]:
    return [f"{name}{n:03},1" for n in range(count)]


def order(where: Path, **options: str) -> SubmitRequest:
    """One task reads all files, the largest one first, and writes ten rows at once."""
    source = SourceSpec(str(where), "csv")
    return SubmitRequest(
        source, "images.resize", RowMapping(("path",)), "files", {"chunkRows": "10", **options}, tasks=1
    )


def test_files_that_a_run_has_written_whole_are_left_out_by_the_next_one(
    published: PublishedCluster, tmp_path: Path
) -> None:
    """The first run dies in the last file. The first file has a refused row, and the third one is not known to have ended."""
    from jobmaster.pipeline.steps.finished_files import left_rows
    from jobmaster.pipeline.steps.inputs import read_input
    from jobmaster.pipeline.steps.submit import submit

    where = tmp_path / "in"
    where.mkdir()
    write_file(where, "a", [*good("a", 59), "a999,wide"])
    write_file(where, "b", good("b", 50))
    write_file(where, "c", good("c", 40))
    write_file(where, "d", [*good("b", 10), *good("d", 20)])
    with pytest.raises(Conflict):
        submit(published.run(), order(where, onDuplicate="fail"))
    assert published.value(MARKS) == [50]
    assert published.value("SELECT count(*) FROM job") == 59 + 50 + 40

    # Another content of the same size and time shows that the file is not opened.
    finished = where / "b.csv"
    text, times = finished.read_text(), finished.stat()
    finished.write_text(text.replace("b0", "x0"))
    frame = read_input(published.spark, order(where).source)
    assert left_rows(published.run(), order(where), frame).finished_rows == 0, "its time is another one"
    os.utime(finished, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (
        left_rows(published.run(), order(where)._replace(mapping=RowMapping(("path", "width"))), frame).finished_rows
        == 0
    )
    done = submit(published.run(), order(where))
    assert [done.summary[name] for name in ("offered", "inserted", "rejected")] == [180, 20, 1]
    assert done.summary["inserted_by_all_runs"] == published.value("SELECT count(*) FROM job") == 169
    (books,) = list_backfills(published.run(), "files").items or ()
    assert [books[name] for name in ("state", "offered", "inserted", "duplicates", "rejected")] == [
        "ended",
        180,
        169,
        10,
        1,
    ]

    finished.write_text(text)
    assert published.value(MARKS) is None
    again = submit(published.run(), order(where))
    assert [again.summary[name] for name in ("offered", "inserted", "rejected")] == [180, 0, 1], "everything is offered"


@pytest.fixture
def alone(migrated_dsn: str, cluster_name: str, tmp_path: Path) -> PublishedCluster:
    """A cluster without a session: its tasks run in this process."""
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    return published_cluster(migrated_dsn, cluster_name, tmp_path)


def writer_of(alone: PublishedCluster, **options: str) -> JobMasterWriter:
    from pyspark.sql.types import LongType, StringType, StructType

    from jobmaster.pipeline.datasource.write_options import write_plan
    from jobmaster.pipeline.datasource.writer import JobMasterWriter

    schema = StructType().add("key", StringType()).add("args", StringType()).add(FILE, LongType())
    given = {"handler": "images.resize", "batch": "b", "runId": "r", "chunkRows": "10", **options}
    return JobMasterWriter(write_plan({**alone.options, **given}, schema))


def rows_of(file: int | None, first: int, count: int) -> pa.RecordBatch:
    import pyarrow as pa

    keys = [f"k{number}" for number in range(first, first + count)]
    values = {"key": keys, "args": ['{"path":"p"}'] * count, FILE: pa.array([file] * count, pa.int64())}
    return pa.record_batch(values)


def test_a_task_records_the_files_that_it_has_written(alone: PublishedCluster) -> None:
    def cut() -> Iterator[pa.RecordBatch]:
        yield rows_of(1, 0, 25)
        yield rows_of(2, 25, 25)
        raise InterruptedError

    writer = writer_of(alone)
    with pytest.raises(InterruptedError):
        writer.write(cut())
    assert alone.value(MARKS) == [25], "of the second file more rows may come"
    done = writer.write(iter([rows_of(1, 0, 25), rows_of(None, 25, 10), rows_of(3, 35, 5)]))
    assert alone.value(MARKS) == [5, 25]
    writer.commit([done])
    assert alone.value(MARKS) is None

    following = writer_of(alone, runId="s", finishedRows="25")
    following.commit([following.write(iter([rows_of(2, 25, 15)]))])
    run = alone.sql(lambda c: c.fetchrow("SELECT offered, inserted, rejected FROM pipeline_write WHERE run_id = 's'"))
    assert tuple(run) == (40, 0, 0)


def test_a_late_copy_of_a_task_finishes_no_file_of_a_run_to_come(alone: PublishedCluster) -> None:
    writer = writer_of(alone)
    writer.commit([writer.write(iter([rows_of(1, 0, 5)]))])
    writer.write(iter([rows_of(1, 0, 5)]))
    assert alone.value(MARKS) is None
