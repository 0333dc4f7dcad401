"""What an error means: nothing happened, or it may have happened; and no call waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import ConnectionFactory, place_of
from jobmaster.master.driver.errors import calling
from jobmaster.master.master import Master
from jobmaster.model.errors import InputError, OutcomeUnknown, Refused, SchemaMismatch, Unavailable, ValueRefused
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA, MasterFixture, final_row, in_flight_row, new_job, uuids
from tests.support.patience import PATIENCE_SECONDS

_DEFAULTS = MasterSettings()


@asynccontextmanager
async def _master(dsn: str, settings: MasterSettings = _DEFAULTS) -> AsyncIterator[Master]:
    made = await Master.connect(dsn=dsn, schema=SCHEMA, settings=settings, application_name="impatient")
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def _bucket_locked(db: MasterFixture) -> AsyncIterator[None]:
    """Another transaction holds the bucket's row."""
    other = await db.connect()
    async with other.transaction():
        await other.execute("UPDATE bucket SET changed_at = clock_timestamp()")
        yield
    await other.close()


def _with(dsn: str, *, database: str | None = None, user: str | None = None) -> str:
    parts = urlsplit(dsn)
    if database is not None:
        parts = parts._replace(path=f"/{database}")
    if user is not None:
        parts = parts._replace(netloc=f"{user}@")
    return urlunsplit(parts)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"localhost:1/nothing cannot be reached"):
        async with _master("postgresql://someone:secret@localhost:1/nothing"):
            pass


def test_no_message_names_the_password() -> None:
    assert place_of("postgresql://someone:secret@db.example:6000/jobs") == "db.example:6000/jobs"
    assert place_of("postgresql://someone@/jobs?host=/run/pg") == "/run/pg:5432/jobs"


async def test_an_unknown_user_or_database_is_refused_with_a_hint(db: MasterFixture) -> None:
    with pytest.raises(Refused, match=r"does not exist \(create it"):
        async with _master(_with(db.dsn, database="nowhere")):
            pass
    with pytest.raises(Refused, match=r"does not accept this user or password.*\(mend the user and password"):
        async with _master(_with(db.dsn, user="nobody_of_ours")):
            pass


async def test_a_login_that_was_accepted_before_and_is_refused_now_is_an_outage(db: MasterFixture) -> None:
    """A working program must not end because of a password that is about to be corrected."""
    role = f"role_{new_id().hex()}"
    await db.sql.execute(f"CREATE ROLE {role} LOGIN")
    opener = ConnectionFactory(_with(db.dsn, user=role), "public", MasterSettings(), "test")
    (await opener.open(plan_once=False)).terminate()
    await db.sql.execute(f"ALTER ROLE {role} NOLOGIN")
    with pytest.raises(Unavailable, match=r"does not accept this user or password any more.*\(mend the user"):
        await opener.open(plan_once=False)
    await db.sql.execute(f"ALTER ROLE {role} LOGIN")
    (await opener.open(plan_once=False)).terminate()
    with pytest.raises(Refused, match="does not accept this user or password"):
        await ConnectionFactory(_with(db.dsn, user="nobody_of_ours"), "public", MasterSettings(), "test").open(
            plan_once=False
        )


async def test_a_lock_that_is_not_had_in_time_means_nothing_happened(db: MasterFixture) -> None:
    job_id = new_id()
    async with _master(db.dsn, MasterSettings(lock_timeout_seconds=0.05)) as impatient, _bucket_locked(db):
        with pytest.raises(Unavailable, match="nothing was changed") as raised:
            await impatient.outcomes.persist(db.fence, [in_flight_row(job_id)])
    assert not isinstance(raised.value, OutcomeUnknown)
    assert await db.master.queries.get(job_id) is None


async def test_a_statement_that_runs_too_long_means_nothing_happened(db: MasterFixture) -> None:
    async with _master(db.dsn, MasterSettings(statement_timeout_seconds=0.1)) as impatient, _bucket_locked(db):
        with pytest.raises(Unavailable, match="nothing was changed"):
            await impatient.outcomes.persist(db.fence, [in_flight_row(new_id())])


async def test_a_session_that_dies_during_a_write_leaves_the_outcome_unknown(db: MasterFixture) -> None:
    job_id = new_id()
    async with _bucket_locked(db):
        task = asyncio.ensure_future(db.master.outcomes.persist(db.fence, [in_flight_row(job_id)]))
        await db.waiting("outcomes/persist")
        waiting = "wait_event_type = 'Lock' AND query LIKE '%outcomes/persist%'"
        await db.sql.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waiting}")
        with pytest.raises(OutcomeUnknown, match="send the same id again") as raised:
            await task
    assert raised.value.id_bytes == (job_id,)
    assert (await db.master.outcomes.persist(db.fence, [in_flight_row(job_id)])).accepted == {job_id}


async def test_the_victim_of_a_deadlock_is_sent_again(db: MasterFixture) -> None:
    first, second = sorted(await db.assigned(2))
    other = await db.connect(deadlock_timeout="20s", lock_timeout="20s")  # so that the master's statement is the victim
    touch = "UPDATE job SET waited_us = 1 WHERE id = $1"
    transaction = other.transaction()
    await transaction.start()
    await other.execute(touch, *uuids([second]))
    task = asyncio.ensure_future(
        db.master.outcomes.record_final([final_row(id_, db.fence, 2) for id_ in (first, second)])
    )
    await db.waiting("outcomes/record_final")
    await other.execute(touch, *uuids([first]))  # closes the circle; goes on when the victim has let go
    await transaction.commit()
    assert (await task).accepted == {first, second}
    await other.close()


@pytest.mark.slow
async def test_a_frozen_server_process_blocks_no_call_for_ever(db: MasterFixture) -> None:
    async with _master(db.dsn, MasterSettings(statement_timeout_seconds=1.0, pool_size=1)) as impatient:
        await impatient.queries.get(new_id())  # opens the one data connection
        find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'impatient'"
        pids = [row["pid"] for row in await db.sql.fetch(find)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(OutcomeUnknown, match="answer did not come"):
                    await impatient.outcomes.record_final([final_row(new_id(), db.fence)])
                # The next call gets a connection of its own and does not wait behind the frozen one.
                assert await impatient.queries.get(new_id()) is None
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


async def test_closing_does_not_wait_for_a_frozen_server_process(db: MasterFixture) -> None:
    async with _master(db.dsn, MasterSettings(pool_size=1)) as closing:
        await closing.queries.get(new_id())
        pid = await db.sql.fetchval("SELECT pid FROM pg_stat_activity WHERE application_name = 'impatient'")
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await closing.close()
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(Unavailable, match="closed by this program"):
            await closing.queries.get(new_id())


async def test_a_cancelled_call_spoils_no_later_answer(db: MasterFixture) -> None:
    """One connection: what the cancelled statement would have answered must not be taken for the next one's answer."""
    async with _master(db.dsn, MasterSettings(pool_size=1)) as single:
        async with _bucket_locked(db):
            task = asyncio.ensure_future(single.outcomes.persist(db.fence, [in_flight_row(new_id())]))
            await db.waiting("outcomes/persist")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        job_id = new_id()
        assert (await single.outcomes.persist(db.fence, [in_flight_row(job_id)])).accepted == {job_id}
        assert await single.queries.states([job_id]) == {job_id: "PROCESSING"}


@pytest.mark.slow
async def test_a_call_that_gets_no_connection_was_not_sent(db: MasterFixture) -> None:
    async with (
        _master(db.dsn, MasterSettings(pool_size=1, statement_timeout_seconds=0.5)) as single,
        _bucket_locked(db),
    ):
        await single.queries.get(new_id())
        holder = single._data._connections.acquire()
        await holder.__aenter__()
        with pytest.raises(Unavailable, match="the call was not sent") as raised:
            await single.intake.insert_held([new_job(new_id())])
        assert not isinstance(raised.value, OutcomeUnknown)
        await holder.__aexit__(None, None, None)


async def test_heartbeats_do_not_wait_behind_data(db: MasterFixture) -> None:
    async with _master(db.dsn, MasterSettings(pool_size=1)) as single, _bucket_locked(db):
        task = asyncio.ensure_future(single.outcomes.persist(db.fence, [in_flight_row(new_id())]))
        await db.waiting("outcomes/persist")
        assert (await single.members.renew(db.owner, 10.0)).alive
        task.cancel()


async def test_outcomes_of_an_agent_use_the_control_connection_while_its_data_connection_is_busy(
    db: MasterFixture,
) -> None:
    patient = MasterSettings(lock_timeout_seconds=60.0, statement_timeout_seconds=60.0)
    master = await Master.connect(
        dsn=db.dsn, schema=SCHEMA, settings=patient, application_name="few connections", agent=True
    )
    try:
        async with _bucket_locked(db):
            blocked = asyncio.ensure_future(master.intake.insert_assigned(*db.fence[:2], [new_job(new_id())]))
            await db.waiting("intake/insert_assigned")
            assert await master.outcomes.copy_final([final_row(new_id(), db.fence)])
            assert (await master.members.renew(db.owner, 10.0)).alive
            assert await master.members.certify_dead(db.owner, 1) == []
            assert not blocked.done(), "it had the data connection all the time"
        assert (await blocked).bucket_ok
        found = await db.sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'few connections'"
        )
        assert found == 3
    finally:
        await master.close()


async def test_a_value_the_server_cannot_store_is_the_callers_fault(db: MasterFixture) -> None:
    job = new_job(new_id())._replace(handler="nul\x00")
    with pytest.raises(InputError, match="does not take a value"):
        await db.master.intake.insert_held([job])
    with pytest.raises(InputError, match="does not take a value"):
        await db.master.intake.insert_held([new_job(new_id())._replace(priority=10**6)])
    assert (await db.master.intake.insert_held([new_job(job.id)])).accepted == {job.id}, "the connection still works"


async def test_a_poisoned_entry_of_a_page_is_refused_so_that_the_page_can_be_split(db: MasterFixture) -> None:
    row = final_row(new_id(), db.fence)._replace(handler="nul\x00")
    with pytest.raises(ValueRefused, match="does not take a value"):
        await db.master.outcomes.record_final([row])
    with pytest.raises(ValueRefused, match="does not take a value"):
        await db.master.outcomes.record_final([final_row(new_id(), db.fence)._replace(priority=10**6)])


async def test_a_right_that_was_taken_away_is_no_fault_of_a_row() -> None:
    errors = (asyncpg.InsufficientPrivilegeError("no"), asyncpg.RaiseError("no"), asyncpg.UndefinedTableError("no"))
    for error in errors:
        mapped = calling(error, "rescue/rescue_page", writes=True)
        assert isinstance(mapped, Refused)
        assert not isinstance(mapped, ValueRefused)


async def test_a_read_only_server_is_unavailable_for_writes(migrated_dsn: str) -> None:
    admin = await asyncpg.connect(migrated_dsn)
    await admin.execute(f"ALTER DATABASE {urlsplit(migrated_dsn).path[1:]} SET default_transaction_read_only = on")
    await admin.close()
    async with _master(migrated_dsn) as master:
        assert await master.queries.get(new_id()) is None
        with pytest.raises(Unavailable, match=r"read-only.*\(point master.dsn at the primary\)"):
            await master.intake.insert_held([new_job(new_id())])


async def test_a_schema_that_lost_a_table_is_a_mismatch(migrated_dsn: str) -> None:
    admin = await asyncpg.connect(migrated_dsn)
    async with _master(migrated_dsn) as master:
        await admin.execute(f"DROP TABLE {SCHEMA}.handler")
        with pytest.raises(SchemaMismatch, match=r"handler.*\(run `jobmaster db migrate`\)"):
            await master.queries.handlers()
    await admin.close()


async def test_the_sessions_settings_are_ours(db: MasterFixture) -> None:
    async with _master(db.dsn) as master, master._data._connections.acquire() as connection:
        names = ["jit", "search_path", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"]
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in names}
    assert settings == {
        "jit": "off", "search_path": f'"{SCHEMA}"', "lock_timeout": "2s", "statement_timeout": "10s",
        "idle_in_transaction_session_timeout": "30s",
    }  # fmt: skip
    assert uuids([new_id()])
