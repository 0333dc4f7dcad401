"""Histograms are within one per cent; roll-ups count what is there, by whole days, the same however often they are made."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.pipeline.report.histograms import GAMMA, quantiles, value_of
from tests.integration.spark.steps.conftest import SeededCluster, rolled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 500


def _bin(microseconds: float) -> int:
    return math.ceil(math.log(max(microseconds, 1)) / math.log(GAMMA))


def test_a_quantile_of_a_histogram_is_within_one_per_cent_and_histograms_merge_by_adding() -> None:
    dice = random.Random(1)
    values = [dice.lognormvariate(10, 2) + 1 for _ in range(20_000)]
    one, other = [(_bin(value), 1) for value in values[:500]], [(_bin(value), 1) for value in values[500:]]
    ordered = sorted(values)
    for share, found in zip(
        (0.01, 0.5, 0.95, 0.99, 1.0), quantiles(one + other, (0.01, 0.5, 0.95, 0.99, 1.0)), strict=True
    ):
        exact = ordered[max(1, math.ceil(share * len(ordered))) - 1]
        assert found == pytest.approx(exact, rel=0.0101)


def test_nothing_has_no_quantile() -> None:
    assert quantiles([], (0.5,)) == [None]
    assert value_of(0) == pytest.approx(1.0, rel=0.01)


@pytest.mark.slow
def test_spark_finds_the_same_bins(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from jobmaster.pipeline.report.histograms import bin_of

    values = [0, 1, 2, 50, 51, 999, 10**6, 10**9, 12_345_678]
    frame = spark.createDataFrame([(value,) for value in values], "us long")
    assert [row[0] for row in frame.select(bin_of(F.col("us"))).collect()] == [_bin(value) for value in values]


JOBS = (
    "id string, state string, lane string, priority string, handler string, created_at timestamp, due_at timestamp,"
    " ended_at timestamp, waited_us bigint, ran_us bigint, attempt int, rescues int, bucket_id string, bucket_epoch bigint,"
    " headers string, error string"
)
ATTEMPTS = (
    "job_id string, at timestamp, outcome string, refused_at timestamp, ran_us bigint,"
    " bucket_id string, bucket_epoch bigint, error string"
)
ACME = '{"metadata": {"a": "\\"tenant\\":[\\"no\\"]"}, "tenant":["acme"]}'


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def job(
    id_: str, state: str, created: datetime, ended: datetime | None, ran: int | None, **more: Any
) -> tuple[Any, ...]:
    return (
        id_, state, "default", "high", "h", created, more.get("due"), ended, 10, ran, more.get("attempt", 1),
        more.get("rescues", 0), more.get("bucket", "b1"), 1, more.get("headers"), more.get("error"),
    )  # fmt: skip


def history(spark: SparkSession, first_of_second_part: str) -> tuple[list[DataFrame], DataFrame]:
    """Five jobs in two parts, and two attempts."""
    from jobmaster.pipeline.report.aggregates import with_facts

    jobs = spark.createDataFrame(
        [
            job("1", "SUCCEEDED", at(1), at(1, 5), 1000, headers=ACME),
            job("2", "FAILED", at(1), at(2, 5), 2000, attempt=2, rescues=2, bucket="b2", headers='{"tags": ["tenant"]}',
                error='{"type": "ValueError", "message": "order 17 is odd\\nsecond line"}'),
            job("3", "HELD", at(23), None, None, bucket=None),
            job("4", "SUCCEEDED", at(23), at(0, 1, day=2), 3000, due=at(0, 0, day=2), headers=ACME),
            job("5", "SUCCEEDED", at(23), at(0, 2, day=2), 3000, due=at(0, 1, day=2), rescues=1),
        ],
        JOBS,
    )  # fmt: skip
    error = '{"type": "ValueError", "message": "order 18 is odd"}'
    attempts = spark.createDataFrame(
        [("2", at(1, 50), "timed_out", at(2), 77, "b1", 1, error), ("2", at(2, 1), "lost", None, None, "b2", 1, None)],
        ATTEMPTS,
    )
    return [with_facts(jobs.where(f"id {side} '{first_of_second_part}'")) for side in ("<", ">=")], attempts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first_of_second_part", "attempt_rows"), [("9", 1), ("3", 10**9)], ids=["broadcast", "two-parts-shuffled"]
)
def test_every_event_is_counted_in_its_own_hour_with_the_agent_that_made_it(
    spark: SparkSession, first_of_second_part: str, attempt_rows: int
) -> None:
    from jobmaster.pipeline.report.aggregates import attempts_of, latencies, tally, throughput

    parts, attempts = history(spark, first_of_second_part)
    owners = spark.createDataFrame(
        [("b1", 1, "ann"), ("b2", 1, "bob")], "bucket_id string, bucket_epoch long, agent string"
    )
    rows = {
        (row["hour"].replace(tzinfo=UTC), row["agent"]): row.asDict()
        for row in throughput(tally(parts, attempts_of(parts, attempts, attempt_rows)), owners).collect()
    }
    assert {key: row["submitted"] for key, row in rows.items() if row["submitted"]} == {
        (at(1), None): 2,
        (at(23), None): 3,
    }
    assert {key: row["succeeded"] for key, row in rows.items() if row["succeeded"]} == {
        (at(1), "ann"): 1, (at(0, day=2), "ann"): 2,
    }  # fmt: skip
    assert [rows[at(2), "bob"][name] for name in ("failed", "rescued", "lost", "ran_us")] == [1, 2, 1, 2000]
    tried = rows[at(1), "ann"]
    assert (tried["retried"], tried["timed_out"], tried["refused"], tried["lost"]) == (1, 1, 1, 0)
    totals = {row["bin"]: row["jobs"] for row in latencies(parts).where("metric = 'total'").collect()}
    hour = 3_600_000_000
    assert totals == {
        _bin(300_000_000): 1,
        _bin(hour + 300_000_000): 1,
        _bin(60_000_000): 1,
        _bin(hour + 120_000_000): 1,
    }


@pytest.mark.slow
def test_minutes_costs_and_kinds_of_failures_count_each_job_and_attempt_once(spark: SparkSession) -> None:
    from jobmaster.pipeline.report.aggregates import MINUTE, attempts_of, costs, latencies, tally, throughput_of_groups
    from jobmaster.pipeline.report.failure_kinds import failures
    from jobmaster.rules.failure_group import error_fingerprint

    parts, attempts = history(spark, "2")
    joined = attempts_of(parts, attempts, 2)
    minutes = throughput_of_groups(tally(parts, joined, MINUTE)).collect()
    assert {row["minute"].replace(tzinfo=UTC): row["succeeded"] + row["failed"] for row in minutes} == {
        at(1): 0, at(1, 5): 1, at(1, 50): 0, at(2, 1): 0, at(2, 5): 1, at(23): 0, at(0, 1, day=2): 1, at(0, 2, day=2): 1,
    }  # fmt: skip
    waited = latencies(parts, MINUTE).where("metric = 'running'").collect()
    assert {row["minute"].replace(tzinfo=UTC): row["jobs"] for row in waited}[at(2, 5)] == 1
    used = {(row["day"].day, row["tenant"]): row.asDict() for row in costs(tally(parts, joined)).collect()}
    names = ("jobs", "failed", "retries", "ran_us", "retried_us", "waited_us")
    assert {key: tuple(row[name] for name in names) for key, row in used.items()} == {
        (1, "acme"): (1, 0, 0, 1000, 0, 10),
        (1, ""): (1, 1, 2, 2077, 77, 10),
        (2, "acme"): (1, 0, 0, 3000, 0, 10),
        (2, ""): (1, 0, 0, 3000, 0, 10),
    }
    (kind,) = failures(parts, joined).collect()
    assert kind["fingerprint"] == error_fingerprint("h", "ValueError", "order 4711 is odd")
    assert (kind["line"], kind["jobs"], kind["attempts"]) == ("order # is odd", 1, 1)
    assert (kind["first_at"].replace(tzinfo=UTC), kind["last_at"].replace(tzinfo=UTC)) == (at(1, 50), at(2, 5))


# ---------------------------------------------------------------- the command


def figures(seeded: SeededCluster) -> list[tuple[Any, ...]]:
    """Everything, without what says which run wrote it."""
    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.steps.rollup import read

    run = seeded.run()
    return sorted(
        tuple(map(str, row)) for frame in read(run, Lake(run.lake)).values() for row in frame.collect()
    )  # fmt: skip


@pytest.mark.slow
def test_a_rollup_is_the_same_from_the_master_and_from_the_lake(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.rollup import MINUTES_SECONDS

    def rolled_up(**words: Any) -> Any:
        return rolled(seeded, minutes_seconds=MINUTES_SECONDS, **words)

    seeded.fill_days(3, rows=ROWS)
    assert rolled_up().summary["rolled_up_jobs"] == ROWS
    assert rolled_up().summary["days"] == [], "nothing was touched since"
    first = figures(seeded)
    archive(seeded.run(), 2.0, keep=False)
    assert rolled_up().summary["days"] == [], "its jobs have only moved"
    later = rolled_up(rebuild=True, has_page=True)
    assert figures(seeded) == first
    page = Path(later.summary["report"]).read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http-equiv", ""), "nothing is fetched from anywhere"


@pytest.mark.slow
@pytest.mark.long
def test_a_rollup_in_steps_is_that_from_the_beginning_when_attempts_were_touched(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.rollup import MINUTES_SECONDS

    seeded.fill_days(3, rows=ROWS)
    rolled(seeded, minutes_seconds=MINUTES_SECONDS)
    archive(seeded.run(), 2.0, keep=False)
    seeded.fill_days(0, rows=ROWS, rate=0.001)
    seeded.execute("UPDATE job SET changed_at = clock_timestamp(); UPDATE attempt SET at = clock_timestamp()")
    assert rolled(seeded, minutes_seconds=MINUTES_SECONDS).summary["rolled_up_jobs"] == ROWS
    in_steps = figures(seeded)
    rolled(seeded, minutes_seconds=MINUTES_SECONDS, rebuild=True)
    assert figures(seeded) == in_steps


@pytest.mark.slow
@pytest.mark.parametrize("rebuild", [pytest.param(False, marks=pytest.mark.long), True])
def test_figures_never_lose_what_was_discarded_since(seeded: SeededCluster, rebuild: bool) -> None:
    """A late job of a day whose range was dropped without a copy: the day is counted again from what is left of it."""
    seeded.fill_days(3, rows=ROWS)
    late = seeded.value(
        "UPDATE job SET state = 'HELD', bucket_id = NULL, bucket_epoch = NULL, due_at = now() + interval '1 h'"
        " WHERE id = (SELECT min(id::text)::uuid FROM job WHERE state = 'SUCCEEDED') RETURNING id"
    )
    rolled(seeded)
    before = counted(seeded)
    retired(seeded)
    assert seeded.value("SELECT count(*) FROM jobs") == 1
    seeded.sql(
        lambda c: c.execute("UPDATE job SET state = 'CANCELLED', changed_at = clock_timestamp() WHERE id = $1", late)
    )
    again = rolled(seeded, rebuild=rebuild)
    assert rebuild or len(again.summary["days"]) == 2, "its day of creation, and today"
    after = counted(seeded)
    assert after == {**before, "cancelled": before["cancelled"] + 1, "cost": before["cost"] + 1}
    rolled(seeded, rebuild=True)
    assert counted(seeded) == after, "again and again"


@pytest.mark.slow
def test_a_rollup_reads_only_ranges_with_changes_and_those_of_their_days(
    seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.fill_days(3, 2, rows=ROWS)
    rolled(seeded)
    seeded.fill_days(0, rows=ROWS, rate=0.001)
    midnight = "date_trunc('day', now(), 'UTC')"
    seeded.execute(f"UPDATE job SET changed_at = clock_timestamp() WHERE id >= uuid_floor({midnight})")
    today = seeded.value(f"SELECT to_char({midnight} AT TIME ZONE 'UTC', 'YYYY-MM-DD')")
    searched, read = recorded_reads(monkeypatch)
    assert rolled(seeded).summary["days"] == [today]
    assert searched == [seeded.value(f"SELECT to_us({midnight})")], (
        "the other ranges have the counters of the last time"
    )
    assert {options["since"] for options in read} == {f"{today}T00:00:00+00:00"}
    late = seeded.value("""
        UPDATE job SET state = 'FAILED', error = '{}', result = NULL, changed_at = clock_timestamp()
        WHERE id = (SELECT min(id::text)::uuid FROM job WHERE state = 'SUCCEEDED')
        RETURNING to_char(uuid_moment(id) AT TIME ZONE 'UTC', 'YYYY-MM-DD')""")
    read.clear()
    assert rolled(seeded).summary["days"] == [late, today], "the day on which it was created, and that of its end"
    assert {options["since"][:10] for options in read} == {late, today}, "and not the day between them"
    in_steps = figures(seeded)
    rolled(seeded, rebuild=True)
    assert figures(seeded) == in_steps


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int | None], list[dict[str, str]]]:
    """What roll-ups read of the master from now on: begin of the ranges they search for changes, options of their frames."""
    from jobmaster.master.driver.connection import rows_of
    from jobmaster.pipeline.lake.full_history import FullHistory

    searched: list[int | None] = []
    read: list[dict[str, str]] = []
    live_frame = FullHistory.live_frame

    def frame(self: FullHistory, table: str, columns: Any, options: dict[str, str] | None = None) -> DataFrame:
        read.append(options or {})
        return live_frame(self, table, columns, options)

    async def rows(connection: Any, name: str, *args: Any) -> Any:
        if name == "export/changed_days":
            searched.append(args[0])
        return await rows_of(connection, name, *args)

    monkeypatch.setattr(FullHistory, "live_frame", frame)
    monkeypatch.setattr("jobmaster.pipeline.steps.live_ranges.rows_of", rows)
    return searched, read


def counted(seeded: SeededCluster) -> dict[str, int]:
    """Sums of the throughput, and of the jobs in the histograms, the costs and the kinds of failures."""
    from pyspark.sql import functions as F

    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.report.aggregates import COUNTS
    from jobmaster.pipeline.steps.rollup import read

    frames = read(seeded.run(), Lake(str(seeded.lake)))
    row = frames["throughput"].agg(*(F.sum(name).alias(name) for name in COUNTS)).collect()[0]
    binned = frames["latency"].agg(F.sum("jobs").alias("jobs")).collect()[0]["jobs"]
    jobs = {
        name: int(frames[name].agg(F.sum("jobs").alias("jobs")).collect()[0]["jobs"]) for name in ("cost", "failures")
    }
    return {**{name: int(row[name]) for name in COUNTS}, "binned": int(binned), **jobs}


def retired(seeded: SeededCluster) -> None:
    """Every range that is old enough is dropped without a copy."""
    from jobmaster.retention.retire import Retiring
    from jobmaster.wiring import open_archive

    async def run() -> None:
        archive = await open_archive(seeded.settings)
        try:
            async with Retiring.opened(seeded.settings, archive, 2.0, ()) as retiring:
                async for _ in retiring.all(seeded.said.append):
                    pass
            for found in await archive.ranges():
                assert await archive.take(found.name)
                await archive.drop(found.name, discard=True)
        finally:
            await archive.close()

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.slow
def test_the_audit_finds_what_was_deleted_since_a_rollup_and_what_the_manifest_has_lost(seeded: SeededCluster) -> None:
    """One of each: ended jobs of the master, an outcome, a row of the manifest, the files of another."""
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.audit import audit

    seeded.fill_days(3, 2, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    seeded.fill_days(0, rows=ROWS, rate=0.001)
    rolled(seeded)
    assert audit(seeded.run(), 10).summary["audit_violations"] == 0
    seeded.execute("""
        DELETE FROM job WHERE id IN (SELECT id FROM job WHERE state = 'CANCELLED' OR state = 'EXPIRED' LIMIT 1);
        UPDATE job SET state = 'FAILED', result = NULL, error = '{}'
        WHERE id = (SELECT id FROM job WHERE state = 'SUCCEEDED' LIMIT 1);
        DELETE FROM archive_manifest WHERE lo = (SELECT min(lo::text)::uuid FROM archive_manifest);
        UPDATE archive_manifest SET run_id = 'other' WHERE lo = (SELECT max(lo::text)::uuid FROM archive_manifest);
    """)
    broken = audit(seeded.run(), 40)
    found = {row["detail"].split(",")[0] for row in broken.summary["evidence"] if row["check"] == "a2_documents"}
    assert found == {
        "the lake has a document of a range that the master does not know",
        "the master names other files than the document of the lake",
    }
    states = {row["detail"].split()[4] for row in broken.summary["evidence"] if row["check"] == "a3_figures"}
    assert "SUCCEEDED," in states
    assert states & {"CANCELLED,", "EXPIRED,"}


@pytest.mark.slow
def test_what_a_crashed_rollup_left_counts_for_nothing(seeded: SeededCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobmaster.pipeline.lake.lake import Lake

    seeded.fill_days(3, rows=ROWS)
    real = Lake.sync
    monkeypatch.setattr(Lake, "sync", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        rolled(seeded)
    monkeypatch.setattr(Lake, "sync", real)
    assert list((seeded.lake / "rollup").rglob("*.parquet")) != []
    assert figures(seeded) == []
    assert rolled(seeded).summary["rolled_up_jobs"] == ROWS


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_audit_is_clean_over_a_lawful_history_and_names_what_is_broken(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.audit import audit

    seeded.fill_days(3, rows=ROWS)
    archive(seeded.run(), 2.0, keep=False)
    seeded.fill_days(0, rows=ROWS, rate=0.001)
    clean = audit(seeded.run(), 10)
    assert (clean.rows, clean.summary["audit_violations"], clean.failed) == (2 * ROWS, 0, False)
    seeded.execute(
        "UPDATE job SET error = '\\x7b7d' WHERE id = (SELECT min(id::text)::uuid FROM job WHERE state = 'SUCCEEDED')"
    )
    seeded.execute(
        "INSERT INTO batch (id, name, state, size, ended_at, succeeded, failed, cancelled, expired, unfinished, missing)"
        " VALUES (gen_random_uuid(), 'b', 'SUCCEEDED', 1, clock_timestamp(), 1, 0, 0, 0, 0, 0)"
    )
    seeded.execute("INSERT INTO batch_range (lo, batch) SELECT id, id FROM batch")
    broken = audit(seeded.run(), 10)
    assert (broken.summary["audit_violations"], broken.failed) == (2, True)
    assert [row["check"] for row in broken.summary["evidence"]] == ["i12_counters", "i2_outcome"]
    path = next((seeded.lake / "jobs").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    assert audit(seeded.run(), 10).summary["checks"]["a1_files"] == 1
    path.unlink()
    assert "is missing" in audit(seeded.run(), 10).summary["evidence"][0]["detail"]
