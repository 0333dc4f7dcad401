"""Ranges leave the master step by step; people see their jobs until they are dropped, and nothing unverified is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.history.archive import Archive
from jobmaster.model.archive import ArchiveRange, ArchiveState, LakeFile
from jobmaster.model.errors import Conflict, Refused
from jobmaster.model.flow.batch import NewBatch, range_of
from jobmaster.model.flow.workflow import NewStep, NewWorkflow
from jobmaster.model.ids import text
from jobmaster.model.job import Headers
from jobmaster.ports import RecordKind
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import ERROR, SCHEMA, MasterFixture, final_row, hold_row, new_job
from tests.support.patience import PATIENCE_SECONDS

FILES = (LakeFile("jobs", "jobs/part.parquet", 1, 100, "ab"),)


@pytest.fixture
async def archive(fresh: MasterFixture) -> AsyncIterator[Archive]:
    archive = await Archive.connect(dsn=fresh.dsn, schema=SCHEMA, settings=MasterSettings())
    yield archive
    await archive.close()


@pytest.fixture
async def yesterday(fresh: MasterFixture) -> int:
    """Milliseconds since 1970."""
    return int(await fresh.sql.fetchval("SELECT to_us(clock_timestamp()) / 1000")) - 86_400_000


def _id_at(ms: int) -> bytes:
    return ms.to_bytes(6, "big") + new_id()[6:]


def _now() -> datetime:
    return datetime.now(UTC)


async def _detached(fresh: MasterFixture, archive: Archive, *ids: bytes) -> ArchiveRange:
    """A detached range that holds finished jobs of these ids."""
    await fresh.master.outcomes.record_final([final_row(id_, fresh.fence) for id_ in ids])
    name = await archive.seal(_now())
    assert name is not None
    assert (await archive.detach(_now())) == (name, 0)
    found = await archive.range(name)
    assert found is not None
    return found


async def _published(archive: Archive, found: ArchiveRange) -> ArchiveRange:
    found = await archive.exported(found, "/lake", 1, "run", await archive.measure(found))
    return await archive.published(await archive.verified(found, FILES))


async def _seen(fresh: MasterFixture, job_id: bytes) -> list[int]:
    """How often each view shows a job."""
    return [
        await fresh.sql.fetchval(f"SELECT count(*) FROM {view} WHERE {key} = $1", UUID(bytes=job_id))
        for view, key in (("jobs", "id"), ("ledger", "job_id"))
    ]


async def test_a_range_goes_all_the_way_and_every_view_shows_its_jobs_once_until_it_is_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    job_id = _id_at(yesterday)
    await fresh.master.outcomes.record_final([final_row(job_id, fresh.fence)])
    assert await _seen(fresh, job_id) == [1, 1]
    name = await archive.seal(_now())
    assert name is not None
    assert await _seen(fresh, job_id) == [1, 1]
    await archive.detach(_now())
    assert await _seen(fresh, job_id) == [1, 1]
    found = await archive.range(name)
    assert found is not None
    assert found.state is ArchiveState.DETACHED
    found = await archive.exported(found, "/lake", 1, "run", await archive.measure(found))
    assert found.measure is not None
    assert (found.measure.rows, found.measure.attempt_rows) == (1, 0)
    assert found.measure.checksum > 0
    found = await archive.published(await archive.verified(found, FILES))
    assert found.files == FILES
    assert await _seen(fresh, job_id) == [1, 1]
    assert await archive.drop(name)
    assert await _seen(fresh, job_id) == [0, 0]
    assert not await archive.drop(name), "again does nothing"
    (line,) = await archive.ranges()
    assert line.state is ArchiveState.DROPPED
    tables = await fresh.sql.fetch("SELECT to_regclass($1) AS jobs, to_regclass($2) AS attempts", name, found.attempts)
    assert tuple(tables[0]) == (None, None)


async def test_a_reader_sees_a_job_once_while_its_range_is_detached(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """It looks all the time, and the detaching commits between two looks."""
    job_id = _id_at(yesterday)
    await fresh.master.outcomes.record_final([final_row(job_id, fresh.fence)])
    await archive.seal(_now())
    seen: list[int] = []
    looked = asyncio.Event()

    async def look() -> None:
        while True:
            seen.append(await fresh.sql.fetchval("SELECT count(*) FROM jobs WHERE id = $1", UUID(bytes=job_id)))
            if len(seen) % 20 == 0:
                looked.set()

    task = asyncio.create_task(look())
    await looked.wait()
    looked.clear()
    await archive.detach(_now())
    await looked.wait()
    task.cancel()
    await asyncio.wait([task])
    assert set(seen) == {1}


@pytest.mark.parametrize("state", [state for state in ArchiveState if state is not ArchiveState.PUBLISHED])
async def test_only_what_is_published_is_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int, state: ArchiveState
) -> None:
    found = await _detached(fresh, archive, _id_at(yesterday))
    await fresh.sql.execute(
        "UPDATE archive_manifest SET state = $1::text::archive_state, discarded = true WHERE name = $2",
        *(state, found.name),
    )
    if state is ArchiveState.DROPPED:
        assert not await archive.drop(found.name)
    else:
        with pytest.raises(Refused, match=f"is {state}, and only what is PUBLISHED is dropped"):
            await archive.drop(found.name)
    assert await fresh.sql.fetchval(f"SELECT count(*) FROM {found.name}") == 1


async def test_the_manifest_itself_refuses_a_drop_without_verification(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """The second guard, behind the function's."""
    found = await _detached(fresh, archive, _id_at(yesterday))
    await fresh.sql.execute("UPDATE archive_manifest SET state = 'PUBLISHED', rows = 1, attempt_rows = 0")
    with pytest.raises(Refused, match="archive_dropped_is_verified"):
        await archive.drop(found.name)
    assert await fresh.sql.fetchval(f"SELECT count(*) FROM {found.name}") == 1


async def test_what_changed_since_it_was_verified_is_not_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    found = await _published(archive, await _detached(fresh, archive, _id_at(yesterday), _id_at(yesterday)))
    await fresh.sql.execute(f"DELETE FROM {found.name} WHERE ctid = '(0,1)'")
    with pytest.raises(Refused, match="holds 1 jobs and 0 attempts, but 2 and 0 were verified"):
        await archive.drop(found.name)


async def test_another_table_of_the_same_name_is_not_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    found = await _published(archive, await _detached(fresh, archive, _id_at(yesterday)))
    await fresh.sql.execute(f"ALTER TABLE {found.name} RENAME TO precious; CREATE TABLE {found.name} (LIKE job)")
    with pytest.raises(Refused, match="are not those that were detached"):
        await archive.drop(found.name)


async def test_the_checksum_notices_any_change_of_any_column(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    job_id = _id_at(yesterday)
    await fresh.master.outcomes.hold(fresh.fence, [hold_row(job_id, error=ERROR)])
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 1)
    await fresh.master.outcomes.record_final([final_row(job_id, fresh.fence, 2)])
    await archive.seal(_now())
    await archive.detach(_now())
    (found,) = await archive.ranges()
    first, *_ = await archive.measure(found)
    assert (first.rows, first.attempt_rows) == (1, 1)
    columns = (
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2 "
        "AND column_name <> 'recorded_xid'"  # a number of this server, which is not exported
    )
    other = {
        "uuid": f"'{UUID(bytes=new_id())}'", "USER-DEFINED": "'EXPIRED'", "smallint": "1", "integer": "77",
        "bigint": "77", "text": "'other'", "boolean": "true", "bytea": "'\"x\"'",
        "timestamp with time zone": "'2001-02-03'",
    }  # fmt: skip
    for table, part in ((found.name, "checksum"), (found.attempts, "attempt_checksum")):
        for column, kind in await fresh.sql.fetch(columns, SCHEMA, table):
            async with fresh.sql.transaction():
                await fresh.sql.execute(f"UPDATE {table} SET {column} = {other[kind]}")
            changed, *_ = await archive.measure(found)
            assert getattr(changed, part) != getattr(first, part), f"{table}.{column} is not in the checksum"
            first = changed


async def test_steps_out_of_order_are_refused(fresh: MasterFixture, archive: Archive, yesterday: int) -> None:
    found = await _detached(fresh, archive, _id_at(yesterday))
    with pytest.raises(Conflict, match="another state"):
        await archive.verified(found, FILES)
    exported = await archive.exported(found, "/lake", 1, "run", await archive.measure(found))
    with pytest.raises(Conflict):
        await archive.published(exported)
    with pytest.raises(Conflict):
        await archive.exported(found, "/lake", 1, "run 2", await archive.measure(found))
    again = await archive.export_again(exported)
    assert (again.state, again.run_id, again.measure) == (ArchiveState.DETACHED, None, None)
    with pytest.raises(Conflict):
        await archive.verified(exported, FILES)


async def test_two_archivers_never_hold_one_range(fresh: MasterFixture, archive: Archive) -> None:
    second = await Archive.connect(dsn=fresh.dsn, schema=SCHEMA, settings=MasterSettings())
    assert await archive.take("job_day_1")
    assert not await second.take("job_day_1")
    assert await second.take("job_day_2")
    await archive.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await second.take("job_day_1"):
            pass  # the server notices the end of the first session
    await second.close()


async def test_jobs_that_end_late_leave_the_attic_as_a_range_of_their_own(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    late, never = _id_at(yesterday), _id_at(yesterday)
    await fresh.master.intake.insert_held([new_job(late), new_job(never, due_us=2_000_000_000_000_000)])
    assert await archive.sweep(_now()) is None, "nothing has ended"
    await archive.seal(_now())
    assert (await archive.detach(_now()) or ("", 0))[1] == 2
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    await fresh.master.outcomes.hold(fresh.fence, [hold_row(late, 2, error=ERROR)])
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    await fresh.master.outcomes.record_final([final_row(late, fresh.fence, 3)])
    assert await archive.sweep(_now() - timedelta(hours=1)) is None, "it ended a moment ago"
    name = await archive.sweep(_now() + timedelta(seconds=1))
    assert name is not None
    assert name.startswith("job_attic_")
    assert await _seen(fresh, late) == [1, 2]
    found = await archive.range(name)
    assert found is not None
    assert found.lo <= late < found.hi
    measure, *_ = await archive.measure(found)
    assert (measure.rows, measure.attempt_rows) == (1, 1)
    assert await fresh.state(never) == "HELD"
    await _published(archive, found)
    await archive.drop(name)
    assert await _seen(fresh, late) == [0, 0]
    assert (await fresh.master.outcomes.record_final([final_row(late, fresh.fence, 3)])).quarantined == {late}


async def _ended_late(fresh: MasterFixture, archive: Archive, yesterday: int) -> bytes:
    """A job that went to the attic unfinished and has ended there."""
    late = _id_at(yesterday)
    await fresh.master.intake.insert_held([new_job(late)])
    await archive.detach(_now())
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    await fresh.master.outcomes.record_final([final_row(late, fresh.fence, 2)])
    return late


async def test_a_step_that_ends_in_the_attic_is_followed_by_the_next_one(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """The attic is made anew and attached with every range that retires, and has the triggers of the other partitions."""
    of, late = new_id()[:12] + bytes(4), UUID(bytes=_id_at(yesterday))
    steps = tuple(
        NewStep(number, f"s{number}", "success", before, None, "handler", 3, "default", b"{}", "[]",
                encode_headers(Headers(workflow=(text(of), number))), 0, False)
        for number, before in ((1, ()), (2, (1,)))
    )  # fmt: skip
    await fresh.master.workflows.start(NewWorkflow(of, "order", 100, steps))
    await fresh.sql.execute("UPDATE job SET id = $1", late)
    await fresh.sql.execute("UPDATE workflow_step SET job_id = $1 WHERE step = 1", late)
    assert (await archive.detach(_now()) or ("", 0))[1] == 1
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_attic") == 1
    (entry,) = (await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)).entries
    row = final_row(entry.id, fresh.fence, 2)._replace(headers=entry.headers)
    assert (await fresh.master.outcomes.record_final([row])).accepted == {late.bytes}
    assert [step.state for step in await fresh.master.workflows.steps(of)] == ["SUCCEEDED", "STARTED"]


_SWEEP = "SELECT sweep_pages(sweep_begin($1), $1, 0, 100)"


async def test_a_late_copy_that_waits_for_the_sweep_of_the_attic_does_not_bring_its_job_back(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """Without the lock on the row it would pass the guard of the attic, wait for the row, and be inserted anew."""
    late = await _ended_late(fresh, archive, yesterday)
    sweeper = await fresh.connect()
    transaction = sweeper.transaction()
    await transaction.start()
    assert await sweeper.fetchval(_SWEEP, _now() + timedelta(seconds=1)) == 1
    written = await fresh.after_lock(
        "record_final", fresh.master.outcomes.record_final([final_row(late, fresh.fence, 2)]), transaction.commit
    )
    assert written.quarantined == {late}
    assert await fresh.sql.fetchval("SELECT count(*) FROM job WHERE id = $1", UUID(bytes=late)) == 0
    assert await _seen(fresh, late) == [1, 1]
    await sweeper.close()


async def test_a_job_that_a_writer_has_passed_the_guard_for_stays_in_the_attic(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    late = await _ended_late(fresh, archive, yesterday)
    writer = await fresh.connect()
    async with writer.transaction():
        await writer.execute(
            "INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome) VALUES ($1, 1, $2, 1, 'refused')",
            *(UUID(bytes=late), UUID(bytes=fresh.fence.bucket_id)),
        )
        assert await archive.sweep(_now() + timedelta(seconds=1)) is None
    assert await archive.sweep(_now() + timedelta(seconds=1)) is not None
    assert await _seen(fresh, late) == [1, 2], "its line has left with it"
    assert await fresh.sql.fetchval("SELECT count(*) FROM attempt") == 0
    await writer.close()


async def test_a_sweep_that_was_killed_is_gone_on_with(fresh: MasterFixture, archive: Archive, yesterday: int) -> None:
    first = await _ended_late(fresh, archive, yesterday)
    name = await fresh.sql.fetchval("SELECT sweep_begin($1)", _now() + timedelta(seconds=1))
    assert await _seen(fresh, first) == [1, 1]
    await fresh.sql.execute("SELECT sweep_pages($1, $2, 0, 100)", name, _now() + timedelta(seconds=1))
    assert await _seen(fresh, first) == [1, 1]
    assert await archive.sweep(_now() + timedelta(seconds=1)) == name
    found = await archive.range(name)
    assert found is not None
    assert found.state is ArchiveState.DETACHED
    assert found.lo <= first < found.hi
    assert await archive.sweep(_now() + timedelta(seconds=1)) is None


async def test_a_long_transaction_holds_up_the_archiver_and_not_the_cluster(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """While it waits it requests no lock, so no statement waits behind it."""
    await archive.seal(_now())
    other = await fresh.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT count(*) FROM job")
    told = asyncio.Event()
    task = asyncio.create_task(archive.detach(_now(), lambda _: told.set()))
    await told.wait()
    for _ in range(50):
        assert await fresh.sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0
        assert (await fresh.master.intake.insert_held([new_job(new_id())])).accepted
    assert not task.done()
    await transaction.rollback()
    assert await task is not None
    await other.close()


async def test_a_range_is_counted_before_its_readers_are_locked_out(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """One who reads the views keeps the tables; the drop asks for its lock when the reader has gone."""
    found = await _published(archive, await _detached(fresh, archive, _id_at(yesterday)))
    reader = await fresh.connect()
    transaction = reader.transaction()
    await transaction.start()
    assert await reader.fetchval("SELECT count(*) FROM jobs") == 1
    told = asyncio.Event()
    task = asyncio.create_task(archive.drop(found.name, progress=lambda _: told.set()))
    await told.wait()
    assert await fresh.sql.fetchval("SELECT count(*) FROM jobs") == 1, "another reader is not held up"
    await transaction.rollback()
    assert await task
    await reader.close()


async def test_the_key_of_a_job_lives_until_its_range_is_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """People still see the job, so a second one with its key would be seen beside it."""
    job_id = _id_at(yesterday)
    await fresh.master.intake.reserve_keys("handler", [("key", job_id, b"d")])
    await fresh.sql.execute("UPDATE idempotency SET created_at = clock_timestamp() - interval '31 days'")
    found = await _published(archive, await _detached(fresh, archive, job_id))
    assert await fresh.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 0
    await archive.drop(found.name)
    assert await fresh.master.maintenance.forget(RecordKind.KEYS, 30, 10) == 1


async def test_what_streams_go_by_is_kept_when_a_range_is_dropped(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    before = await fresh.sql.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    found = await _published(archive, await _detached(fresh, archive, _id_at(yesterday)))
    after = await fresh.sql.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    await archive.drop(found.name)
    row = await fresh.sql.fetchrow("SELECT jobs_recorded, attempts_recorded, dropped_xid FROM archive_manifest")
    assert row is not None
    assert before <= row["jobs_recorded"] < after <= row["dropped_xid"]
    assert row["attempts_recorded"] == 0


async def test_a_batch_counts_its_jobs_that_retention_has_taken_away(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    """Its range is dropped before it has ended: finished jobs are gone, those that have not ended are in the attic."""
    batches, lowest = fresh.master.batches, range_of(_id_at(yesterday))
    child = [lowest[:12] + index.to_bytes(4, "big") for index in range(6)]
    assert await batches.open(NewBatch(lowest, None, None, "old", "", None, 3600.0, ()))
    await fresh.master.outcomes.record_final(
        [
            final_row(child[1], fresh.fence),
            final_row(child[2], fresh.fence),
            final_row(child[3], fresh.fence, state="FAILED"),
        ]
    )
    await fresh.master.intake.insert_held([new_job(child[4])])
    for index, reason in ((5, "cannot be stored"), (1, "late copy")):
        await fresh.sql.execute(
            "INSERT INTO quarantine (job_id, reason, entry) VALUES ($1, $2, '')", UUID(bytes=child[index]), reason
        )
    await batches.close(lowest, 5)
    before = await batches.progress(lowest)
    assert (before.succeeded, before.failed, before.held) == (2, 2, 1)
    name = await archive.seal(_now())
    assert name is not None
    assert await archive.detach(_now()) == (name, 1)
    assert await batches.progress(lowest) == before, "detached"
    assert await archive.drop(name, discard=True)
    assert await batches.progress(lowest) == before, "dropped"
    assert await batches.conclude(lowest) is None, "one has not ended"
    await batches.request_cancel(lowest, "ann")
    await batches.cancel_page(lowest, None, 10)
    assert await batches.conclude(lowest) is not None
    (view,) = await batches.list(lowest)
    assert view.counts is not None
    assert (view.counts.succeeded, view.counts.failed, view.counts.cancelled, view.counts.missing) == (2, 2, 1, 0)
    await fresh.sql.execute("UPDATE batch SET ended_at = ended_at - interval '2 days'")
    assert await fresh.master.maintenance.forget(RecordKind.BATCHES, 1.0, 10) == 1
    assert await fresh.sql.fetchval("SELECT count(*) FROM batch_dropped") == 0


async def test_a_discarded_range_needs_no_copy_and_a_verified_one_is_never_called_discarded(
    fresh: MasterFixture, archive: Archive, yesterday: int
) -> None:
    found = await _detached(fresh, archive, _id_at(yesterday))
    assert await archive.drop(found.name, discard=True)
    (line,) = await archive.ranges()
    assert (line.state, line.discarded) == (ArchiveState.DROPPED, True)
