"""The audit finds exactly what was broken in random histories, and nothing in whole ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integration.spark.steps.histories import ATTEMPTS, BREAKS, JOBS, History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
JOBS_EACH = 1000


def lines(spark: SparkSession, history: History) -> DataFrame:
    from jobmaster.pipeline.steps.invariants import LAKE, MASTER, lines_of

    def frame(rows: list[dict[str, object]], schema: str) -> DataFrame:
        names = [column.split()[0] for column in schema.split(", ")]
        return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)

    none = frame([], ATTEMPTS)
    lake = lines_of(frame(history.lake, JOBS), frame(history.attempts, ATTEMPTS), LAKE)
    return lake.unionByName(lines_of(frame(history.master, JOBS), none, MASTER))


def found(spark: SparkSession, history: History) -> set[tuple[str, str]]:
    from jobmaster.pipeline.steps.invariants import violations_of

    rows = violations_of(lines(spark, history), 4).collect()
    assert len({(row["check"], row["job_id"]) for row in rows}) == len(rows), "each is named once"
    return {(row["check"], row["job_id"]) for row in rows}


def test_a_lawful_history_has_no_violation(spark: SparkSession) -> None:
    assert found(spark, History(1, 2 * JOBS_EACH)) == set()


def test_exactly_what_was_broken_is_found(spark: SparkSession) -> None:
    """Every way to break a rule, several times each, over two histories."""
    broken: Counter[str] = Counter()
    for seed in range(2):
        history = History(seed, JOBS_EACH)
        for _ in range(130):
            history.break_one()
        assert found(spark, history) == history.broken, f"seed {seed}"
        broken.update(check for check, _ in history.broken)
    assert set(broken) == {name.partition(":")[0] for name in BREAKS}


def test_every_check_has_a_way_to_break_it() -> None:
    pytest.importorskip("pyspark")
    from jobmaster.pipeline.steps.invariants import JOB_CHECKS

    assert {name.partition(":")[0] for name in BREAKS} == {check.name for check in JOB_CHECKS}


def test_a_bucket_that_its_owner_lost_after_its_clean_end_is_found(spark: SparkSession) -> None:
    from jobmaster.pipeline.steps.invariants import CLEAN_EXIT, unclean_exits

    events = [
        ("retired", "COMPLETING", "READY_TO_DELETE", "owner", "emptied by its owner"),
        ("unclean", "READY_TO_DELETE", "LOST", "owner", "the master counts other buckets"),
        ("remains", "READY_TO_DELETE", "LOST", None, "keys of a retired bucket hold jobs again"),
        ("died", "COMPLETING", "LOST", "owner", "its lease ran out"),
    ]
    frame = spark.createDataFrame(
        events, "bucket_id string, from_state string, to_state string, actor string, reason string"
    )
    (row,) = unclean_exits(frame).collect()
    assert (row["check"], row["job_id"]) == (CLEAN_EXIT.name, "unclean")
    assert "by its owner owner" in row["detail"]


def test_two_jobs_of_one_fire_are_found(spark: SparkSession) -> None:
    from jobmaster.pipeline.steps.invariants import FIRES, second_jobs_of_fires

    fire = '{"schedule":"nightly","nominal_us":1900000000000000}'
    jobs = [
        ("a", "SUCCEEDED", fire),
        ("b", "HELD", fire),
        ("c", "SUCCEEDED", fire.replace("nightly", "other")),
        ("d", "CANCELLED", fire.replace("nightly", "other")),
        ("e", "SUCCEEDED", '{"tags":["nominal_us"]}'),
        ("f", "SUCCEEDED", ""),
        ("g", "SUCCEEDED", '{"metadata":{"nominal_us":1}}'),
        ("h", "SUCCEEDED", '{"metadata":{"nominal_us":1}}'),
    ]
    (row,) = second_jobs_of_fires(spark.createDataFrame(jobs, "id string, state string, headers string")).collect()
    assert (row["check"], row["job_id"]) == (FIRES.name, "a")
    assert "2 jobs of schedule nightly" in row["detail"]


def test_a_second_job_of_one_try_of_a_step_is_found(spark: SparkSession) -> None:
    from jobmaster.pipeline.steps.invariants import STEPS, tries_of_steps

    def job(time: str, try_: int, step: int, state: str) -> tuple[str, str, str]:
        headers = f'{{"workflow":["0198f3a2-7c1e-7b44-9d2f-3f5b00000000",{step}]}}'
        return f"{time}-7c1e-7b44-9d2f-3f5b{try_:04x}{step:04x}", state, headers

    jobs = [
        job("0198f3a2", 1, 1, "FAILED"),
        job("0198f3a3", 2, 1, "HELD"),
        job("0198f3a2", 1, 2, "SUCCEEDED"),
        job("0198f3a3", 1, 2, "SUCCEEDED"),
        job("0198f3a2", 1, 3, "HELD"),
        job("0198f3a2", 2, 3, "SUCCEEDED"),
        ("0198f3a2-7c1e-7b44-9d2f-3f5b00010002", "SUCCEEDED", '{"tags":["workflow"]}'),
    ]
    found = tries_of_steps(spark.createDataFrame(jobs, "id string, state string, headers string")).collect()
    assert {(row["check"], row["job_id"][-4:]) for row in found} == {(STEPS.name, "0002"), (STEPS.name, "0003")}
    details = sorted(row["detail"] for row in found)
    assert "step 2" in details[0]
    assert "2 jobs of 1 tries, unfinished from try - on" in details[0]
    assert "2 jobs of 2 tries, unfinished from try 0001 on" in details[1]


def test_a_batch_whose_counters_differ_from_its_jobs_is_found(spark: SparkSession) -> None:
    from jobmaster.pipeline.steps.invariants import BATCHES, RANGE_CHARS, miscounted_batches

    mark = '{"batch":true}'
    prefixes = {
        name: f"{name:->{RANGE_CHARS}}" for name in ("right", "second", "less", "more", "open", "gone", "quarantined")
    }
    jobs = [
        (f"{prefixes[name]}{number:08x}", state, mark)
        for name, states in {
            "right": ("SUCCEEDED", "FAILED"),
            "second": ("SUCCEEDED",),
            "less": ("SUCCEEDED",),
            "more": ("SUCCEEDED", "SUCCEEDED"),
            "open": ("SUCCEEDED", "HELD"),
        }.items()
        for number, state in enumerate(states, 1)
    ]
    batches = [
        ("right", [prefixes["right"], prefixes["second"]], True, 2, 1, 0, 0),
        ("less", [prefixes["less"]], True, 2, 0, 0, 0),
        ("more", [prefixes["more"]], True, 1, 0, 0, 0),
        ("open", [prefixes["open"]], True, 1, 0, 0, 0),
        ("gone", [prefixes["gone"]], False, 5, 0, 0, 0),
        ("quarantined", [prefixes["quarantined"]], True, 0, 1, 0, 0),
    ]
    found = miscounted_batches(
        spark.createDataFrame(
            [*jobs, (f"{prefixes['right']}00000009", "HELD", "")], "id string, state string, headers string"
        ),
        spark.createDataFrame(
            batches,
            "id string, ranges array<string>, complete boolean, succeeded bigint, failed bigint, cancelled bigint, "
            "expired bigint",
        ),
    ).collect()
    assert {(row["check"], row["job_id"]) for row in found} == {
        (BATCHES.name, name) for name in ("less", "more", "open")
    }
    details = {row["job_id"]: row["detail"] for row in found}
    assert details["open"] == (
        "counted: cancelled 0, expired 0, failed 0, succeeded 1; "
        "found: cancelled 0, expired 0, failed 0, succeeded 1, unfinished 1"
    )


def test_runs_of_one_ordering_key_that_overlap_are_found(spark: SparkSession) -> None:
    from jobmaster.pipeline.steps.invariants import ORDER, overlapping_runs

    key = '{"requires":["ordering"],"ordering_key":"order 7"}'
    jobs = [  # id, headers, end, duration in us
        ("a", key, 1000, 200_000_000),
        ("b", key, 1100, 100_000_000),  # begins when a has ended
        ("c", key, 1150, 51_000_000),  # one second too early
        ("d", key, 1050, None),  # cancelled before it ran
        ("e", key.replace("7", "8"), 1100, 100_000_000),
        ("f", '{"metadata":{"ordering_key":"order 7"}}', 1100, 100_000_000),
        ("g", "", 1100, 100_000_000),
    ]
    frame = spark.createDataFrame(jobs, "id string, headers string, ended long, ran_us long")
    (row,) = overlapping_runs(
        frame.selectExpr("id", "headers", "timestamp_seconds(ended) AS changed_at", "ran_us")
    ).collect()
    assert (row["check"], row["job_id"]) == (ORDER.name, "c")
    assert row["detail"] == "began 1000000 us before the end of another job of key order 7"


def test_it_takes_one_shuffle_and_no_python(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    from jobmaster.pipeline.steps.invariants import violations_of

    violations_of(lines(spark, History(1, 5)), 4).explain()
    plan = capsys.readouterr().out
    assert plan.count("Exchange hashpartitioning") == 1
    assert "Python" not in plan
