"""``stream``: copies recorded rows of the master to Parquet files of the lake, each row once.

The checkpoint has the position of the stream, the log of the sink (``_spark_metadata``) the valid files. Both are written
batch by batch, so a batch that is repeated after a crash replaces itself.
"""

from __future__ import annotations

from jobmaster.pipeline.context import PipelineContext, StepResult
from jobmaster.pipeline.spark.errors import run_spark

_DAYS = {"jobs": "ended_at", "attempts": "at", "events": "at"}
"""The column whose day partitions the files."""
_POLL_SECONDS = 1


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
    source = context.spark.readStream.format("jobmaster").options(**context.source_options())
    frame = source.options(table=table, maxRowsPerBatch=str(rows), startingPosition=position).load()
    writer = (
        frame.withColumn("day", F.to_date(_DAYS[table]))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if interval is None else {"processingTime": f"{interval:g} seconds"}
    query = run_spark(lambda: writer.trigger(**trigger).start())
    copied = batches = 0
    seen = -1
    try:
        while True:
            ended = run_spark(lambda: query.awaitTermination(_POLL_SECONDS))
            for progress in query.recentProgress:
                if progress["batchId"] > seen and progress["numInputRows"]:
                    seen = progress["batchId"]
                    copied += progress["numInputRows"]
                    batches += 1
                    context.progress(f"batch {seen}: {progress['numInputRows']} rows")
            if ended:
                break
    finally:
        query.stop()
    return StepResult(rows=copied, summary={"table": table, "batches": batches, "target": target})
