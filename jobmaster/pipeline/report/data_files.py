"""The figures of the report as files for other tools: each table as CSV and as Parquet, with the same values.

Times are ISO 8601 in UTC, durations microseconds. A table has the rows that its Parquet file has; no value is rounded.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from jobmaster.csv_text import csv_line

if TYPE_CHECKING:
    from jobmaster.pipeline.lake.lake import Lake

FOLDER = "reports/figures"
Row = Mapping[str, Any]


def write_tables(lake: Lake, tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """Write tables, those without rows excepted; files of earlier reports that have no successor are deleted.

    Returns:
        Paths of the CSV files below the folder of the page.
    """
    import pyarrow as pa
    from pyarrow import parquet

    written = {}
    for name, rows in tables.items():
        if not rows:
            continue
        columns = list(rows[0])
        text = csv_line(columns) + "".join(csv_line(map(_text, row.values())) for row in rows)
        binary = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), binary, compression="zstd")
        for ending, content in (("csv", text.encode()), ("parquet", binary.getvalue())):
            path = f"{FOLDER}/{name}.{ending}"
            lake.write(path, content)
            written[path] = ending
    for path in lake.files(FOLDER):
        if path not in written:
            lake.delete(path)
    return [path.removeprefix("reports/") for path, ending in written.items() if ending == "csv"]


def utc(seconds: float) -> datetime:
    """A time for a table.

    Args:
        seconds: since 1970.
    """
    return datetime.fromtimestamp(seconds, UTC)


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
