"""The producer's map of buckets, renewed by what has changed."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest

from jobmaster.client.bucket_directory import CLOSED_SECONDS, REFRESH_AGAIN_SECONDS, BucketDirectory
from jobmaster.client.store_handle import StoreHandle
from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion, OwnerTraits
from tests.support.fakes.fake_producer_store import FakeProducerStore, bucket
from tests.support.hand_clock import HandClock

MAX_AGE_SECONDS = 10.0
GROUPS = [("default", 3), ("default", 4), ("mail", 3)]
TRAITS = [
    OwnerTraits(frozenset(handlers), share, frozenset(words))
    for handlers in (("a",), ("a", "b")) for share in (1.0, 2.5) for words in ((), ("w",))
]  # fmt: skip
NEEDS_WORD = b'{"requires":["w"]}'


class ChangingMaster:
    """A map that changes, and everything that has changed, in order. A version is the number of changes before it."""

    def __init__(self) -> None:
        self.buckets: dict[bytes, Bucket] = {}
        self.agents: dict[bytes, OwnerTraits] = {}
        self.log: list[bytes] = []
        self.asked: list[MapVersion | None] = []

    def put(self, changed: Bucket, *, unseen: bool = False) -> None:
        """Args:
        unseen: the change is missed by all who read on."""
        self.buckets[changed.id] = changed
        if not unseen:
            self.log.append(changed.id)

    def move(self, bucket_id: bytes, state: BucketState, *, epochs: int = 0, unseen: bool = False) -> None:
        old = self.buckets[bucket_id]
        self.put(msgspec.structs.replace(old, state=state, epoch=old.epoch + epochs), unseen=unseen)

    def agent(self, agent_id: bytes, traits: OwnerTraits | None) -> None:
        if traits is not None:
            self.agents[agent_id] = traits
        else:
            self.agents.pop(agent_id, None)
        self.log.append(agent_id)

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        self.asked.append(known)
        version = MapVersion(1, len(self.log))
        if known is None:
            alive = [([agent], traits) for agent, traits in self.agents.items()]
            return MapChanges(version, True, list(self.buckets.values()), alive)
        since = dict.fromkeys(self.log[known.horizon :])
        agents = [([each], self.agents.get(each)) for each in since if each not in self.buckets]
        return MapChanges(version, False, [self.buckets[each] for each in since if each in self.buckets], agents)


def directory_of(master: ChangingMaster, clock: HandClock, stores: tuple[str, ...] = ("one", "two")) -> BucketDirectory:
    handles = {name: StoreHandle(name, FakeProducerStore(), clock) for name in stores}
    return BucketDirectory(master, handles, clock, MAX_AGE_SECONDS)


def seen(directory: BucketDirectory) -> Mapping[str, object]:
    """Everything that a directory answers."""
    by_group = {group: directory.handles(*group) for group in GROUPS}
    return {
        "groups": {group: {(each.id, each.epoch, each.share) for each in found} for group, found in by_group.items()},
        "serving": {group: {each.id for each in directory.serving(*group, "b")} for group in GROUPS},
        "all": {each.id for each in directory.all_handles()},
        "known": set(directory.bucket_ids()),
        "unknown": {each: directory.store_unknown(each) for each in directory.bucket_ids()},
        "sees all": directory.sees_all,
        "mixed": directory.mixed,
        "uneven": directory.uneven,
        "lacks": directory.lacks(NEEDS_WORD),
    }


def change(master: ChangingMaster, chance: random.Random, owners: list[bytes]) -> None:
    """Something happens to a bucket or to an agent."""
    kind = chance.random()
    if kind < 0.35 or not master.buckets:
        lane, priority = chance.choice(GROUPS)
        store = chance.choice(["one", "two", "elsewhere"])
        made = bucket(store=store, lane=lane, priority=priority)
        master.put(msgspec.structs.replace(made, owner=chance.choice(owners)))
    elif kind < 0.75:
        chosen = chance.choice(sorted(master.buckets))
        master.move(chosen, chance.choice(list(BucketState)), epochs=chance.choice([0, 0, 1]))
    else:
        master.agent(chance.choice(owners), chance.choice([None, *TRAITS]))


@pytest.mark.parametrize("seed", range(20))
async def test_a_directory_that_reads_changes_answers_as_one_that_reads_all(seed: int) -> None:
    chance, master, clock = random.Random(seed), ChangingMaster(), HandClock()
    owners = [new_id() for _ in range(4)]
    directory = directory_of(master, clock)
    for _ in range(40):
        for _ in range(chance.choice([0, 1, 1, 2, 8])):
            change(master, chance, owners)
        clock.now += 1
        await directory.renew()
        whole = directory_of(master, clock)
        await whole.renew()
        assert seen(directory) == seen(whole)
    assert master.asked.count(None) == 41, "one for each directory"


async def test_what_a_producer_knows_of_a_bucket_outlasts_a_change_of_the_map() -> None:
    """The depth comes with the answers of the store, so it is as fresh as the last of them, however the map is read."""
    master, clock = ChangingMaster(), HandClock()
    kept, other = bucket(store="one"), bucket(store="one")
    for each in (kept, other):
        master.put(each)
    directory = directory_of(master, clock)
    await directory.renew()
    handle = directory.handle(kept.id)
    assert handle is not None
    handle.answered(17, clock.now)
    master.move(other.id, BucketState.COMPLETING)
    clock.now += 1
    await directory.renew()
    assert directory.handles(*GROUPS[0]) == (handle,)
    master.move(kept.id, BucketState.FROZEN)
    clock.now += 1
    await directory.renew()
    assert (directory.handle(kept.id), directory.handles(*GROUPS[0])) == (handle, ())
    master.move(kept.id, BucketState.ACTIVE, epochs=1)
    clock.now += 1
    await directory.renew()
    (again,) = directory.handles(*GROUPS[0])
    assert (again.id, again.epoch, again.depth) == (kept.id, 2, 0), "another owner, another content"
    assert handle.depth == 17


async def test_a_refusal_that_the_changes_do_not_explain_has_the_whole_map_read() -> None:
    """Whatever is the reason why a change was missed: the closing of a bucket is not missed for ever."""
    master, clock = ChangingMaster(), HandClock()
    closing, good = bucket(store="one"), bucket(store="one")
    for each in (closing, good):
        master.put(each)
    directory = directory_of(master, clock)
    await directory.renew()
    clock.now += MAX_AGE_SECONDS
    master.move(closing.id, BucketState.COMPLETING, unseen=True)
    await directory.renew()
    assert len(directory.handles(*GROUPS[0])) == 2, "missed"
    refused = directory.handle(closing.id)
    assert refused is not None
    directory.note_closed(refused)
    assert refused.avoid_until == clock.now + CLOSED_SECONDS
    clock.now += REFRESH_AGAIN_SECONDS
    await directory.renew()
    assert [handle.id for handle in directory.handles(*GROUPS[0])] == [good.id]
    assert [known is None for known in master.asked] == [True, False, False, True]


async def test_a_refusal_that_lasts_has_the_whole_map_read_no_more_often_than_it_ages() -> None:
    """A store has lost a bucket, and its owner has not noticed yet: the map is right, and the refusal stays."""
    master, clock = ChangingMaster(), HandClock()
    lost = bucket(store="one")
    master.put(lost)
    directory = directory_of(master, clock)
    for _ in range(60):
        await directory.renew()
        if (handle := directory.handle(lost.id)) is not None:
            directory.note_closed(handle)
        clock.now += 1
    assert 60 / MAX_AGE_SECONDS - 1 <= master.asked.count(None) <= 60 / MAX_AGE_SECONDS + 1
    assert len(master.asked) >= 60


async def test_a_refusal_that_the_changes_explain_costs_nothing_more() -> None:
    master, clock = ChangingMaster(), HandClock()
    closing = bucket(store="one")
    master.put(closing)
    directory = directory_of(master, clock)
    await directory.renew()
    clock.now += MAX_AGE_SECONDS
    handle = directory.handle(closing.id)
    assert handle is not None
    directory.note_closed(handle)
    master.move(closing.id, BucketState.COMPLETING)
    await directory.renew()
    assert directory.handles(*GROUPS[0]) == ()
    assert [known is None for known in master.asked] == [True, False]
