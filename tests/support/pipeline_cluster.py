"""A cluster for tests of the pipeline: its settings, its lake, calls of the pipeline, and connections to its schema."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from jobmaster.settings.model import ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobmaster.pipeline.context import PipelineContext


class PipelineCluster:
    """One cluster. ``close`` ends its connections, not the session."""

    def __init__(self, settings: ClusterSettings, lake: Path, spark: SparkSession | None) -> None:
        self.settings = settings
        self.lake = lake
        self.spark: Any = spark
        self.said: list[str] = []
        self._runs: list[PipelineContext] = []

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
            settings = {"search_path": self.settings.schema_name(), "timezone": "UTC"}
            connection = await asyncpg.connect(self.settings.master.dsn, server_settings=settings)
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

    def close(self) -> None:
        for run in self._runs:
            run._session = None
            run.close()
