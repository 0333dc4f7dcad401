"""A store that is a Valkey Cluster: which node is used, what is said when it is away, slots that move, and a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobmaster.agentstore import library
from jobmaster.agentstore.store import AgentStore
from jobmaster.client.store_handle import reached
from jobmaster.clock import new_id
from jobmaster.model.errors import StoreRefused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Durability
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import assert_ok, make_items, new_fence, submit
from tests.support.processes import free_port
from tests.support.valkey_cluster import ClusterNode, ValkeyCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


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
    assert all((await store.store_only_jobs(bucket_id)).claimed == () for bucket_id in buckets)
    await store.beat(new_id(), 5)
    await store.ping()
    await store.verify()
