"""What the tests of clusters run in a driver of its own: read, write with a task that dies, say what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


def die_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Every row, and then, on the first attempt of the first task, an end with a bang: after chunks were committed."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("this task dies on purpose")


def main(master: str, dsn: str, schema: str) -> None:
    """``master``: ``spark://...``, or ``sc`` for a Connect server in this process."""
    from pyspark.sql import SparkSession

    connect = master == "sc"
    builder = SparkSession.builder.remote("local[2]") if connect else SparkSession.builder.master(master)
    conf = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
    }
    for key, value in ({} if connect else conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    options = {"dsn": dsn, "schema": schema}
    read = spark.read.format("jobmaster").options(**options).option("numPartitions", "4").load()
    found: dict[str, Any] = {"read": read.count(), "succeeded": read.where("state = 'SUCCEEDED'").count()}
    rows = spark.range(0, 4000, 1, 4).selectExpr("concat('k', id) AS key", "to_json(struct(id AS path)) AS args")
    rows = rows.selectExpr("key", "replace(replace(args, ':', ':\"'), '}', '\"}') AS args")
    if not connect:
        rows = rows.mapInArrow(die_once, rows.schema)
    writer = rows.write.format("jobmaster").options(**options).mode("append")
    writer.options(handler="images.resize", batch="cluster", runId="run", chunkRows="200").save()
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
