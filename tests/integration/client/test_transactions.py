"""Submits that share the fate of the caller's own transaction."""

from __future__ import annotations

import asyncpg
import pytest

from jobmaster.model.errors import Conflict, InputError, InvalidArguments
from jobmaster.model.job import Durability
from tests.integration.client.fixture import Workshop, resize


async def test_the_job_exists_if_and_only_if_the_caller_commits(shop: Workshop) -> None:
    connection = await shop.connect()
    await connection.execute("CREATE TABLE picture (path text)")
    async with connection.transaction():
        await connection.execute("INSERT INTO picture VALUES ('a')")
        kept = await shop.cluster.submit(resize, {"path": "a"}, connection=connection)
        assert kept.level is Durability.TRANSACTION
        assert await shop.rows() == {}
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO picture VALUES ('b')")
    await shop.cluster.submit(resize, {"path": "b"}, connection=connection)
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM picture") == 1
    assert await shop.rows() == {kept.id: "HELD"}
    await connection.close()


async def test_the_owner_is_told_after_the_commit_and_only_then(shop: Workshop) -> None:
    connection = await shop.connect()
    await shop.cluster.submit(resize, {"path": "warm the map"})
    buckets = [bucket.id for bucket in shop.agent.buckets["default", 3]]
    await shop.waiting()
    while await shop.store.wait_wake(buckets, 0.05) is not None:
        pass
    async with shop.cluster.transaction(connection) as tx:
        receipt = await tx.submit(resize, {"path": "a"})
        assert await shop.store.wait_wake(buckets, 0.05) is None
    woken = await shop.store.wait_wake(buckets, 5.0)
    assert woken in buckets
    bucket = next(b for b in shop.agent.buckets["default", 3] if b.id == woken)
    answer = await shop.store.claim(shop.agent.fence(bucket), "hinted", 10)
    assert answer.hint
    assert await shop.rows() == {receipt.id: "HELD"}
    await connection.close()


async def test_a_block_that_raises_rolls_back_and_tells_nobody(shop: Workshop) -> None:
    connection = await shop.connect()

    async def failing() -> None:
        async with shop.cluster.transaction(connection) as tx:
            await tx.submit(resize, {"path": "a"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert await shop.rows() == {}
    buckets = [bucket.id for bucket in shop.agent.buckets["default", 3]]
    assert await shop.store.wait_wake(buckets, 0.05) is None
    await connection.close()


async def test_bad_input_leaves_the_transaction_usable(shop: Workshop) -> None:
    connection = await shop.connect()
    async with shop.cluster.transaction(connection) as tx:
        with pytest.raises(InvalidArguments):
            await tx.submit(resize, {})
        receipt = await tx.submit(resize, {"path": "a"})
    assert list(await shop.rows()) == [receipt.id]
    with pytest.raises(InputError, match="not open"):
        await tx.submit(resize, {"path": "a"})
    await connection.close()


async def test_a_connection_without_transaction_or_of_another_kind_is_refused(shop: Workshop) -> None:
    connection: asyncpg.Connection[asyncpg.Record] = await shop.connect()
    with pytest.raises(InputError, match="not in a transaction"):
        await shop.cluster.submit(resize, {"path": "a"}, connection=connection)
    await connection.close()
    with pytest.raises(InputError, match="asyncpg connection, not object"):
        await shop.cluster.submit(resize, {"path": "a"}, connection=object())
    with pytest.raises(InputError, match="asyncpg connection, not object"):
        shop.cluster.transaction(object())
    assert await shop.rows() == {}


async def test_keys_hold_inside_transactions_too(shop: Workshop) -> None:
    connection = await shop.connect()
    async with connection.transaction():
        first = await shop.cluster.submit(resize, {"path": "a"}, connection=connection, idempotency_key="k")
    async with connection.transaction():
        again = await shop.cluster.submit(resize, {"path": "a"}, connection=connection, idempotency_key="k")
        with pytest.raises(Conflict):
            await shop.cluster.submit(resize, {"path": "b"}, connection=connection, idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    assert list(await shop.rows()) == [first.id]
    await connection.close()
