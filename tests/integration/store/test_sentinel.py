"""A store that Sentinels watch: which server is used, what is said when there is none, and a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from jobmaster.agentstore.calls import pack
from jobmaster.client.store_handle import reached
from jobmaster.embedded import ValkeyServer
from jobmaster.model.errors import StoreRefused, Unavailable
from jobmaster.model.job import Durability
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import assert_ok, make_items, new_fence, submit
from tests.support.processes import free_port
from tests.support.servers.sentinel_group import GROUP, SentinelGroup
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def group(server_root: Path) -> Iterator[SentinelGroup]:
    """One Sentinel is enough for what does not fail."""
    settings = {"appendfsync": "always"}
    with SentinelGroup(server_root, sentinels=1, settings=settings, password="right") as group:
        yield group


async def test_the_server_that_a_sentinel_names_is_used(connect: Connect, group: SentinelGroup) -> None:
    store = await connect(url=group.url.replace("://", f"://127.0.0.1:{free_port()},").replace("/0?", "/3?"))
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    async with redis.asyncio.Redis(port=group.ports[0], db=3) as primary:
        assert await primary.exists(store.keys.bucket(fence.bucket_id).meta)


async def test_what_a_failover_may_forget_is_not_promised(connect: Connect, group: SentinelGroup) -> None:
    """The log is synced with each write, and stays on a disk that nothing reads after a failover. A term that the new primary
    lacks would let a rescuer begin while the owner still works."""
    store = await connect(url=group.url)
    health = await store.health()
    assert (health.append_fsync, reached(health)) == ("always", Durability.STORE)
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    with pytest.raises(StoreRefused, match="no terms: a failover could forget them"):
        await store.grant_term(fence, 1.0)


async def test_a_name_that_no_sentinel_knows_is_refused_with_the_cure(connect: Connect, group: SentinelGroup) -> None:
    with pytest.raises(StoreRefused, match=r"none of its Sentinels knows a group 'shop'.*SENTINEL MASTERS"):
        await connect(url=group.url.replace(f"/{GROUP}/", "/shop/"))


async def test_without_a_sentinel_the_store_is_unavailable_and_each_one_is_named(connect: Connect) -> None:
    ports = free_port(), free_port()
    with pytest.raises(
        Unavailable, match=rf"no Sentinel names its primary \(127.0.0.1:{ports[0]}: .*; 127.0.0.1:{ports[1]}"
    ):
        await connect(url=f"redis+sentinel://:s3cret@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{GROUP}")


async def test_a_sentinel_that_never_answers_costs_its_share_of_the_time(
    connect: Connect, group: SentinelGroup
) -> None:
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    first = f"://127.0.0.1:{silent.sockets[0].getsockname()[1]},"
    try:
        store = await connect(url=group.url.replace("://", first), connect_timeout_seconds=6.0)
        await store.ping()
    finally:
        silent.close()
        for writer in held:
            writer.transport.abort()
    assert held


async def test_a_sentinel_that_names_a_replica_is_not_believed(connect: Connect, group: SentinelGroup) -> None:
    """Before a failover is over, or when its news has not come to this Sentinel."""
    (port,) = group.sentinel_ports
    async with redis.asyncio.Redis(port=port, password=group.password) as sentinel:
        await sentinel.execute_command("SENTINEL", "MONITOR", "late", "127.0.0.1", group.ports[1], 1)  # type: ignore[no-untyped-call]
        with pytest.raises(Unavailable, match=r"which the Sentinels name, is a replica: a failover is under way"):
            await connect(url=group.url.replace(f"/{GROUP}/", "/late/"))
        await sentinel.execute_command("SENTINEL", "REMOVE", "late")  # type: ignore[no-untyped-call]


async def test_a_password_that_the_sentinel_refuses_is_named_and_not_shown(
    connect: Connect, group: SentinelGroup
) -> None:
    without = group.url.partition("?")[0]
    for wrong in (without, f"{without}?sentinel_password=wr0ng"):
        with pytest.raises(StoreRefused, match=r"its Sentinel .* refuses the login.*sentinel_password") as caught:
            await connect(url=wrong)
        assert "wr0ng" not in str(caught.value)


@pytest.mark.slow
async def test_after_a_failover_calls_go_to_the_new_primary(connect: Connect, server_root: Path) -> None:
    with SentinelGroup(server_root, sentinels=1) as own:
        store = await connect(url=own.url)
        fence = new_fence()
        await assert_ok(store.open_bucket(fence))
        items = make_items(3)
        await submit(store, fence.bucket_id, items)
        own.replicated()
        own.be_alert()
        own.primary.kill()

        async def claimed() -> list[bytes] | None:
            try:
                answer = await store.claim(fence, "after", 10)
            except Unavailable:
                return None
            assert answer.status is ReplyStatus.OK
            return answer.raw

        assert await eventually(claimed, 20, "the new primary to answer") == items


async def test_a_server_that_has_become_a_replica_loses_its_connections(
    connect: Connect, new_valkey: Callable[..., ValkeyServer]
) -> None:
    """Also where no Sentinel cuts them off: behind one name, a later connection leads to the new primary."""
    server = new_valkey()
    store = await connect(url=server.url)
    command = pack(b"CLIENT", b"ID")
    first = await store._calls.call(command, mutating=False)
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
        assert await store._calls.call(command, mutating=False) == first
        with pytest.raises(Unavailable, match="cannot serve at the moment"):
            await submit(store, new_fence().bucket_id, make_items(1))
        await raw.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
    assert await store._calls.call(command, mutating=False) != first


async def test_a_server_that_has_lost_its_replicas_loses_its_connections(
    connect: Connect, new_valkey: Callable[..., ValkeyServer]
) -> None:
    """``min-replicas-to-write``: the old primary of a network that was cut answers NOREPLICAS; the new one is elsewhere."""
    server = new_valkey()
    store = await connect(url=server.url)
    command = pack(b"CLIENT", b"ID")
    first = await store._calls.call(command, mutating=False)
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.config_set("min-replicas-to-write", 1)
        assert await store._calls.call(command, mutating=False) == first
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            await submit(store, new_fence().bucket_id, make_items(1))
        await raw.config_set("min-replicas-to-write", 0)
    assert await store._calls.call(command, mutating=False) != first
