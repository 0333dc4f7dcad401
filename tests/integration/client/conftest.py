"""Workshops: a cluster per test on the run's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster
from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.settings.model import ClusterSettings
from tests.integration.client.fixture import ClientFixture, DrivenAgent, handlers, settings_for

OpenCluster = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    """Closes what the test opened."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def client_settings(cluster_name: str, store_url: str, request: pytest.FixtureRequest) -> ClusterSettings:
    """Settings of the test's cluster; ``@pytest.mark.parametrize("client_settings", [{...}], indirect=True)`` changes
    parts of them."""
    parts: dict[str, Any] = getattr(request, "param", {})
    return settings_for(cluster_name, {"default": store_url}, **parts)


@pytest.fixture
async def master(migrated_dsn: str, client_settings: ClusterSettings, opened: AsyncExitStack) -> Master:
    """A migrated master."""
    schema = client_settings.schema_name()
    master = await Master.connect(
        dsn=migrated_dsn, schema=schema, settings=client_settings.master, application_name="test"
    )
    opened.push_async_callback(master.close)
    return master


@pytest.fixture
async def agent(master: Master, client_settings: ClusterSettings, opened: AsyncExitStack) -> DrivenAgent:
    """A registered agent with an initialised store and no buckets yet."""
    settings = client_settings.stores["default"]
    store = await AgentStore.connect(
        cluster=client_settings.cluster, name="default", url=settings.url or "", settings=settings
    )
    opened.push_async_callback(store.close)
    await store.initialise(master.cluster.uid, new_id())
    agent = DrivenAgent(master, store, "default")
    await agent.start(handlers)
    return agent


@pytest.fixture
def open_cluster(
    master: Master, agent: DrivenAgent, client_settings: ClusterSettings, opened: AsyncExitStack
) -> OpenCluster:
    """Opens producers; ``stores=``, ``settings=``, ``handlers=`` replace the usual ones."""

    async def make(**parts: Any) -> Cluster:
        settings = parts.pop("settings", client_settings)
        stores = parts.pop("stores", {"default": agent.store})
        cluster = Cluster(settings, parts.pop("master", master), stores, **{"handlers": handlers, **parts})
        opened.push_async_callback(cluster.close)
        return cluster

    return make


@pytest.fixture
async def client(
    client_settings: ClusterSettings, migrated_dsn: str, master: Master, agent: DrivenAgent, open_cluster: OpenCluster
) -> ClientFixture:
    """A cluster with two buckets in lane ``default``, priority medium, and a producer."""
    await agent.open(count=2)
    return ClientFixture(client_settings, migrated_dsn, master, agent, await open_cluster())


@pytest.fixture
def plain(client: ClientFixture) -> Iterator[SyncCluster]:
    """A synchronous producer with connections of its own."""

    async def opener() -> Cluster:
        settings = client.settings
        master = await Master.connect(
            dsn=client.dsn, schema=settings.schema_name(), settings=settings.master, application_name="sync"
        )
        store = await AgentStore.connect(
            cluster=settings.cluster,
            name="default",
            url=settings.stores["default"].url or "",
            settings=settings.stores["default"],
        )

        async def close() -> None:
            await master.close()
            await store.close()

        return Cluster(settings, master, {"default": store}, handlers=handlers, on_close=close)

    cluster = SyncCluster(opener, handlers=handlers)
    yield cluster
    cluster.close()
