"""Handlers' transactions on a real server: the outcome and the effects are committed together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.transactions import MasterAccess, Transaction, Transactions
from jobmaster.model.errors import InputError, Unavailable
from jobmaster.model.job import Conclusion, FinalRow
from jobmaster.settings.model import MasterSettings
from jobmaster_agents.execute.transactional.attempt import conclude
from tests.integration.postgres.fixture import LANE, PRIORITY, SCHEMA, MasterFixture, entry, final_row, hold_row, uuids
from tests.support.patience import PATIENCE_SECONDS


def always() -> bool:
    return True


@pytest.fixture
async def source(db: MasterFixture) -> AsyncIterator[Transactions]:
    await db.sql.execute("DROP TABLE IF EXISTS public.effect; CREATE TABLE public.effect (what text PRIMARY KEY)")
    settings = MasterSettings(transactions=2, transaction_idle_timeout_seconds=5.0)
    made = Transactions(MasterAccess(dsn=db.dsn, schema=SCHEMA, application_name="an agent", settings=settings))
    yield made
    await made.close()


async def begun(source: Transactions, effect: str = "done") -> Transaction:
    """A transaction in which the handler has written."""
    transaction = await source.begin("attempt")
    await transaction.connection.execute("INSERT INTO effect VALUES ($1)", effect)
    return transaction


async def effects(db: MasterFixture) -> list[str]:
    return [row["what"] for row in await db.sql.fetch("SELECT what FROM public.effect ORDER BY what")]


async def test_effect_and_outcome_appear_together_whether_or_not_there_was_a_row(
    db: MasterFixture, source: Transactions
) -> None:
    rowless, (known,) = new_id(), await db.processing()
    for job_id in (rowless, known):
        transaction = await begun(source, job_id.hex())
        assert await effects(db) == ([rowless.hex()] if job_id == known else [])
        assert await conclude(transaction, final_row(job_id, db.fence), always) is Conclusion.COMMITTED
        view = await db.view(job_id)
        assert (view.state, view.result_json, view.bucket_id) == ("SUCCEEDED", b"1", db.fence.bucket_id)
        assert await db.master.outcomes.is_recorded(final_row(job_id, db.fence))
    assert len(await effects(db)) == 2


async def rescued(db: MasterFixture, job_id: bytes, rescuer: bytes) -> None:
    await db.lost()
    taken = await db.take(rescuer)
    await db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)


@pytest.mark.parametrize("has_row", [True, False])
async def test_a_superseded_attempt_leaves_nothing(
    db: MasterFixture, source: Transactions, rescuer: bytes, has_row: bool
) -> None:
    job_id = (await db.processing())[0] if has_row else new_id()
    transaction = await begun(source)
    await rescued(db, job_id, rescuer)
    assert await conclude(transaction, final_row(job_id, db.fence), always) is Conclusion.REFUSED
    assert await effects(db) == []
    assert await db.state(job_id) == "HELD"
    assert not await db.master.outcomes.is_recorded(final_row(job_id, db.fence))


async def test_a_rescue_that_waits_for_the_commit_finds_the_outcome(
    db: MasterFixture, source: Transactions, rescuer: bytes
) -> None:
    """Written, not committed yet: the rescuer of the same job waits for the row, and then leaves it alone."""
    job_id = (await db.processing())[0]
    transaction = await begun(source)
    assert await transaction.write(final_row(job_id, db.fence))
    await db.lost()
    taken = await db.take(rescuer)
    page = db.master.rescue.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    answer = await db.after_lock("rescue/rescue_page", page, transaction.commit)
    assert answer.refused == {job_id}
    assert (await db.state(job_id), await effects(db)) == ("SUCCEEDED", ["done"])


async def test_an_outcome_that_waits_for_the_rescue_takes_the_effects_back(
    db: MasterFixture, source: Transactions, rescuer: bytes
) -> None:
    """The other order: the rescuer has the row, and the transaction waits for it."""
    job_id = (await db.processing())[0]
    transaction = await begun(source)
    await db.lost()
    taken = await db.take(rescuer)
    ids = uuids([taken.bucket_id, taken.owner])
    async with db.open_transaction("rescue/sweep", ids[0], taken.epoch, ids[1], 10, 3, b"{}", b"{}") as commit:
        late = conclude(transaction, final_row(job_id, db.fence), always)
        assert await db.after_lock("outcomes/record_final", late, commit) is Conclusion.REFUSED
    assert (await db.state(job_id), await effects(db)) == ("HELD", [])


async def test_a_write_that_waits_for_an_unknown_commit_is_refused_by_what_it_committed(
    db: MasterFixture, source: Transactions
) -> None:
    """What makes it safe to go on after an unknown commit, whatever a look at the row said meanwhile."""
    job_id = (await db.processing())[0]
    transaction = await begun(source)
    row = final_row(job_id, db.fence)
    assert await transaction.write(row)
    assert not await db.master.outcomes.is_recorded(row), "not yet"
    again = db.master.outcomes.hold(db.fence, [hold_row(job_id, error=b"{}")])
    written = await db.after_lock("outcomes/hold", again, transaction.commit)
    assert written.refused == {job_id}
    assert await db.master.outcomes.is_recorded(row)
    assert await db.state(job_id) == "SUCCEEDED"


async def test_without_a_lease_nothing_is_committed(db: MasterFixture, source: Transactions) -> None:
    transaction = await begun(source)
    row = final_row(new_id(), db.fence)
    assert await conclude(transaction, row, lambda: False) is Conclusion.WITHHELD
    assert await effects(db) == []
    assert await db.master.queries.get(row.id) is None


async def test_a_connection_that_breaks_at_the_commit_leaves_it_unknown_and_the_row_decides(
    db: MasterFixture, source: Transactions
) -> None:
    transaction = await begun(source)
    row = final_row(new_id(), db.fence)
    assert await transaction.write(row)
    await db.sql.execute("SELECT pg_terminate_backend($1, 5000)", transaction.connection.get_server_pid())
    assert await transaction.commit() is Conclusion.UNKNOWN
    assert not await db.master.outcomes.is_recorded(row)
    assert await effects(db) == []


@pytest.mark.parametrize("words", ["COMMIT", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "ROLLBACK"])
async def test_a_transaction_ended_by_its_handler_raises_an_error(
    db: MasterFixture, source: Transactions, words: str
) -> None:
    """Its effects are out of reach then; its outcome at least is not called a success."""
    transaction = await begun(source)
    await transaction.connection.execute(words)
    row = final_row(new_id(), db.fence)
    with pytest.raises(InputError, match="ended its transaction by itself"):
        await conclude(transaction, row, always)
    assert await db.master.queries.get(row.id) is None


async def test_an_error_that_was_caught_inside_spoils_it_and_a_savepoint_does_not(
    db: MasterFixture, source: Transactions
) -> None:
    transaction = await begun(source, "twice")
    with pytest.raises(asyncpg.UniqueViolationError):
        await transaction.connection.execute("INSERT INTO effect VALUES ('twice')")
    with pytest.raises(InputError, match="savepoint"):
        await conclude(transaction, final_row(new_id(), db.fence), always)
    assert await effects(db) == []
    transaction = await begun(source, "twice")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with transaction.connection.transaction():
            await transaction.connection.execute("INSERT INTO effect VALUES ('twice')")
    assert await conclude(transaction, final_row(new_id(), db.fence), always) is Conclusion.COMMITTED
    assert await effects(db) == ["twice"]


async def test_a_constraint_that_is_checked_at_the_commit_undoes_the_outcome_too(
    db: MasterFixture, source: Transactions
) -> None:
    await db.sql.execute(
        "DROP TABLE IF EXISTS public.child; CREATE TABLE public.child ("
        "what text REFERENCES public.effect DEFERRABLE INITIALLY DEFERRED)"
    )
    transaction = await source.begin("attempt")
    await transaction.connection.execute("INSERT INTO child VALUES ('nobody')")
    row = final_row(new_id(), db.fence)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conclude(transaction, row, always)
    assert await db.master.queries.get(row.id) is None
    await db.sql.execute("DROP TABLE public.child")


async def test_connections_are_few_wait_for_each_other_and_are_as_new(db: MasterFixture, source: Transactions) -> None:
    first, second = await begun(source, "1"), await begun(source, "2")
    third = asyncio.ensure_future(begun(source, "3"))
    await asyncio.sleep(0.05)
    assert not third.done(), "two connections, three transactions"
    await first.connection.execute("SET search_path = nowhere")
    row: FinalRow = final_row(new_id(), db.fence)
    assert await conclude(first, row, always) is Conclusion.COMMITTED, "whatever the handler has set"
    await second.rollback()
    await second.rollback()
    again = await third
    assert again.connection in (first.connection, second.connection)
    assert await again.connection.fetchval("SHOW search_path") == '"$user", public'
    assert await again.connection.fetchval("SHOW application_name") == "an agent"
    await again.rollback()
    assert source._free._value == 2, "everything has come back"
    assert await effects(db) == ["1"]


def doubled(value: str) -> str:
    return value * 2


async def leaves_things_behind(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """What a handler may do to its session; it must be able to do it again in the next attempt."""
    await connection.execute("CREATE TEMP TABLE work (n int); INSERT INTO work VALUES (1)")
    assert await connection.fetchval("SELECT count(*) FROM work") == 1
    await connection.execute("PREPARE mine AS SELECT 1")
    await connection.execute("DECLARE rows CURSOR WITH HOLD FOR SELECT 1")
    await connection.execute("SELECT pg_advisory_lock(42)")
    await connection.execute("SET statement_timeout = 1234; SET ROLE attempt_role")
    await connection.fetchval("SELECT current_user")


async def session(connection: asyncpg.Connection[asyncpg.Record]) -> tuple[object, ...]:
    row = await connection.fetchrow(
        "SELECT current_user, session_user, current_setting('statement_timeout'), "
        "to_regclass('pg_temp.work'), (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), "
        "(SELECT count(*) FROM pg_cursors WHERE is_holdable), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    )
    return tuple(row or ())


async def test_an_attempt_finds_nothing_of_the_session_of_the_one_before(
    db: MasterFixture, source: Transactions
) -> None:
    await db.sql.execute("DROP ROLE IF EXISTS attempt_role; CREATE ROLE attempt_role")
    await db.sql.execute(f'GRANT USAGE ON SCHEMA "{SCHEMA}" TO attempt_role')
    first = await source.begin("attempt")
    fresh = await session(first.connection)
    await first.rollback()
    pids = set()
    for _ in range(3):
        transaction = await source.begin("attempt")
        assert await session(transaction.connection) == fresh
        await leaves_things_behind(transaction.connection)
        await transaction.connection.execute("RESET ROLE")
        assert await conclude(transaction, final_row(new_id(), db.fence), always) is Conclusion.COMMITTED
        pids.add(transaction.connection.get_server_pid())
    for _ in range(2):  # committed with the role still set: the commit makes that last
        transaction = await source.begin("attempt")
        assert await session(transaction.connection) == fresh
        await transaction.connection.execute("SET ROLE attempt_role; COMMIT")
        await transaction.rollback()
    assert len(pids) == 1, "one connection was good for all of them"


async def test_a_table_of_another_shape_under_the_same_name_is_no_error(
    db: MasterFixture, source: Transactions
) -> None:
    """The driver keeps prepared statements; a plan for the last attempt's temporary table would fail inside a transaction."""
    for shape in ("n int", "n text", "n int, m int"):
        transaction = await source.begin("attempt")
        await transaction.connection.execute(f"CREATE TEMP TABLE work ({shape})")
        await transaction.connection.fetch("SELECT * FROM work")
        assert await conclude(transaction, final_row(new_id(), db.fence), always) is Conclusion.COMMITTED


@pytest.mark.parametrize("name", ["text", "uuid", "bytea", "jsonb"])
async def test_codecs_of_a_handler_change_neither_its_outcome_nor_the_next_attempt(
    db: MasterFixture, source: Transactions, name: str
) -> None:
    first = await source.begin("attempt")
    await first.connection.set_type_codec(
        name, encoder=lambda _: "x", decoder=lambda _: "decoded", schema="pg_catalog", format="text"
    )
    assert await first.connection.fetchval(f"SELECT null_of::{name} FROM (SELECT NULL AS null_of) AS t") is None
    job_id = new_id()
    assert await conclude(first, final_row(job_id, db.fence), always) is Conclusion.COMMITTED
    assert (await db.view(job_id)).result_json == b"1"
    second = await source.begin("attempt")
    assert second.connection is first.connection
    assert await second.connection.fetchval("SELECT 'a'::text") == "a"
    assert await conclude(second, final_row(new_id(), db.fence), always) is Conclusion.COMMITTED


async def test_what_cannot_be_taken_back_costs_the_connection(db: MasterFixture, source: Transactions) -> None:
    first = await source.begin("attempt")
    heard: list[object] = []
    first.connection.add_query_logger(heard.append)
    assert await conclude(first, final_row(new_id(), db.fence), always) is Conclusion.COMMITTED
    second = await source.begin("attempt")
    assert second.connection is not first.connection
    await second.rollback()


async def test_a_connection_that_died_idle_is_replaced(db: MasterFixture, source: Transactions) -> None:
    await (await begun(source)).rollback()
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'an agent'"
    await db.sql.fetch(ended)
    assert await conclude(await begun(source), final_row(new_id(), db.fence), always) is Conclusion.COMMITTED


async def test_an_idle_transaction_is_ended_by_the_server(db: MasterFixture) -> None:
    settings = MasterSettings(transactions=1, transaction_idle_timeout_seconds=0.2)
    source = Transactions(MasterAccess(dsn=db.dsn, schema=SCHEMA, application_name="x", settings=settings))
    transaction = await source.begin("attempt")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not transaction.connection.is_closed():  # noqa: ASYNC110 - the driver notices it by itself
            await asyncio.sleep(0.02)
    with pytest.raises(InputError, match="transaction_idle_timeout"):
        await conclude(transaction, final_row(new_id(), db.fence), always)
    assert source._free._value == 1
    await source.close()


async def test_the_master_cannot_be_reached(db: MasterFixture) -> None:
    source = Transactions(
        MasterAccess(
            dsn="postgresql://nobody@127.0.0.1:1/none", schema=SCHEMA, application_name="x", settings=MasterSettings()
        )
    )
    for _ in range(5):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await source.begin("attempt")
    await source.close()
    with pytest.raises(Unavailable, match="closed"):
        await source.begin("attempt")


async def test_a_refused_outcome_leaves_a_trace(db: MasterFixture, rescuer: bytes) -> None:
    job_id = (await db.processing())[0]
    await rescued(db, job_id, rescuer)
    await db.master.outcomes.mark_refused([final_row(job_id, db.fence)])
    assert await db.lines(job_id) == [(1, "lost")]
    count = await db.sql.fetchval("SELECT refused_count FROM attempt WHERE job_id = $1", *uuids([job_id]))
    assert count == 1
