"""The name under which the rows of a source are remembered. Two sources of one name would take rows from each other; the rows
of one source with two names would be submitted twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobmaster.pipeline.steps.backfills import SubmitRequest
from jobmaster.pipeline.steps.inputs import SourceSpec, located
from jobmaster.pipeline.steps.mapping import RowMapping
from jobmaster.pipeline.steps.submit import source_name, submit
from tests.integration.spark.datasource.conftest import PublishedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name_of(place: str, *, table: str | None = None, sql: str | None = None) -> str:
    return source_name("bill", SourceSpec(place, None, table, sql).description)


def test_a_short_name_is_the_handler_and_the_place() -> None:
    assert name_of("/data/orders.csv") == "bill from /data/orders.csv"
    assert name_of("postgresql://h/shop", table="orders") == "bill from postgresql://h/shop orders"


def test_long_queries_that_differ_at_their_end_have_names_of_their_own() -> None:
    query = f"SELECT {', '.join(f'column_{number}' for number in range(40))} FROM orders WHERE day = "
    names = [name_of("postgresql://h/shop", sql=f"{query}{day}") for day in (1, 2, 1)]
    assert names[0] == names[2] != names[1]
    assert {len(name) for name in names} == {200}


@pytest.mark.parametrize(
    "place",
    ["postgresql://h/shop?user=u&password=s3cret", "postgresql://u:s3cret@h/shop", "postgresql://u@h/shop",
     "postgres://u:s3/cret@h/shop?user=u"],
)  # fmt: skip
def test_user_and_password_of_a_database_are_no_part_of_the_name(place: str) -> None:
    assert name_of(place, table="orders") == "bill from postgresql://h/shop orders"


def test_other_options_of_an_address_stay_in_the_name() -> None:
    place = "postgresql://h/shop?password=s3cret&options=-csearch_path%3Da"
    assert name_of(place, table="orders") == "bill from postgresql://h/shop?options=-csearch_path%3Da orders"
    assert "s3cret" not in name_of("postgresql://u:s3?cret@h/shop", table="orders")


@pytest.mark.slow
def test_a_path_is_the_same_source_in_every_spelling_and_another_one_in_another_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = f"{tmp_path}/orders.csv"
    for place in ("orders.csv", "./orders.csv", absolute, f"file://{absolute}", f"file:{absolute}"):
        assert located(spark, SourceSpec(place)).place == absolute
    for place in ("s3a://bucket/orders.csv", "hdfs:/orders.csv", "postgresql://h/shop"):
        assert located(spark, SourceSpec(place)).place == place
    query = located(spark, SourceSpec(None, sql="SELECT * FROM o", views=("o=orders.csv",)))
    assert query.description == f"query SELECT * FROM o o={absolute}"


def order(place: str, table: str | None = None) -> SubmitRequest:
    return SubmitRequest(SourceSpec(place, table=table), "images.resize", RowMapping(("path",)), None, {})


def inserted(published: PublishedCluster, wanted: SubmitRequest) -> Any:
    return submit(published.run(), wanted).summary["inserted"]


@pytest.mark.slow
def test_files_of_one_name_in_two_directories_are_two_sources_and_the_stored_call_names_the_directory(
    published: PublishedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for month in ("jan", "feb"):
        (tmp_path / month).mkdir()
        (tmp_path / month / "orders.csv").write_text("path\n1\n2\n")
        monkeypatch.chdir(tmp_path / month)
        assert inserted(published, order("orders.csv")) == 2
        assert inserted(published, order(str(tmp_path / month / "orders.csv"))) == 0
    request = published.value("SELECT request FROM pipeline_backfill ORDER BY name DESC LIMIT 1")
    assert msgspec.json.decode(request, type=SubmitRequest).source.place == f"{tmp_path}/jan/orders.csv"


@pytest.mark.slow
def test_a_source_that_an_earlier_version_has_named_keeps_its_name(
    published: PublishedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = published.spark.createDataFrame(
        [(f"p{n}", f'{{"path":"p{n}"}}') for n in range(3)], "key string, args string"
    )
    published.write(rows, batch="", remember="images.resize from orders.csv")
    (tmp_path / "orders.csv").write_text("path\n" + "".join(f"p{n}\n" for n in range(5)))
    assert inserted(published, order("orders.csv")) == 2
    assert f'--remember "images.resize from {tmp_path}/orders.csv"' in " ".join(published.said)
    named = {"remember": f"images.resize from {tmp_path}/orders.csv"}
    assert inserted(published, order("orders.csv")._replace(options=named)) == 5, "as the note says"
    assert inserted(published, order("orders.csv")) == 0, "the new name is known now"


@pytest.mark.slow
def test_a_table_that_an_earlier_version_has_named_keeps_its_name(
    published: PublishedCluster, migrated_dsn: str
) -> None:
    published.sql(lambda c: c.execute("CREATE TABLE orders AS SELECT 'p' || n AS path FROM generate_series(1, 3) n"))
    table = f"{published.settings.schema_name()}.orders"
    address = migrated_dsn.partition("://")[2].rpartition("@")[2]
    frame = published.spark.createDataFrame([("p1", '{"path":"p1"}')], "key string, args string")
    published.write(frame, batch="", remember=f"images.resize from {address} {table}")
    assert inserted(published, order(migrated_dsn, table)) == 2


def test_a_user_that_is_added_to_an_address_or_taken_from_it_changes_no_name() -> None:
    with_user, without = (SourceSpec(f"postgresql://{user}h/shop", table="orders") for user in ("u:s3cret@", ""))
    assert with_user.earlier_descriptions == without.earlier_descriptions
    assert with_user.earlier_descriptions == ("h/shop orders", "postgresql://h/shop orders")
