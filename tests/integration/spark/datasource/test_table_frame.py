"""``table_frame``: the queries of a DataFrame without options read what they need, and answer as the source does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from jobmaster.model.errors import InputError
from jobmaster.pipeline.datasource.narrowing import Comparison, Operator, narrowed
from jobmaster.pipeline.datasource.tables import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.integration.spark.datasource.conftest import PublishedCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]
NOON = datetime(2030, 1, 31, 12, 0, 0, 500, tzinfo=UTC)
UNREADABLE = "UPDATE job SET args = '\\x7b'::bytea WHERE id IN (SELECT id FROM job WHERE state = 'FAILED' LIMIT 1)"
"""Arguments that are no JSON: a statement that reads them ends with an error."""


def frame_of(published: PublishedCluster, table: str = "jobs", **options: str) -> DataFrame:
    from jobmaster.pipeline.table_frame import table_frame

    return table_frame(published.spark, {**published.options, "table": table, **options})


def ids(frame: DataFrame) -> list[str]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_the_master_sends_only_columns_and_rows_that_a_query_needs(published: PublishedCluster) -> None:
    """The arguments of one failed job cannot be read: what ends well has not read them."""
    from jobmaster.pipeline.spark.errors import run_spark

    published.ended(40)
    published.ended(4, "FAILED")
    published.sql(lambda connection: connection.execute(UNREADABLE))
    with pytest.raises(Exception, match="json"):
        run_spark(published.read().count)
    frame = frame_of(published)
    assert frame.count() == 44
    assert frame.where("state = 'FAILED'").count() == 4
    assert frame.groupBy("handler", "state").count().count() == 8
    succeeded = frame.where("state IN ('SUCCEEDED', 'CANCELLED') AND handler = 'h1'")
    assert [row["args"][:2] for row in succeeded.select("args").collect()] == ['{"'] * 10
    with pytest.raises(Exception, match="json"):
        run_spark(frame.select("args").collect)


def test_queries_answer_as_those_of_the_source(published: PublishedCluster) -> None:
    published.ended(60)
    published.ended(6, "FAILED")
    plain, frame = published.read(), frame_of(published)
    one = plain.orderBy("id").collect()[30]
    moment = f"timestamp'{one['created_at']}'"
    for condition, fewest in {
        f"id = '{one['id']}'": 1,
        f"id IN ('{one['id']}', 'none', upper('{one['id']}'))": 1,
        f"id >= '{one['id']}'": 36,
        f"id < '{one['id']}'": 30,
        f"id > '{one['id'][:9]}'": 1,
        f"created_at = {moment}": 1,
        f"created_at >= {moment}": 36,
        f"created_at < {moment} + INTERVAL 1 MICROSECOND": 30,
        "state = 'FAILED'": 6,
        "state = 'failed'": 0,
        "state <=> 'FAILED' AND priority IN ('critical', 'urgent')": 1,
        "state != 'FAILED' OR handler = 'h1'": 60,
        "handler IN ('h1', 'h2,h3')": 16,
        "handler = ''": 0,
        "lane = ' default'": 0,
        f"bucket_id = '{one['bucket_id']}' AND state IS NOT NULL": 1,
        f"bucket_id = upper('{one['bucket_id']}')": 0,
        "state = 'FAILED' AND state = 'SUCCEEDED'": 0,
        "created_at > timestamp'9000-01-01' AND created_at < timestamp'2000-01-01'": 0,
        "ran_us > 40 AND handler LIKE 'h%'": 40,
    }.items():
        found = ids(frame.where(condition))
        assert found == ids(plain.where(condition)), condition
        assert len(found) >= fewest, condition
    assert sorted(frame.collect()) == sorted(plain.collect())


def test_a_comparison_and_an_option_hold_both(published: PublishedCluster) -> None:
    published.ended(40)
    published.ended(4, "FAILED")
    frame = frame_of(published, STATES="failed", Columns="state,handler")
    assert frame.columns == ["state", "handler"]
    assert frame.where("state = 'SUCCEEDED'").count() == 0
    assert frame.where("state IN ('FAILED', 'SUCCEEDED')").count() == frame.count() == 4
    early = frame_of(published, until="2001-01-01")
    assert early.where("created_at > timestamp'2030-01-01'").count() == 0


def test_queries_of_one_frame_share_no_filter(published: PublishedCluster) -> None:
    published.ended(40)
    published.ended(4, "FAILED")
    frame = frame_of(published)
    failed = frame.where("state = 'FAILED'")
    assert (failed.count(), frame.count()) == (4, 44)
    assert failed.unionAll(frame.where("handler = 'h2'")).unionAll(frame).count() == 4 + 11 + 44
    assert failed.join(frame, "id").count() == 4
    frame.createOrReplaceTempView("narrow")
    counts = "SELECT (SELECT count(*) FROM narrow WHERE state = 'FAILED') AS few, (SELECT count(*) FROM narrow) AS all"
    assert tuple(published.spark.sql(counts).collect()[0]) == (4, 44)


def test_a_kept_frame_is_found_again(published: PublishedCluster) -> None:
    """Spark looks for kept data by comparing plans, and so tables."""
    published.ended(10)
    frame = frame_of(published)
    kept = frame.select("state").cache()
    try:
        assert kept.count() == 10
        published.ended(10)
        assert kept.count() == 10
        assert frame_of(published).select("state").count() == 20
    finally:
        kept.unpersist()
    assert frame.select("state").count() == 20


def test_every_table_has_a_frame(published: PublishedCluster) -> None:
    published.ended(5)
    assert frame_of(published, "ledger").count() == 5
    assert frame_of(published, "ledger").where("concluding").select("outcome").count() == 5
    for table in ("attempts", "buckets", "events", "operations"):
        assert frame_of(published, table).where("at IS NOT NULL" if table != "buckets" else "id = 'x'").count() == 0


def test_rows_that_are_only_counted_have_no_values(published: PublishedCluster) -> None:
    published.ended(30)
    published.ended(3, "FAILED")
    counted = published.read(columns="state,id", states="FAILED", counted="true", numPartitions="2")
    assert [tuple(row) for row in counted.collect()] == [(None, None)] * 3


def test_errors_are_those_of_the_source(published: PublishedCluster) -> None:
    from jobmaster.pipeline.spark.errors import run_spark

    with pytest.raises(InputError, match="no option 'tabel'"):
        frame_of(published, tabel="jobs")
    with pytest.raises(Exception, match="cannot be reached") as caught:
        run_spark(frame_of(published, dsn="postgresql://nobody@127.0.0.1:1/x").count)
    assert "Traceback" not in str(caught.value)


def test_a_spark_without_these_classes_reads_everything_with_a_warning(
    published: PublishedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobmaster.pipeline.spark import prunable

    published.ended(3)
    monkeypatch.setattr(prunable, "_relation", lambda frame: frame._jdf.noSuchMethod())
    with pytest.warns(RuntimeWarning, match=r"^Spark 4\..* does not let the planner ask for columns and rows"):
        frame = frame_of(published)
    assert len(ids(frame)) == 3


def test_a_session_of_spark_connect_gets_the_source_itself() -> None:
    from jobmaster.pipeline.spark.prunable import prunable

    whole: Any = object()
    assert prunable(SimpleNamespace(), whole, lambda _: None) is whole


ID = UUID("01a21f73-9c56-7efa-8a35-aea60fe097c8")
CREATED = datetime(2026, 11, 28, 0, 0, 0, 86_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("table", "options", "comparison", "expected"),
    [
        ("jobs", {}, ("state", Operator.ONE_OF, ("FAILED", "EXPIRED")), {"states": "FAILED,EXPIRED"}),
        ("jobs", {"states": "failed"}, ("state", Operator.ONE_OF, ("FAILED", "EXPIRED")), {"states": "FAILED"}),
        ("jobs", {"states": "FAILED"}, ("state", Operator.ONE_OF, ("EXPIRED",)), {"states": "FAILED"}),
        ("jobs", {}, ("state", Operator.ONE_OF, ("failed",)), {}),
        ("jobs", {}, ("state", Operator.ONE_OF, (None,)), {}),
        ("jobs", {}, ("state", Operator.ONE_OF, ()), {}),
        ("jobs", {}, ("state", Operator.FROM, ("FAILED",)), {}),
        ("jobs", {}, ("handler", Operator.ONE_OF, ("a,b",)), {}),
        ("jobs", {}, ("priority", Operator.ONE_OF, ("urgent",)), {}),
        ("jobs", {}, ("attempt", Operator.ONE_OF, (1,)), {}),
        ("attempts", {}, ("state", Operator.ONE_OF, ("FAILED",)), {}),
        ("buckets", {}, ("id", Operator.ONE_OF, (str(ID),)), {"buckets": str(ID)}),
        ("buckets", {}, ("id", Operator.ONE_OF, (str(ID).upper(),)), {}),
        ("ledger", {}, ("job_id", Operator.FROM, (str(ID),)), {"since": CREATED.isoformat()}),
        ("ledger", {}, ("at", Operator.FROM, (NOON,)), {}),
        ("events", {}, ("at", Operator.TO, (NOON,)), {"until": "2030-01-31T12:00:00.001000+00:00"}),
        ("jobs", {}, ("created_at", Operator.FROM, (NOON,)), {"since": "2030-01-31T12:00:00+00:00"}),
        (
            "jobs",
            {"since": "2030-02-01"},
            ("created_at", Operator.FROM, (NOON,)),
            {"since": "2030-02-01T00:00:00+00:00"},
        ),
        ("jobs", {}, ("created_at", Operator.TO, (datetime.max.replace(tzinfo=UTC),)), {}),
        ("jobs", {}, ("id", Operator.ONE_OF, (str(ID), "none")), {}),
        ("jobs", {}, ("id", Operator.FROM, ("ffffffff-ffff-ffff-ffff-ffffffffffff",)), {}),
        (
            "jobs",
            {},
            ("id", Operator.ONE_OF, (str(ID),)),
            {"since": CREATED.isoformat(), "until": (CREATED + timedelta(milliseconds=1)).isoformat()},
        ),
    ],
)
def test_comparisons_become_options_that_select_no_less(
    table: str,
    options: dict[str, str],
    comparison: tuple[str, Operator, tuple[object, ...]],
    expected: dict[str, str],
) -> None:
    assert narrowed(table_of(table), options, [Comparison(*comparison)]) == expected
