"""Logs of jobs: written once, bounded, read run by run, gone with the row of their job."""

from __future__ import annotations

from jobmaster.clock import new_id
from jobmaster.model.job_log import LogLevel
from jobmaster.ports import JobLines, OldRuns, RecordKind, StoredLine, SurplusLines
from tests.integration.postgres.fixture import MasterFixture, final_row


def lines(job_id: bytes, token: int, *numbers: int) -> list[StoredLine]:
    return [StoredLine(job_id, token, number, 1_000_000 + number, LogLevel.WARNING, f"{number}") for number in numbers]


async def numbers(db: MasterFixture, job_id: bytes) -> list[tuple[int, int]]:
    return [(line.token, line.number) for line in await db.master.job_logs.read(job_id, (0, 0), 1000)]


async def test_lines_are_read_run_by_run_and_page_by_page(db: MasterFixture) -> None:
    job_id, other = new_id(), new_id()
    batch = JobLines([*lines(job_id, 2, 1, 2), *lines(job_id, 1, 9, 10), *lines(other, 1, 1)], [], [])
    await db.master.job_logs.keep(batch)
    await db.master.job_logs.keep(batch)  # the answer was lost
    assert await numbers(db, job_id) == [(1, 9), (1, 10), (2, 1), (2, 2)]
    page = await db.master.job_logs.read(job_id, (1, 9), 2)
    assert [(line.token, line.number) for line in page] == [(1, 10), (2, 1)]
    assert (page[0].text, page[0].level, page[0].at_us) == ("10", LogLevel.WARNING, 1_000_010)


async def test_lines_beyond_the_bounds_go(db: MasterFixture) -> None:
    job_id, other = new_id(), new_id()
    await db.master.job_logs.keep(
        JobLines([*lines(job_id, 1, 1, 2), *lines(job_id, 2, 1, 2, 3), *lines(other, 1, 1)], [], [])
    )
    surplus = [SurplusLines(job_id, 2, 3)]
    await db.master.job_logs.keep(JobLines(lines(job_id, 2, 4), surplus, [OldRuns(other, 1)]))
    assert await numbers(db, job_id) == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert await numbers(db, other) == []
    await db.master.job_logs.keep(JobLines(lines(job_id, 22, 1), [], [OldRuns(job_id, 2)]))
    assert await numbers(db, job_id) == [(22, 1)]


async def test_a_statement_waits_for_no_lines_that_another_one_deletes(db: MasterFixture) -> None:
    job_id = new_id()
    await db.master.job_logs.keep(JobLines(lines(job_id, 1, 1, 2), [], []))
    other = await db.connect()
    async with other.transaction():
        await other.execute("DELETE FROM job_log WHERE job_id = $1", str(job_id.hex()))
        await db.master.job_logs.keep(JobLines(lines(job_id, 1, 3), [SurplusLines(job_id, 1, 3)], []))
    await other.close()
    assert await numbers(db, job_id) == [(1, 3)]


async def test_the_log_of_a_job_goes_when_its_row_has_left(db: MasterFixture) -> None:
    kept, gone, waits = new_id(), new_id(), new_id()
    await db.master.outcomes.copy_final([final_row(kept, db.fence)])
    await db.master.job_logs.keep(
        JobLines([*lines(kept, 1, 1, 2), *lines(gone, 1, 1, 2, 3), *lines(waits, 1, 1)], [], [])
    )
    forget = db.master.maintenance.forget
    assert await forget(RecordKind.JOB_LOGS, 0, 1000) == 0, "above the watermark a job may still get its row"
    floor = await db.sql.fetchval("SELECT floor FROM watermark")
    await db.sql.execute("UPDATE watermark SET floor = $1", waits.hex())
    try:
        assert await forget(RecordKind.JOB_LOGS, 1, 1000) == 0, "its job is not that old"
        await db.sql.execute(
            "INSERT INTO archive_manifest (name, attempts, lo, hi) VALUES ('job_range', 'attempt_range', $1, $2)",
            gone.hex(), waits.hex(),
        )  # fmt: skip
        assert await forget(RecordKind.JOB_LOGS, 0, 1000) == 0, "its range is not dropped yet"
        await db.sql.execute("DELETE FROM archive_manifest WHERE name = 'job_range'")
        assert await forget(RecordKind.JOB_LOGS, 0, 2) == 2, "a bounded number of lines in one statement"
        assert await forget(RecordKind.JOB_LOGS, 0, 2) == 1
        assert await forget(RecordKind.JOB_LOGS, 0, 2) == 0
    finally:
        await db.sql.execute("UPDATE watermark SET floor = $1", floor)
    assert [await numbers(db, job_id) for job_id in (kept, gone, waits)] == [[(1, 1), (1, 2)], [], [(1, 1)]]
