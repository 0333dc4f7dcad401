"""What the test of secrets runs in a driver of its own: the session of a user, with the page and the event log of Spark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ("", "SQL/", "StreamingQuery/", "environment/", "jobs/", "stages/", "executors/", "storage/")
DETAILS = (
    "sql?details=true&planDescription=true&length=1000",
    "environment",
    "jobs",
    "stages?details=true",
    "allexecutors",
)
HANDLER = {"handler": "mail.send", "allowUnregistered": "true"}


def main(schema: str, cluster: str, store: str, out: Path) -> None:
    """Read, write, stream and archive; then keep what the UI and its REST API show in ``out``.

    The address of the master is in the environment variable ``SECRET_URL``: options of a program are no place for it.
    """
    from pyspark.sql import SparkSession

    (out / "events").mkdir()
    builder = SparkSession.builder.master("local[2]")
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{out}/events",
        "spark.sql.warehouse.dir": str(out / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    url = os.environ["SECRET_URL"]
    _tables(spark, {"url": url, "schema": schema})
    _streams(spark, {"url": url, "schema": schema}, out)
    archived = _archive(spark, (url, schema, cluster, store), out)
    _keep_pages(spark, out / "pages")
    spark.stop()
    sys.stdout.write(f"archived {archived}\n")


def _tables(spark: SparkSession, options: dict[str, str]) -> None:
    """A read, a view of SQL, a write, another database; and what each says when it fails."""
    from jobmaster.pipeline.datasource.postgres_source import PostgresSource

    counts = spark.read.format("jobmaster").options(**options).load().where("ran_us > 5").groupBy("handler").count()
    counts.explain("extended")
    counts.collect()
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW lately USING jobmaster OPTIONS ({listed})")
    spark.sql("SELECT count(*) FROM lately").collect()
    spark.dataSource.register(PostgresSource)
    foreign = spark.read.format("jobmaster_postgres").option("url", options["url"])
    foreign.option("query", "SELECT 1 AS one").load().collect()
    good = spark.range(100).selectExpr("concat('k', id) AS key", "to_json(struct(id AS n)) AS args")
    bad = spark.range(1).selectExpr("'k' AS key", "'{' AS args")

    def write(batch: str, frame: object) -> None:
        writer = frame.write.format("jobmaster").options(**options, **HANDLER)  # type: ignore[attr-defined]
        writer.option("batch", batch).mode("append").save()

    write("good", good)
    _fails(lambda: write("bad", bad))
    _fails(lambda: spark.read.format("jobmaster").options(**options, colums="id").load())
    _fails(lambda: foreign.option("query", "SELEC 1").load())


def _fails(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # the text of every error is looked through
        sys.stdout.write(f"{error}\n")
        return
    raise AssertionError("this does not fail")


def _streams(spark: SparkSession, options: dict[str, str], out: Path) -> None:
    source = spark.readStream.format("jobmaster").options(**options).load().writeStream.format("parquet")
    source = source.option("path", str(out / "copied")).option("checkpointLocation", str(out / "checkpoint-source"))
    source.trigger(availableNow=True).start().awaitTermination()
    spark.range(10).selectExpr("concat('s', id) AS key", "'{}' AS args").write.json(str(out / "incoming"))
    incoming = spark.readStream.schema("key string, args string").json(str(out / "incoming"))
    sink = incoming.writeStream.format("jobmaster").options(**options, **HANDLER)
    sink = sink.option("checkpointLocation", str(out / "checkpoint-sink"))
    sink.trigger(availableNow=True).start().awaitTermination()


def _archive(spark: SparkSession, place: tuple[str, str, str, str], out: Path) -> int:
    from jobmaster.pipeline.context import PipelineContext, PipelineOptions
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.settings.model import ClusterSettings, Limits, MasterSettings, StoreSettings

    url, schema, cluster, store = place
    settings = ClusterSettings(
        cluster=cluster,
        master=MasterSettings(dsn=url, schema=schema),
        stores={"default": StoreSettings(url=store)},
        limits=Limits(clock_skew_seconds=1.0),
    )
    context = PipelineContext(settings, PipelineOptions(lake=str(out / "lake")), print, _session=spark)
    rows = archive(context, 2.0, keep=False).rows
    context._session = None
    context.close()
    return rows


def _keep_pages(spark: SparkSession, kept: Path) -> None:
    """Write each page to a file of its own, its address first."""
    kept.mkdir()
    base = spark.sparkContext.uiWebUrl
    application = f"{base}/api/v1/applications/{spark.sparkContext.applicationId}"
    queries = json.loads(_page(f"{application}/sql?length=1000"))
    addresses = [f"{base}/{name}" for name in PAGES] + [f"{application}/{name}" for name in DETAILS]
    addresses += [f"{base}/SQL/execution/?id={query['id']}" for query in queries]
    for number, address in enumerate(addresses):
        (kept / f"{number}.txt").write_text(f"{address}\n{_page(address)}")


def _page(address: str) -> str:
    with urlopen(address, timeout=60) as answer:  # noqa: S310  the UI of this Spark application
        return str(answer.read().decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
