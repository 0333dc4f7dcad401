"""Exports a detached range as Parquet files: COPY, Arrow and the file in one process; Spark only distributes the work.

A detached range has no writers, so its pages are divided and copied in parallel without a snapshot. The rows do not pass
through Spark's JVM, which would need more time for them than the server, the parser and the file together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import ConnectionFactory
from jobmaster.master.history.export import copy_pages, open_scan
from jobmaster.model.errors import JobMasterError
from jobmaster.pipeline.datasource.copy_to_arrow import CopyStream, Output
from jobmaster.pipeline.lake.lake import FORMAT, Lake
from jobmaster.pipeline.lake.schema import REPEATING, copied_schema, dataset_schema, days_of, with_derived_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PAGES_A_TASK_MAX = 16_384
"""128 MiB: the most that a repeated task costs."""
_BLOCK_BYTES = 4 << 20
_GROUP_BYTES = 32 << 20
"""Bytes of rows per row group. The writer of a file and its verification hold about that much memory."""


class PageRange(NamedTuple):
    """A range of pages of one table."""

    connection_factory: ConnectionFactory
    dataset: str
    table: str
    first: int
    beyond: int


def folder_of(dataset: str, run_id: str) -> str:
    """Folder of the files of one run, relative to the lake."""
    return f"{dataset}/v{FORMAT}/run={run_id}"


def page_ranges(
    connection_factory: ConnectionFactory, dataset: str, table: str, pages: int, tasks: int
) -> list[PageRange]:
    """The pages of a table in ranges of about the same size: ``tasks`` of them or a multiple; none without pages."""
    rounds = max(1, -(-pages // (tasks * _PAGES_A_TASK_MAX)))
    count = min(pages, tasks * rounds)
    edges = [pages * at // count for at in range(count + 1)] if count else []
    return [PageRange(connection_factory, dataset, table, low, high) for low, high in pairwise(edges)]


def write(spark: SparkSession, parts: Sequence[PageRange], lake: Lake, run_id: str) -> None:
    """Write the files of a new run, by day of creation. They are invisible until the manifest names the run.

    Raises:
        PySparkException: a task has failed in every attempt.
    """
    written = spark.range(0, len(parts), 1, len(parts)).mapInArrow(_writer(parts, lake.root, run_id), "path string")
    ours = {row["path"] for row in written.collect()}
    for dataset in {part.dataset for part in parts}:
        for path in lake.files(folder_of(dataset, run_id)):
            if path not in ours:
                lake.delete(path)  # of a task that was repeated


def _writer(
    parts: Sequence[PageRange], root: str, run_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: from the numbers of its page ranges to the paths of its files."""

    def written(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                files = PartFiles(
                    Lake(root), parts[number].dataset, run_id, f"part-{number:05}-{new_id().hex()}.parquet"
                )
                yield pa.RecordBatch.from_pydict({"path": pa.array(files.write(rows_of(parts[number])), pa.string())})

    return written


def rows_of(part: PageRange) -> Iterator[pa.RecordBatch]:
    """The rows of a page range with all columns, in the order of the server.

    Raises:
        Unavailable: the connection was lost; the task fails, and Spark repeats it.
    """

    async def copy(output: Output) -> None:
        connection = await open_scan(part.connection_factory)
        try:
            await copy_pages(connection, part.dataset, part.table, (part.first, part.beyond), output)
        finally:
            connection.terminate()

    for batch in CopyStream(copy, _BLOCK_BYTES).batches(copied_schema(part.dataset), f"a range of {part.dataset}"):
        yield with_derived_columns(batch, part.dataset)


class PartFiles:
    """The files of one page range, one for each day that occurs. Their names are unique to this attempt of the task."""

    def __init__(self, lake: Lake, dataset: str, run_id: str, name: str) -> None:
        self._lake = lake
        self._dataset = dataset
        self._run_id = run_id
        self._name = name
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0
        self._writers: dict[int, Any] = {}
        self._open = contextlib.ExitStack()

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[str]:
        """Write all batches; returns the paths of the files, relative to the lake.

        Raises:
            Unavailable: the rows cannot be read, or the files cannot be written.
        """
        try:
            with self._open:
                for batch in batches:
                    self._gather(batch)
                    if self._size >= _GROUP_BYTES:
                        self._flush()
                self._flush()
        except BaseException:
            with contextlib.suppress(JobMasterError):
                for day in self._writers:
                    self._lake.delete(self._path(day))
            raise
        return [self._path(day) for day in sorted(self._writers)]

    def _gather(self, batch: pa.RecordBatch) -> None:
        from pyarrow import compute as pc

        days = days_of(batch, self._dataset)
        occurring = pc.unique(days).to_pylist()
        for day in occurring:
            rows = batch if len(occurring) == 1 else batch.filter(pc.equal(days, day))
            self._gathered.setdefault(day, []).append(rows)
        self._size += batch.nbytes

    def _flush(self) -> None:
        """Write one row group for each day."""
        import pyarrow as pa

        for day, batches in self._gathered.items():
            if day not in self._writers:
                self._writers[day] = self._opened(day)
            table = pa.Table.from_batches(batches)
            self._writers[day].write_table(table, row_group_size=len(table))
        self._gathered.clear()
        self._size = 0

    def _opened(self, day: int) -> Any:
        from pyarrow import parquet

        schema = dataset_schema(self._dataset)
        file = self._open.enter_context(self._lake.writing(self._path(day)))
        repeating = [name for name in REPEATING if name in schema.names]
        writer = parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=repeating)
        return self._open.enter_context(writer)

    def _path(self, day: int) -> str:
        from datetime import date, timedelta

        return f"{folder_of(self._dataset, self._run_id)}/day={date(1970, 1, 1) + timedelta(day)}/{self._name}"
