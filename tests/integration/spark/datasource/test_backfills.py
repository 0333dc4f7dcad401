"""Long submits: held back by the backlog of the cluster, paused, killed, continued, with books that are exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.pipeline.context import StepResult
from jobmaster.pipeline.steps.backfills import end_pause, list_backfills, pause, restored_request
from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.integration.spark.datasource.test_read import failure
from tests.integration.spark.datasource.test_write import good_rows, local_writer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark]
REPOSITORY = Path(__file__).parents[4]
DUE = "SELECT count(*) FROM job WHERE state = 'HELD'"


def listed(published: PublishedCluster, name: str | None = None) -> list[Any]:
    return list(list_backfills(published.run(), name).items or ())


def only(published: PublishedCluster, name: str | None = None) -> dict[str, Any]:
    (line,) = listed(published, name)
    return dict(line)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def start(published: PublishedCluster, threads: ThreadPoolExecutor, rows: int, tasks: int = 1, **options: str) -> Any:
    """A write whose tasks run in threads of this process; its future has the number of inserted rows."""
    writer = local_writer(published, runId="r", chunkRows="10", **options)

    def task(number: int) -> int:
        return writer.write(iter([good_rows(rows * number, rows * (number + 1))])).inserted

    return [threads.submit(task, number) for number in range(tasks)]


def end_jobs(published: PublishedCluster, count: int) -> None:
    """Agents do what waits."""
    published.value(
        "UPDATE job SET state = 'CANCELLED' WHERE id IN (SELECT id FROM job WHERE state = 'HELD' ORDER BY id LIMIT $1)",
        count,
    )


def test_a_write_is_held_back_at_the_backlog_and_goes_on_at_the_lower_mark(
    published: PublishedCluster, threads: ThreadPoolExecutor
) -> None:
    (done,) = start(published, threads, 300, maxBacklog="100", resumeBacklog="20")
    wait_until(lambda: only(published, "b")["held_back_by"] is not None, PATIENCE_SECONDS, "the brake")
    held = published.value(DUE)
    assert 100 <= held <= 110, "at most a chunk above the limit"
    end_jobs(published, held - 30)
    seen = published.value("SELECT measured_at FROM pipeline_brake")
    measured = "SELECT measured_at > $1 AND held_back AND backlog = 30 FROM pipeline_brake"
    wait_until(lambda: published.value(measured, seen), PATIENCE_SECONDS, "another count, above the lower mark")
    assert published.value(DUE) == 30, "it waits for the lower mark"
    while not done.done():
        end_jobs(published, 400)
    assert done.result() == 300
    assert published.value("SELECT count(*) FROM job") == 300


def test_jobs_that_lie_in_buckets_count_and_those_that_are_due_later_do_not(
    published: PublishedCluster, threads: ThreadPoolExecutor
) -> None:
    (done,) = start(published, threads, 200, maxBacklog="50", dueAt="2031-01-01T00:00:00Z")
    assert done.result(PATIENCE_SECONDS) == 200, "jobs of 2031 are no backlog"
    bucket = """INSERT INTO bucket (id, store, lane, priority, state, epoch, owner, changed_at, created_at)
                VALUES (gen_random_uuid(), 's', 'default', 3, 'ACTIVE', 1, gen_random_uuid(), now(), now()) RETURNING id"""
    chosen = published.value(bucket)
    published.value(
        "UPDATE job SET state = 'ASSIGNED', bucket_id = $1, bucket_epoch = 1, token = 1"
        " WHERE id IN (SELECT id FROM job ORDER BY id LIMIT 60)",
        chosen,
    )
    writer = local_writer(published, runId="second", batch="other", chunkRows="10", maxBacklog="50")
    later = threads.submit(lambda: writer.write(iter([good_rows(1000, 1010)])).inserted)
    held = "SELECT held_back AND backlog = 60 FROM pipeline_brake WHERE run_id = 'second'"
    wait_until(lambda: published.value(held), PATIENCE_SECONDS, "the brake")
    published.value("UPDATE job SET state = 'CANCELLED' WHERE state = 'ASSIGNED'")
    assert later.result(PATIENCE_SECONDS) == 10


def test_a_paused_write_writes_nothing_holds_no_connection_and_goes_on(
    published: PublishedCluster, threads: ThreadPoolExecutor
) -> None:
    running = start(published, threads, 400, tasks=2, rowsPerSecond="100")
    wait_until(lambda: published.value(DUE) > 0, PATIENCE_SECONDS, "the first rows")
    assert pause(published.run(), "b", "ops@here").summary["backfill"] == "b"
    assert "by ops@here" in str(pause(published.run(), "r", "me").note), "a second one, by the id of the run"
    connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobmaster-spark'"
    wait_until(lambda: published.value(connected) == 0, PATIENCE_SECONDS, "the end of the connections")
    written = published.value(DUE)
    assert written < 800
    assert only(published)["state"] == "paused"
    wait_until(lambda: published.value(connected) > 0, PATIENCE_SECONDS, "another look at the pause")
    assert published.value(DUE) == written
    assert "begun by a program" in str(end_pause(published.run(), "b")[0].note)
    assert sum(task.result(PATIENCE_SECONDS) for task in running) == 800
    with pytest.raises(NotFound, match="no backfill is called 'x'"):
        pause(published.run(), "x", "me")


def test_options_of_the_brake_are_checked(published: PublishedCluster) -> None:
    for options, said in (
        ({"resumeBacklog": "5"}, "needs maxBacklog"),
        ({"maxBacklog": "5", "resumeBacklog": "6"}, "above maxBacklog"),
        ({"maxBacklog": "many"}, "option maxBacklog is 'many'"),
    ):
        assert said in str(failure(lambda options=options: published.write(published.rows(5), **options)))
    assert published.value(DUE) == 0


def command(published: PublishedCluster, *words: str) -> list[str]:
    settings = published.settings
    return [
        *(sys.executable, "-m", "jobmaster.cli.main", "pipeline", *words),
        *("--master", "local[2]", "--conf", "spark.driver.memory=512m", "--lake", str(published.lake), "-o", "json"),
        *("--set", f"cluster={settings.cluster}", "--set", f"master.dsn={settings.master.dsn}"),
        *("--set", f"master.schema={settings.schema_name()}"),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")}
    return {**clean, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")])}


def kill_while_it_is_held_back(published: PublishedCluster, file: Path, log: Path) -> None:
    """Submit 1,000 rows as batch ``import``, in a process; kill that with all of its processes while the brake holds it."""
    words = "--handler images.resize --key path --batch import --expect-rows 1000 --max-backlog 200 --progress json"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            command(published, "submit", str(file), *words.split()),
            env=environment(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        held = '"state": "held back"'
        wait_until(lambda: driver.poll() is not None or held in log.read_text(), PATIENCE_SECONDS, log.read_text)
        assert driver.poll() is None, log.read_text()
        before = only(published, "import")
        assert (before["state"], before["total"]) == ("held back", 1000)
        assert f"(process {driver.pid})" in before["driver"]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    reports = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"backfill"')]
    fields = {"handled", "inserted", "total", "rows_per_second", "seconds_left", "ends_at", "backlog"}
    assert fields <= reports[-1].keys()
    wait_until(lambda: only(published, "import")["state"] == "stopped", PATIENCE_SECONDS, "the lock of the driver")


@pytest.mark.cluster
def test_a_submit_whose_driver_is_killed_is_resumed_elsewhere_with_exact_books(
    published: PublishedCluster, tmp_path: Path
) -> None:
    """1,000 rows, ten of them twice and five that do not fit."""
    rows = [f"p{n},{n}" for n in range(985)] + [f"p{n},{n}" for n in range(10)] + [f"q{n},wide" for n in range(5)]
    file = tmp_path / "in.csv"
    file.write_text("path,width\n" + "\n".join(rows) + "\n")
    kill_while_it_is_held_back(published, file, tmp_path / "driver.log")
    first = only(published, "import")["inserted"]
    assert first == published.value("SELECT count(*) FROM job") < 985
    ids = published.value("SELECT array_agg(id ORDER BY id) FROM job")
    published.value("UPDATE job SET due_at = '2031-01-01'")
    done = resumed(published, "import")
    assert [done.summary[name] for name in ("offered", "inserted", "rejected")] == [1000, 985 - first, 5]
    assert (done.summary["runs"], done.summary["inserted_by_all_runs"]) == (2, 985)
    after = only(published, "import")
    books = [after[name] for name in ("state", "offered", "inserted", "duplicates", "rejected")]
    assert books == ["ended", 1000, 985, 10, 5]
    assert published.value("SELECT count(*) FROM job") == 985
    assert published.value("SELECT array_agg(id ORDER BY id) FROM job WHERE id = ANY($1)", ids) == ids
    assert end_pause(published.run(), "import")[0].note == "it has ended: there is nothing to resume"


def resumed(published: PublishedCluster, name: str) -> StepResult:
    """The backfill, continued in this process as ``pipeline resume`` does it on another machine, without its brake."""
    from jobmaster.pipeline.steps.submit import submit

    _, request = end_pause(published.run(), name)
    assert request is not None
    order = restored_request(name, request, None, {})
    assert order.options["maxBacklog"] == "200"
    options = {key: value for key, value in order.options.items() if key != "maxBacklog"}
    return submit(published.run(), order._replace(options=options))


def test_a_paused_backfill_refuses_a_submit_and_a_source_with_a_password_is_not_stored(
    published: PublishedCluster, tmp_path: Path
) -> None:
    from jobmaster.pipeline.steps.backfills import SubmitRequest
    from jobmaster.pipeline.steps.inputs import SourceSpec
    from jobmaster.pipeline.steps.mapping import RowMapping
    from jobmaster.pipeline.steps.submit import submit

    published.rows(20).selectExpr("key AS path").write.parquet(str(tmp_path / "in.parquet"))
    order = SubmitRequest(SourceSpec(str(tmp_path / "in.parquet")), "images.resize", RowMapping(("path",)), "once", {})
    assert submit(published.run(), order).summary["inserted"] == 20
    assert only(published, "once")["total"] == 20, "the footers of Parquet have the number"
    pause(published.run(), "once", "ops@here")
    with pytest.raises(Conflict, match=r"paused since .* by ops@here"):
        submit(published.run(), order)
    secret = "postgresql://u:hush@host/shop"
    published.value("UPDATE pipeline_backfill SET request = $1", stored(order, secret))
    assert "hush" not in published.value("SELECT request FROM pipeline_backfill")
    request = published.value("SELECT request FROM pipeline_backfill")
    with pytest.raises(InputError, match="has a password, which is not stored"):
        restored_request("once", request, None, {})
    assert restored_request("once", request, secret, {}).source.place == secret


def stored(order: Any, place: str) -> str:
    from jobmaster.pipeline.steps.backfills import stored_request

    return stored_request(order._replace(source=order.source._replace(place=place)))
