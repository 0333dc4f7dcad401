"""Rows checked as a write would check them, without writing: what ``--dry-run`` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jobmaster.pipeline.datasource.row_parser import RowReader
from jobmaster.pipeline.datasource.write_options import write_plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def tried(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """``(reason, rows)`` of each batch of rows; no reason means that they would be jobs."""
    terms = write_plan(options, rows.schema, dry=True).terms

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        reader = RowReader(terms)
        for batch in batches:
            jobs, rejects = reader.read(batch)
            counts: Counter[str | None] = Counter(one.reason for one in rejects)
            if jobs:
                counts[None] = len(jobs)
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(counts), pa.string()), pa.array(list(counts.values()), pa.int64())],
                names=["reason", "rows"],
            )

    return rows.mapInArrow(check, "reason string, rows bigint")
