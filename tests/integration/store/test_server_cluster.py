"""A store that is a Valkey Cluster: which node is used, what is said when it is away, slots that move, and a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from redis.crc import key_slot

from jobmaster.agentstore import library
from jobmaster.agentstore import store as store_module
from jobmaster.agentstore.acl import StoreUser, line_of, user_name
from jobmaster.agentstore.calls import FunctionCaller
from jobmaster.agentstore.node_calls import NodeCalls
from jobmaster.agentstore.sentinel import Address
from jobmaster.agentstore.store import AgentStore
from jobmaster.client.store_handle import reached
from jobmaster.clock import new_id
from jobmaster.embedded import ValkeyServer
from jobmaster.model.bucket import StoreOnlyJobs
from jobmaster.model.errors import OutcomeUnknown, StoreRefused, Unavailable
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Durability
from jobmaster.ports import Page, ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import assert_ok, make_items, new_fence, submit
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.servers.tls_front import Authority, TlsFront
from tests.support.servers.valkey_cluster import ClusterNode, ValkeyCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NewServer = Callable[..., ValkeyServer]


@pytest.fixture(scope="module")
def nodes(server_root: Path) -> Iterator[ValkeyCluster]:
    """Two primaries are enough for what does not fail."""
    with ValkeyCluster(server_root, primaries=2, replicas=0, settings={"appendfsync": "always"}) as nodes:
        yield nodes


async def fences_on_each(store: AgentStore, nodes: ValkeyCluster) -> dict[ClusterNode, Fence]:
    """An ACTIVE bucket on each primary."""
    found: dict[ClusterNode, Fence] = {}
    while len(found) < len(nodes.primaries):
        fence = new_fence()
        found.setdefault(nodes.owner(store.keys.bucket(fence.bucket_id).meta), fence)
    for fence in found.values():
        await assert_ok(store.open_bucket(fence))
    return found


async def test_buckets_of_all_nodes_are_served_as_on_one_server(connect: Connect, nodes: ValkeyCluster) -> None:
    store = await connect(url=nodes.url)
    fences = await fences_on_each(store, nodes)
    buckets = [fence.bucket_id for fence in fences.values()]
    items = {fence.bucket_id: make_items(3) for fence in fences.values()}
    for node, fence in fences.items():
        await submit(store, fence.bucket_id, items[fence.bucket_id])
        assert node.ask("EXISTS", store.keys.bucket(fence.bucket_id).pending)
    assert {await store.wait_wake(buckets, 5) for _ in buckets} == set(buckets)
    depths = await store.depths(buckets)
    assert [depth.pending for depth in depths if depth is not None] == [3, 3]
    wanted = [item[3:19] for of_bucket in items.values() for item in of_bucket[:1]]
    assert {job_id for found in await store.find(buckets, wanted, 100) for job_id in found} == set(wanted)
    for fence in fences.values():
        claimed = await store.claim(fence, "list-1", 10)
        assert claimed.raw == items[fence.bucket_id]
        await assert_ok(store.settle(fence, ["list-1"], []))
    assert set(await store.known_buckets()) == set(buckets)
    for bucket_id in buckets:
        assert not (await store.store_only_jobs(bucket_id)).claimed
    await store.beat(new_id(), 5)
    await store.ping()
    await store.verify()


async def test_what_a_failover_may_forget_is_not_promised(connect: Connect, nodes: ValkeyCluster) -> None:
    store = await connect(url=nodes.url)
    health = await store.health()
    assert (health.append_fsync, reached(health)) == ("always", Durability.STORE)
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    with pytest.raises(StoreRefused, match="no terms: a failover could forget them"):
        await store.grant_term(fence, 1.0)


async def test_a_node_that_is_away_is_passed_over_and_each_one_is_named(connect: Connect, nodes: ValkeyCluster) -> None:
    away = free_port()
    store = await connect(url=nodes.url.replace("://", f"://127.0.0.1:{away},"))
    await store.ping()
    with pytest.raises(Unavailable, match=rf"no node reports the cluster as whole \(127.0.0.1:{away}: "):
        await connect(url=f"redis+cluster://:s3cret@127.0.0.1:{away}")


async def test_a_server_by_itself_is_refused_with_the_url_that_it_needs(
    connect: Connect, new_valkey: NewServer
) -> None:
    port = free_port()
    new_valkey(port=str(port))
    with pytest.raises(StoreRefused, match=r"is no node of a Redis or Valkey Cluster.*redis://host:6379/0"):
        await connect(url=f"redis+cluster://127.0.0.1:{port}")


async def test_each_node_is_shown_with_its_log_its_replicas_and_its_functions(
    connect: Connect, nodes: ValkeyCluster
) -> None:
    store = await connect(url=nodes.url)
    found = {node.name: node for node in await store.nodes()}
    assert found.keys() == {node.name for node in nodes.primaries}
    build = library.recorded_build()[0]
    for node in found.values():
        assert node[2:] == (0, True, "always", "noeviction", build)
    nodes.primaries[1].ask("FUNCTION", "FLUSH")
    assert [node.functions for node in await store.nodes()].count(None) == 1
    await store.load_functions()
    assert [node.functions for node in await store.nodes()] == [build, build]


async def test_a_node_that_may_not_keep_jobs_is_named(connect: Connect, nodes: ValkeyCluster) -> None:
    store = await connect(url=nodes.url)
    second = nodes.primaries[1]
    second.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        assert (await store.health()).eviction_policy == "allkeys-lru"
        with pytest.raises(StoreRefused, match=rf"node 127.0.0.1:{second.port} has maxmemory-policy allkeys-lru"):
            await store.verify()
    finally:
        second.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_users_of_few_rights_find_the_nodes_and_follow_their_slots(
    connect: Connect, nodes: ValkeyCluster, cluster_name: str
) -> None:
    """Each node has users of its own."""
    for node in nodes.primaries:
        for user in StoreUser:
            node.ask(*line_of(cluster_name, user, ">secret").split(" "))
    store: dict[StoreUser, AgentStore] = {}
    for user in (StoreUser.LOADER, StoreUser.AGENT, StoreUser.PRODUCER, StoreUser.OPERATOR):
        login = f"://{user_name(cluster_name, user)}:secret@"
        loads = user in (StoreUser.LOADER, StoreUser.AGENT)
        store[user] = await connect(url=nodes.url.replace("://", login), initialise=loads)
    for node, fence in (await fences_on_each(store[StoreUser.AGENT], nodes)).items():
        slot = key_slot(store[StoreUser.AGENT].keys.bucket(fence.bucket_id).meta)
        target = next(other for other in nodes.primaries if other is not node)
        await submit(store[StoreUser.PRODUCER], fence.bucket_id, make_items(1))
        nodes.begin_moving(slot, node, target)
        nodes.move_keys(slot, node, target)
        # All keys have gone, so the call is sent on (ASK).
        await assert_ok(store[StoreUser.AGENT].close_intake(fence))
        nodes.end_moving(slot, target)
        await store[StoreUser.PRODUCER].health()
        assert (await store[StoreUser.AGENT].claim(fence, "moved-1", 10)).status is ReplyStatus.OK
    assert [node.functions for node in await store[StoreUser.OPERATOR].nodes()] == [library.recorded_build()[0]] * 2
    assert len(await store[StoreUser.OPERATOR].known_buckets()) == 2


async def test_a_user_that_may_not_read_the_map_of_the_nodes_is_refused(connect: Connect, nodes: ValkeyCluster) -> None:
    for node in nodes.primaries:
        node.ask("ACL", "SETUSER", "no-map", "on", ">secret", "~*", "&*", "+@all", "-cluster")
    with pytest.raises(StoreRefused, match=r"node 127.0.0.1:\d+ forbids what is needed: .*cluster\|info"):
        await connect(url=nodes.url.replace("://", "://no-map:secret@"))


class Moved(NamedTuple):
    """A bucket with jobs in each of its lists, and the nodes that its slot goes between."""

    store: AgentStore
    fence: Fence
    items: list[bytes]
    """In ``pending``. One more has been claimed, and one in ``assigned`` is due in a hundred years."""
    claimed: list[bytes]
    slot: int
    source: ClusterNode
    target: ClusterNode


@pytest.fixture
async def bucket(connect: Connect, nodes: ValkeyCluster) -> AsyncIterator[Moved]:
    store = await connect(url=nodes.url)
    fence = (await fences_on_each(store, nodes))[nodes.primaries[0]]
    items = make_items(4)
    await submit(store, fence.bucket_id, items)
    await assert_ok(store.assign(fence, [(2**52, item) for item in make_items(1)]))
    assert await store.wait_wake([fence.bucket_id], 5) == fence.bucket_id
    claimed = (await store.claim(fence, "first-1", 1)).raw
    slot = key_slot(store.keys.bucket(fence.bucket_id).meta)
    yield Moved(store, fence, items[1:], claimed, slot, nodes.primaries[0], nodes.primaries[1])
    nodes.end_moving(slot, nodes.primaries[1])


async def assert_whole(moved: Moved) -> None:
    """Everything is there, once, and the bucket works."""
    claimed = await moved.store.claim(moved.fence, "after-9", 10)
    assert (claimed.status, claimed.raw) == (ReplyStatus.OK, moved.items)
    assert (await moved.store.read_claimed(moved.fence, "first-1")).raw == moved.claimed


async def test_a_slot_that_is_moved_key_by_key_gives_no_half_answers(
    nodes: ValkeyCluster, bucket: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keys have gone: a call that may need some of both sides is refused, and has no effect."""
    monkeypatch.setattr("jobmaster.agentstore.node_calls.MOVING_SECONDS", 0)
    store, fence = bucket.store, bucket.fence
    identity, job_id = Identity(1, fence.bucket_id, fence.epoch), bucket.claimed[0][3:19]
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: submit(store, fence.bucket_id, make_items(1)),
        lambda: store.claim(fence, "half-2", 10),
        lambda: store.find([fence.bucket_id], [job_id], 100),
        lambda: store.recall(job_id, identity, 0, 100),
        store.known_buckets,
    ]
    nodes.begin_moving(bucket.slot, bucket.source, bucket.target)
    moved = 1
    while moved:
        for call in calls:
            with pytest.raises(Unavailable, match=r"hash slot of the key is being moved|is moving hash slots"):
                await call()
        moved = nodes.move_keys(bucket.slot, bucket.source, bucket.target, 1)
    nodes.end_moving(bucket.slot, bucket.target)
    await assert_whole(bucket)
    assert fence.bucket_id in await store.known_buckets()


async def test_a_job_that_moves_while_its_bucket_is_read_is_found_further_on(
    connect: Connect, nodes: ValkeyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two calls are under way together: a redirect would change their order."""
    store, fence = await connect(url=nodes.url), new_fence()
    await assert_ok(store.open_bucket(fence))
    await submit(store, fence.bucket_id, make_items(1))
    await store.claim(fence, "first-1", 1)
    meta, call, under_way = store.keys.bucket(fence.bucket_id).meta, store._calls.call, [0]

    async def alone(command: bytes, key: bytes = b"", *, mutating: bool) -> object:
        under_way[0] += 1
        assert under_way[0] == 1
        if key == meta:
            monkeypatch.undo()
            await assert_ok(store.keep_outcomes(fence, [b"outcome"], ["first-1"]))
        reply = await call(command, key, mutating=mutating)
        under_way[0] -= 1
        return reply

    monkeypatch.setattr(store._calls, "call", alone)
    assert await store.store_only_jobs(fence.bucket_id) == StoreOnlyJobs(None, (), 1)


@pytest.mark.parametrize("is_open", [True, False], ids=["open connection", "first call"])
async def test_a_call_without_a_reply_is_not_sent_again(
    connect: Connect, nodes: ValkeyCluster, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node serves the slot by then, as after a failover; but the call left, and the first node may have run it."""
    fence = new_fence()
    await assert_ok((await connect(url=nodes.url)).open_bucket(fence))
    store = await connect(url=nodes.url, initialise=False)
    if is_open:
        await store.depths([fence.bucket_id])
    meta = store.keys.bucket(fence.bucket_id).meta
    node = nodes.owner(meta)
    other = next(each for each in nodes.primaries if each is not node)
    node.ask("CLIENT", "PAUSE", 600_000, "WRITE")
    try:
        sent = asyncio.ensure_future(submit(store, fence.bucket_id, make_items(1)))
        client = await eventually(lambda: asyncio.to_thread(_paused_client, node), 30, "the call at its node")
        monkeypatch.setattr("jobmaster.agentstore.node_map.AGAIN_SECONDS", 3600)
        cast(NodeCalls, store._calls)._map.moved(key_slot(meta), Address("127.0.0.1", other.port))
        node.ask("CLIENT", "KILL", "ID", client)
    finally:
        node.ask("CLIENT", "UNPAUSE")
    with pytest.raises(OutcomeUnknown):
        await sent


def _paused_client(node: ClusterNode) -> int:
    """The client whose function call waits for the end of the pause; 0: there is none."""
    lines = node.ask("CLIENT", "LIST").decode().splitlines()
    fields = [dict(field.split("=", 1) for field in line.split(" ")) for line in lines]
    return next((int(each["id"]) for each in fields if each["cmd"] == "fcall" and "b" in each["flags"]), 0)


async def test_keys_are_not_listed_while_slots_go_from_node_to_node(
    nodes: ValkeyCluster, bucket: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that goes to a node after this one has been read is seen on neither."""
    scan, empty = store_module._scan_node, bucket.target.name

    async def then_moved(node: FunctionCaller, pattern: bytes) -> list[bytes]:
        found = await scan(node, pattern)
        if node.where.endswith(empty):
            await asyncio.to_thread(nodes.move_slot, bucket.slot, bucket.source, bucket.target)
        return found

    async def target_first() -> list[FunctionCaller]:
        return sorted(await callers(), key=lambda node: not node.where.endswith(empty))

    callers = bucket.store._calls.nodes
    monkeypatch.setattr(bucket.store._calls, "nodes", target_first)
    monkeypatch.setattr(store_module, "_scan_node", then_moved)
    with pytest.raises(Unavailable, match="have moved between its nodes while their keys were listed"):
        await bucket.store.known_buckets()
    monkeypatch.undo()
    assert bucket.fence.bucket_id in await bucket.store.known_buckets()


async def test_every_node_is_reached_over_tls(connect: Connect, server_root: Path, tmp_path: Path) -> None:
    """The nodes announce the ports of the servers with TLS before them, and their connections need its certificate."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    context = authority.server_context("127.0.0.1")
    async with AsyncExitStack() as stack:
        own = stack.enter_context(ValkeyCluster(server_root, primaries=2, replicas=0))
        fronts = {}
        for node in own.primaries:
            front = TlsFront(node.server.url.removeprefix("unix://"), context)
            fronts[node] = await stack.enter_async_context(front)
            node.ask("CONFIG", "SET", "cluster-announce-port", front.port)
        ports = {front.port for front in fronts.values()}
        await eventually(lambda: asyncio.to_thread(_announced, own, ports), 30, "the ports at both nodes")
        url = f"rediss+cluster://127.0.0.1:{fronts[own.primaries[0]].port}?ssl_ca_certs="
        with pytest.raises(Unavailable, match="certificate"):
            await connect(url=f"{url}{other.root}")
        before = [front.passed for front in fronts.values()]
        store = await connect(url=f"{url}{authority.root}")
        for fence in (await fences_on_each(store, own)).values():
            await submit(store, fence.bucket_id, make_items(1))
            assert await store.wait_wake([fence.bucket_id], 5) == fence.bucket_id
            assert len((await store.claim(fence, "tls-1", 10)).raw) == 1
        assert len(await store.known_buckets()) == 2
        assert all(front.passed > count for front, count in zip(fronts.values(), before, strict=True))
        await store.close()


def _announced(cluster: ValkeyCluster, ports: set[int]) -> bool:
    seen = [{shard[2][1] for shard in node.ask("CLUSTER", "SLOTS")} for node in cluster.primaries]
    return all(found == ports for found in seen)


Prepared = Callable[[], Awaitable[object]]


async def _remove_kept(moved: Moved) -> Prepared:
    await assert_ok(moved.store.keep_outcomes(moved.fence, [b"taken", b"refused"], []))
    return lambda: assert_ok(moved.store.remove_kept(moved.fence, [b"taken", b"refused"], [b"refused"]))


async def _two_lists_with_one_name(moved: Moved) -> list[str]:
    """A claimed list without its name is damage, and is removed with the others."""
    moved.items[:] = moved.items[len((await moved.store.claim(moved.fence, "second-2", 1)).raw) :]
    moved.source.ask("SREM", moved.store.keys.bucket(moved.fence.bucket_id).lists, "first-1")
    moved.claimed.clear()
    return ["second-2", "first-1"]


async def _keep_outcomes(moved: Moved) -> Prepared:
    await assert_ok(moved.store.keep_outcomes(moved.fence, [b"before"], []))
    names = await _two_lists_with_one_name(moved)
    return lambda: assert_ok(moved.store.keep_outcomes(moved.fence, [b"refused"], names))


async def _settle(moved: Moved) -> Prepared:
    names = await _two_lists_with_one_name(moved)
    return lambda: assert_ok(moved.store.settle(moved.fence, names, []))


async def _remove_claimed_page(moved: Moved) -> Prepared:
    await assert_ok(moved.store.close_intake(moved.fence))
    page = Page(ReplyStatus.OK, "claimed", "first-1", [], moved.claimed[:])
    moved.claimed.clear()
    return lambda: assert_ok(moved.store.remove_page(moved.fence, page))


async def _remove_assigned_page(moved: Moved) -> Prepared:
    """The members are removed in portions of a thousand, and the first one takes the last member."""
    await assert_ok(moved.store.close_intake(moved.fence))
    found = moved.source.ask("ZRANGE", moved.store.keys.bucket(moved.fence.bucket_id).assigned, 0, -1)
    page = Page(ReplyStatus.OK, "assigned", "", [], [*found, *make_items(1000)])
    return lambda: assert_ok(moved.store.remove_page(moved.fence, page))


async def _withdraw(moved: Moved) -> Prepared:
    noted = [new_id() for _ in range(1001)]
    await moved.store.request_cancel(moved.fence.bucket_id, noted[0])
    return lambda: moved.store.withdraw(moved.fence, noted, [])


@pytest.mark.parametrize("keys_are_moved", [False, True])
@pytest.mark.parametrize(
    ("prepare", "kept", "gone"),
    [
        (_remove_kept, [b"refused"], None),
        (_keep_outcomes, [b"before", b"refused"], "lists"),
        (_settle, [], "lists"),
        (_remove_claimed_page, [], "lists"),
        (_remove_assigned_page, [], "assigned"),
        (_withdraw, [], "cancelled"),
    ],
)
async def test_a_call_that_empties_a_list_is_done_whole_when_all_keys_are_on_one_side(
    nodes: ValkeyCluster,
    bucket: Moved,
    prepare: Callable[[Moved], Awaitable[Prepared]],
    kept: list[bytes],
    gone: str | None,
    keys_are_moved: bool,
) -> None:
    """The node refuses a command for a key that is missing, also for one that the function itself has emptied."""
    call = await prepare(bucket)
    nodes.begin_moving(bucket.slot, bucket.source, bucket.target)
    try:
        if keys_are_moved:
            nodes.move_keys(bucket.slot, bucket.source, bucket.target)
        await call()
    finally:
        nodes.move_keys(bucket.slot, bucket.source, bucket.target)
        nodes.end_moving(bucket.slot, bucket.target)
    keys = bucket.store.keys.bucket(bucket.fence.bucket_id)
    assert bucket.target.ask("LRANGE", keys.kept, 0, -1) == kept
    assert gone is None or not bucket.target.ask("EXISTS", getattr(keys, gone))
    await assert_whole(bucket)


async def test_calls_wait_for_the_end_of_a_move(
    nodes: ValkeyCluster, bucket: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.agentstore.node_calls.MOVING_SECONDS", PATIENCE_SECONDS)
    store, fence = bucket.store, bucket.fence
    nodes.begin_moving(bucket.slot, bucket.source, bucket.target)
    nodes.move_keys(bucket.slot, bucket.source, bucket.target, 1)
    more = make_items(1)
    sent = asyncio.ensure_future(submit(store, fence.bucket_id, more))
    woken = asyncio.ensure_future(store.wait_wake([fence.bucket_id], 20))
    await asyncio.to_thread(nodes.move_keys, bucket.slot, bucket.source, bucket.target)
    await asyncio.to_thread(nodes.end_moving, bucket.slot, bucket.target)
    assert (await sent).status is ReplyStatus.OK
    assert await woken == fence.bucket_id
    await assert_whole(bucket._replace(items=[*bucket.items, *more]))


async def test_a_slot_that_is_moved_at_once_is_followed_to_a_node_without_functions(
    nodes: ValkeyCluster, bucket: Moved
) -> None:
    """The owner loads them there. A producer finds the node not ready before."""
    nodes.move_slot_at_once(bucket.slot, bucket.source, bucket.target)
    bucket.target.ask("FUNCTION", "DELETE", library.LIBRARY)
    reload, bucket.store._calls.reload = bucket.store._calls.reload, None
    with pytest.raises(Unavailable, match="functions are missing"):
        await submit(bucket.store, bucket.fence.bucket_id, make_items(1))
    bucket.store._calls.reload = reload
    await assert_whole(bucket)


async def test_a_node_without_slots_has_the_functions_before_it_gets_some(
    connect: Connect, server_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it becomes a replica, it is not asked for keys."""
    with ValkeyCluster(server_root, primaries=1, replicas=0) as own:
        store = await connect(url=own.url)
        fence = new_fence()
        await assert_ok(store.open_bucket(fence))
        added = own.add()
        await eventually(lambda: _known(store, added), 20, "the new node in the map")
        await store.verify()
        assert added.ask("FUNCTION", "LIST")
        monkeypatch.setattr("jobmaster.agentstore.node_map.AGAIN_SECONDS", 3600)
        assert await _known(store, added)
        added.ask("CLUSTER", "REPLICATE", own.primaries[0].id)
        with pytest.raises(Unavailable, match=rf"node {added.name} is no primary any more"):
            await store.known_buckets()


async def _known(store: AgentStore, node: ClusterNode) -> bool:
    return any(node.name in caller.where for caller in await store._calls.nodes())


@pytest.mark.long
async def test_after_a_failover_calls_go_to_the_new_primary(connect: Connect, server_root: Path) -> None:
    with ValkeyCluster(server_root) as own:
        store = await connect(url=own.url)
        fence = new_fence()
        await assert_ok(store.open_bucket(fence))
        items = make_items(3)
        await submit(store, fence.bucket_id, items)
        meta = store.keys.bucket(fence.bucket_id).meta
        primary = own.owner(meta)
        primary.replicated(meta)
        others = ",".join(node.name for node in own.nodes if node is not primary)
        listener = await connect(url=f"redis+cluster://{primary.name},{others}", initialise=False)
        waking = asyncio.ensure_future(store.wait_wake([fence.bucket_id], 30))
        assert await waking == fence.bucket_id
        own.be_alert()
        primary.server.kill()
        # No other call shows this client that the node that it asked first is away.
        await eventually(lambda: _subscribed(listener), 20, "a subscription at another node")

        async def claimed() -> list[bytes] | None:
            try:
                answer = await store.claim(fence, "after-1", 10)
            except Unavailable:
                return None
            assert answer.status is ReplyStatus.OK
            return answer.raw

        assert await eventually(claimed, 20, "the replica to serve") == items
        more = make_items(1)
        await submit(store, fence.bucket_id, more)

        async def woken() -> bool:
            try:
                return await store.wait_wake([fence.bucket_id], 5) == fence.bucket_id
            except Unavailable:
                return False

        await eventually(woken, 20, "the wake of the new primary")
        primary.server.start()
        await eventually(lambda: asyncio.to_thread(_is_replica, primary), 20, "the old primary as a replica")
        assert (await store.claim(fence, "after-2", 10)).raw == more


async def _subscribed(store: AgentStore) -> bool:
    try:
        async with aclosing(cast("AsyncGenerator[bytes, None]", store.finished())) as news:
            return await anext(news) == b""
    except Unavailable:
        return False


def _is_replica(node: ClusterNode) -> bool:
    return bool(node.info("replication")["role"] == "slave")
