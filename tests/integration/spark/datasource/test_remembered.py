"""Data that grows and is handed in every day: each row is a job once, whatever became of the jobs of the days before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobmaster.clock import SystemClock
from jobmaster.model.errors import InputError
from tests.integration.spark.datasource.conftest import PublishedCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def daily(published: PublishedCluster, path: Path, rows: int) -> dict[str, Any]:
    """The file as it is today, handed in as the documentation says; the account."""
    from jobmaster.pipeline.steps.backfills import SubmitRequest
    from jobmaster.pipeline.steps.inputs import SourceSpec
    from jobmaster.pipeline.steps.mapping import RowMapping
    from jobmaster.pipeline.steps.submit import submit

    path.write_text("path\n" + "".join(f"p{number}\n" for number in range(rows)))
    order = SubmitRequest(
        SourceSpec(str(path), None, None, None, (), {}), "images.resize", RowMapping(("path",)), None, {}
    )
    found = dict(submit(published.run(), order).summary)
    return {name: found[name] for name in ("offered", "inserted", "duplicates", "rejected")}


def account(offered: int, inserted: int) -> dict[str, int]:
    return {"offered": offered, "inserted": inserted, "duplicates": offered - inserted, "rejected": 0}


def test_each_row_is_a_job_once_and_of_the_time_at_which_it_came(published: PublishedCluster, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    assert daily(published, path, 30) == account(30, 30)
    began_us = SystemClock().wall_us()
    assert daily(published, path, 50) == account(50, 20)
    assert daily(published, path, 50) == account(50, 0)
    new = "SELECT count(*) FROM jobs WHERE created_at >= to_timestamp($1::float8 / 1e6) - interval '1 s'"
    assert published.value(new, began_us) >= 20
    assert published.value("SELECT count(DISTINCT id) FROM job") == 50


def test_a_row_whose_job_is_gone_is_not_handed_in_again(published: PublishedCluster, tmp_path: Path) -> None:
    """Retention drops the jobs and moves the floor past them; the next day's run goes on."""
    path = tmp_path / "orders.csv"
    assert daily(published, path, 30) == account(30, 30)
    published.sql(lambda c: c.execute("DELETE FROM job"))
    published.sql(lambda c: c.execute("UPDATE watermark SET floor = uuid_floor(clock_timestamp())"))
    assert daily(published, path, 40) == account(40, 10)
    assert published.value("SELECT count(*) FROM job") == 10


@pytest.mark.parametrize("rows", [7, *(pytest.param(rows, marks=pytest.mark.long) for rows in (10, 20_000))])
def test_rows_of_a_batch_that_was_written_before_rows_were_remembered_are_taken_over(
    published: PublishedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Some with each statement: one for a batch of millions would take longer than a statement may."""
    monkeypatch.setattr("jobmaster.pipeline.datasource.write_options.ADOPT_ROWS", rows)
    path = tmp_path / "orders.csv"
    frame = published.spark.createDataFrame(
        [(f"p{n}", f'{{"path":"p{n}"}}') for n in range(30)], "key string, args string"
    )
    published.write(frame, batch=f"images.resize from {path}")
    assert daily(published, path, 40) == account(40, 10)
    assert daily(published, path, 40) == account(40, 0)


def test_a_run_that_died_after_some_rows_is_completed_by_the_next_one(published: PublishedCluster) -> None:
    published.write(published.rows(200), batch="", remember="orders", runId="died", chunkRows="50")
    # As if the first run had been killed after two of its chunks: their keys and rows are there, and nothing else is.
    published.sql(lambda c: c.execute("CREATE TEMP TABLE gone AS SELECT id FROM job ORDER BY id DESC LIMIT 100;"
                                   " DELETE FROM pipeline_key WHERE job_id IN (SELECT id FROM gone);"
                                   " DELETE FROM job WHERE id IN (SELECT id FROM gone)"))  # fmt: skip
    published.write(published.rows(200), batch="", remember="orders", runId="again")
    assert published.value("SELECT count(*) FROM job") == 200
    assert published.value("SELECT inserted FROM pipeline_write WHERE run_id = 'again'") == 100


def test_a_task_that_runs_again_puts_in_nothing_and_is_counted_once(published: PublishedCluster) -> None:
    for _ in range(2):
        published.write(published.rows(60), batch="today", remember="orders", runId="same")
    assert published.value("SELECT count(*) FROM job") == 60


@pytest.mark.parametrize("rows", [7, pytest.param(20_000, marks=pytest.mark.long)])
def test_what_is_forgotten_is_new_again(
    published: PublishedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    from jobmaster.pipeline.steps.lake_admin import forget, list_lake

    monkeypatch.setattr("jobmaster.pipeline.steps.lake_admin.FORGET_ROWS", rows)
    path = tmp_path / "orders.csv"
    daily(published, path, 30)
    name = f"images.resize from {path}"
    listed = [item for item in list_lake(published.run()).items or () if item["kind"] == "source"]
    assert [(item["name"], item["rows"]) for item in listed] == [(name, 30)]
    with pytest.raises(InputError, match="no source is called"):
        forget(published.run(), "orders")
    assert forget(published.run(dry_run=True), name).rows == 30
    assert daily(published, path, 30) == account(30, 0)
    published.value("INSERT INTO pipeline_file VALUES ($1, 1, 'r', 30)", name)
    assert forget(published.run(), name).rows == 30
    assert published.value("SELECT (SELECT count(*) FROM pipeline_key) + (SELECT count(*) FROM pipeline_file)") == 0
    assert daily(published, path, 30) == account(30, 30)
