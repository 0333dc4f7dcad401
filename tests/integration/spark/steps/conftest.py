"""Clusters with a past."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from benchmarks.support.synthetic_history import fill_day
from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings, StoreSettings
from tests.conftest import MIGRATED_SCHEMA
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SeededCluster(PipelineCluster):
    """A cluster with a past."""

    def execute(self, query: str) -> None:
        """Run some statements."""
        self.sql(lambda connection: connection.execute(query))

    def fill_days(self, *days: int, rows: int, rate: float = 1.0) -> None:
        """Finished jobs that were created so many days ago, so many for each day; see ``fill_day``."""
        for day in days:
            self.sql(partial(fill_day, day=day, rows=rows, rate=rate))


def rolled(seeded: SeededCluster, *, minutes_seconds: float = 0.0, has_page: bool = False, **words: Any) -> Any:
    """A roll-up. Figures by the minute and the page are a half of its work, and few tests look at them."""
    from jobmaster.pipeline.steps.rollup import rollup

    with nullcontext() if has_page else patch("jobmaster.pipeline.steps.rollup.write_report", return_value=""):
        return rollup(seeded.run(), minutes_seconds=minutes_seconds, **words)


def forge(seeded: SeededCluster, change: Callable[[pa.Table], pa.Table], dataset: str = "jobs") -> Path:
    """Change the content of one file of the lake, and everything that tells of it: document, manifest, digests."""
    from pyarrow import parquet

    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.lake.verify import checksum

    lake = Lake(str(seeded.lake))
    name, document, file = next(
        (name, document, file)
        for name, document in lake.documents("_manifest/jobs").items()
        for file in document["files"]
        if file["dataset"] == dataset
    )
    where = seeded.lake / file["path"]
    parquet.write_table(change(parquet.ParquetFile(where).read()), where)
    sums = {"jobs": [0, 0], "attempts": [0, 0], "logs": [0, 0]}
    for one in document["files"]:
        table = parquet.ParquetFile(seeded.lake / one["path"]).read()
        one |= {"rows": len(table), "bytes": lake.size(one["path"]), "sha256": lake.digest(one["path"])}
        sums[one["dataset"]][0] += len(table)
        sums[one["dataset"]][1] += sum(checksum(batch, one["dataset"]) for batch in table.to_batches())
    lake.write_json(f"_manifest/jobs/{name}.json", document)
    change_row = """UPDATE archive_manifest SET files = $2::text::jsonb, rows = $3, checksum = $4::text::numeric,
                           attempt_rows = $5, attempt_checksum = $6::text::numeric WHERE name = $1"""
    (rows, total), (attempts, attempt_total) = sums["jobs"], sums["attempts"]
    values = (name, json.dumps(document["files"]), rows, str(total), attempts, str(attempt_total))
    seeded.sql(lambda connection: connection.execute(change_row, *values))
    return where


@pytest.fixture
def seeded(
    migrated_dsn: str, store_url: str, cluster_name: str, spark: SparkSession, tmp_path: Path
) -> Iterator[SeededCluster]:
    """A cluster of three days without jobs yet."""
    made = seeded_cluster(migrated_dsn, store_url, cluster_name, tmp_path)
    made.spark = spark
    yield made
    made.close()


def seeded_cluster(dsn: str, url: str, cluster: str, tmp_path: Path) -> SeededCluster:
    """A cluster of three days without jobs yet; its session is to be set. An empty database is migrated first."""
    from benchmarks.support.synthetic_history import lower_floor

    settings = ClusterSettings(
        cluster=cluster,
        master=MasterSettings(dsn=dsn, schema=MIGRATED_SCHEMA),
        stores={"default": StoreSettings(url=url)},
        # Ranges may leave when they are two of these old, and tests run at any time of the day.
        limits=Limits(clock_skew_seconds=1.0),
    )
    asyncio.run(migrate(dsn=dsn, schema=settings.schema_name(), cluster=cluster, settings=settings.master))
    made = SeededCluster(settings, tmp_path / "the lake", None)  # a blank must not matter
    made.sql(lambda connection: lower_floor(connection, 3))
    return made
