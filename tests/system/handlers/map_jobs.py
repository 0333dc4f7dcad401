"""A handler of ``spark_map``. What it did is written to files, independent of both stores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobmaster.handlers import Handlers
from jobmaster.pipeline.jobs import spark_map

if TYPE_CHECKING:
    from pyarrow import RecordBatch

handlers = Handlers()


class Number(msgspec.Struct):
    n: int
    path: str
    """A line for each call: the job, the directory of its application, the number."""
    gate: str = ""
    """A job with a gate waits until the file is there."""
    fault: str = ""
    """A job with this file has an error while the file is there."""


class Doubled(msgspec.Struct):
    twice: int


@spark_map(
    handlers,
    name="map.double",
    row=Number,
    result=Doubled,
    master="local[2]",
    conf={"spark.driver.memory": "512m"},
    rows=20,
    gather_seconds=2.0,
    timeout=600,
    max_attempts=2,
    backoff=0.1,
)
def double(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Twice the number of each job."""
    import pyarrow as pa

    for batch in batches:
        found = []
        for row in batch.to_pylist():
            own, _, _ = os.environ["SPARK_LOCAL_DIRS"].partition("/blockmgr-")
            line = f"{row['job_id']} {own} {row['n']}\n"
            fd = os.open(row["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, line.encode())
            os.close(fd)
            while row["gate"] and not Path(row["gate"]).exists():
                time.sleep(0.02)
            error = "as asked" if row["fault"] and Path(row["fault"]).exists() else None
            found.append({"job_id": row["job_id"], "twice": 2 * row["n"], "error": error})
        yield pa.RecordBatch.from_pylist(found)
