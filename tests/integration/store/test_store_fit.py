"""Stores that are accepted, stores that are refused and the correction, and errors of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis.asyncio

from jobmaster.agentstore import library
from jobmaster.agentstore.health import Report, check_fit, health_of, parse_info
from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.embedded import ValkeyServer
from jobmaster.model.errors import StoreRefused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.ports import ReplyStatus
from jobmaster.settings.model import StoreSettings
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import ROOM, assert_ok, make_items, new_fence, submit
from tests.support.processes import free_port
from tests.support.waiting import eventually

NewServer = Callable[..., ValkeyServer]


async def test_health_returns_the_settings_of_the_server(connect: Connect) -> None:
    store = await connect(initialise=False)
    assert (await store.health()).generation is None
    uid, generation = new_id(), new_id()
    assert await store.initialise(uid, generation) == generation
    health = await store.health()
    assert (health.eviction_policy, health.append_only, health.append_fsync) == ("noeviction", True, "everysec")
    assert (health.generation, health.cluster_uid) == (generation, uid)
    assert health.flavour in {"valkey", "redis"}


async def test_the_generation_that_lies_there_stands(connect: Connect) -> None:
    first, second = await connect(initialise=False), await connect(initialise=False)
    uid, generation = new_id(), new_id()
    await first.initialise(uid, generation)
    assert await second.initialise(uid, new_id()) == generation


async def test_another_cluster_of_the_same_name_is_refused(connect: Connect) -> None:
    await (await connect(initialise=False)).initialise(new_id(), new_id())
    with pytest.raises(StoreRefused, match=r"another cluster that is also named.*database number"):
        await (await connect(initialise=False)).initialise(new_id(), new_id())


async def test_a_store_of_a_newer_protocol_is_refused(connect: Connect, raw: redis.asyncio.Redis) -> None:
    store = await connect()
    uid = (await store.health()).cluster_uid
    assert uid is not None
    await raw.hset(store.keys.store, "protocol", library.PROTOCOL + 1)
    with pytest.raises(StoreRefused, match="newer JobMaster"):
        await (await connect(initialise=False)).initialise(uid, new_id())


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_store_that_evicts_is_refused_with_the_cure(
    connect: Connect, new_valkey: NewServer, policy: str
) -> None:
    server = new_valkey(**{"maxmemory-policy": policy})
    with pytest.raises(StoreRefused, match=f"{policy}.*CONFIG SET maxmemory-policy noeviction.*configuration file"):
        await connect(url=server.url)


INFO = "# Server\r\n{}\r\nrole:master\r\n"


@pytest.mark.parametrize(
    ("server", "accepted"),
    [
        ("redis_version:6.2.14", False),
        ("redis_version:7.0.0", True),
        ("redis_version:8.2.1", True),
        ("redis_version:7.2.4\r\nvalkey_version:7.2.5", True),
        ("redis_version:7.2.4\r\nvalkey_version:9.1.2", True),
        ("redis_version:7.2.4\r\nvalkey_version:7.1.9", False),
        ("redis_version:nonsense", False),
        ("something_else:1", False),
    ],
)
def test_versions(server: str, accepted: bool) -> None:
    info = parse_info(INFO.format(server).encode())
    report = Report("agent store 'default'", "", info, {})
    assert health_of([report], (None, None)).eviction_policy == "unknown"
    if accepted:
        check_fit(report)
    else:
        with pytest.raises(StoreRefused, match=r"Redis >= 7\.0 or Valkey >= 7\.2"):
            check_fit(report)


async def test_a_cluster_node_by_itself_is_refused_whatever_slots_it_has(
    connect: Connect, new_valkey: NewServer
) -> None:
    ports = {"port": str(free_port()), "cluster-port": str(free_port())}
    server = new_valkey(**{"cluster-enabled": "yes", **ports})
    refused = pytest.raises(StoreRefused, match=r"a node of a Redis or Valkey Cluster.*redis\+cluster://")
    with refused:
        await connect(url=server.url)
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)  # type: ignore[no-untyped-call]
    with refused:
        await connect(url=server.url)


async def test_a_replica_is_refused(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
    with pytest.raises(StoreRefused, match="replica"):
        await connect(url=server.url)
    store = await connect(url=server.url, initialise=False)
    with pytest.raises(Unavailable):
        await store.leave()


@pytest.fixture
def port() -> int:
    """A TCP port that was free a moment ago."""
    return free_port()


@pytest.fixture
async def guarded(new_valkey: NewServer, port: int) -> AsyncIterator[str]:
    """host:port of a store that asks for the password ``right`` and knows a user that may do little."""
    server = new_valkey(port=str(port), requirepass="right")
    async with redis.asyncio.Redis.from_url(f"redis://:right@127.0.0.1:{port}") as raw:
        await raw.acl_setuser("little", enabled=True, passwords=["+little"], commands=["+ping", "+client"])
        assert server.is_running()
        yield f"127.0.0.1:{port}"


async def test_the_right_password_opens(connect: Connect, guarded: str) -> None:
    store = await connect(url=f"redis://:right@{guarded}/3")
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    assert await store.known_buckets() == [fence.bucket_id]
    assert await (await connect(url=f"redis://:right@{guarded}/4")).known_buckets() == []


@pytest.mark.parametrize("login", ["", ":wr0ng-secret@", "nobody:wr0ng-secret@"])
async def test_a_wrong_password_is_refused_and_not_shown(connect: Connect, guarded: str, login: str) -> None:
    with pytest.raises(StoreRefused, match="refused the user name or password") as caught:
        await connect(url=f"redis://{login}{guarded}/0")
    assert "wr0ng-secret" not in str(caught.value)


async def test_a_user_without_the_commands_is_refused(connect: Connect, guarded: str) -> None:
    store = await connect(url=f"redis://little:little@{guarded}", initialise=False)
    with pytest.raises(StoreRefused, match="forbids"):
        await submit(store, new_id(), make_items(1))


async def test_a_store_that_forbids_config_is_taken(connect: Connect, guarded: str) -> None:
    async with redis.asyncio.Redis.from_url(f"redis://:right@{guarded}") as raw:
        await raw.acl_setuser(
            "managed", enabled=True, passwords=["+managed"], keys=["*"], channels=["*"], commands=["+@all", "-config"]
        )
    store = await connect(url=f"redis://managed:managed@{guarded}")
    health = await store.health()
    assert health.append_fsync == "unknown"
    assert health.eviction_policy == "noeviction"


@pytest.mark.parametrize("url", ["http://localhost", "redis://h:notaport", "redis://h?nonsense=1", "redis://h?db=x"])
async def test_a_url_that_cannot_be_used_is_refused(connect: Connect, url: str) -> None:
    with pytest.raises(StoreRefused, match="URL cannot be used"):
        await connect(url=url)


async def test_a_port_without_a_server_is_unavailable_and_the_password_stays_hidden(
    connect: Connect, port: int
) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await connect(url=f"redis://me:s3cret@127.0.0.1:{port}/0")
    assert "s3cret" not in str(caught.value)
    assert "default" in str(caught.value)


async def test_a_host_that_never_answers_is_given_up_in_time(connect: Connect, port: int) -> None:
    silent = await asyncio.start_server(lambda _, writer: _hold(writer), "127.0.0.1", port)
    try:
        with pytest.raises(Unavailable, match=r"no connection within 0\.1 s"):
            await connect(url=f"redis://127.0.0.1:{port}", connect_timeout_seconds=0.1)
    finally:
        silent.close()


async def test_a_policy_that_is_changed_at_run_time_is_seen(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    store = await connect(url=server.url)
    await store.verify()
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreRefused, match="allkeys-lru"):
            await store.verify()
        await raw.config_set("maxmemory-policy", "noeviction")
    await store.verify()


HELD: list[asyncio.StreamWriter] = []


def _hold(writer: asyncio.StreamWriter) -> None:
    HELD.append(writer)


async def test_a_full_store_refuses_new_jobs_and_lets_everything_be_emptied(
    connect: Connect, new_valkey: NewServer
) -> None:
    server = new_valkey()
    store = await connect(url=server.url)
    fence = new_fence()
    items = make_items(4)
    await assert_ok(store.open_bucket(fence))
    await submit(store, fence.bucket_id, items)
    await assert_ok(store.assign(fence, [(1, make_items(1)[0])]))
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.config_set("maxmemory", 1)
        assert (await submit(store, fence.bucket_id, make_items(1))).status is ReplyStatus.FULL
        with pytest.raises(Unavailable, match="out of memory"):
            await store.assign(fence, [(1, make_items(1)[0])])
        assert (await store.put(fence.bucket_id, 1, [(1, make_items(1)[0])], **ROOM)).status is ReplyStatus.FULL
        (depth,) = await store.depths([fence.bucket_id])
        assert depth is not None
        assert (depth.pending, depth.assigned) == (4, 1)
        await _start_under_memory_pressure(connect, server.url, raw)
        await _empty_under_memory_pressure(store, fence)
        await raw.config_set("maxmemory", 0)
    assert await store.known_buckets() == []


async def _start_under_memory_pressure(connect: Connect, url: str, raw: redis.asyncio.Redis) -> None:
    """An agent may begin, beat and leave: it is there to empty the store."""
    store = await connect(url=url)
    agent_id = new_id()
    assert not await raw.exists(store.keys.agent(agent_id))
    await store.beat(agent_id, 600.0)
    assert await raw.exists(store.keys.agent(agent_id))
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    await assert_ok(store.close_intake(fence))
    await assert_ok(store.close_if_empty(fence))
    await assert_ok(store.delete_bucket(fence.bucket_id))


async def _empty_under_memory_pressure(store: AgentStore, fence: Fence) -> None:
    assert len((await store.claim(fence, "a", 2)).raw) == 2
    await assert_ok(store.settle(fence, ["a"], [new_id()]))
    assert len((await store.claim(fence, "b", 1)).raw) == 1
    await assert_ok(store.keep_outcomes(fence, [b"outcome"], ["b"]))
    await assert_ok(store.close_intake(fence))
    rescuer = fence._replace(epoch=2)
    assert await store.fence(rescuer) == (ReplyStatus.OK, 2)
    while (page := await store.read_page(rescuer, 1)).kind:
        await assert_ok(store.remove_page(rescuer, page))
    await assert_ok(store.close_if_empty(rescuer))
    await assert_ok(store.delete_bucket(fence.bucket_id))


async def test_a_store_that_is_loading_or_busy_is_unavailable(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey(**{"busy-reply-threshold": "1"})
    store = await connect(url=server.url)
    async with redis.asyncio.Redis.from_url(server.url) as raw, redis.asyncio.Redis.from_url(server.url) as killer:
        endless = asyncio.ensure_future(raw.eval("while true do end", 0))

        async def is_busy() -> bool:
            try:
                await store.depths([new_id()])
            except Unavailable as error:
                return "busy" in str(error).lower()
            return False

        await eventually(is_busy, 10, "the store says that it is busy")
        await killer.script_kill()
        with pytest.raises(redis.exceptions.ResponseError):
            await endless
    assert await store.depths([new_id()]) == [None]


async def test_settings_reach_the_connection(store_url: str, cluster_name: str) -> None:
    store = await AgentStore.connect(cluster=cluster_name, name="x", url=store_url, settings=StoreSettings())
    try:
        info = await store._calls.call(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n", mutating=False)
        assert f"name=jobmaster:{cluster_name}:calls" in info.decode()
    finally:
        await store.close()
