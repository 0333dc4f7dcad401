"""A store that was down when the agent started is used as soon as it is back."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.model.cluster import ClusterRow
from jobmaster.model.errors import Refused, StoreRefused, Unavailable
from jobmaster.ports import StoreGeneration, StoreHealth
from jobmaster_agents import store_connector
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.store_connector import AGAIN_SECONDS, VERIFY_SECONDS, StoreConnector
from tests.support.master_parts import MasterParts
from tests.support.waiting import until


class GenerationMaster(MasterParts):
    cluster = ClusterRow("test", b"u" * 16)

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}
        self.served = False

    async def store_generation(self, name: str, proposed: bytes) -> StoreGeneration:
        return StoreGeneration(self.known.setdefault(name, proposed), self.served)


class Store:
    def __init__(self, *, up: bool = True, generation: bytes | None = None) -> None:
        self.up = up
        self.silent = False
        self.looks = 0
        self.unfit = ""
        self.generation = generation

    name = "own"

    async def verify(self) -> None:
        self.looks += 1
        if self.unfit:
            raise StoreRefused(self.unfit)

    async def health(self) -> StoreHealth:
        return StoreHealth("9", "valkey", "noeviction", True, "everysec", self.generation, None)

    async def initialise(self, cluster_uid: bytes, generation: bytes) -> bytes:
        if self.silent:
            await asyncio.Event().wait()
        if not self.up:
            raise Unavailable("no answer")
        self.generation = self.generation or generation
        return self.generation


def joining_of(**stores: Store) -> StoreConnector:
    return StoreConnector(GenerationMaster(), cast("dict[str, AgentStore]", stores), EventLog())


async def test_a_store_that_comes_back_joins_the_others_in_the_same_mapping() -> None:
    own, other = Store(), Store(up=False)
    periodic_task = joining_of(own=own, other=other)
    logged: list[str] = []
    periodic_task.on_joined = logged.append
    await periodic_task.connect(needed="own")
    usable = periodic_task.usable
    assert list(usable) == ["own"]
    assert await periodic_task.tick() == AGAIN_SECONDS
    other.up = True
    assert await periodic_task.tick() == VERIFY_SECONDS
    assert list(usable) == ["own", "other"]
    assert logged == ["other"]


async def test_an_agent_does_not_start_without_its_own_store() -> None:
    with pytest.raises(Unavailable):
        await joining_of(own=Store(up=False), other=Store()).connect(needed="own")


async def test_a_start_does_not_wait_for_stores_the_agent_does_not_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_connector, "OTHERS_SECONDS", 0.01)
    silent, other = Store(), Store()
    silent.silent = True
    begun = joining_of(silent=silent, own=Store(), other=other)
    await begun.connect(needed="own")
    assert sorted(begun.usable) == ["other", "own"]


async def test_a_silent_store_does_not_keep_another_from_joining() -> None:
    silent, back = Store(up=False), Store(up=False)
    begun = joining_of(own=Store(), silent=silent, back=back)
    await begun.connect(needed="own")
    silent.silent = back.up = True
    tick = asyncio.ensure_future(begun.tick())
    await until(lambda: "back" in begun.usable, "the store that is back")
    assert not tick.done()
    tick.cancel()


async def test_a_swapped_store_is_refused() -> None:
    with pytest.raises(Refused, match="another generation"):
        await joining_of(own=Store(generation=b"g" * 16)).connect(needed="own")


async def test_another_store_that_refuses_keeps_no_agent_from_its_work(caplog: pytest.LogCaptureFixture) -> None:
    """Swapped, or set to evict keys: that is mended in its own time, and agents that do not live on it start meanwhile."""
    begun = joining_of(unfit=Store(generation=b"g" * 16), own=Store(), other=Store())
    await begun.connect(needed="own")
    assert sorted(begun.usable) == ["other", "own"]
    assert [record.getMessage() for record in caplog.records] == [Event.STORE_UNFIT]
    with pytest.raises(Refused, match="another generation"):
        await begun.tick()


async def test_two_agents_that_start_for_the_first_time_find_no_emptied_store(caplog: pytest.LogCaptureFixture) -> None:
    """One has written the generation to the master and not yet to the store, when the other looks at both."""
    master, store = GenerationMaster(), Store()
    first, second = (
        StoreConnector(master, cast("dict[str, AgentStore]", {"own": store}), EventLog()) for _ in range(2)
    )
    store.silent = True
    waiting = asyncio.ensure_future(first.connect(needed="own"))
    await until(lambda: "own" in master.known, "the generation in the master")
    store.silent = False
    await second.connect(needed="own")
    waiting.cancel()
    assert store.generation == master.known["own"]
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_store_that_served_and_holds_nothing_was_emptied(caplog: pytest.LogCaptureFixture) -> None:
    master, store = GenerationMaster(), Store()
    master.known["own"], master.served = b"g" * 16, True
    await StoreConnector(master, cast("dict[str, AgentStore]", {"own": store}), EventLog()).connect(needed="own")
    assert [record.getMessage() for record in caplog.records] == [Event.STORE_EMPTIED]


async def test_settings_that_were_changed_at_run_time_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_connector, "VERIFY_SECONDS", 0.0)
    own = Store()
    periodic_task = joining_of(own=own)
    await periodic_task.connect(needed="own")

    def logged() -> int:
        return sum(record.getMessage() == Event.STORE_UNFIT for record in caplog.records)

    await periodic_task.tick()
    assert (own.looks, logged()) == (1, 0)
    own.unfit = "maxmemory-policy allkeys-lru"
    for _ in range(3):
        await periodic_task.tick()
    assert logged() == 1
    own.unfit = ""
    await periodic_task.tick()
    own.unfit = "maxmemory-policy allkeys-lru"
    await periodic_task.tick()
    assert logged() == 2


async def test_the_settings_of_a_store_are_not_looked_at_with_every_try_to_join_another() -> None:
    own = Store()
    periodic_task = joining_of(own=own, other=Store(up=False))
    await periodic_task.connect(needed="own")
    for _ in range(5):
        await periodic_task.tick()
    assert own.looks == 1
