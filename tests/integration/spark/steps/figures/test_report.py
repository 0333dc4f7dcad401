"""The report suits an hour as well as a year, says its time zone, and lies beside files with the same numbers."""

from __future__ import annotations

import csv
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobmaster.model.errors import InputError
from tests.integration.spark.steps.figures.figures_lake import context_of, hour_of, together, write_figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
UNTIL = datetime(2030, 3, 12, 10, 30, tzinfo=UTC)


def written(spark: SparkSession, where: Path, **options: Any) -> str:
    """The page."""
    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.report.build import PageOptions, write_report
    from jobmaster.pipeline.steps.rollup import read

    context, lake = context_of(spark, where), Lake(str(where))
    return Path(
        write_report(context, lake, read(context, lake), PageOptions(**options) if options else None)
    ).read_text()


def table(where: Path, name: str) -> list[dict[str, str]]:
    """A table of the report, the same in CSV and in Parquet."""
    from pyarrow import parquet

    lines = list(csv.DictReader((where / f"reports/figures/{name}.csv").read_text().splitlines()))
    rows = parquet.ParquetFile(where / f"reports/figures/{name}.parquet").read().to_pylist()
    as_text = [
        {
            key: "" if value is None else value.isoformat() if isinstance(value, date) else str(value)
            for key, value in row.items()
        }
        for row in rows
    ]
    assert lines == as_text
    return lines


def marks(page: str) -> int:
    """Number of bars with a value in the first plot of the page."""
    return page.split("<svg", 2)[1].count("<rect")


def test_an_hour_is_shown_by_the_minute_in_the_zone_and_its_files_have_the_same_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    start = datetime(2030, 3, 12, 9, 40, tzinfo=UTC)
    minutes = [start + timedelta(minutes=at) for at in range(45) if at != 7]
    failure = {"day": start.date(), "fingerprint": "abc", "handler": "mail", "error_type": "ValueError", "line": "=no <#>",
               "jobs": 3, "attempts": 1, "first_at": start, "last_at": UNTIL}  # fmt: skip
    used = {"day": start.date(), "tenant": "acme", "lane": "default", "priority": "high", "handler": "mail", "jobs": 100,
            "ran_us": 5_000_000}  # fmt: skip
    frames = together(
        hour_of(start.replace(minute=0), 60, failed=3),
        hour_of(start.replace(hour=10, minute=0), 72),
        *(hour_of(minute, 3, column="minute") for minute in minutes),
        {"cost": [used], "failures": [failure]},
    )
    write_figures(tmp_path, frames, UNTIL)
    page = written(spark, tmp_path, zone="Asia/Kolkata", price=0.5)
    assert "Jobs that ended, by minute." in page
    assert "All times are in the time zone Asia/Kolkata." in page
    assert "12 Mar 15:10" in page, "9:40 UTC"
    assert marks(page) == len(minutes)
    rows = table(tmp_path, "throughput")
    assert [row["succeeded"] for row in rows[6:9]] == ["3", "0", "3"], "a minute without jobs is a row, too"
    assert (rows[0]["at"], len(rows)) == ("2030-03-12T09:40:00+00:00", 45)
    assert [row["p50_us"] != "" for row in table(tmp_path, "waiting")] == [at != 7 for at in range(45)]
    assert [(row["tenant"], row["price"]) for row in table(tmp_path, "cost")] == [("acme", "2.5")]
    assert "&lt;#&gt;" in page, "texts of errors are text"
    assert table_of_failures(tmp_path) == ["'=no <#>"], "nor a formula"
    assert "132" in re.findall(r"<b[^>]*>([^<]*)</b><span class=\"dim\">jobs created", page)
    assert "<script" not in page
    assert "http" not in page
    assert "prefers-color-scheme" in page
    assert "@media print" in page
    again = written(spark, tmp_path)
    assert "Asia/Kolkata" in again, "the zone stays, also when another step writes the page"
    with pytest.raises(InputError, match="no time zone 'Asia/Kolkatta'"):
        written(spark, tmp_path, zone="Asia/Kolkatta")


def table_of_failures(where: Path) -> list[str]:
    """Lines of the kinds of failures, as CSV has them."""
    return [row["line"] for row in csv.DictReader((where / "reports/figures/failures.csv").read_text().splitlines())]


@pytest.mark.long
def test_a_year_is_shown_by_the_week_and_its_last_days_by_the_hour(spark: SparkSession, tmp_path: Path) -> None:
    days = [UNTIL.replace(hour=0, minute=0) - timedelta(days=back) for back in range(365, 0, -1)]
    write_figures(tmp_path, together(*(hour_of(day, 10) for day in days)), UNTIL)
    page = written(spark, tmp_path, zone="Europe/Berlin")
    assert "Jobs that ended, by week." in page
    assert marks(page) == 53
    rows = table(tmp_path, "throughput")
    assert sum(int(row["succeeded"]) for row in rows) == 3650
    assert {datetime.fromisoformat(row["at"]).isoweekday() for row in rows} == {7}, "Monday in Berlin is Sunday in UTC"
    page = written(spark, tmp_path, last_seconds=3 * 86_400)
    assert "Jobs that ended, by hour." in page
    assert sum(int(row["succeeded"]) for row in table(tmp_path, "throughput")) == 30
    assert {row["open"] for row in table(tmp_path, "throughput")} == {"0"}, "what was open before counts, too"
