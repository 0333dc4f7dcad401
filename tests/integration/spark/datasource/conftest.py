"""A migrated cluster for each test of the data source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import ClusterSettings, MasterSettings
from tests.conftest import MIGRATED_SCHEMA
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPEC = (
    '{"name":"images.resize","schema":{"type":"object","properties":{"path":{"type":"string"},'
    '"width":{"type":"integer","default":100}},"required":["path"],"additionalProperties":false}}'
)


class PublishedCluster(PipelineCluster):
    """A cluster with one published handler, and ways to look at it."""

    @property
    def options(self) -> dict[str, str]:
        """How the data source finds the cluster."""
        return {"dsn": self.settings.master.dsn or "", "schema": self.settings.schema_name()}

    def read(self, table: str = "jobs", **options: str) -> DataFrame:
        return self.spark.read.format("jobmaster").options(**self.options, table=table, **options).load()

    def write(self, frame: DataFrame, **options: str) -> None:
        given = {"handler": "images.resize", "batch": "test", **options}
        frame.write.format("jobmaster").options(**self.options, **given).mode("append").save()

    def rows(self, count: int, tasks: int = 2, start: int = 0) -> DataFrame:
        """Good rows with the keys ``k<n>``."""
        frame = self.spark.range(start, start + count, 1, tasks)
        return frame.selectExpr(
            "concat('k', id) AS key", "to_json(struct(concat('f', id) AS path, id AS width)) AS args"
        )

    def ended(self, count: int, state: str = "SUCCEEDED") -> None:
        """Jobs that have ended, an hour ago to now."""
        query = """
            INSERT INTO job
                (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, waited_us, ran_us, args, result)
            SELECT (left(uuid_floor(clock_timestamp() - i % 3600 * interval '1 s')::text, 14) || '7000-8000-'
                    || lpad(to_hex((random() * 1e9)::bigint), 12, '0'))::uuid,
                   $2::job_state, 1 + i % 5, 'default', 'h' || i % 4, 1, gen_random_uuid(), 1, i, 2 * i,
                   convert_to('{"note":"a \\"b\\"\\n' || repeat('x', i % 50) || '"}', 'UTF8'), convert_to('{"n":1}', 'UTF8')
            FROM generate_series(1, $1) i"""
        self.sql(lambda connection: connection.execute(query, count, state))


def published_cluster(dsn: str, cluster: str, lake: Path) -> PublishedCluster:
    """A cluster with one published handler; its session is to be set. An empty database is migrated first."""
    settings = ClusterSettings(cluster=cluster, master=MasterSettings(dsn=dsn, schema=MIGRATED_SCHEMA))
    asyncio.run(migrate(dsn=dsn, schema=settings.schema_name(), cluster=cluster, settings=settings.master))
    made = PublishedCluster(settings, lake, None)
    publish = "INSERT INTO handler VALUES ('images.resize', $1, 'x', gen_random_uuid())"
    made.sql(lambda connection: connection.execute(publish, SPEC))
    return made


@pytest.fixture
def published(migrated_dsn: str, cluster_name: str, spark: SparkSession, tmp_path: Path) -> Iterator[PublishedCluster]:
    """A cluster without jobs."""
    made = published_cluster(migrated_dsn, cluster_name, tmp_path / "lake")
    made.spark = spark
    yield made
    made.close()
