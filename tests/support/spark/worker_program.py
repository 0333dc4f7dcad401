"""Two programs of Spark's Python, for tests on a busy machine.

The daemon that forks Spark's workers has the modules imported that each worker would import after its fork. Spark forks a
process for each look-up, plan and write of a data source. Each one imports pyarrow, pandas, asyncpg and the data source: a
second of processor time for some hundred rows.

The Python of a streaming source, which no daemon forks, connects to Spark before its imports. Spark waits ten seconds for
that, a constant, and a machine with a load of twenty takes longer for the imports.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import runpy
import socket
import struct
import sys
from pathlib import Path

_MODULES = (
    "pyarrow", "pyarrow.compute", "pyarrow.csv", "pyarrow.fs", "pyarrow.parquet", "numpy", "pandas", "asyncpg",
    "pyspark.worker", "pyspark.sql.pandas.serializers", "pyspark.sql.pandas.types", "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.lookup_data_sources",
    "jobmaster.master.history.foreign_db", "jobmaster.pipeline.datasource.batch_reader",
    "jobmaster.pipeline.datasource.postgres_source", "jobmaster.pipeline.datasource.source",
    "jobmaster.pipeline.datasource.stream_reader", "jobmaster.pipeline.datasource.writer",
    "jobmaster.pipeline.lake.parquet_export", "jobmaster.pipeline.lake.verify",
)  # fmt: skip


def main() -> None:
    """``-m MODULE ...``, as Spark calls it."""
    sys.argv = sys.argv[2:]
    sys.path[0] = ""
    if sys.argv[0] == "pyspark.daemon":
        _import_before_forks()
    else:
        _connect_before_imports()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _import_before_forks() -> None:
    """Import what each worker needs.

    Raises:
        SystemExit: a module has started a thread. A process that forks must have one.
    """
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    gc.disable()
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # a worker collects after each task, and has nothing to find here
    gc.enable()
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise SystemExit(f"the imports of a worker of Spark have started {threads - 1} threads")


def _connect_before_imports() -> None:
    """Connect to Spark and send the secret; the reply is read where Spark's module would connect."""
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    connection = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
    connection.sendall(struct.pack("!i", len(secret)) + secret)
    util = importlib.import_module("pyspark.util")

    def connected(*_: object) -> tuple[io.IOBase, socket.socket]:
        file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
        (length,) = struct.unpack("!i", file.read(4))
        if (reply := file.read(length)) != b"ok":
            raise SystemExit(f"Spark refuses its own secret: {reply!r}")
        return file, connection

    vars(util)["local_connect_and_auth"] = connected


if __name__ == "__main__":
    main()
