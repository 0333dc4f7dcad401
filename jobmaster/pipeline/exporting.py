"""A detached range as Parquet, and what that Parquet holds when it is read again.

Nobody writes to a detached range, so its pages are cut into parts and copied side by side without a snapshot. The checksum
is computed twice by two engines: ``measure_detached`` in the master, ``measured`` here; both add up the first 52 bits of
the md5 of every row's columns as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jobmaster.master.connection import Opener
from jobmaster.master.export import DELIMITER, NULL, QUOTE, copy_pages, open_scan
from jobmaster.model.archive import LakeFile, Measure
from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.lake import FORMAT, Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

JOBS = (
    "id string, state string, priority string, priority_level smallint, lane string, handler string, created_at timestamp,"
    " due_at timestamp, started_at timestamp, ended_at timestamp, changed_at timestamp, waited_us bigint, ran_us bigint,"
    " attempt int, rescues int, token int, bucket_id string, bucket_epoch bigint, cancel_requested boolean, args string,"
    " headers string, result string, error string, expires_at timestamp"
)
ATTEMPTS = (
    "job_id string, token int, bucket_id string, bucket_epoch bigint, outcome string, at timestamp, ran_us bigint,"
    " error string, refused_at timestamp, refused_count int"
)
SCHEMAS = {"jobs": JOBS, "attempts": ATTEMPTS}
"""Columns of the lake's two datasets, version 1. Columns are added at the end, never renamed or removed."""
_PAGES_A_TASK_MAX = 16_384
"""128 MiB: a task that is repeated costs no more."""
_BLOCK_BYTES = 4 << 20
_BLOCKS = 2


class Part(NamedTuple):
    """Some pages of one table."""

    opener: Opener
    dataset: str
    table: str
    first: int
    beyond: int


def folder_of(dataset: str, run_id: str) -> str:
    """Where the files of one run lie, below the lake."""
    return f"{dataset}/v{FORMAT}/run={run_id}"


def parts_of(opener: Opener, dataset: str, table: str, pages: int, tasks: int) -> list[Part]:
    """The pages of a table in parts of about the same size."""
    count = max(1, min(pages, max(tasks, -(-pages // _PAGES_A_TASK_MAX))))
    edges = [pages * at // count for at in range(count)] + [max(pages, 1)]
    return [Part(opener, dataset, table, low, high) for low, high in pairwise(edges)]


def detached(spark: SparkSession, parts: list[Part]) -> DataFrame:
    """The rows of some parts of one table, one task each."""
    dataset = parts[0].dataset
    copied = _copier(parts)
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(copied, SCHEMAS[dataset])


def write(frame: DataFrame, lake: Lake, dataset: str, run_id: str, days: Sequence[date]) -> None:
    """Files of a new run, by day of creation. They count for nothing until the manifest names the run.

    Args:
        days: every day that the rows may have been created on. When it is one, no row has to be looked at.
    """
    from pyspark.sql import functions as F

    folder = lake.url(folder_of(dataset, run_id))
    if len(days) == 1:
        frame.write.mode("append").parquet(f"{folder}/day={days[0].isoformat()}")
        return
    created = F.col("created_at") if dataset == "jobs" else _created_at("job_id")
    frame.withColumn("day", F.to_date(created)).write.partitionBy("day").mode("append").parquet(folder)


def measured(session: Callable[[], SparkSession], lake: Lake, run_id: str) -> tuple[Measure, tuple[LakeFile, ...]]:
    """What the files of a run hold, read again: rows and checksums, and every file with its rows.

    Args:
        session: is asked for when there is a file.
    """
    files: list[LakeFile] = []
    sums = {"jobs": (0, 0), "attempts": (0, 0)}
    for dataset, columns in SCHEMAS.items():
        folder = folder_of(dataset, run_id)
        if not any(path.endswith(".parquet") for path in lake.files(folder)):
            continue
        frame = session().read.schema(columns).parquet(lake.url(folder))
        for row in _by_file(frame, checksum(dataset)).collect():
            path = lake.relative(row["file"])
            files.append(LakeFile(dataset, path, row["rows"], row["bytes"]))
            rows, total = sums[dataset]
            sums[dataset] = (rows + row["rows"], total + int(row["checksum"]))
    return Measure(*sums["jobs"], *sums["attempts"]), tuple(sorted(files, key=lambda file: file.path))


def checksum(dataset: str) -> Column:
    """The checksum of a row, as ``measure_detached`` computes it."""
    from pyspark.sql import functions as F

    def text(name: str) -> Column:
        return F.coalesce(F.col(name).cast("string"), F.lit("~"))

    def micros(name: str) -> Column:
        return F.coalesce(F.unix_micros(name).cast("string"), F.lit("~"))

    if dataset == "jobs":
        words = [
            *map(text, ("id", "state", "priority_level", "lane", "handler", "token", "bucket_id", "bucket_epoch")),
            *map(text, ("attempt", "rescues")),
            F.when(F.col("cancel_requested"), "1").otherwise("0"),
            *map(micros, ("due_at", "expires_at", "changed_at")),
            *map(text, ("waited_us", "ran_us", "args", "headers", "result", "error")),
        ]
    else:
        words = [
            *map(text, ("job_id", "token", "bucket_id", "bucket_epoch", "outcome")),
            micros("at"),
            *map(text, ("ran_us", "error")),
            micros("refused_at"),
            text("refused_count"),
        ]
    digest = F.md5(F.concat_ws("|", *words))
    return F.conv(F.substring(digest, 1, 13), 16, 10).cast("decimal(20,0)")


def _by_file(frame: DataFrame, value: Column) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.groupBy(F.col("_metadata.file_path").alias("file"), F.col("_metadata.file_size").alias("bytes")).agg(
        F.count("*").alias("rows"), F.sum(value.cast("decimal(28,0)")).alias("checksum")
    )


def _created_at(id_: str) -> Column:
    """Moment of creation that a UUIDv7 bears."""
    from pyspark.sql import functions as F

    digits = F.concat(F.substring(id_, 1, 8), F.substring(id_, 10, 4))
    return F.timestamp_millis(F.conv(digits, 16, 10).cast("long"))


def _arrow_schema(dataset: str) -> pa.Schema:
    """The columns as Spark expects them in batches."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in (one.split() for one in SCHEMAS[dataset].split(", "))])


def _copier(parts: list[Part]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task's work: the numbers of its parts come in, their rows go out."""

    def copied(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from rows_of(parts[number])

    return copied


def rows_of(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as the server sends them; at most ``_BLOCKS`` blocks wait.

    Raises:
        Unavailable: the server went away in the middle; the task fails, and Spark repeats it.
    """
    schema = _arrow_schema(part.dataset)
    with asyncio.Runner() as runner:
        blocks: asyncio.Queue[bytes | None] = asyncio.Queue(_BLOCKS)
        task = runner.get_loop().create_task(_copy(part, blocks))
        try:
            while (block := runner.run(blocks.get())) is not None:
                yield from _parsed(block, schema, part.dataset)
            runner.run(_ended(task))
        finally:
            task.cancel()


async def _ended(task: asyncio.Task[None]) -> None:
    await task


async def _copy(part: Part, blocks: asyncio.Queue[bytes | None]) -> None:
    gathered: list[bytes] = []
    size = 0

    async def output(rows: bytes) -> None:
        nonlocal size
        gathered.append(rows)
        size += len(rows)
        if size >= _BLOCK_BYTES:
            await blocks.put(b"".join(gathered))
            gathered.clear()
            size = 0

    try:
        connection = await open_scan(part.opener)
        try:
            await copy_pages(connection, part.dataset, part.table, (part.first, part.beyond), output)
        finally:
            connection.terminate()
        if gathered:
            await blocks.put(b"".join(gathered))
    finally:
        await blocks.put(None)


def _parsed(block: bytes, schema: pa.Schema, dataset: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv

    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=1 << 30),
        "parse_options": csv.ParseOptions(
            delimiter=DELIMITER, quote_char=QUOTE, double_quote=True, newlines_in_values=True
        ),
        "convert_options": csv.ConvertOptions(
            column_types=schema,
            null_values=[NULL],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    }
    try:
        yield from csv.read_csv(pa.BufferReader(block), **options).to_batches()
    except pa.ArrowInvalid as error:
        raise Unavailable(f"the rows of a range of {dataset} cannot be read: {error}") from error
