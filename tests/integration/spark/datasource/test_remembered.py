"""Data that grows and is handed in every day: each row is a job once, whatever became of the jobs of the days before."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from jobmaster.clock import SystemClock
from jobmaster.master.driver.statements import statement
from jobmaster.model.errors import Conflict, InputError
from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.integration.spark.datasource.test_backfills import command, environment
from tests.integration.spark.datasource.test_write import good_rows, local_writer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

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


def test_a_source_is_not_forgotten_while_a_submit_of_it_runs(published: PublishedCluster) -> None:
    from jobmaster.pipeline.steps.lake_admin import forget
    from jobmaster.pipeline.steps.write_progress import ProgressReporter, WriteWatch

    writer = local_writer(published, batch="", remember="orders", runId="r")
    writer.write(iter([good_rows(0, 10)]))
    living = "SELECT driver_lives(run_id, seen_at) FROM pipeline_write"
    with ProgressReporter(published.run(), "r", WriteWatch("orders", None, False)):
        wait_until(lambda: published.value(living), PATIENCE_SECONDS, "the lock of the driver")
        for dry in (True, False):
            with pytest.raises(Conflict, match=r"a submit of 'orders' runs on .* \(process \d+\)"):
                forget(published.run(dry_run=dry), "orders")
    assert published.value("SELECT count(*) FROM pipeline_key") == 10
    wait_until(lambda: not published.value(living), PATIENCE_SECONDS, "the end of the driver's session")
    assert forget(published.run(), "orders").rows == 10


EVERY_ID = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pipeline/claim_keys", ([uuid.UUID(int=1)], [uuid.UUID(int=1)])),
        ("pipeline/adopt_batch", (*EVERY_ID, 100)),
    ],
    ids=["a chunk", "rows of an earlier batch"],
)
def test_a_write_whose_source_is_forgotten_fails_and_leaves_no_row_behind(
    published: PublishedCluster, name: str, arguments: tuple[object, ...]
) -> None:
    """By a program of the user, whose driver nothing knows. The statement that is under way is waited for."""
    from jobmaster.pipeline.steps.lake_admin import forget

    writer = local_writer(published, batch="", remember="orders", runId="r")
    writer.write(iter([good_rows(0, 10)]))
    source = published.value("SELECT id FROM pipeline_source")
    claimed, commits = threading.Event(), threading.Event()

    async def chunk(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        async with connection.transaction():
            await connection.fetch(statement(name).text, source, *arguments)
            claimed.set()
            assert await asyncio.to_thread(commits.wait, PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as threads:
        under_way = threads.submit(published.sql, chunk)
        assert claimed.wait(PATIENCE_SECONDS)
        forgotten = threads.submit(forget, published.run(), "orders")
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pipeline_source%'"
        )
        wait_until(lambda: published.value(waits) == 1, PATIENCE_SECONDS, "the forget behind the chunk")
        commits.set()
        under_way.result(PATIENCE_SECONDS)
        assert forgotten.result(PATIENCE_SECONDS).rows == 10
    with pytest.raises(Conflict, match="was forgotten while they were written"):
        writer.write(iter([good_rows(10, 20)]))
    late = published.sql(lambda c: c.fetchrow(statement(name).text, source, *arguments))
    assert late["remembered"] is False
    assert published.value("SELECT count(*) FROM pipeline_key") == 0
    assert published.value("SELECT count(*) FROM job") == 10
    again = local_writer(published, batch="", remember="orders", runId="again")
    assert again.write(iter([good_rows(0, 20)])).inserted == 20


def test_a_forget_is_in_the_log_of_operators(published: PublishedCluster) -> None:
    local_writer(published, batch="", remember="orders", runId="r").write(iter([good_rows(0, 10)]))
    for words, lines in ((("--dry-run",), 0), ((), 1)):
        ran = subprocess.run(
            command(published, "forget", "orders", *words),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        logged = published.value(
            "SELECT count(*) FROM operator_log WHERE action = 'pipeline forget' AND subject = 'orders'"
        )
        assert logged == lines
    assert published.value("SELECT detail->>'forgotten_rows' FROM operator_log WHERE subject = 'orders'") == "10"
