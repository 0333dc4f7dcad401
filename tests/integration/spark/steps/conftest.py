"""Clusters with a past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings, StoreSettings
from tests.conftest import MIGRATED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobmaster.pipeline.context import PipelineContext


@dataclass
class SeededCluster:
    """A cluster with a past: its settings, its lake, and a plain connection to its schema."""

    settings: ClusterSettings
    lake: Path
    spark: SparkSession | None
    said: list[str] = field(default_factory=list)
    _runs: list[PipelineContext] = field(default_factory=list)

    def run(self, *, dry_run: bool = False) -> PipelineContext:
        """A call of the pipeline in this process, on the session of all tests."""
        from jobmaster.pipeline.context import PipelineContext, PipelineOptions
        from jobmaster.pipeline.spark.session import SessionOptions

        options = PipelineOptions(SessionOptions("local[2]"), str(self.lake), dry_run)
        context = PipelineContext(self.settings, options, self.said.append, _session=self.spark)
        self._runs.append(context)
        return context

    def sql(self, work: Callable[[asyncpg.Connection[asyncpg.Record]], Coroutine[Any, Any, Any]]) -> Any:
        """Run some work on a connection of its own."""

        async def connected() -> Any:
            connection = await asyncpg.connect(
                self.settings.master.dsn,
                server_settings={"search_path": self.settings.schema_name(), "timezone": "UTC"},
            )
            try:
                found = await work(connection)
                # A roll-up looks at the server's counts of written rows, which may come up to a minute late.
                await connection.execute("SELECT pg_stat_force_next_flush()")
                return found
            finally:
                await connection.close()

        return asyncio.run(connected())

    def value(self, query: str, *values: object) -> Any:
        """The first value of a query."""
        return self.sql(lambda connection: connection.fetchval(query, *values))

    def execute(self, query: str) -> None:
        """Run some statements."""
        self.sql(lambda connection: connection.execute(query))

    def close(self) -> None:
        """End the connections, not the session."""
        for run in self._runs:
            run._session = None
            run.close()


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
