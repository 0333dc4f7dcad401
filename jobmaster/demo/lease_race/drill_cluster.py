"""The cluster of a drill: a temporary cluster of its own name on given servers."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.demo.lease_race import handlers
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.settings.model import (
    AgentSettings,
    BucketCounts,
    ClusterSettings,
    Leases,
    Limits,
    Thresholds,
)
from jobmaster.wiring import drop_master, migrate_master, open_master, open_reader, open_stores

AGENT = "drill"
LEASE_SECONDS = 0.2
RENEW_SECONDS = 0.06
PERSIST_WITHIN_SECONDS = 0.02
"""Well below the lease, because the drill advances the owner's clock by it."""
_CLOCK_SKEW_SECONDS = 7200.0


def drill_settings(settings: ClusterSettings) -> ClusterSettings:
    """The servers of a configuration, with all other settings as a drill needs them."""
    store = next(iter(settings.stores))
    return ClusterSettings(
        cluster=f"drill-{secrets.token_hex(6)}",
        data_dir=settings.data_dir,
        master=msgspec.structs.replace(settings.master, schema=None),
        stores={store: settings.stores[store]},
        agents={
            AGENT: AgentSettings(
                store=store,
                buckets=BucketCounts(critical=0, high=0, medium=1, low=0, very_low=0),
                slots=1,
                isolated_processes=1,
                threads=1,
            )
        },
        handlers=[handlers.__name__],
        thresholds=Thresholds(persist_within_seconds=PERSIST_WITHIN_SECONDS),
        leases=Leases(lease_seconds=LEASE_SECONDS, renew_seconds=RENEW_SECONDS),
        limits=Limits(clock_skew_seconds=_CLOCK_SKEW_SECONDS),
    )


@asynccontextmanager
async def temporary_cluster(settings: ClusterSettings) -> AsyncIterator[ClusterSettings]:
    """A new cluster on the servers of a configuration; its schema and its keys are deleted afterwards."""
    drill = drill_settings(settings)
    try:
        await migrate_master(drill)
        yield drill
    finally:
        await _clear_stores(drill)
        await drop_master(drill)


async def adopt_stores(master: Master, stores: dict[str, AgentStore]) -> None:
    """Load the functions into the stores, and exchange the generations with the master."""
    for name, store in stores.items():
        known = await master.stores.store_generation(name, new_id())
        await store.initialise(master.cluster.uid, known.generation)


@asynccontextmanager
async def open_readers(settings: ClusterSettings) -> AsyncIterator[tuple[Reader, dict[str, AgentStore]]]:
    """Read access to the master and to the stores of a cluster."""
    async with AsyncExitStack() as stack:
        master = await open_master(settings, application_name="jobmaster-drill")
        stack.push_async_callback(master.close)
        reader = await open_reader(settings)
        stack.push_async_callback(reader.close)
        stores = await open_stores(settings)
        for store in stores.values():
            stack.push_async_callback(store.close)
        await adopt_stores(master, stores)
        yield reader, stores


async def _clear_stores(drill: ClusterSettings) -> None:
    """Delete retired buckets by the same calls as in a running cluster."""
    async with open_readers(drill) as (_, stores):
        for store in stores.values():
            for bucket_id in await store.known_buckets():
                await store.delete_bucket(bucket_id)
            await store.leave()
