"""``jobmaster pipeline stream``: what ends in the master, into Parquet files of the lake, once each.

Where the stream has come stands in its checkpoint, which files count in the log of the sink (``_spark_metadata``); both are
written batch by batch, so a batch that is repeated after a crash replaces itself.
"""

from __future__ import annotations

from jobmaster.pipeline.context import Outcome, PipelineRun
from jobmaster.pipeline.spark.errors import spoken

_DAYS = {"jobs": "ended_at", "attempts": "at", "events": "at"}
"""The time by whose day the files are laid out."""
_POLL_SECONDS = 1


def folder_of(table: str) -> str:
    """Where a stream's files lie, below the lake."""
    return f"stream/{table}/v1"


def carry_out(run: PipelineRun, table: str, interval: float | None, rows: int, position: str) -> Outcome:
    """Everything recorded since the last call; with ``interval`` (seconds) until the query is stopped."""
    from pyspark.sql import functions as F

    target = f"{run.lake_url}/{folder_of(table)}"
    checkpoint = f"{run.lake_url}/_checkpoints/stream-{table}"
    if run.dry_run:
        return Outcome(found={"table": table, "target": target, "checkpoint": checkpoint})
    source = run.spark.readStream.format("jobmaster").options(**run.source_options())
    frame = source.options(table=table, maxRowsPerBatch=str(rows), startingPosition=position).load()
    writer = (
        frame.withColumn("day", F.to_date(_DAYS[table]))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if interval is None else {"processingTime": f"{interval:g} seconds"}
    query = spoken(lambda: writer.trigger(**trigger).start())
    copied = batches = 0
    seen = -1
    try:
        while True:
            ended = spoken(lambda: query.awaitTermination(_POLL_SECONDS))
            for progress in query.recentProgress:
                if progress["batchId"] > seen and progress["numInputRows"]:
                    seen = progress["batchId"]
                    copied += progress["numInputRows"]
                    batches += 1
                    run.tell(f"batch {seen}: {progress['numInputRows']} rows")
            if ended:
                break
    finally:
        query.stop()
    return Outcome(rows=copied, found={"table": table, "batches": batches, "target": target})
