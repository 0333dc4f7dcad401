"""The replay: the starts of the busiest hours again, with other configurations and other loads.

Each hour is replayed separately, after a warm-up of 15 minutes, so hours run in parallel; within an hour each agent, with all
of its buckets, because they share its limits. A job goes to a bucket by its hash; the real placement takes the emptier of two
buckets and so performs better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.agent_simulation import Queue, waits_of_agent
from jobmaster.pipeline.plan.model import Group, Scenario
from jobmaster.pipeline.plan.starts import GROUP, hour_of
from jobmaster.pipeline.report.histograms import bin_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

Histograms = Mapping[Group, dict[date, list[tuple[int, int]]]]

_WARM_UP = "15 minutes"
_MILLION = 1_000_000
_WAITS = (
    "scenario int, lane string, priority string, hour timestamp, counted boolean, ready_us bigint, waited_us bigint"
)


def replay(
    spark: SparkSession, started: DataFrame, hours: DataFrame, scenarios: Sequence[Scenario]
) -> list[Histograms]:
    """Histograms of waiting by group and day, for each scenario.

    Args:
        started: as from `starts`.
        hours: ``lane, priority, hour``. All groups are replayed in every hour that one of them names, because they share
            agents; the waits of a group count in its own hours.
    """
    if not scenarios:
        return []
    found: list[dict[Group, dict[date, list[tuple[int, int]]]]] = [{} for _ in scenarios]
    for row in histogram(waits(spread(spark, started, hours, scenarios), scenarios)).collect():
        days = found[row["scenario"]].setdefault((row["lane"], row["priority"]), {})
        days.setdefault(row["day"], []).append((row["bin"], row["jobs"]))
    return list(found)


def spread(spark: SparkSession, started: DataFrame, hours: DataFrame, scenarios: Sequence[Scenario]) -> DataFrame:
    """Assign every start of the busy hours and their warm-up to a bucket and its agent, for every scenario.

    With twice the arrivals each job comes twice, in the same second: the peaks are twice as high, too.
    """
    rows = [
        (number, *group, buckets, scenario.agents, float(scenario.arrivals.get(group, 1.0)))
        for number, scenario in enumerate(scenarios)
        for group, buckets in scenario.buckets.items()
    ]
    wanted = spark.createDataFrame(
        rows, "scenario int, lane string, priority string, buckets int, agents int, arrivals double"
    )
    # A job of the last quarter of an hour also belongs to the warm-up of the next hour.
    moment = F.timestamp_micros("ready_us")
    near = F.array_distinct(
        F.array(hour_of(F.col("ready_us")), F.date_trunc("hour", moment + F.expr(f"INTERVAL {_WARM_UP}")))
    )
    own = hours.select(*GROUP, "hour", F.lit(True).alias("counted"))
    whole = F.floor("arrivals").cast("int")
    dice = F.pmod(F.xxhash64("id", F.lit("share")), F.lit(_MILLION)) / F.lit(float(_MILLION))
    copies = whole + (dice < F.col("arrivals") - whole).cast("int")
    later = F.when(F.col("copy") > 1, F.pmod(F.xxhash64("copy", "id"), F.lit(_MILLION))).otherwise(F.lit(0))
    return (
        started.select("id", *GROUP, "ready_us", "service_us", F.explode(near).alias("hour"))
        .join(F.broadcast(hours.select("hour").distinct()), "hour")
        .join(F.broadcast(own), [*GROUP, "hour"], "left")
        .join(F.broadcast(wanted), list(GROUP))
        .withColumn("copies", copies)
        .where("copies > 0")
        .withColumn("copy", F.explode(F.sequence(F.lit(1), F.col("copies"))))
        .withColumn("ready_us", F.col("ready_us") + later)
        .withColumn("bucket", F.pmod(F.xxhash64("id", "copy"), F.col("buckets")).cast("int"))
        .withColumn("agent", F.pmod("bucket", "agents"))
        .withColumn("counted", F.coalesce("counted", F.lit(False)))
    )


def waits(placed: DataFrame, scenarios: Sequence[Scenario]) -> DataFrame:
    """Simulated wait of each start, without those of the warm-up."""
    found = (
        placed.select("scenario", *GROUP, "hour", "agent", "bucket", "counted", "id", "copy", "ready_us", "service_us")
        .groupBy("scenario", "hour", "agent")
        .applyInPandas(_agent(list(scenarios)), _WAITS)
    )
    return found.where(F.col("counted") & (F.col("ready_us") >= F.unix_micros("hour")))


def histogram(found: DataFrame) -> DataFrame:
    """``scenario, lane, priority, day, bin, jobs``: some hundred rows for each of the first three."""
    return found.groupBy(
        "scenario", *GROUP, F.to_date("hour").alias("day"), bin_of(F.col("waited_us")).alias("bin")
    ).agg(F.count("*").alias("jobs"))


def _agent(scenarios: Sequence[Scenario]) -> Callable[[Any], Any]:
    def simulated(frame: pd.DataFrame) -> pd.DataFrame:
        scenario = scenarios[int(frame["scenario"].iat[0])]
        ordered = frame.sort_values(["ready_us", "id", "copy"]).reset_index(drop=True)
        buckets = ordered.groupby([*GROUP, "bucket"], sort=True)
        queues = [
            Queue(Priority[priority.upper()].value, scenario.slots[lane, priority])
            for lane, priority, _ in buckets.size().index
        ]
        ordered["waited_us"] = waits_of_agent(
            ordered["ready_us"].tolist(),
            ordered["service_us"].tolist(),
            buckets.ngroup().tolist(),
            queues,
            scenario.limits,
        )
        return ordered[["scenario", "lane", "priority", "hour", "counted", "ready_us", "waited_us"]]

    return simulated
