"""What `store check` and the doctor say of a store whose contents or settings are not what the master knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.doctor.checks import _elsewhere, store_finding
from jobmaster.doctor.findings import CheckStatus
from jobmaster.doctor.store_check import store_record
from jobmaster.model.bucket import BucketDepth
from jobmaster.ports import StoreHealth, StoreNode
from jobmaster.settings.model import StoreDurability

UID, GENERATION = new_id(), new_id()


def health(**other: Any) -> StoreHealth:
    return StoreHealth("9", "valkey", "noeviction", True, "everysec", GENERATION, UID)._replace(**other)


def test_an_emptied_store_is_named_with_its_remedy() -> None:
    state = store_record("default", health(generation=None, cluster_uid=None), UID, GENERATION)["state"]
    assert state.startswith("EMPTY, but registered in the master")
    assert "jobmaster store init" in state
    assert "database number" in state


def test_a_policy_that_evicts_is_named_with_its_remedy() -> None:
    state = store_record("default", health(eviction_policy="allkeys-lru"), UID, GENERATION)["state"]
    assert "CONFIG SET maxmemory-policy noeviction" in state


def test_a_store_without_a_log_is_a_warning_until_the_configuration_accepts_it() -> None:
    record = store_record("default", health(append_only=False), UID, GENERATION)
    found = store_finding("default", record, StoreDurability.MEASURED)
    assert (found.status, found.fix) == (
        CheckStatus.WARN,
        "set appendonly yes: a restart of the store would lose jobs without a row in the master",
    )
    accepted = store_finding("default", record, StoreDurability.VOLATILE_OK)
    assert accepted.status is CheckStatus.OK
    assert "append-only off, accepted by stores.default.durability" in accepted.detail


def test_a_primary_that_works_on_without_a_replica_is_a_warning_where_a_replica_may_take_its_place() -> None:
    record = store_record("default", health(fails_over=True), UID, GENERATION)
    found = store_finding("default", record, StoreDurability.MEASURED)
    assert found.status is CheckStatus.WARN
    assert "min-replicas-to-write 1" in str(found.fix)
    record["awaits_replica"] = True
    assert store_finding("default", record, StoreDurability.MEASURED).status is CheckStatus.OK


NODES = [
    StoreNode("h1:6379", "valkey 9.1.2", 1, True, "everysec", "noeviction", 21),
    StoreNode("h2:6379", "valkey 9.1.2", 0, True, "everysec", "noeviction", None),
]


def test_nodes_of_a_server_cluster_without_functions_or_a_replica_are_named() -> None:
    found = health(fails_over=True, awaits_replica=True)
    assert "no functions on h2:6379" in store_record("default", found, UID, GENERATION, NODES)["state"]
    ready = [node._replace(functions=21) for node in NODES]
    finding = store_finding("default", store_record("default", found, UID, GENERATION, ready), StoreDurability.MEASURED)
    assert finding.status is CheckStatus.WARN
    assert "nodes: h1:6379, h2:6379" in finding.detail
    assert "add a replica of h2:6379" in str(finding.fix)


class Store:
    def __init__(self, there: Sequence[bytes]) -> None:
        self.there = there

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        return [BucketDepth(0, 0, 0, 0, 0) if each in self.there else None for each in bucket_ids]


def row(**other: object) -> dict[str, object]:
    fresh = {"id": UUID(bytes=new_id()), "store": "default", "state": "ACTIVE", "owner_leased": True}
    return {**fresh, "unchanged_seconds": 300.0, **other}


async def test_buckets_of_living_agents_that_lie_in_another_database_are_named() -> None:
    here, elsewhere = row(), row()
    others = [row(store="west"), row(state="LOST"), row(owner_leased=False), row(unchanged_seconds=1.0)]
    store = cast(AgentStore, Store([cast(UUID, here["id"]).bytes]))
    (found,) = await _elsewhere("default", store, [here, elsewhere, *others])
    assert (found.name, found.status) == ("store.default.buckets", CheckStatus.FAIL)
    assert "1 of 2" in found.detail
    assert "database number" in found.fix
    assert await _elsewhere("default", store, [here, *others]) == []
