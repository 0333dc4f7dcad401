"""The daemon that forks Spark's workers: with the modules imported that each worker would import after its fork.

Spark forks a process for each look-up, plan and write of a data source. Each one imports pyarrow, pandas, asyncpg and the
data source: a second of processor time for some hundred rows.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
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
    """``-m pyspark.daemon WORKER``, as Spark calls it.

    Raises:
        SystemExit: a module has started a thread. A process that forks must have one.
    """
    sys.argv = sys.argv[2:]
    sys.path[0] = ""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    gc.disable()
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # a worker collects after each task, and has nothing to find here
    gc.enable()
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise SystemExit(f"the imports of a worker of Spark have started {threads - 1} threads")
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
