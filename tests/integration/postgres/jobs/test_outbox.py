"""Messages of the outbox: jobs in the transaction of a handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.master.transactions import MasterAccess, Transactions
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.errors import Conflict, InputError, UnknownHandler
from jobmaster.model.job import Conclusion
from jobmaster.settings.model import MasterSettings
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction
from tests.integration.postgres.fixture import LANE, SCHEMA, MasterFixture, final_row

handlers = Handlers()


@handlers.outbox("webhooks", priority="high")
async def webhooks(key: str, payload: dict[str, int]) -> None: ...


@pytest.fixture
async def source(db: MasterFixture) -> AsyncIterator[Transactions]:
    agent = Agent(
        id=new_id(), name="sender", host="host", pid=1, version="0", mode="full", store="store", weight=1,
        state=AgentState.ACTIVE, lease_us=0, lease_seconds=10.0, started_us=0,
    )  # fmt: skip
    await db.master.members.register(agent, [LANE], [handler.spec for handler in handlers])
    access = MasterAccess(
        dsn=db.dsn, schema=SCHEMA, application_name="an agent", settings=MasterSettings(transactions=2)
    )
    made = Transactions(access)
    yield made
    await made.close()


async def messages(db: MasterFixture) -> list[tuple[str, str, int, object]]:
    rows = await db.sql.fetch(
        "SELECT handler, state::text, priority, args FROM job WHERE handler LIKE 'outbox.%' ORDER BY id"
    )
    return [(row[0], row[1], row[2], msgspec.json.decode(row[3])) for row in rows]


async def test_a_message_exists_when_and_only_if_the_outcome_stands(db: MasterFixture, source: Transactions) -> None:
    for superseded in (True, False):
        row = final_row(new_id(), db.fence)
        if superseded:
            await db.sql.execute(
                "INSERT INTO job (id, state, priority, lane, handler, token, due_at, args) "
                "VALUES ($1, 'HELD', 3, $2, 'handler', 2, clock_timestamp(), '{}')", row.id.hex(), LANE,
            )  # fmt: skip
        attempt = AttemptTransaction(source, row)
        async with attempt.transaction():
            await attempt.send_message("outbox.webhooks", {"key": "k1", "payload": {"order": 17}}, None)
            assert await messages(db) == [], "it is not visible before the commit"
        conclusion = await attempt.conclude(row, lambda: True)
        assert conclusion is (Conclusion.REFUSED if superseded else Conclusion.COMMITTED)
        expected = [] if superseded else [("outbox.webhooks", "HELD", 4, {"key": "k1", "payload": {"order": 17}})]
        assert await messages(db) == expected


async def test_a_key_is_one_message(db: MasterFixture, source: Transactions) -> None:
    arguments: dict[str, object] = {"key": "order:17", "payload": {"order": 17}}
    for _ in range(2):
        row = final_row(new_id(), db.fence)
        attempt = AttemptTransaction(source, row)
        async with attempt.transaction():
            await attempt.send_message("outbox.webhooks", arguments, "order:17")
        assert await attempt.conclude(row, lambda: True) is Conclusion.COMMITTED
    assert len(await messages(db)) == 1
    attempt = AttemptTransaction(source, final_row(new_id(), db.fence))
    with pytest.raises(Conflict, match="order:17"):
        async with attempt.transaction():
            await attempt.send_message("outbox.webhooks", {"key": "order:17", "payload": {"order": 18}}, "order:17")


async def test_what_is_refused_is_one_clear_error(db: MasterFixture, source: Transactions) -> None:
    for handler, payload, kind in (
        ("outbox.webhook", {"order": 1}, UnknownHandler),
        ("outbox.webhooks", {"order": "x"}, InputError),
        ("outbox.webhooks", "\0", InputError),
    ):
        attempt = AttemptTransaction(source, final_row(new_id(), db.fence))
        with pytest.raises(kind):
            async with attempt.transaction():
                await attempt.send_message(handler, {"key": "k", "payload": payload}, None)
    attempt = AttemptTransaction(source, final_row(new_id(), db.fence))
    with pytest.raises(InputError, match="none is open"):
        await attempt.send_message("outbox.webhooks", {}, None)
    async with attempt.transaction():
        pass
    with pytest.raises(InputError, match="none is open"):
        await attempt.send_message("outbox.webhooks", {}, None)
    await attempt.rollback()
    assert await messages(db) == []


async def test_a_savepoint_takes_a_message_back(db: MasterFixture, source: Transactions) -> None:
    row = final_row(new_id(), db.fence)
    attempt = AttemptTransaction(source, row)
    async with attempt.transaction() as connection:
        with pytest.raises(UnknownHandler, match="webhook"):
            await _two(attempt, connection)
        await attempt.send_message("outbox.webhooks", {"key": "kept", "payload": {}}, None)
    assert await attempt.conclude(row, lambda: True) is Conclusion.COMMITTED
    assert [message[3] for message in await messages(db)] == [{"key": "kept", "payload": {}}]


async def _two(attempt: AttemptTransaction, connection: Any) -> None:
    """Two messages in a savepoint; the second is refused."""
    async with connection.transaction():
        await attempt.send_message("outbox.webhooks", {"key": "lost", "payload": {}}, None)
        await attempt.send_message("outbox.webhook", {"key": "k", "payload": {}}, None)
