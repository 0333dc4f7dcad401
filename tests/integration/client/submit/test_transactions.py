"""Submits that share the fate of the caller's own transaction."""

from __future__ import annotations

import asyncpg
import pytest

from jobmaster.model.errors import Conflict, InputError, InvalidArguments
from jobmaster.model.job import Durability
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS


async def test_the_job_exists_if_and_only_if_the_caller_commits(client: ClientFixture) -> None:
    connection = await client.connect()
    await connection.execute("CREATE TABLE picture (path text)")
    async with connection.transaction():
        await connection.execute("INSERT INTO picture VALUES ('a')")
        kept = await client.cluster.submit(resize, {"path": "a"}, connection=connection)
        assert kept.level is Durability.TRANSACTION
        assert await client.rows() == {}
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO picture VALUES ('b')")
    await client.cluster.submit(resize, {"path": "b"}, connection=connection)
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM picture") == 1
    assert await client.rows() == {kept.id_bytes: "HELD"}
    await connection.close()


async def test_the_owner_gets_a_hint_after_the_commit_and_not_before(client: ClientFixture) -> None:
    connection = await client.connect()
    await client.cluster.submit(resize, {"path": "warm the map"})
    buckets = [bucket.id for bucket in client.agent.buckets["default", 3]]
    await client.waiting()
    while await client.store.wait_wake(buckets, 0.05) is not None:
        pass
    async with client.cluster.transaction(connection) as tx:
        receipt = await tx.submit(resize, {"path": "a"})
        assert await client.store.wait_wake(buckets, 0.05) is None
    woken = await client.store.wait_wake(buckets, PATIENCE_SECONDS)
    assert woken in buckets
    bucket = next(b for b in client.agent.buckets["default", 3] if b.id == woken)
    answer = await client.store.claim(client.agent.fence(bucket), "hinted", 10)
    assert answer.hint
    assert await client.rows() == {receipt.id_bytes: "HELD"}
    await connection.close()


async def test_a_block_that_raises_rolls_back_and_sends_no_hint(client: ClientFixture) -> None:
    connection = await client.connect()

    async def failing() -> None:
        async with client.cluster.transaction(connection) as tx:
            await tx.submit(resize, {"path": "a"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert await client.rows() == {}
    buckets = [bucket.id for bucket in client.agent.buckets["default", 3]]
    assert await client.store.wait_wake(buckets, 0.05) is None
    await connection.close()


async def test_bad_input_leaves_the_transaction_usable(client: ClientFixture) -> None:
    connection = await client.connect()
    async with client.cluster.transaction(connection) as tx:
        with pytest.raises(InvalidArguments):
            await tx.submit(resize, {})
        receipt = await tx.submit(resize, {"path": "a"})
    assert list(await client.rows()) == [receipt.id_bytes]
    with pytest.raises(InputError, match="not open"):
        await tx.submit(resize, {"path": "a"})
    await connection.close()


async def test_a_connection_without_transaction_or_of_another_kind_is_refused(client: ClientFixture) -> None:
    connection: asyncpg.Connection[asyncpg.Record] = await client.connect()
    with pytest.raises(InputError, match="not in a transaction"):
        await client.cluster.submit(resize, {"path": "a"}, connection=connection)
    await connection.close()
    with pytest.raises(InputError, match="takes an open connection of asyncpg"):
        await client.cluster.submit(resize, {"path": "a"}, connection=object())
    with pytest.raises(InputError, match="asyncpg connection, not object"):
        client.cluster.transaction(object())
    assert await client.rows() == {}


async def test_keys_hold_inside_transactions_too(client: ClientFixture) -> None:
    connection = await client.connect()
    async with connection.transaction():
        first = await client.cluster.submit(resize, {"path": "a"}, connection=connection, idempotency_key="k")
    async with connection.transaction():
        again = await client.cluster.submit(resize, {"path": "a"}, connection=connection, idempotency_key="k")
        with pytest.raises(Conflict):
            await client.cluster.submit(resize, {"path": "b"}, connection=connection, idempotency_key="k")
    assert (again.id_bytes, again.duplicate) == (first.id_bytes, True)
    assert list(await client.rows()) == [first.id_bytes]
    await connection.close()
