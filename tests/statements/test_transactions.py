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
from jobmaster_agents.attempt_transaction import conclude
from tests.patience import PATIENCE_SECONDS
from tests.statements.kit import LANE, PRIORITY, SCHEMA, World, entry, final_row, hold_row, uuids


def always() -> bool:
    return True


@pytest.fixture
async def source(world: World) -> AsyncIterator[Transactions]:
    await world.sql.execute("DROP TABLE IF EXISTS public.effect; CREATE TABLE public.effect (what text PRIMARY KEY)")
    settings = MasterSettings(transactions=2, transaction_idle_timeout_seconds=5.0)
    made = Transactions(MasterAccess(dsn=world.dsn, schema=SCHEMA, application_name="an agent", settings=settings))
    yield made
    await made.close()


async def begun(source: Transactions, effect: str = "done") -> Transaction:
    """A transaction in which the handler has written."""
    transaction = await source.begin("attempt")
    await transaction.connection.execute("INSERT INTO effect VALUES ($1)", effect)
    return transaction


async def effects(world: World) -> list[str]:
    return [row["what"] for row in await world.sql.fetch("SELECT what FROM public.effect ORDER BY what")]


async def test_effect_and_outcome_appear_together_whether_or_not_there_was_a_row(
    world: World, source: Transactions
) -> None:
    rowless, (known,) = new_id(), await world.processing()
    for job_id in (rowless, known):
        transaction = await begun(source, job_id.hex())
        assert await effects(world) == ([rowless.hex()] if job_id == known else [])
        assert await conclude(transaction, final_row(job_id, world.fence), always) is Conclusion.COMMITTED
        view = await world.view(job_id)
        assert (view.state, view.result, view.bucket_id) == ("SUCCEEDED", b"1", world.fence.bucket_id)
        assert await world.master.is_recorded(final_row(job_id, world.fence))
    assert len(await effects(world)) == 2


async def rescued(world: World, job_id: bytes, rescuer: bytes) -> None:
    await world.lost()
    taken = await world.take(rescuer)
    await world.master.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)


@pytest.mark.parametrize("has_row", [True, False])
async def test_a_superseded_attempt_leaves_nothing(
    world: World, source: Transactions, rescuer: bytes, has_row: bool
) -> None:
    job_id = (await world.processing())[0] if has_row else new_id()
    transaction = await begun(source)
    await rescued(world, job_id, rescuer)
    assert await conclude(transaction, final_row(job_id, world.fence), always) is Conclusion.REFUSED
    assert await effects(world) == []
    assert await world.state(job_id) == "HELD"
    assert not await world.master.is_recorded(final_row(job_id, world.fence))


async def test_a_rescue_that_waits_for_the_commit_finds_the_outcome(
    world: World, source: Transactions, rescuer: bytes
) -> None:
    """Written, not committed yet: the rescuer of the same job waits for the row, and then leaves it alone."""
    job_id = (await world.processing())[0]
    transaction = await begun(source)
    assert await transaction.write(final_row(job_id, world.fence))
    await world.lost()
    taken = await world.take(rescuer)
    page = world.master.rescue_page(taken, [entry(job_id)], LANE, PRIORITY, claimed=True, max_rescues=3)
    answer = await world.after_lock("jobs/rescue_page", page, transaction.commit)
    assert answer.refused == {job_id}
    assert (await world.state(job_id), await effects(world)) == ("SUCCEEDED", ["done"])


async def test_an_outcome_that_waits_for_the_rescue_takes_the_effects_back(
    world: World, source: Transactions, rescuer: bytes
) -> None:
    """The other order: the rescuer has the row, and the transaction waits for it."""
    job_id = (await world.processing())[0]
    transaction = await begun(source)
    await world.lost()
    taken = await world.take(rescuer)
    ids = uuids([taken.bucket_id, taken.owner])
    async with world.open_transaction("jobs/sweep", ids[0], taken.epoch, ids[1], 10, 3, b"{}", b"{}") as commit:
        late = conclude(transaction, final_row(job_id, world.fence), always)
        assert await world.after_lock("jobs/record_final", late, commit) is Conclusion.REFUSED
    assert (await world.state(job_id), await effects(world)) == ("HELD", [])


async def test_a_write_that_waits_for_an_unknown_commit_is_refused_by_what_it_committed(
    world: World, source: Transactions
) -> None:
    """What makes it safe to go on after an unknown commit, whatever a look at the row said meanwhile."""
    job_id = (await world.processing())[0]
    transaction = await begun(source)
    row = final_row(job_id, world.fence)
    assert await transaction.write(row)
    assert not await world.master.is_recorded(row), "not yet"
    again = world.master.hold(world.fence, [hold_row(job_id, error=b"{}")])
    written = await world.after_lock("jobs/hold", again, transaction.commit)
    assert written.refused == {job_id}
    assert await world.master.is_recorded(row)
    assert await world.state(job_id) == "SUCCEEDED"


async def test_without_a_lease_nothing_is_committed(world: World, source: Transactions) -> None:
    transaction = await begun(source)
    row = final_row(new_id(), world.fence)
    assert await conclude(transaction, row, lambda: False) is Conclusion.WITHHELD
    assert await effects(world) == []
    assert await world.master.get(row.id) is None


async def test_a_connection_that_breaks_at_the_commit_leaves_it_unknown_and_the_row_tells(
    world: World, source: Transactions
) -> None:
    transaction = await begun(source)
    row = final_row(new_id(), world.fence)
    assert await transaction.write(row)
    await world.sql.execute("SELECT pg_terminate_backend($1, 5000)", transaction.connection.get_server_pid())
    assert await transaction.commit() is Conclusion.UNKNOWN
    assert not await world.master.is_recorded(row)
    assert await effects(world) == []


@pytest.mark.parametrize("words", ["COMMIT", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_itself_is_told(
    world: World, source: Transactions, words: str
) -> None:
    """Its effects are out of reach then; its outcome at least is not called a success."""
    transaction = await begun(source)
    await transaction.connection.execute(words)
    row = final_row(new_id(), world.fence)
    with pytest.raises(InputError, match="ended its transaction by itself"):
        await conclude(transaction, row, always)
    assert await world.master.get(row.id) is None


async def test_an_error_that_was_caught_inside_spoils_it_and_a_savepoint_does_not(
    world: World, source: Transactions
) -> None:
    transaction = await begun(source, "twice")
    with pytest.raises(asyncpg.UniqueViolationError):
        await transaction.connection.execute("INSERT INTO effect VALUES ('twice')")
    with pytest.raises(InputError, match="savepoint"):
        await conclude(transaction, final_row(new_id(), world.fence), always)
    assert await effects(world) == []
    transaction = await begun(source, "twice")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with transaction.connection.transaction():
            await transaction.connection.execute("INSERT INTO effect VALUES ('twice')")
    assert await conclude(transaction, final_row(new_id(), world.fence), always) is Conclusion.COMMITTED
    assert await effects(world) == ["twice"]


async def test_a_constraint_that_is_checked_at_the_commit_undoes_the_outcome_too(
    world: World, source: Transactions
) -> None:
    await world.sql.execute(
        "DROP TABLE IF EXISTS public.child; CREATE TABLE public.child ("
        "what text REFERENCES public.effect DEFERRABLE INITIALLY DEFERRED)"
    )
    transaction = await source.begin("attempt")
    await transaction.connection.execute("INSERT INTO child VALUES ('nobody')")
    row = final_row(new_id(), world.fence)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conclude(transaction, row, always)
    assert await world.master.get(row.id) is None
    await world.sql.execute("DROP TABLE public.child")


async def test_connections_are_few_wait_for_each_other_and_are_as_new(world: World, source: Transactions) -> None:
    first, second = await begun(source, "1"), await begun(source, "2")
    third = asyncio.ensure_future(begun(source, "3"))
    await asyncio.sleep(0.05)
    assert not third.done(), "two connections, three transactions"
    await first.connection.execute("SET search_path = nowhere")
    row: FinalRow = final_row(new_id(), world.fence)
    assert await conclude(first, row, always) is Conclusion.COMMITTED, "whatever the handler has set"
    await second.rollback()
    await second.rollback()
    again = await third
    assert again.connection in (first.connection, second.connection)
    assert await again.connection.fetchval("SHOW search_path") == '"$user", public'
    assert await again.connection.fetchval("SHOW application_name") == "an agent"
    await again.rollback()
    assert source._free._value == 2, "everything has come back"
    assert await effects(world) == ["1"]


async def test_a_connection_that_died_idle_is_replaced(world: World, source: Transactions) -> None:
    await (await begun(source)).rollback()
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'an agent'"
    await world.sql.fetch(ended)
    assert await conclude(await begun(source), final_row(new_id(), world.fence), always) is Conclusion.COMMITTED


async def test_an_idle_transaction_is_ended_by_the_server(world: World) -> None:
    settings = MasterSettings(transactions=1, transaction_idle_timeout_seconds=0.2)
    source = Transactions(MasterAccess(dsn=world.dsn, schema=SCHEMA, application_name="x", settings=settings))
    transaction = await source.begin("attempt")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not transaction.connection.is_closed():  # noqa: ASYNC110 - the driver hears of it by itself
            await asyncio.sleep(0.02)
    with pytest.raises(InputError, match="transaction_idle_timeout"):
        await conclude(transaction, final_row(new_id(), world.fence), always)
    assert source._free._value == 1
    await source.close()


async def test_the_master_cannot_be_reached(world: World) -> None:
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


async def test_a_refused_outcome_leaves_a_trace(world: World, rescuer: bytes) -> None:
    job_id = (await world.processing())[0]
    await rescued(world, job_id, rescuer)
    await world.master.mark_refused([final_row(job_id, world.fence)])
    assert await world.lines(job_id) == [(1, "lost")]
    count = await world.sql.fetchval("SELECT refused_count FROM attempt WHERE job_id = $1", *uuids([job_id]))
    assert count == 1
