"""Reports of handlers: guarded by the token, read with the job, removed when they are not needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobmaster.clock import new_id
from jobmaster.ports import ProgressLine, RecordKind
from tests.integration.postgres.fixture import MasterFixture, final_row, hold_row


async def lines(db: MasterFixture) -> list[tuple[bytes, int, float]]:
    rows = await db.sql.fetch("SELECT job_id, token, done FROM run_progress ORDER BY done")
    return [(row["job_id"].bytes, row["token"], row["done"]) for row in rows]


async def test_a_superseded_run_overwrites_no_report_of_a_later_one(db: MasterFixture) -> None:
    await db.sql.execute("DELETE FROM run_progress")
    job_id = new_id()
    report = db.master.outcomes.report_progress
    await report([ProgressLine(job_id, 2, 10, 20, "second")])
    await report([ProgressLine(job_id, 1, 99, None, "first")])
    assert await lines(db) == [(job_id, 2, 10)]
    await report([ProgressLine(job_id, 2, 11, 20, "second"), ProgressLine(new_id(), 1, 12, None, "")])
    assert [done for _, _, done in await lines(db)] == [11, 12]


async def test_a_job_shows_the_report_of_the_run_that_its_row_shows(db: MasterFixture) -> None:
    (job_id,) = await db.processing()
    assert (await db.view(job_id)).progress is None
    await db.master.outcomes.report_progress([ProgressLine(job_id, 1, 3, 4, "three")])
    progress = (await db.view(job_id)).progress
    assert progress is not None
    assert (progress.done, progress.total, progress.text, progress.share) == (3, 4, "three", 0.75)
    assert progress.at is not None
    assert abs(datetime.now(UTC) - progress.at) < timedelta(hours=1)
    await db.master.outcomes.retry_here(db.fence, [hold_row(job_id, token=1)])
    assert (await db.view(job_id)).progress is None, "the next run has reported nothing"
    await db.master.outcomes.report_progress([ProgressLine(job_id, 2, 4, 4, "")])
    await db.master.outcomes.copy_final([final_row(job_id, db.fence, token=2)])
    progress = (await db.view(job_id)).progress
    assert progress is not None, "the last report stays when the job has ended"
    assert progress.done == 4


async def test_reports_of_runs_that_are_over_are_removed(db: MasterFixture) -> None:
    await db.sql.execute("DELETE FROM run_progress")
    (running,) = await db.processing()
    ended, unknown, fresh = new_id(), new_id(), new_id()
    await db.master.outcomes.copy_final([final_row(ended, db.fence)])
    everything = [ProgressLine(job_id, 1, at, None, "") for at, job_id in enumerate((running, ended, unknown, fresh))]
    await db.master.outcomes.report_progress(everything)
    await db.sql.execute("UPDATE run_progress SET at = at - interval '25 hours' WHERE job_id <> $1", fresh.hex())
    assert await db.master.maintenance.forget(RecordKind.RUN_PROGRESS, 1, 1000) == 2
    assert [job_id for job_id, _, _ in await lines(db)] == [running, fresh]
