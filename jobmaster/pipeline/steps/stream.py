"""``stream``: copies recorded rows of the master to Parquet files of the lake, each row once.

The checkpoint has the position of the stream, the log of the sink (``_spark_metadata``) the valid files. Both are written
batch by batch, so a batch that is repeated after a crash replaces itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.spark.errors import PythonStartedLate, run_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_DAYS = {"jobs": "ended_at", "attempts": "at", "events": "at"}
"""The column whose day partitions the files."""
_POLL_SECONDS = 1
_STARTS_MAX = 5
"""Spark starts the Python of a streaming source anew for each query and waits ten seconds for it, a constant. On a machine
with much other work, or that has to read the packages from its disk first, this is too short at times."""


def folder_of(table: str) -> str:
    """Folder of a stream's files, relative to the lake."""
    return f"stream/{table}/v1"


def stream(context: PipelineContext, table: str, interval: float | None, rows: int, position: str) -> StepResult:
    """Copy everything recorded since the last call; with ``interval`` (seconds) until the query is stopped."""
    from pyspark.sql import functions as F

    target = f"{context.lake_url}/{folder_of(table)}"
    checkpoint = f"{context.lake_url}/_checkpoints/stream-{table}"
    if context.dry_run:
        return StepResult(summary={"table": table, "target": target, "checkpoint": checkpoint})
    source = context.spark.readStream.format("jobmaster").options(**context.reading_options())
    frame = source.options(table=table, maxRowsPerTrigger=str(rows), startingOffsets=position).load()
    writer = (
        frame.withColumn("day", F.to_date(_DAYS[table]))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if interval is None else {"processingTime": f"{interval:g} seconds"}
    copied = _Copied(context)
    starts = 1
    while True:
        query = run_spark(lambda: writer.trigger(**trigger).start())
        try:
            copied.follow(query)
            break
        except PythonStartedLate:
            if starts == _STARTS_MAX:
                raise
            starts += 1
            context.progress("Spark's Python did not start in time: the query is started again")
        finally:
            query.stop()
    return StepResult(rows=copied.rows, summary={"table": table, "batches": copied.batches, "target": target})


class _Copied:
    """What the queries of one call have copied. Batches have numbers of the checkpoint, so none is counted twice."""

    def __init__(self, context: PipelineContext) -> None:
        self.rows = 0
        self.batches = 0
        self._seen = -1
        self._context = context

    def follow(self, query: StreamingQuery) -> None:
        """Count until the query ends.

        Raises:
            PythonStartedLate: the Python of its source did not start in time.
        """
        ended = False
        while not ended:
            ended = bool(run_spark(lambda: query.awaitTermination(_POLL_SECONDS)))
            for progress in query.recentProgress:
                if progress["batchId"] > self._seen and progress["numInputRows"]:
                    self._seen = progress["batchId"]
                    self.rows += progress["numInputRows"]
                    self.batches += 1
                    self._context.progress(f"batch {self._seen}: {progress['numInputRows']} rows")
