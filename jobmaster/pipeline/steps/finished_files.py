"""The files of a source that killed runs of the same submit have written whole: the next run leaves them out.

A file is known by a digest of its path, size and time, and of what makes a row of it a job: the handler, the key, the format
and its options, and the source whose rows are remembered. A file that has changed is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobmaster.pipeline.context import PipelineContext
from jobmaster.pipeline.datasource.write_options import backfill_name
from jobmaster.pipeline.spark.errors import run_spark
from jobmaster.pipeline.steps.backfills import SubmitRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_METADATA = "_metadata"
"""Of the file of a row, in every source of files of Spark."""
_FACTS = ("file_path", "file_size", "file_modification_time")
_LISTING = ("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter")
"""Options of Spark's readers that decide which files are read."""


class LeftRows(NamedTuple):
    """The rows that are left to be written."""

    frame: DataFrame
    file: Column | None
    """Number of the file of a row, for ``source_files.FILE``; ``None``: the source has no files."""
    finished_rows: int
    """Rows of the files that are left out."""


def left_rows(context: PipelineContext, order: SubmitRequest, frame: DataFrame) -> LeftRows:
    """The rows of the source without those of finished files.

    Args:
        order: its options name the batch or the source that is remembered.
    """
    source = order.source
    if source.place is None or source.sql is not None or source.kind == "postgresql" or _METADATA in frame.columns:
        return LeftRows(frame, None, 0)
    from pyspark.sql import functions as F

    options = {**order.options, **({} if order.batch is None else {"batch": order.batch})}
    number = _number(context, order)
    size, start, length = (
        F.col(f"{_METADATA}.{name}") for name in ("file_size", "file_block_start", "file_block_length")
    )
    file = F.when((start == 0) & (length == size), number)
    known = {
        row["file"]: row["rows"] for row in context.connection.fetch("pipeline/finished_files", backfill_name(options))
    }
    if not known:
        return LeftRows(frame, file, 0)
    finished = _listed(context, order, number) & known.keys()
    if not finished:
        return LeftRows(frame, file, 0)
    rows = sum(known[one] for one in finished)
    context.progress(f"{len(finished)} files that an earlier run has written are left out: {rows} rows")
    # A condition on nothing but path, size and time: Spark does not open these files.
    return LeftRows(frame.where(~number.isin(sorted(finished))), file, rows)


def _number(context: PipelineContext, order: SubmitRequest) -> Column:
    from pyspark.sql import functions as F

    remembered = order.options.get("remember")
    source = context.connection.execute("pipeline/open_source", remembered)[0]["id"] if remembered else None
    read = (order.handler, order.mapping.key, order.source.format, sorted(order.source.options.items()), source)
    return F.xxhash64(F.lit(msgspec.json.encode(read).decode()), *(F.col(f"{_METADATA}.{name}") for name in _FACTS))


def _listed(context: PipelineContext, order: SubmitRequest, number: Column) -> set[int]:
    """The files that the source has now, without a look into them."""
    options = {name: value for name, value in order.source.options.items() if name in _LISTING}
    assert order.source.place is not None
    files = context.spark.read.format("binaryFile").options(**options).load(order.source.place)
    return {row["number"] for row in run_spark(lambda: files.select(number.alias("number")).collect())}
