"""A connected agent store under a cluster name of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.ports import ReplyStatus
from jobmaster.settings.model import StoreSettings
from tests.integration.store.fixture import OneBucketStore, new_fence

Connect = Callable[..., Awaitable[AgentStore]]


@pytest.fixture
async def connect(store_url: str, cluster_name: str) -> AsyncIterator[Connect]:
    """Connects further stores (``url=``, ``cluster=``, ``initialise=False``, settings), and closes them."""
    opened: list[AgentStore] = []

    async def open_store(
        *, url: str = store_url, cluster: str = cluster_name, initialise: bool = True, **settings: Any
    ) -> AgentStore:
        store = await AgentStore.connect(cluster=cluster, name="default", url=url, settings=StoreSettings(**settings))
        opened.append(store)
        if initialise:
            health = await store.health()
            await store.initialise(health.cluster_uid or new_id(), new_id())
        return store

    yield open_store
    for store in opened:
        await store.close()


@pytest.fixture
async def store(connect: Connect) -> AgentStore:
    """An initialised store."""
    return await connect()


@pytest.fixture
async def raw(store_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A plain client of the same server."""
    async with redis.asyncio.Redis.from_url(store_url) as client:
        yield client


@pytest.fixture
async def one_bucket(store: AgentStore, raw: redis.asyncio.Redis) -> OneBucketStore:
    """An ACTIVE bucket and all that is needed to look at it."""
    fence = new_fence()
    assert await store.open_bucket(fence) is ReplyStatus.OK
    return OneBucketStore(store, fence, raw)
