"""The name under which the rows of a source are remembered. Two sources of one name would take rows from each other."""

from __future__ import annotations

import pytest

from jobmaster.pipeline.steps.backfills import SubmitRequest
from jobmaster.pipeline.steps.inputs import SourceSpec
from jobmaster.pipeline.steps.mapping import RowMapping
from jobmaster.pipeline.steps.submit import source_name


def name_of(place: str, *, table: str | None = None, sql: str | None = None) -> str:
    return source_name(SubmitRequest(SourceSpec(place, None, table, sql), "bill", RowMapping(("id",)), None, {}))


def test_a_short_name_is_the_handler_and_the_place() -> None:
    assert name_of("orders.csv") == "bill from orders.csv"
    assert name_of("postgresql://u:s3cret@h/shop", table="orders") == "bill from h/shop orders"


def test_long_queries_that_differ_at_their_end_have_names_of_their_own() -> None:
    query = f"SELECT {', '.join(f'column_{number}' for number in range(40))} FROM orders WHERE day = "
    names = [name_of("postgresql://h/shop", sql=f"{query}{day}") for day in (1, 2, 1)]
    assert names[0] == names[2] != names[1]
    assert {len(name) for name in names} == {200}


@pytest.mark.parametrize("place", ["postgresql://h/shop?user=u&password=s3cret", "postgresql://u:s3cret@h/shop"])
def test_no_name_holds_a_password(place: str) -> None:
    assert "s3cret" not in name_of(place, table="orders")
