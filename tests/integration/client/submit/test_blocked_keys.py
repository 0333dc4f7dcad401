"""Keyed submits, and jobs that wait for signals, while another program's open transaction holds some of the keys."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster import signal
from jobmaster.client.idempotency_keys import BLOCKED_MAX
from jobmaster.model.errors import Unavailable
from jobmaster.settings.model import MasterSettings
from tests.conftest import MIGRATED_SCHEMA
from tests.integration.client.fixture import ClientFixture, resize

LOCK_SECONDS = 0.2
SHORT_LOCKS = {"master": MasterSettings(schema=MIGRATED_SCHEMA, lock_timeout_seconds=LOCK_SECONDS)}
PLENTY = 40

pytestmark = pytest.mark.parametrize("client_settings", [SHORT_LOCKS], indirect=True)


async def submitted(client: ClientFixture, keys: list[str]) -> list[object]:
    """What each of the submits answers, which all go at the same time."""
    return await asyncio.gather(
        *(client.cluster.submit(resize, {"path": key}, idempotency_key=key) for key in keys), return_exceptions=True
    )


async def test_a_key_of_an_open_transaction_blocks_no_other_key(client: ClientFixture) -> None:
    elsewhere = await client.connect()
    transaction = elsewhere.transaction()
    await transaction.start()
    text, params = client.cluster.statement(resize, {"path": "b"}, paramstyle="numeric", idempotency_key="b")
    held = await elsewhere.fetchval(text, *params)
    for keys in (["b", "a", "c", "d"], ["b"]):
        blocked, *others = await submitted(client, keys)
        assert isinstance(blocked, Unavailable)
        assert "key 'b' of handler 'images.resize': another open transaction has reserved it" in str(blocked)
        assert not [other for other in others if isinstance(other, BaseException)]
    assert len(await client.rows()) == 3
    await transaction.commit()
    (late,) = await submitted(client, ["b"])
    assert str(late) == str(held)
    await elsewhere.close()


async def test_many_keys_of_an_open_transaction_do_not_delay_the_others_one_by_one(client: ClientFixture) -> None:
    elsewhere = await client.connect()
    transaction = elsewhere.transaction()
    await transaction.start()
    keys = [f"k{number:02}" for number in range(PLENTY)]
    for key in keys:
        text, params = client.cluster.statement(resize, {"path": key}, paramstyle="numeric", idempotency_key=key)
        await elsewhere.fetchval(text, *params)
    errors = await submitted(client, keys)
    assert all(isinstance(error, Unavailable) for error in errors)
    named = [error for error in errors if "another open transaction has reserved it" in str(error)]
    assert BLOCKED_MAX <= len(named) <= BLOCKED_MAX + 1
    assert sum("was not reserved" in str(error) for error in errors) == PLENTY - len(named)
    await transaction.rollback()
    assert not [one for one in await submitted(client, keys) if isinstance(one, BaseException)]
    await elsewhere.close()


async def test_the_key_of_a_signal_of_an_open_transaction_blocks_no_other_key(client: ClientFixture) -> None:
    cluster, elsewhere = client.cluster, await client.connect()
    await elsewhere.execute(f"SET search_path = {client.settings.schema_name()}")
    transaction = elsewhere.transaction()
    await transaction.start()
    await elsewhere.fetchval("SELECT signal('b')")
    submits = (cluster.submit(resize, {"path": key}, wait_for=signal(key)) for key in ("a", "b", "a", "c"))
    first, blocked, *others = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(blocked, Unavailable)
    assert "the key of signal 'b': another open transaction" in str(blocked)
    assert not [one for one in (first, *others) if isinstance(one, BaseException)]
    with pytest.raises(Unavailable, match="the key of signal 'b'"):
        await cluster.signals.send("b")
    await transaction.rollback()
    await elsewhere.close()
    assert (await cluster.signals.send("a")).delivered == 2
