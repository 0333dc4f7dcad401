"""Verification: rows and checksums of the Parquet files of a run, read back from the lake.

Two programs compute the checksum: ``measure_detached`` in the master, ``checksum`` here. Both add up the first 52 bits of the
md5 of every row's copied columns as text. The derived columns are computed again and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jobmaster.model.archive import LakeFile, Measure
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.lake.parquet_export import folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS, with_derived_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_CHECKSUM_COLUMNS = {
    "jobs": (
        *(
            "id",
            "state",
            "priority_level",
            "lane",
            "handler",
            "token",
            "bucket_id",
            "bucket_epoch",
            "attempt",
            "rescues",
        ),
        *("cancel_requested", "due_at", "expires_at", "changed_at", "waited_us", "ran_us", "args", "headers", "result"),
        "error",
    ),
    "attempts": (
        *("job_id", "token", "bucket_id", "bucket_epoch", "outcome", "at", "ran_us", "error", "refused_at"),
        "refused_count",
    ),
    "logs": ("job_id", "token", "number", "at", "level", "text"),
}
"""In the order of ``measure_detached``, and of ``export/measure_logs``."""
_ROWS = 16_384
"""Rows per batch: their texts and digests fit into the processor's cache."""
_MEASURED = "dataset string, path string, rows bigint, bytes bigint, checksum string"


class RunMeasure(NamedTuple):
    """What the files of a run hold."""

    measure: Measure
    """Of jobs and attempts."""
    logs: tuple[int, int]
    """Lines and their checksum."""
    files: tuple[LakeFile, ...]


def measure_run(session: Callable[[], SparkSession], lake: Lake, run_id: str) -> RunMeasure:
    """Read the files of a run: rows and checksums of each dataset, and every file with its rows.

    Args:
        session: returns the Spark session; called when there is a file.

    Raises:
        PySparkException: a task has failed in every attempt.
    """
    found = [
        (dataset, path)
        for dataset in SCHEMAS
        for path in lake.files(folder_of(dataset, run_id))
        if path.endswith(".parquet")
    ]
    files: list[LakeFile] = []
    sums = dict.fromkeys(SCHEMAS, (0, 0))
    if found:
        numbers = session().range(0, len(found), 1, len(found))
        for row in numbers.mapInArrow(_reader(found, lake.root), _MEASURED).collect():
            files.append(LakeFile(row["dataset"], row["path"], row["rows"], row["bytes"]))
            rows, total = sums[row["dataset"]]
            sums[row["dataset"]] = (rows + row["rows"], total + int(row["checksum"]))
    by_path = tuple(sorted(files, key=lambda file: file.path))
    return RunMeasure(Measure(*sums["jobs"], *sums["attempts"]), sums["logs"], by_path)


def _reader(
    found: Sequence[tuple[str, str]], root: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: from the numbers of its files to their measures."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        lake = Lake(root)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                dataset, path = found[number]
                rows, total = measure_file(lake, dataset, path)
                line = {
                    "dataset": dataset,
                    "path": path,
                    "rows": rows,
                    "bytes": lake.size(path),
                    "checksum": str(total),
                }
                yield pa.RecordBatch.from_pylist([line])

    return read


def measure_file(lake: Lake, dataset: str, path: str) -> tuple[int, int]:
    """Rows and checksum of a file.

    Rows whose derived columns differ are not counted, and a damaged file counts as empty: a crash of its machine may have
    torn it, and it is written again like every file that does not match.

    Raises:
        Unavailable: the file system does not work, or the file does not exist.
    """
    from pyarrow import parquet

    rows = total = 0
    with lake.reading(path) as stream:
        try:
            file = parquet.ParquetFile(stream)
            for batch in file.iter_batches(_ROWS, use_threads=False):
                if with_derived_columns(batch, dataset).equals(batch):
                    rows += len(batch)
                total += checksum(batch, dataset)
        except (ValueError, KeyError):
            return 0, 0
        except OSError as error:
            if error.errno is not None:
                raise
            return 0, 0  # Arrow raises OSError without errno for pages that cannot be decompressed
    return rows, total


def checksum(batch: pa.RecordBatch, dataset: str) -> int:
    """The sum of the rows' checksums, as ``measure_detached`` computes them.

    A batch of an earlier version lacks columns that were added since. They are left out, as that version did.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute as pc

    def text_of(name: str) -> pa.Array:
        column = batch.column(name)
        if pa.types.is_boolean(column.type) or pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        return (
            column.cast(pa.binary()) if pa.types.is_string(column.type) else column.cast(pa.string()).cast(pa.binary())
        )

    known = [name for name in _CHECKSUM_COLUMNS[dataset] if name in batch.schema.names]
    texts = pc.binary_join_element_wise(*map(text_of, known), b"|", null_handling="replace", null_replacement=b"~")
    digests = b"".join([hashlib.md5(text, usedforsecurity=False).digest() for text in texts.to_pylist()])
    first = np.frombuffer(digests, ">u8")[::2] >> np.uint64(12)
    # Two halves, so that no 64-bit sum overflows.
    return (int((first >> np.uint64(26)).sum()) << 26) + int((first & np.uint64((1 << 26) - 1)).sum())
