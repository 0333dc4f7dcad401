"""The archiver dies just before it commits a step, at every step, and once the master dies in the middle; each time it is
run again. In the end every job is in the lake once and in the master not at all, and no reader ever saw a gap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobmaster.clock import SystemClock
from jobmaster.embedded import PostgresServer
from jobmaster.model.errors import Unavailable
from tests.integration.spark.steps.conftest import SeededCluster, seeded_cluster
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
REPOSITORY = Path(__file__).parents[5]
ROWS = 300
GATE = 4242
STATES = ("SEALED", "DETACHED", "EXPORTED", "VERIFIED", "PUBLISHED", "DROPPED")


def _command(seeded: SeededCluster, *step: str) -> list[str]:
    settings = seeded.settings
    return [
        *(sys.executable, "-m", "jobmaster.cli.main", "pipeline", *step),
        *("--lake", str(seeded.lake)),
        *("--master", "local[2]", "--conf", "spark.driver.memory=512m", "-o", "json"),
        *("--set", f"cluster={settings.cluster}", "--set", f"master.dsn={settings.master.dsn}"),
        *("--set", f"master.schema={settings.schema_name()}"),
        *("--set", f"stores.default.url={settings.stores['default'].url}", "--set", "limits.clock_skew=1s"),
    ]  # fmt: skip


ARCHIVE = ("archive", "--older-than", "2s")


class Archiver:
    """A command of the pipeline as a process, with its Java in the same group."""

    def __init__(self, seeded: SeededCluster, *step: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")}
        self.log = seeded.lake.parent / "archiver.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                _command(seeded, *step),
                env={**clean, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")])},
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def filled(seeded: SeededCluster) -> SeededCluster:
    seeded.fill_days(3, rows=ROWS)
    # Stops the archiver inside its own transaction, before the state it is about to commit.
    seeded.execute(
        f"""
        CREATE TABLE gate (state text);
        CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
        BEGIN
            IF EXISTS (SELECT FROM {seeded.settings.schema_name()}.gate WHERE state = NEW.state::text) THEN
                PERFORM pg_advisory_xact_lock({GATE});
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON archive_manifest FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate()
        """
    )
    return seeded


async def _killed_at(
    seeded: SeededCluster, state: str, *, commits: bool, step: tuple[str, ...] = ARCHIVE, until: str | None = None
) -> None:
    """Run the archiver until it is about to commit a state, and kill it there.

    Args:
        step: what is run in its place.
        until: a query that is true once the server has carried out the last statement; ``None``: no job is in the master.
        commits: the server carries the dead archiver's last statement out all the same; else its session is ended.
    """
    gate = await asyncpg.connect(
        seeded.settings.master.dsn, server_settings={"search_path": seeded.settings.schema_name()}
    )
    await gate.fetch("SELECT pg_advisory_lock($1)", GATE)
    await gate.execute("INSERT INTO gate VALUES ($1)", state)
    archiver = Archiver(seeded, *step)
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (backend := await gate.fetchval(waiting, GATE)) is None:
                assert archiver.process.poll() is None, archiver.log.read_text()
                await asyncio.sleep(0.02)
    finally:
        archiver.kill()
    if not commits:
        await gate.fetch("SELECT pg_terminate_backend($1, 10000)", backend)
    await gate.fetch("SELECT pg_advisory_unlock($1)", GATE)
    await gate.execute("DELETE FROM gate")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while commits and not await gate.fetchval(until or "SELECT count(*) = 0 FROM jobs"):
            pass  # each look is a round trip to the server
    await gate.close()


def _seen(seeded: SeededCluster) -> tuple[int, int]:
    return seeded.value("SELECT count(*) FROM jobs"), seeded.value("SELECT count(DISTINCT id) FROM jobs")


@pytest.mark.parametrize(
    "kills", [pytest.param(STATES, id="every", marks=pytest.mark.long), pytest.param(("EXPORTED",), id="one")]
)
def test_killed_before_a_commit_it_ends_with_every_job_in_the_lake_once(
    filled: SeededCluster, kills: tuple[str, ...]
) -> None:
    from jobmaster.pipeline.steps.archive import archive

    for state in kills:
        before = dict(zip(STATES, (None, *STATES), strict=False))[state]
        asyncio.run(_killed_at(filled, state, commits=False))
        assert _seen(filled) == (ROWS, ROWS), f"killed before {state}"
        assert filled.value("SELECT state::text FROM archive_manifest ORDER BY lo LIMIT 1") == before
    ids = sorted(str(row["id"]) for row in filled.sql(lambda c: c.fetch("SELECT id FROM jobs")))
    asyncio.run(_killed_at(filled, "DROPPED", commits=True))
    assert archive(filled.run(), 2.0, keep=False).rows == 0, "there is nothing left to do"
    assert _seen(filled) == (0, 0)
    assert filled.spark is not None
    document = json.loads(next((filled.lake / "_manifest" / "jobs").glob("job_*.json")).read_text())
    paths = [
        str(filled.lake / file["path"])
        for document in map(json.loads, (p.read_text() for p in (filled.lake / "_manifest" / "jobs").glob("*.json")))
        for file in document["files"]
        if file["dataset"] == "jobs"
    ]
    assert document["format"] == 1
    assert sorted(row["id"] for row in filled.spark.read.parquet(*paths).select("id").collect()) == ids


@pytest.mark.long
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("step", [("compact",), ("forget", "--older-than", "1d")])
def test_a_rewriting_that_is_killed_at_its_commit_leaves_the_old_files_or_the_new_ones(
    filled: SeededCluster, step: tuple[str, ...], commits: bool
) -> None:
    from jobmaster.pipeline.lake.lake import Lake
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.forget_jobs import compact, forget_jobs, forgotten

    archive(filled.run(), 2.0, keep=False)
    run = filled.value("SELECT run_id FROM archive_manifest WHERE rows > 0")
    replaced = f"SELECT count(*) = 0 FROM archive_manifest WHERE run_id = '{run}'"
    asyncio.run(_killed_at(filled, "DROPPED", commits=commits, step=step, until=replaced))
    rows = 0 if commits and step[0] == "forget" else ROWS
    assert filled.value("SELECT sum(rows)::int FROM archive_manifest") == rows
    if step[0] == "compact":
        compact(filled.run())
    else:
        forget_jobs(filled.run(), forgotten([], 86_400.0, SystemClock().wall_us()))
        rows = 0
    lake = Lake(str(filled.lake))
    named = {file["path"] for one in lake.documents("_manifest/jobs").values() for file in one["files"]}
    assert {str(path.relative_to(filled.lake)) for path in filled.lake.glob("*/v1/run=*/*/*.parquet")} == named
    assert filled.value("SELECT sum(rows)::int FROM archive_manifest") == rows
    assert lake.documents("_manifest/rewriting") == {}


def test_a_master_that_restarts_in_the_middle_costs_a_run_and_nothing_else(
    new_postgres: Callable[..., PostgresServer],
    store_url: str,
    cluster_name: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobmaster.pipeline.lake import parquet_export
    from jobmaster.pipeline.steps.archive import archive

    server = new_postgres()
    seeded = seeded_cluster(server.dsn, store_url, cluster_name, tmp_path)
    seeded.spark = spark
    seeded.fill_days(3, rows=ROWS)
    real = parquet_export.write

    def restarting(*arguments: Any) -> None:
        server.kill()
        server.start()
        real(*arguments)

    monkeypatch.setattr(parquet_export, "write", restarting)
    with pytest.raises(Unavailable):
        archive(seeded.run(), 2.0, keep=False)
    monkeypatch.setattr(parquet_export, "write", real)
    assert _seen(seeded) == (ROWS, ROWS)
    assert archive(seeded.run(), 2.0, keep=False).rows == ROWS
    assert _seen(seeded) == (0, 0)
    seeded.close()
