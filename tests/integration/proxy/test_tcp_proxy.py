"""Every fault of the proxy, with real servers and clients: late, cut, silent, half-open, lost after the effect."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobmaster.embedded import ValkeyServer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.tcp_proxy import Fault, TcpProxy, WireProtocol, socket_of
from tests.support.waiting import eventually


@pytest.fixture
async def store_proxy(valkey_server: ValkeyServer) -> AsyncIterator[tuple[TcpProxy, int]]:
    async with TcpProxy(WireProtocol.REDIS, socket_of(valkey_server.url), random.Random(1)) as proxy:
        yield proxy, proxy.port


@pytest.fixture
async def store(store_proxy: tuple[TcpProxy, int]) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(
        port=store_proxy[1], retry=NO_ASYNC_RETRY, single_connection_client=True, socket_timeout=5
    )
    await client.ping()
    yield client
    await client.aclose()


@pytest.fixture
async def master_proxy(master_dsn: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    async with TcpProxy(WireProtocol.POSTGRES, socket_of(master_dsn), random.Random(1)) as proxy:
        yield proxy, proxy.master_dsn(master_dsn)


@pytest.fixture
async def master(master_proxy: tuple[TcpProxy, str]) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(master_proxy[1])
    await connection.execute("CREATE TABLE effects (id int PRIMARY KEY)")
    yield connection
    connection.terminate()


async def effects(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row["id"] for row in await connection.fetch("SELECT id FROM effects ORDER BY id")]
    finally:
        await connection.close()


NO_RETRY = Retry(NoBackoff(), 0)
NO_ASYNC_RETRY = AsyncRetry(NoBackoff(), 0)
PING = b"*1\r\n$4\r\nPING\r\n"
DISCONNECTED = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    ConnectionError,
    asyncpg.ConnectionDoesNotExistError,
)


# ---------------------------------------------------------------- lost after the effect


async def test_the_answer_of_a_statement_is_lost_and_its_effect_stands(
    master: asyncpg.Connection, master_proxy: tuple[TcpProxy, str], master_dsn: str
) -> None:
    master_proxy[0].set(Fault(drop_replies=1))
    with pytest.raises(DISCONNECTED):
        await master.execute("INSERT INTO effects VALUES (1)")
    assert await effects(master_dsn) == [1]
    assert master_proxy[0].counts["replies_dropped"] == 1


async def test_the_answer_of_a_prepared_statement_is_lost_and_its_effect_stands(
    master: asyncpg.Connection, master_proxy: tuple[TcpProxy, str], master_dsn: str
) -> None:
    insert = await master.prepare("INSERT INTO effects VALUES ($1) RETURNING id")
    assert await insert.fetchval(1) == 1
    master_proxy[0].set(Fault(drop_replies=1))
    with pytest.raises(DISCONNECTED):
        await insert.fetchval(2)
    assert await effects(master_dsn) == [1, 2]


async def test_inside_a_transaction_only_the_answer_of_the_commit_is_lost(
    master: asyncpg.Connection, master_proxy: tuple[TcpProxy, str], master_dsn: str
) -> None:
    await master.execute("BEGIN")
    master_proxy[0].set(Fault(drop_replies=1))
    await master.execute("INSERT INTO effects VALUES (1)")  # answered: nothing is committed yet
    with pytest.raises(DISCONNECTED):
        await master.execute("COMMIT")
    assert await effects(master_dsn) == [1]


async def test_the_answer_of_a_copy_is_lost_and_its_rows_stand(
    master: asyncpg.Connection, master_proxy: tuple[TcpProxy, str], master_dsn: str
) -> None:
    await master.fetch("SELECT 1")
    master_proxy[0].set(Fault(drop_replies=1))
    with pytest.raises(DISCONNECTED):
        await master.execute("INSERT INTO effects SELECT generate_series(1, 3)")
    assert await effects(master_dsn) == [1, 2, 3]


async def test_the_answer_of_a_function_is_lost_and_its_effect_stands(
    store: redis.asyncio.Redis, store_proxy: tuple[TcpProxy, int], valkey_server: ValkeyServer, cluster_name: str
) -> None:
    text = "#!lua name=chaosproxy\nserver.register_function('chaos_set', function(k, a) server.call('SET', k[1], a[1]) end)"
    direct = redis.asyncio.Redis(unix_socket_path=urlsplit(valkey_server.url).path)
    await direct.function_load(text, replace=True)
    key = f"{cluster_name}:effect"
    store_proxy[0].set(Fault(drop_replies=1))
    await store.get(key)  # no function: answered
    with pytest.raises(redis.exceptions.ConnectionError):
        await store.fcall("chaos_set", 1, key, "done")
    assert await direct.get(key) == b"done"
    assert store_proxy[0].counts["replies_dropped"] == 1
    await direct.delete(key)
    await direct.function_delete("chaosproxy")
    await direct.aclose()


# ---------------------------------------------------------------- late, silent, cut


async def test_delay_and_bandwidth_are_felt(store: redis.asyncio.Redis, store_proxy: tuple[TcpProxy, int]) -> None:
    store_proxy[0].set(Fault(delay_seconds=0.05))
    began = time.monotonic()
    await store.ping()
    assert time.monotonic() - began >= 0.1
    store_proxy[0].set(Fault(bytes_per_second=20_000))
    began = time.monotonic()
    await store.echo("x" * 4000)
    assert time.monotonic() - began >= 0.35


async def test_bytes_in_small_pieces_are_whole(store: redis.asyncio.Redis, store_proxy: tuple[TcpProxy, int]) -> None:
    store_proxy[0].set(Fault(piece_bytes=7))
    text = bytes(random.Random(1).choices(range(256), k=5000))
    assert await store.echo(text) == text


@pytest.mark.parametrize("fault", [Fault(hold_up=True), Fault(hold_down=True)], ids=["requests", "answers"])
async def test_silence_in_one_direction(
    store: redis.asyncio.Redis,
    store_proxy: tuple[TcpProxy, int],
    valkey_server: ValkeyServer,
    cluster_name: str,
    fault: Fault,
) -> None:
    direct = redis.asyncio.Redis(unix_socket_path=urlsplit(valkey_server.url).path)
    store_proxy[0].set(fault)
    asked = asyncio.ensure_future(store.incr(cluster_name))
    await asyncio.sleep(0.1)
    if not fault.hold_up:

        async def is_there() -> bool:
            return bool(await direct.get(cluster_name) == b"1")

        await eventually(is_there, PATIENCE_SECONDS, "the effect: an answer may vanish after it")
    assert await direct.get(cluster_name) == (None if fault.hold_up else b"1")
    assert not asked.done()
    store_proxy[0].set(Fault())
    assert await asked == 1, "what was held is delivered, once"
    await direct.delete(cluster_name)
    await direct.aclose()


async def test_a_reset_is_a_reset_and_a_half_open_connection_is_silent_until_it_is_healed(
    store_proxy: tuple[TcpProxy, int],
) -> None:
    proxy, port = store_proxy
    for fault in (None, Fault(half_open=True)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PING)
        assert await reader.readline() == b"+PONG\r\n"
        if fault is None:
            proxy.reset()
        else:
            proxy.set(fault)
            writer.write(PING)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readline(), 0.2)
            proxy.set(Fault())
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_SECONDS)
        writer.close()


async def test_new_connections_are_accepted_and_lead_nowhere_or_are_refused(store_proxy: tuple[TcpProxy, int]) -> None:
    proxy, port = store_proxy
    proxy.set(Fault(half_open=True))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PING)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.1)
    writer.close()
    proxy.set(Fault(refuse=True))
    with pytest.raises(ConnectionError):
        await first_byte(port)


async def first_byte(port: int) -> bytes:
    reader, _ = await asyncio.open_connection("127.0.0.1", port)
    return await reader.readexactly(1)


async def test_a_proxy_can_lead_to_another_server(store_proxy: tuple[TcpProxy, int], master_dsn: str) -> None:
    proxy, port = store_proxy
    proxy.upstream = "/nowhere/at/all.sock"
    with pytest.raises(redis.exceptions.ConnectionError):
        await redis.asyncio.Redis(port=port, retry=NO_ASYNC_RETRY).ping()


# ---------------------------------------------------------------- the process


def test_commands_choose_proxies_by_a_pattern_of_names_and_the_process_counts(valkey_server: ValkeyServer) -> None:
    proxy = ProxyProcess(seed=1)
    try:
        path = urlsplit(valkey_server.url).path
        ports = [proxy.add(f"agent{number}.store", WireProtocol.REDIS, path) for number in range(2)]
        with redis.Redis(port=ports[0], retry=NO_RETRY) as one, redis.Redis(port=ports[1], retry=NO_RETRY) as other:
            assert one.ping()
            assert proxy.set("agent0.*", Fault(refuse=True)) == 1
            assert proxy.reset("agent0.*") == 1
            with pytest.raises(redis.exceptions.ConnectionError):
                one.ping()
            assert other.ping()
            assert proxy.set("*") == 2
            assert one.ping()
        assert proxy.counts()["connections"] >= 3
    finally:
        proxy.close()
