"""A lake that holds figures alone: roll-ups of a history that was never there, written without Spark and without a master."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.report.build import STATE
from jobmaster.pipeline.report.histograms import GAMMA
from jobmaster.pipeline.spark.session import SessionOptions
from jobmaster.pipeline.steps.rollup import DATASETS, DAYS
from jobmaster.settings.model import ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {"bigint": "int64", "int": "int32", "string": "string"}
Row = Mapping[str, Any]


def context_of(spark: SparkSession, where: Path) -> PipelineContext:
    """A call of the pipeline on a lake, without a master."""
    options = PipelineOptions(SessionOptions("local[2]"), str(where))
    return PipelineContext(ClusterSettings(cluster="figures"), options, _session=spark)


def write_figures(where: Path, frames: Mapping[str, Iterable[Row]], until: datetime) -> None:
    """Write datasets of a roll-up; columns that a row lacks are zero, or an empty text."""
    import pyarrow as pa
    from pyarrow import parquet

    lake = Lake(str(where))
    files: dict[str, dict[str, list[str]]] = {}
    for dataset, columns in DATASETS.items():
        by_day: dict[str, list[Row]] = {}
        for row in frames.get(dataset, ()):
            moment = row.get("hour") or row.get("minute") or row["day"]
            by_day.setdefault(moment.strftime("%Y-%m-%d"), []).append(row)
        schema = pa.schema([
            (name, pa.timestamp("us", "UTC") if kind == "timestamp" else _TYPES[kind])
            for name, kind in columns.items()
            if name != "day"
        ])  # fmt: skip
        for day, rows in by_day.items():
            values = [
                {name: row.get(name, "" if columns[name] == "string" else 0) for name in schema.names} for row in rows
            ]
            content = io.BytesIO()
            parquet.write_table(pa.Table.from_pylist(values, schema), content)
            path = f"rollup/{dataset}/v1/run=made/day={day}/part-0.parquet"
            lake.write(path, content.getvalue())
            files.setdefault(day, {name: [] for name in DATASETS})[dataset].append(path)
    for day, named in files.items():
        lake.write_json(f"{DAYS}/{day}.json", {"dataset": "rollup", "format": 1, "run": "made", "files": named})
    lake.write_json(STATE, {"as_of": until.isoformat(), "ranges": []})


def hour_of(
    moment: datetime, jobs: int, *, failed: int = 0, waited_us: float = 1e6, **more: Any
) -> dict[str, list[Row]]:
    """An hour in which so many jobs of one handler were created and ended, all after the same wait."""
    column = more.pop("column", "hour")
    group = {"lane": "default", "priority": "high", "handler": "mail", **more}
    counts = {column: moment, **group, "agent": "ann", "bucket_id": "b1", "submitted": jobs, "failed": failed,
              "succeeded": jobs - failed}  # fmt: skip
    bin_ = math.ceil(math.log(waited_us) / math.log(GAMMA))
    suffix = "" if column == "hour" else "_minutes"
    return {
        f"throughput{suffix}": [counts],
        f"latency{suffix}": [
            {column: moment, **group, "metric": metric, "bin": bin_, "jobs": jobs}
            for metric in ("waiting", "running", "total")
        ],
    }


def together(*parts: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """The rows of all parts, by dataset."""
    found: dict[str, list[Row]] = {}
    for part in parts:
        for name, rows in part.items():
            found.setdefault(name, []).extend(rows)
    return found


def hours_before(until: datetime, count: int) -> list[datetime]:
    """The last whole hours before a time, the earliest first."""
    beyond = until.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return [beyond - timedelta(hours=count - at) for at in range(count)]
