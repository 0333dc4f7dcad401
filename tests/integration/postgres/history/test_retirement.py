"""A range leaves ``job`` without holding up those who use it: however many of its jobs are unfinished, and if it is killed.

Nothing here looks at a clock: what a step would do to others is read from the locks it holds and from the rows it touches.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import asyncpg
import pytest

from benchmarks.support.synthetic_history import lower_floor
from jobmaster.clock import new_id
from jobmaster.doctor.checks import master_findings
from jobmaster.master.driver.statements import sql as statement_text
from jobmaster.master.history import archive as archive_module
from jobmaster.master.history.archive import Archive
from jobmaster.master.reports import Reader
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.settings.model import ClusterSettings, MasterSettings
from tests.integration.postgres.fixture import ERROR, SCHEMA, MasterFixture, final_row, hold_row, new_job

UNFINISHED, FINISHED = 700, 300
FAR = 2_000_000_000_000_000
_FILL = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, due_at, args)
SELECT (substr(uuid_floor(clock_timestamp() - make_interval(days => $5))::text, 1, 14)
        || '7' || substr(md5(n::text), 1, 3) || '-8' || substr(md5(n::text), 4, 3) || '-'
        || substr(md5(n::text), 7, 12))::uuid,
       (CASE WHEN $1 THEN 'HELD' ELSE 'SUCCEEDED' END)::job_state, 3, 'default', 'handler', 1,
       CASE WHEN NOT $1 THEN gen_random_uuid() END, CASE WHEN NOT $1 THEN 1 END, from_us($3),
       convert_to(repeat('x', 400), 'UTF8')
FROM generate_series($4::integer, $4 + $2::integer - 1) AS n
"""
_HARMLESS = {"AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock"}
"""Neither readers nor writers wait for one who holds these."""


@pytest.fixture
async def fresh(fresh: MasterFixture) -> MasterFixture:
    """A cluster in a database of its own with an old range of 1000 jobs, of which 700 are unfinished."""
    await fresh.sql.execute(_FILL, True, UNFINISHED, FAR, 0, 1)
    await fresh.sql.execute(_FILL, False, FINISHED, FAR, UNFINISHED, 1)
    await fresh.sql.execute(
        "INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome) "
        "SELECT id, 1, gen_random_uuid(), 1, 'failed' FROM job WHERE state = 'HELD'"
    )
    return fresh


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the little there is takes several of each."""
    for name, value in {"_COPY_PAGES": 20, "_SWEEP_PAGES": 20, "_CATCH_UP_ROWS": 10, "_CLEAN_JOBS": 150}.items():
        monkeypatch.setattr(archive_module, name, value)


async def _archive(fresh: MasterFixture) -> Archive:
    return await Archive.connect(dsn=fresh.dsn, schema=SCHEMA, settings=MasterSettings())


def _safe() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


async def _call(fresh: MasterFixture, name: str, *values: object) -> Any:
    return await fresh.sql.fetchval(statement_text(f"archive/{name}"), *values)


async def _copied(fresh: MasterFixture) -> str:
    """The oldest range as it is just before the switch."""
    name: str = await _call(fresh, "retire_begin", _safe())
    await _call(fresh, "retire_bound")
    await _call(fresh, "retire_prove")
    while await _call(fresh, "retire_copy", 20):
        pass
    return name


async def _complete(fresh: MasterFixture) -> None:
    """What comes after the switch."""
    while await _call(fresh, "retire_clean", 150):
        pass


async def _held(fresh: MasterFixture, limit: int = 1) -> list[bytes]:
    rows = await fresh.sql.fetch("SELECT id FROM job WHERE state = 'HELD' ORDER BY id LIMIT $1", limit)
    return [row["id"].bytes for row in rows]


async def _cancel(fresh: MasterFixture, job_id: bytes) -> None:
    await fresh.sql.execute(
        "UPDATE job SET state = 'CANCELLED', changed_at = clock_timestamp() WHERE id = $1", UUID(bytes=job_id)
    )


async def _sound(fresh: MasterFixture, *, jobs: int = UNFINISHED + FINISHED, unfinished: int = UNFINISHED) -> None:
    """Every job is there once, those that are unfinished in ``job``, with their attempts."""
    seen = await fresh.sql.fetchrow("SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM jobs")
    assert seen is not None
    assert tuple(seen) == (jobs, jobs)
    assert await fresh.sql.fetchval("SELECT count(*) FROM job WHERE state = 'HELD'") == unfinished
    lines = await fresh.sql.fetchrow("SELECT count(*) AS rows, count(DISTINCT job_id) AS ids FROM attempts")
    assert lines is not None
    assert tuple(lines) == (UNFINISHED, UNFINISHED)


async def test_under_the_lock_only_rows_that_have_changed_are_touched(fresh: MasterFixture) -> None:
    async with fresh.sql.transaction():
        await fresh.sql.execute("SET LOCAL jobmaster.attic_mover = 'on'")
        await fresh.sql.execute(_FILL, True, 50, FAR, 5000, 5)
        await fresh.sql.execute(
            "INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome) "
            "SELECT id, 1, gen_random_uuid(), 1, 'failed' FROM job_attic"
        )
    await _copied(fresh)
    (changed,) = await _held(fresh)
    await _cancel(fresh, changed)
    other = await fresh.connect()  # its counters have seen nothing else
    async with other.transaction():
        assert await other.fetchval(statement_text("archive/retire_switch"), 500) is not None
        touched = await other.fetch(
            "SELECT relname, seq_tup_read, idx_tup_fetch, n_tup_ins + n_tup_upd + n_tup_del AS written "
            "FROM pg_stat_xact_user_tables"
        )
    await other.close()
    assert sum(row["written"] for row in touched) > 0
    for row in touched:
        assert (row["seq_tup_read"] or 0) + (row["idx_tup_fetch"] or 0) + row["written"] < 10, row
    await _complete(fresh)
    assert await fresh.state(changed) == "CANCELLED"
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_attic") == UNFINISHED + 50


async def test_everything_beside_the_switch_takes_no_lock_that_others_feel(fresh: MasterFixture) -> None:
    """The two short ones are on the attics and the range alone, never on ``job``: for a change of the catalogue."""
    locks = """SELECT relation::regclass::text AS name, mode FROM pg_locks
               WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation::regclass::text ~ '^(job|attempt)'"""

    async def held(name: str, *values: object) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        async with fresh.sql.transaction():
            await _call(fresh, name, *values)
            for row in await fresh.sql.fetch(locks):
                found.setdefault(row["name"].removesuffix("_pkey"), set()).add(row["mode"])
        return found

    begun = await held("retire_begin", _safe())
    strong = {table for table, modes in begun.items() if modes - _HARMLESS and "next" not in table}
    name = await fresh.sql.fetchval("SELECT name FROM retirement")
    assert strong == {"job_attic", name}
    assert "AccessExclusiveLock" not in begun["job_attic"] | begun[name]
    bound = await held("retire_bound")
    assert {table for table, modes in bound.items() if modes - _HARMLESS} == {"attempt_attic"}
    for step, values in (("retire_prove", ()), ("retire_copy", (1000,)), ("retire_copy", (1000,))):
        for table, modes in (await held(step, *values)).items():
            assert modes <= _HARMLESS, (step, table)
    await _cancel(fresh, (await _held(fresh))[0])
    for table, modes in (await held("retire_catch_up", 1000)).items():
        assert modes <= _HARMLESS, table
    await _call(fresh, "retire_copy", 1000)
    await _call(fresh, "retire_switch", 500)
    for _ in range(3):
        for table, modes in (await held("retire_clean", 500)).items():
            assert modes <= _HARMLESS, table
    await _sound(fresh, unfinished=UNFINISHED - 1)


async def test_it_may_be_killed_after_every_statement(fresh: MasterFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement more with each call, until one comes to its end; no job is ever out of sight."""
    await fresh.master.intake.insert_held([new_job(new_id())])
    real = Archive._run
    budget, left, name = 0, 0, None

    class Killed(Exception):
        pass

    async def counted(self: Archive, *values: Any, **words: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return await real(self, *values, **words)

    monkeypatch.setattr(Archive, "_run", counted)
    while name is None:
        budget += 1
        left = budget
        archive = await _archive(fresh)
        try:
            done = await archive.detach(_safe())
            assert done is not None
            name = done[0]
            assert done[1] == UNFINISHED
        except Killed:
            pass
        await archive.close()
        await _sound(fresh, jobs=UNFINISHED + FINISHED + 1, unfinished=UNFINISHED + 1)
    assert budget > 8
    assert await fresh.sql.fetchval(f"SELECT count(*) FROM {name}") == FINISHED
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_attic") == UNFINISHED
    assert await fresh.sql.fetchval("SELECT count(*) FROM attempt_attic") == UNFINISHED
    states = await fresh.sql.fetch("SELECT state::text FROM archive_manifest")
    assert [row["state"] for row in states] == ["DETACHED"]


async def test_rows_that_change_between_the_copy_and_the_switch_are_as_they_were_last(fresh: MasterFixture) -> None:
    await _copied(fresh)
    cancelled, ended, failed = await _held(fresh, 3)
    await fresh.sql.execute(
        "UPDATE job SET due_at = clock_timestamp() WHERE id = ANY ($1)", [UUID(bytes=ended), UUID(bytes=failed)]
    )
    await _cancel(fresh, cancelled)
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    await fresh.master.outcomes.record_final([final_row(ended, fresh.fence, 2)])
    await fresh.master.outcomes.hold(fresh.fence, [hold_row(failed, 2, error=ERROR, due_us=FAR)])
    while await _call(fresh, "retire_catch_up", 2):
        pass
    name = await _call(fresh, "retire_switch", 500)
    await _complete(fresh)
    assert [await fresh.state(id_) for id_ in (cancelled, ended, failed)] == ["CANCELLED", "SUCCEEDED", "HELD"]
    assert await fresh.lines(failed) == [(1, "failed"), (2, "failed")]
    gone = await fresh.sql.fetch(
        f"SELECT id FROM {name} WHERE id = ANY ($1)", [UUID(bytes=cancelled), UUID(bytes=ended)]
    )
    assert len(gone) == 2, "they were finished when the range left"
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_attic") == UNFINISHED - 2


async def test_a_change_that_is_not_committed_when_others_are_copied_again_is_not_forgotten(
    fresh: MasterFixture,
) -> None:
    await _copied(fresh)
    first, second = await _held(fresh, 2)
    writer = await fresh.connect()
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("UPDATE job SET rescues = 7 WHERE id = $1", UUID(bytes=first))
    await fresh.sql.execute("UPDATE job SET rescues = 8 WHERE id = $1", UUID(bytes=second))
    assert await _call(fresh, "retire_catch_up", 100) == 1
    with pytest.raises(asyncpg.LockNotAvailableError):
        await _call(fresh, "retire_switch", 500)
    await transaction.commit()
    assert await _call(fresh, "retire_switch", 500) is not None
    rows = await fresh.sql.fetch(
        "SELECT rescues FROM job WHERE id = ANY ($1) ORDER BY id", [UUID(bytes=first), UUID(bytes=second)]
    )
    assert [row["rescues"] for row in rows] == [7, 8]
    await writer.close()


async def test_a_first_row_that_comes_while_the_range_is_leaving_leaves_with_it(fresh: MasterFixture) -> None:
    """Late but lawful: the range was still attached. Unfinished it goes to the attic, finished it stays in the range."""
    await _copied(fresh)
    low = (await _held(fresh))[0]
    done, held = (low[:6] + new_id()[6:] for _ in range(2))
    await fresh.master.outcomes.record_final([final_row(done, fresh.fence)])
    await fresh.master.intake.insert_held([new_job(held, due_us=FAR)])
    name = await _call(fresh, "retire_switch", 500)
    await _complete(fresh)
    assert await fresh.sql.fetchval(f"SELECT count(*) FROM {name} WHERE id = $1", UUID(bytes=done)) == 1
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_attic WHERE id = $1", UUID(bytes=held)) == 1
    late = low[:6] + new_id()[6:]
    assert (await fresh.master.intake.insert_held([new_job(late)])).quarantined == {late}
    assert (await fresh.master.outcomes.record_final([final_row(done, fresh.fence)])).quarantined == {done}
    await _sound(fresh, jobs=UNFINISHED + FINISHED + 2, unfinished=UNFINISHED + 1)


async def test_what_is_in_the_attic_already_comes_along_and_goes_on_living(fresh: MasterFixture) -> None:
    await lower_floor(fresh.sql, 3)
    await fresh.sql.execute(_FILL, True, 50, FAR, 5000, 3)
    archive = await _archive(fresh)
    assert [await archive.detach(_safe()) for _ in range(2)] == [(ANY, 50), (ANY, 0)]
    ended, changed, swept = await _held(fresh, 3)
    await _cancel(fresh, swept)
    await _copied(fresh)
    await fresh.sql.execute("UPDATE job SET due_at = clock_timestamp() WHERE id = $1", UUID(bytes=ended))
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    await fresh.master.outcomes.record_final([final_row(ended, fresh.fence, 2)])
    await fresh.sql.execute("UPDATE job SET rescues = 9 WHERE id = $1", UUID(bytes=changed))
    assert await archive.detach(_safe()) == (ANY, UNFINISHED)
    assert await fresh.state(ended) == "SUCCEEDED"
    assert await fresh.sql.fetchval("SELECT rescues FROM job_attic WHERE id = $1", UUID(bytes=changed)) == 9
    total = {"jobs": UNFINISHED + FINISHED + 50, "unfinished": UNFINISHED + 48}
    await _sound(fresh, **total)
    name = await archive.sweep(datetime.now(UTC) + timedelta(seconds=1))
    assert name is not None
    assert await fresh.sql.fetchval(f"SELECT count(*) FROM {name}") == 2
    await _sound(fresh, **total)
    await archive.close()


@pytest.mark.parametrize("table", ["job_attic", "the range"])
async def test_a_table_that_is_rewritten_meanwhile_is_copied_from_the_beginning(
    fresh: MasterFixture, table: str
) -> None:
    """VACUUM FULL puts rows into other pages, so that some would be passed over."""
    name = await _call(fresh, "retire_begin", _safe())
    await _call(fresh, "retire_copy", 20)
    await fresh.sql.execute("DELETE FROM job WHERE id IN (SELECT id FROM job WHERE state = 'SUCCEEDED' LIMIT 100)")
    await fresh.sql.execute(f"VACUUM FULL {name if table == 'the range' else table}")
    archive = await _archive(fresh)
    for late in (False, True):
        if late:
            assert await archive.detach(_safe()) == (name, UNFINISHED)
        else:
            with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="was rewritten while"):
                await _call(fresh, "retire_copy", 20)
    await _sound(fresh, jobs=UNFINISHED + FINISHED - 100)
    await archive.close()


async def test_a_column_that_job_gets_meanwhile_is_copied_too(fresh: MasterFixture) -> None:
    await _copied(fresh)
    await fresh.sql.execute("ALTER TABLE job ADD COLUMN colour text; ALTER TABLE job_detached ADD COLUMN colour text")
    archive = await _archive(fresh)
    assert (await archive.detach(_safe()) or ("", 0))[1] == UNFINISHED
    await _sound(fresh)
    await archive.close()


async def test_two_sessions_that_retire_at_once_take_turns(
    fresh: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await _archive(fresh), await _archive(fresh)
    assert await first.take("job_attic")
    monkeypatch.setattr(archive_module, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="another session has been retiring ranges"):
        await second.detach(_safe())
    await first.close()
    monkeypatch.undo()
    assert (await second.detach(_safe()) or ("", 0))[1] == UNFINISHED
    await second.close()


async def test_a_session_that_keeps_job_busy_for_good_is_named(
    fresh: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await fresh.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT count(*) FROM job")
    monkeypatch.setattr(archive_module, "_PATIENCE_SECONDS", 0.0)
    archive = await _archive(fresh)
    pid = other.get_server_pid()
    with pytest.raises(Unavailable, match=f"process {pid} of the master has kept .* busy"):
        await archive.detach(_safe())
    await transaction.rollback()
    assert (await archive.detach(_safe()) or ("", 0))[1] == UNFINISHED
    await archive.close()
    await other.close()


async def test_a_job_whose_copy_was_lost_stops_the_retirement(fresh: MasterFixture) -> None:
    """The last guard: what is unfinished in the range must be in the attic."""
    await _copied(fresh)
    await fresh.sql.execute("DELETE FROM job_attic_next WHERE id = (SELECT id FROM job_attic_next ORDER BY id LIMIT 1)")
    await _call(fresh, "retire_switch", 500)
    archive = await _archive(fresh)
    with pytest.raises(Refused, match="holds 1 unfinished jobs that are not in the attic"):
        await archive.finish()
    await archive.close()


async def test_doctor_names_a_range_whose_archiver_has_died(fresh: MasterFixture) -> None:
    settings = ClusterSettings(master=MasterSettings(schema=SCHEMA))
    reader = await Reader.connect(dsn=fresh.dsn, schema=SCHEMA)

    async def found() -> list[str]:
        return [one.detail for one in await master_findings(settings, reader) if one.name == "master.retirement"]

    assert await found() == []
    name = await _copied(fresh)
    archive = await _archive(fresh)
    assert await archive.take("job_attic")
    assert await found() == [], "one is at work"
    await archive.let_go("job_attic")
    assert [said.startswith(f"the retirement of {name} was interrupted") for said in await found()] == [True]
    await archive.detach(_safe())
    assert await found() == []
    await archive.close()
    await reader.close()


async def test_a_role_that_only_writes_jobs_gets_no_rights_by_tables_of_its_own(fresh: MasterFixture) -> None:
    """The notes and the guards of the attic run with their maker's rights: a temporary table of their tables' names, which
    could have triggers, is none of theirs."""
    await _copied(fresh)
    role = f"writer_{new_id().hex()}"
    (job_id,) = await _held(fresh)
    await fresh.sql.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
    await fresh.sql.execute(f"GRANT SELECT, INSERT, UPDATE ON job TO {role}")
    session = await fresh.connect()
    try:
        await session.execute(f"SET ROLE {role}")
        await session.execute("CREATE TEMP TABLE job_touched (id uuid); CREATE TEMP TABLE job_attic (id uuid)")
        late = UUID(bytes=bytes(6) + new_id()[6:])
        await session.execute("INSERT INTO pg_temp.job_attic VALUES ($1)", late)
        await session.execute(
            f"INSERT INTO {SCHEMA}.job (id, state, priority, lane, handler, token, due_at, args) "
            "VALUES ($1, 'HELD', 3, 'default', 'handler', 1, now(), '{}')",
            late,
        )
        await session.execute(
            f"UPDATE {SCHEMA}.job SET state = 'CANCELLED', changed_at = clock_timestamp() WHERE id = $1",
            UUID(bytes=job_id),
        )
        assert await session.fetchval("SELECT count(*) FROM pg_temp.job_touched") == 0
    finally:
        await session.close()
        await fresh.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert await fresh.sql.fetchval("SELECT count(*) FROM job_touched WHERE id = $1", UUID(bytes=job_id)) == 1
    assert await fresh.sql.fetchval("SELECT count(*) FROM job WHERE id = $1", late) == 0


async def test_what_runs_with_its_makers_rights_looks_at_temporary_tables_last(fresh: MasterFixture) -> None:
    paths = await fresh.sql.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND pronamespace = current_schema()::regnamespace"
    )
    assert len(paths) >= 3
    assert [row["proname"] for row in paths if f"search_path={SCHEMA}, pg_temp" not in row["proconfig"]] == []
