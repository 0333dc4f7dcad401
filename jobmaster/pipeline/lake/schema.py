"""Columns of the lake's datasets of jobs, version 1: those copied from the master, and those derived from them.

Columns are added at the end, never renamed or removed. The verification derives the derived ones again and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.pipeline.datasource.copy_to_arrow import arrow_type
from jobmaster.pipeline.datasource.derived_columns import SOURCES, derived, times_of_ids

if TYPE_CHECKING:
    import pyarrow as pa

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
LOGS = "job_id string, token int, number int, at timestamp, level smallint, text string"
SCHEMAS = {"jobs": JOBS, "attempts": ATTEMPTS, "logs": LOGS}
"""In Spark's DDL."""
DERIVED: dict[str, tuple[str, ...]] = {"jobs": tuple(SOURCES), "attempts": (), "logs": ()}
"""Columns derived from other columns of the same row."""
TIME = {"jobs": "created_at", "attempts": "at", "logs": "at"}
"""The column whose least and greatest value a table of another format has for each file."""
REPEATING = ("state", "priority", "priority_level", "lane", "handler", "bucket_id", "outcome")
"""Columns of few distinct values: only these get a Parquet dictionary."""
_DAY_US = 86_400_000_000


def dataset_schema(dataset: str) -> pa.Schema:
    """Schema of a dataset."""
    import pyarrow as pa

    return pa.schema([(name, arrow_type(kind)) for name, kind in (one.split() for one in SCHEMAS[dataset].split(", "))])


def copied_schema(dataset: str) -> pa.Schema:
    """The copied columns, in the order of the statements ``export/detached_...``."""
    import pyarrow as pa

    return pa.schema([field for field in dataset_schema(dataset) if field.name not in DERIVED[dataset]])


def with_derived_columns(batch: pa.RecordBatch, dataset: str) -> pa.RecordBatch:
    """A batch with all columns of the dataset.

    Args:
        batch: the copied columns, and any others.
    """
    import pyarrow as pa

    schema = dataset_schema(dataset)
    found = DERIVED[dataset]
    columns = [derived(batch, name) if name in found else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def days_of(batch: pa.RecordBatch, dataset: str) -> pa.Array:
    """The day on which each row's job was created, in days since 1970."""
    import pyarrow as pa
    from pyarrow import compute as pc

    created = batch.column("created_at") if dataset == "jobs" else times_of_ids(batch.column("job_id"))
    return pc.divide(created.cast(pa.int64()), pa.scalar(_DAY_US))
