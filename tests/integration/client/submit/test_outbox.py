"""Messages of the outbox in the transaction of an application."""

from __future__ import annotations

import pytest

from jobmaster import Durability, UnknownHandler
from jobmaster.model.errors import Conflict
from tests.integration.client.fixture import ClientFixture


async def test_a_message_stands_with_the_commit_of_its_sender(client: ClientFixture) -> None:
    connection = await client.connect()
    async with client.cluster.transaction(connection) as tx:
        receipt = await tx.outbox.send("webhooks", {"order": 17}, key="order:17")
        other = await client.cluster.outbox.send("webhooks", {"order": 17}, connection=connection, key="order:17")
    assert (receipt.level, other.id, other.duplicate) == (Durability.TRANSACTION, receipt.id, True)
    view = await receipt.get()
    assert (view.handler, view.arguments_json) == ("outbox.webhooks", b'{"key":"order:17","payload":{"order":17}}')
    transaction = connection.transaction()
    await transaction.start()
    gone = await client.cluster.outbox.send("webhooks", {"order": 18}, connection=connection)
    with pytest.raises(Conflict):
        await client.cluster.outbox.send("webhooks", {"order": 19}, connection=connection, key="order:17")
    with pytest.raises(UnknownHandler):
        await client.cluster.outbox.send("nowhere", {}, connection=connection)
    await transaction.rollback()
    await connection.close()
    assert await client.master.queries.get(gone.id.bytes) is None
