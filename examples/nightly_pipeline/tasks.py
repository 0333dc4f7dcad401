"""The pipeline of a cluster, driven by schedules of the same cluster, and a Spark job of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster import Handlers, JobContext
from jobmaster.pipeline.jobs import (
    ApplicationEnd,
    SparkApplication,
    cluster_options,
    pipeline_handlers,
    run_application,
    spark_job,
)
from jobmaster.pipeline.jobs.step_handlers import archive, audit, rollup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

handlers = Handlers()
handlers.merge(pipeline_handlers)


@handlers.job(name="orders.take")
async def take(order: int, cents: int) -> int:
    """What the cluster is there for."""
    return order * cents


# One Spark session of the pipeline runs at a time in the whole cluster, so these wait for each other.
SMALL = {"master": "local[2]", "conf": {"spark.driver.memory": "1g"}}
handlers.every("0 2 * * *", zone="Europe/Berlin", tags=["nightly"], args={"older_than": "30d", "spark": SMALL})(archive)
handlers.every("10 * * * *", overlap="skip", misfire="last", args={"spark": SMALL})(rollup)
handlers.every("0 4 * * sun", zone="Europe/Berlin", tags=["nightly"], args={"spark": SMALL})(audit)


@handlers.every("30 5 * * *", zone="Europe/Berlin", tags=["nightly"], args={"limit": 10})
@spark_job(handlers, name="orders.totals", master="local[2]", conf={"spark.driver.memory": "1g"}, timeout=1800)
def totals(spark: SparkSession, limit: int = 10) -> dict[str, int]:
    """How many jobs each handler has done."""
    jobs = spark.read.format("jobmaster").options(**cluster_options(), table="jobs", columns="handler,state").load()
    rows = jobs.where("state = 'SUCCEEDED'").groupBy("handler").count().orderBy("handler").limit(limit).collect()
    return {row["handler"]: row["count"] for row in rows}


@handlers.job(name="orders.primes", timeout=1800)
async def primes(ctx: JobContext, below: int, slices: int = 4) -> ApplicationEnd:
    """A program of its own for ``spark-submit``."""
    program = SparkApplication("primes.py", [str(below), str(slices)], "local[2]", {"spark.driver.memory": "512m"})
    return await run_application(ctx, program)
