"""The planner on Spark: what it reads, the replay against a loop, and the plan from a real history to its review."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.pipeline.plan.agent_simulation import Limits, Queue, waits_of_agent
from jobmaster.pipeline.plan.model import Group, Scenario
from jobmaster.pipeline.plan.options import PlanOptions
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from tests.integration.spark.steps.conftest import SeededCluster, rolled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HIGH: Group = ("default", "high")
LOW: Group = ("default", "low")

pytestmark = pytest.mark.slow


def test_every_run_of_a_known_length_is_an_arrival(spark: SparkSession) -> None:
    from jobmaster.pipeline.plan.starts import Recorded, starts

    jobs = spark.sql(
        "SELECT 'j' AS id, 'default' AS lane, 'high' AS priority, timestamp_micros(1000) AS created_at,"
        " timestamp_micros(8000) AS due_at, timestamp_micros(9000) AS ended_at, 100L AS waited_us, 500L AS ran_us,"
        " attempt, 0 AS rescues, 'b' AS bucket_id, 1L AS bucket_epoch FROM VALUES (2) AS t(attempt)"
    )
    lines = [("failed", 10), ("timed_out", 20), ("snoozed", 30), ("lost", None), ("released", None), ("refused", 40)]
    attempts = spark.createDataFrame(lines, "outcome string, ran_us bigint").selectExpr(
        "'j' AS job_id", "timestamp_micros(1000) AS at", "*"
    )
    found = starts(Recorded(jobs, attempts)).collect()
    assert sorted(row["service_us"] for row in found) == [10, 20, 30, 500]
    assert {row["ahead_us"] for row in found} == {None}, "the due time of a later attempt says nothing of the first one"


@pytest.mark.parametrize(
    "limits",
    [Limits(), pytest.param(Limits(at_once=3, start_us=2000), marks=pytest.mark.long)],
    ids=["free", "limited"],
)
def test_spark_replays_what_a_loop_replays(spark: SparkSession, limits: Limits) -> None:
    from jobmaster.pipeline.plan.replay import spread, waits

    dice = random.Random(2)
    rows = [
        (str(at), *dice.choice((HIGH, LOW)), 3_600_000_000 + dice.randrange(60_000_000), dice.randrange(400_000))
        for at in range(600)
    ]
    started = spark.createDataFrame(rows, "id string, lane string, priority string, ready_us bigint, service_us bigint")
    hours = spark.sql(
        "SELECT 'default' AS lane, priority, timestamp_seconds(3600) AS hour FROM VALUES ('high'), ('low') AS t(priority)"
    )
    slots = {HIGH: 1, LOW: 2}
    scenarios = [
        Scenario(1, {HIGH: 1, LOW: 1}, slots, limits),
        Scenario(2, {HIGH: 3, LOW: 4}, slots, limits, {HIGH: 2.0, LOW: 0.5}),
    ]
    placed = spread(spark, started, hours, scenarios).cache()
    by_agent: dict[tuple[int, int], list[tuple[int, str, int, Group, int, int]]] = {}
    for row in placed.collect():
        group = (row["lane"], row["priority"])
        by_agent.setdefault((row["scenario"], row["agent"]), []).append(
            (row["ready_us"], row["id"], row["copy"], group, row["bucket"], row["service_us"])
        )
    expected: list[tuple[int, int, int]] = []
    for (number, _), lines in by_agent.items():
        lines.sort()
        names = sorted({(group, bucket) for _, _, _, group, bucket, _ in lines})
        queues = [Queue(Priority.parse(group[1]).value, slots[group]) for group, _ in names]
        found = waits_of_agent(
            [line[0] for line in lines], [line[5] for line in lines],
            [names.index((line[3], line[4])) for line in lines], queues, limits,
        )  # fmt: skip
        expected += [(number, line[0], wait) for line, wait in zip(lines, found, strict=True)]
    replayed = waits(placed, scenarios).collect()
    placed.unpersist()
    assert sorted((row["scenario"], row["ready_us"], row["waited_us"]) for row in replayed) == sorted(expected)
    counts = {name: sum(row[2] == name[1] for row in rows) for name in (HIGH, LOW)}
    second = [row["priority"] for row in replayed if row["scenario"] == 1]
    assert second.count("high") == 2 * counts[HIGH]
    assert second.count("low") == pytest.approx(counts[LOW] / 2, rel=0.3)


def test_the_plan_is_a_configuration_with_its_error_and_is_reviewed_later(
    seeded: SeededCluster, tmp_path: Path
) -> None:
    from jobmaster.pipeline.plan.plan import plan
    from jobmaster.pipeline.plan.review import review

    seeded.fill_days(3, 2, rows=3000, rate=0.02)
    out = tmp_path / "buckets.yaml"
    options = PlanOptions({"critical": 1.0, "payroll/low": 1.0}, slots=1, agents=2, arrivals={"": 1.5}, out=out)
    outcome = plan(seeded.run(), options)
    settings = load_settings(out, {}, []).settings
    lanes = settings.agents["default"].bucket_counts()
    recommended: dict[str, int] = outcome.summary["plan"]
    for group, buckets in recommended.items():
        lane, _, priority = group.partition("/")
        assert getattr(lanes[lane], priority) == math.ceil(buckets / 2)
    assert outcome.summary["met"] is True
    assert outcome.summary["what_if"] == "arrivals x1.5, 2 agents"
    assert outcome.summary["backtest_factor"] < 3
    assert outcome.summary["present_agents"] == 3, "the owners of the buckets, as the history names them"
    assert all(one["factor"] == pytest.approx(1.5) for one in outcome.details["groups"])
    text = out.read_text()
    assert "Limits of this plan" in text
    assert "over days" in text
    page = Path(outcome.summary["report"]).read_text()
    assert "Waiting against buckets" in page
    assert "The model beside what was measured" in page
    with pytest.raises(InputError, match="no job has run since plan"):
        review(seeded.run(), str(out))
    # The lake's document is of a moment before the jobs.
    path = f"plans/{outcome.summary['name']}.json"
    lake = seeded.lake / path
    lake.write_text(lake.read_text().replace(f'"made_at": "{datetime.now(UTC):%Y}', '"made_at": "2020'))
    reviewed = review(seeded.run(), str(out))
    findings = {one["group"]: one for one in reviewed.details["groups"]}
    assert set(findings) == set(recommended)
    assert all(one["measured"]["p99"] > 0 and one["predicted"]["p99"] > 0 for one in findings.values())
    assert (reviewed.failed, reviewed.summary["held"]) == (False, True)


@pytest.mark.long
def test_what_waited_for_another_reason_than_buckets_is_not_called_met(seeded: SeededCluster, tmp_path: Path) -> None:
    """All jobs waited ten seconds, whatever the replay says of its queues."""
    from jobmaster.pipeline.plan.plan import plan

    seeded.fill_days(3, 2, rows=1000, rate=0.02)
    rolled(seeded)  # the plan takes the growth from its figures
    seeded.execute("UPDATE job SET waited_us = 10000000, changed_at = changed_at + interval '10 s'")
    out = tmp_path / "buckets.yaml"
    options = PlanOptions({"critical": 1.0, "very_low": 60.0}, slots=1, out=out)
    outcome = plan(seeded.run(), options)
    assert outcome.summary["met"] is False
    by_name = {f"{one['lane']}/{one['priority']}": one for one in outcome.details["groups"]}
    assert {name: one["status"] for name, one in by_name.items() if "critical" in name or "very_low" in name} == {
        "default/critical": "not met", "default/very_low": "met", "payroll/very_low": "met",
    }  # fmt: skip
    assert by_name["default/critical"]["measured"]["p50"] == pytest.approx(10e6, rel=0.02)
    assert by_name["default/critical"]["model"]["p50"] == pytest.approx(10e6, rel=0.02)
    assert "default/critical waited 9.9s among 4 buckets" in (outcome.note or "")
    assert "have another cause than the number of buckets" in (outcome.note or "")
    assert outcome.summary["plan"]["default/critical"] == 4, "nothing speaks for another number"
    assert "critical: 2  # NOT MET: of 9.9s measured" in out.read_text()
    checked = plan(seeded.run(), options._replace(check=True, out=None))
    assert checked.failed
    assert "default/critical" in checked.summary["missed"]
    assert "default/very_low" not in checked.summary["missed"]


def test_a_plan_reads_no_more_than_its_days(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.lake.full_history import open_history
    from jobmaster.pipeline.plan.starts import recorded_since
    from jobmaster.pipeline.steps.archive import archive

    seeded.fill_days(3, 2, rows=40, rate=0.01)
    archive(seeded.run(), 86_400.0, keep=False)
    with open_history(seeded.run()) as history:
        assert {file.path.partition("day=")[2][:10] for one in history.archived for file in one.files}
        midnight = history.as_of.replace(hour=0, minute=0, second=0, microsecond=0)
        files = {days: recorded_since(history, midnight - timedelta(days=days)).jobs.inputFiles() for days in (1, 2, 3)}
        counts = {days: recorded_since(history, midnight - timedelta(days=days)).jobs.count() for days in (2, 3)}
    assert files[1] == []
    assert len({file.partition("day=")[2][:10] for file in files[2]}) == 1
    assert len({file.partition("day=")[2][:10] for file in files[3]}) == 2
    assert counts == {2: 40, 3: 80}


def test_too_little_history_and_unknown_lanes_are_refused(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.plan.plan import plan
    from jobmaster.pipeline.plan.review import review

    with pytest.raises(InputError, match="0 runs of jobs, and a plan needs"):
        plan(seeded.run(), PlanOptions())
    with pytest.raises(InputError, match="has no plan that can be reviewed"):
        review(seeded.run())
    seeded.fill_days(2, rows=50, rate=0.01)
    with pytest.raises(InputError, match="needs two days"):
        plan(seeded.run(), PlanOptions(check=True))
    with pytest.raises(InputError, match="has a lane 'payrol'"):
        plan(seeded.run(), PlanOptions({"payrol/high": 1.0}))


def test_an_unknown_kind_of_agent_is_refused() -> None:
    pytest.importorskip("pyspark")
    from jobmaster.pipeline.context import PipelineContext
    from jobmaster.pipeline.plan.plan import plan

    run: Any = PipelineContext(ClusterSettings())
    with pytest.raises(InputError, match="no agents of kind 'x'"):
        plan(run, PlanOptions(kind="x"))


def test_a_check_with_a_file_is_refused_because_it_writes_none(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from jobmaster.pipeline.context import PipelineContext
    from jobmaster.pipeline.plan.plan import plan

    run: Any = PipelineContext(ClusterSettings())
    with pytest.raises(InputError, match=r"--check writes no configuration, and --out names .*buckets\.yaml"):
        plan(run, PlanOptions(check=True, out=tmp_path / "buckets.yaml", kind="x"))
