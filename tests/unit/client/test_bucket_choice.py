"""Choosing a bucket, and going on to the next when one says no."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from jobmaster.client.bucket_choice import (
    ALL_FULL,
    NO_BUCKET,
    WINDOW_FULL_SECONDS,
    BucketGroup,
    Placement,
    StoreLimits,
)
from jobmaster.client.bucket_directory import DEPTH_SECONDS, BucketDirectory
from jobmaster.client.store_handle import RECHECK_SECONDS, StoreHandle
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion, OwnerTraits
from jobmaster.model.errors import ClockSkew, DurabilityRefused, OutcomeUnknown, StoreRefused, Unavailable
from jobmaster.model.job import Durability, Entry
from jobmaster.ports import Queries, ReplyStatus, StoreHealth, Submitted
from tests.support.fakes.fake_producer_store import HEALTHY, Answer, FakeProducerStore, Script, bucket
from tests.support.hand_clock import HandClock
from tests.support.waiting import until

NO_LOG = HEALTHY._replace(append_only=False)
ALWAYS = HEALTHY._replace(append_fsync="always")
UNKNOWN = HEALTHY._replace(append_fsync="unknown")


class Listing:
    """The one query of the master that the bucket map makes."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.listed: list[Bucket] | Exception = buckets
        self.asked = 0
        self.has: dict[bytes, frozenset[str]] = {}
        self.shares: dict[bytes, float] = {}

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        self.asked += 1
        if isinstance(self.listed, Exception):
            raise self.listed
        owners = self.has.keys() | self.shares.keys()
        traits = {each: OwnerTraits(self.has.get(each, frozenset()), self.shares.get(each, 1.0)) for each in owners}
        return MapChanges(MapVersion(1, 1), True, self.listed, [([each], one) for each, one in traits.items()])


class BucketChoiceFixture:
    """A bucket group over fake stores."""

    def __init__(
        self,
        stores: dict[str, FakeProducerStore],
        buckets: list[Bucket],
        need: Durability = Durability.STORE,
        handler: str | None = None,
        window: int | None = None,
    ) -> None:
        self.clock = HandClock()
        self.listing = Listing(buckets)
        watches = {name: StoreHandle(name, store, self.clock) for name, store in stores.items()}
        queries: Queries = self.listing  # type: ignore[assignment]  # one query is all that is asked
        self.map = BucketDirectory(queries, watches, self.clock, 10.0)
        capacities = dict.fromkeys(stores, StoreLimits(100, 10_000, 3_600_000))
        self.group = BucketGroup("default", 3, need, self.map, capacities, self.clock, handler=handler)
        self.group.window = window
        self.plain = BucketGroup("default", 3, need, self.map, capacities, self.clock)


def entries(count: int) -> list[bytes]:
    return [encode_entry(Entry(new_id(), 1, "h", b"{}")) for _ in range(count)]


def answers(by_bucket: dict[bytes, Answer | list[Answer]]) -> Script:
    def script(store: FakeProducerStore, bucket_id: bytes, items: Sequence[bytes]) -> Answer:
        answer = by_bucket.get(bucket_id, Submitted(ReplyStatus.OK, 1))
        return answer.pop(0) if isinstance(answer, list) else answer

    return script


async def test_a_batch_goes_to_one_active_bucket_of_its_lane_and_priority() -> None:
    store = FakeProducerStore()
    right, other_lane, other_priority = bucket(), bucket(lane="payroll"), bucket(priority=5)
    closing = Bucket(
        id=new_id(), store="default", lane="default", priority=3, state=BucketState.COMPLETING, epoch=1, owner=new_id()
    )
    elsewhere = bucket(store="a-store-this-producer-does-not-know")
    choice = BucketChoiceFixture({"default": store}, [right, other_lane, other_priority, closing, elsewhere])
    batch = entries(3)
    for _ in range(20):
        assert await choice.group.place(batch) == Placement(Durability.STORE, right.id)
    assert store.calls == [(right.id, batch)] * 20


@pytest.mark.parametrize(
    "no",
    [
        Submitted(ReplyStatus.CLOSED, 0),
        Submitted(ReplyStatus.NO_BUCKET, 0),
        Submitted(ReplyStatus.GENERATION, 0),
        Submitted(ReplyStatus.FULL, 100),
        Submitted(ReplyStatus.FULL, -1),
        Unavailable("down"),
        StoreRefused("no functions"),
    ],
)
async def test_a_batch_that_a_bucket_refuses_goes_to_another(no: Answer) -> None:
    bad, good = bucket(), bucket()
    store = FakeProducerStore(answers({bad.id: no}))
    choice = BucketChoiceFixture({"default": store}, [bad, good])
    for _ in range(20):
        assert await choice.group.place(entries(2)) == Placement(Durability.STORE, good.id)
    # It was asked at most once: what said no is left alone for a while.
    assert sum(1 for bucket_id, _ in store.calls if bucket_id == bad.id) <= 1


async def test_full_everywhere_is_not_the_same_as_no_bucket() -> None:
    one, two = bucket(), bucket()
    both_full = answers(dict.fromkeys([one.id, two.id], Submitted(ReplyStatus.FULL, 9)))
    full = BucketChoiceFixture({"default": FakeProducerStore(both_full)}, [one, two])
    assert await full.group.place(entries(1)) == ALL_FULL
    closed = BucketChoiceFixture(
        {"default": FakeProducerStore(answers({one.id: Submitted(ReplyStatus.CLOSED, 0)}))}, [one]
    )
    assert await closed.group.place(entries(1)) == NO_BUCKET
    empty = BucketChoiceFixture({"default": FakeProducerStore()}, [])
    assert await empty.group.place(entries(1)) == NO_BUCKET


async def test_a_bucket_that_is_full_for_tenants_is_not_full_for_other_jobs() -> None:
    one = bucket()
    store = FakeProducerStore(answers({one.id: [Submitted(ReplyStatus.FULL, 20), *[Submitted(ReplyStatus.OK, 1)] * 3]}))
    choice = BucketChoiceFixture({"default": store}, [one], window=20)
    assert await choice.group.place(entries(1)) == ALL_FULL
    assert await choice.group.place(entries(1)) == ALL_FULL, "not asked again at once"
    assert (await choice.plain.place(entries(1))).bucket_id == one.id
    choice.clock.now += WINDOW_FULL_SECONDS
    assert (await choice.group.place(entries(1))).bucket_id == one.id
    assert store.marks == [20, 100, 20]


async def test_a_window_above_the_high_water_mark_changes_nothing() -> None:
    store = FakeProducerStore()
    choice = BucketChoiceFixture({"default": store}, [bucket()], window=5000)
    await choice.group.place(entries(1))
    assert store.marks == [100]


async def test_full_buckets_are_not_asked_again_at_once_but_soon() -> None:
    one = bucket()
    store = FakeProducerStore(answers({one.id: [Submitted(ReplyStatus.FULL, 9), Submitted(ReplyStatus.OK, 1)]}))
    choice = BucketChoiceFixture({"default": store}, [one])
    assert await choice.group.place(entries(1)) == ALL_FULL
    assert await choice.group.place(entries(1)) == ALL_FULL
    assert len(store.calls) == 1
    choice.clock.now += 0.1
    assert (await choice.group.place(entries(1))).bucket_id == one.id


async def test_a_new_bucket_is_found_when_the_known_ones_are_closed() -> None:
    old, new = bucket(), bucket()
    store = FakeProducerStore(answers({old.id: Submitted(ReplyStatus.CLOSED, 0)}))
    choice = BucketChoiceFixture({"default": store}, [old])
    await choice.map.fresh()
    choice.listing.listed = [old, new]
    choice.clock.now += 1
    assert (await choice.group.place(entries(1))).bucket_id == new.id
    assert choice.listing.asked == 2


async def test_the_map_is_used_as_it_is_while_the_master_is_down() -> None:
    one = bucket()
    choice = BucketChoiceFixture({"default": FakeProducerStore()}, [one])
    await choice.map.fresh()
    choice.listing.listed = Unavailable("master down")
    choice.clock.now += 1000
    assert (await choice.group.place(entries(1))).bucket_id == one.id
    await choice.map.close()


async def test_without_any_map_an_outage_of_the_master_is_reported() -> None:
    choice = BucketChoiceFixture({"default": FakeProducerStore()}, [])
    choice.listing.listed = Unavailable("master down")
    for ask in (choice.map.fresh, choice.map.renew, lambda: choice.group.place(entries(1))):
        with pytest.raises(Unavailable, match="master down"):
            await ask()


async def test_many_callers_make_one_query_for_the_map() -> None:
    choice = BucketChoiceFixture({"default": FakeProducerStore()}, [bucket()])
    await asyncio.gather(*(choice.group.place(entries(1)) for _ in range(20)))
    assert choice.listing.asked == 1


async def test_a_lost_answer_is_asked_again_of_the_same_bucket_with_the_same_ids() -> None:
    one, two = bucket(), bucket()
    unknown: list[Answer] = [OutcomeUnknown("no answer"), Submitted(ReplyStatus.OK, 3)]
    store = FakeProducerStore(answers({one.id: unknown, two.id: Unavailable("never")}))
    choice = BucketChoiceFixture({"default": store}, [one])
    batch = entries(3)
    assert (await choice.group.place(batch)).bucket_id == one.id
    assert store.calls == [(one.id, batch), (one.id, batch)]


async def test_an_unknown_outcome_is_reported_and_never_called_stored_or_lost() -> None:
    one = bucket()
    store = FakeProducerStore(answers({one.id: OutcomeUnknown("no answer")}))
    choice = BucketChoiceFixture({"default": store}, [one])
    with pytest.raises(OutcomeUnknown):
        await choice.group.place(entries(1))
    # Certain refusals afterwards do not make the first answer any more certain.
    store.script = answers({one.id: [OutcomeUnknown("no answer"), Submitted(ReplyStatus.FULL, 9)]})
    choice.clock.now += 100
    with pytest.raises(OutcomeUnknown):
        await choice.group.place(entries(1))


@pytest.mark.parametrize(
    "then",
    [
        Submitted(ReplyStatus.SKEW, 0, 7_200_000),
        Unavailable("down"),
        StoreRefused("no functions"),
        Submitted(ReplyStatus.CLOSED, 0),
        Submitted(ReplyStatus.GENERATION, 0),
        Submitted(ReplyStatus.FULL, 9),
    ],
    ids=str,
)
async def test_no_later_answer_turns_a_lost_one_into_a_certain_no(then: Answer) -> None:
    """Nor does a store with another clock, which would say that the id's time is off, nor a master that is down."""
    one, two = bucket("a"), bucket("b")
    first = FakeProducerStore(answers({one.id: OutcomeUnknown("no answer")}))
    second = FakeProducerStore(answers({two.id: then}))
    choice = BucketChoiceFixture({"a": first, "b": second}, [one, two])
    await choice.map.fresh()
    choice.listing.listed = Unavailable("master down")
    choice.clock.now += 1
    handle = choice.map.handle(two.id)
    assert handle is not None
    handle.depth = 99  # the first store is asked first
    batch = entries(2)
    (answer,) = set(await asyncio.gather(choice.group.send(batch), return_exceptions=True))
    assert isinstance(answer, OutcomeUnknown), answer
    assert "no answer" in answer.message
    assert {bucket_id for bucket_id, _ in first.calls + second.calls} == {one.id, two.id}


@pytest.mark.parametrize(
    ("health", "need", "level"),
    [
        (HEALTHY, Durability.STORE, Durability.STORE),
        (ALWAYS, Durability.STORE, Durability.STORE_FSYNC),
        (ALWAYS, Durability.STORE_FSYNC, Durability.STORE_FSYNC),
        (NO_LOG, Durability.VOLATILE, Durability.VOLATILE),
        (HEALTHY, Durability.VOLATILE, Durability.STORE),
        (UNKNOWN, Durability.STORE, Durability.STORE),
    ],
)
async def test_the_receipt_names_the_level_that_was_reached(
    health: StoreHealth, need: Durability, level: Durability
) -> None:
    choice = BucketChoiceFixture({"default": FakeProducerStore(health=health)}, [bucket()], need)
    assert (await choice.group.place(entries(1))).level is level


@pytest.mark.parametrize(
    ("health", "need", "hint"),
    [
        (NO_LOG, Durability.STORE, "CONFIG SET appendonly yes"),
        (NO_LOG, Durability.STORE_FSYNC, "CONFIG SET appendonly yes"),
        (HEALTHY, Durability.STORE_FSYNC, "CONFIG SET appendfsync always"),
        (UNKNOWN, Durability.STORE_FSYNC, "allow CONFIG GET"),
    ],
)
async def test_a_level_out_of_reach_is_refused_with_the_cure_and_nothing_is_sent(
    health: StoreHealth, need: Durability, hint: str
) -> None:
    store = FakeProducerStore(health=health)
    choice = BucketChoiceFixture({"default": store}, [bucket()], need)
    with pytest.raises(DurabilityRefused, match=hint):
        await choice.group.place(entries(1))
    assert store.calls == []


async def test_among_stores_only_those_worth_the_level_are_used() -> None:
    weak, strong = FakeProducerStore(health=NO_LOG), FakeProducerStore()
    buckets = [bucket("weak"), bucket("weak"), bucket("strong")]
    choice = BucketChoiceFixture({"weak": weak, "strong": strong}, buckets)
    for _ in range(20):
        assert (await choice.group.place(entries(1))).bucket_id == buckets[2].id
    assert weak.calls == []


async def test_a_store_that_loses_its_log_is_noticed() -> None:
    store = FakeProducerStore()
    choice = BucketChoiceFixture({"default": store}, [bucket()])
    assert (await choice.group.place(entries(1))).level is Durability.STORE
    store.health_is = NO_LOG
    choice.clock.now += RECHECK_SECONDS + 1
    for _ in range(3):
        try:
            await choice.group.place(entries(1))
        except DurabilityRefused:
            return
    pytest.fail("the store was trusted for ever")


async def test_one_bad_clock_in_a_batch_refuses_that_job_and_no_other() -> None:
    batch = entries(9)
    bad = batch[4]

    def skewed(store: FakeProducerStore, bucket_id: bytes, items: Sequence[bytes]) -> Answer:
        return Submitted(ReplyStatus.SKEW, 0, 7_200_000) if bad in items else Submitted(ReplyStatus.OK, 1)

    store = FakeProducerStore(skewed)
    choice = BucketChoiceFixture({"default": store}, [bucket()])
    placed = await choice.group.send(batch)
    assert [isinstance(answer, ClockSkew) for answer in placed] == [item is bad for item in batch]
    assert "+7200.000 s" in str(placed[4])
    stored = [item for _, items in store.calls if bad not in items for item in items]
    assert sorted(stored) == sorted(item for item in batch if item is not bad)


async def test_the_emptier_bucket_gets_the_batch_own_jobs_under_way_included() -> None:
    one, two = bucket(), bucket()
    store = FakeProducerStore()
    choice = BucketChoiceFixture({"default": store}, [one, two])
    await choice.map.fresh()
    handle = choice.map.handle(one.id)
    assert handle is not None
    handle.depth = 5
    store.gate.clear()
    tasks = [asyncio.create_task(choice.group.place(entries(10)))]
    await until(lambda: len(store.calls) == 1)
    tasks.append(asyncio.create_task(choice.group.place(entries(1))))
    await until(lambda: len(store.calls) == 2)
    store.gate.set()
    await asyncio.gather(*tasks)
    assert [bucket_id for bucket_id, _ in store.calls] == [two.id, one.id]


# ---------------------------------------------------------------- agents with different handlers


async def test_jobs_go_first_to_buckets_whose_owners_have_their_handler() -> None:
    store = FakeProducerStore()
    able, other, unheard_of = bucket(), bucket(), bucket()
    choice = BucketChoiceFixture({"default": store}, [able, other, unheard_of], handler="h")
    choice.listing.has = {able.owner: frozenset({"h", "x"}), other.owner: frozenset({"x"})}
    went = {(await choice.group.place(entries(1))).bucket_id for _ in range(40)}
    assert went == {able.id, unheard_of.id}
    assert choice.map.mixed


async def test_nothing_depends_on_it() -> None:
    """No bucket has the handler, or the bucket that has it is closed: any bucket will do; its agent gives the jobs back."""
    able, other = bucket(), bucket()
    store = FakeProducerStore(answers({able.id: Submitted(ReplyStatus.CLOSED, 0)}))
    choice = BucketChoiceFixture({"default": store}, [able, other], handler="h")
    choice.listing.has = {able.owner: frozenset({"h"}), other.owner: frozenset({"x"})}
    assert (await choice.group.place(entries(1))).bucket_id == other.id
    choice = BucketChoiceFixture({"default": FakeProducerStore()}, [other], handler="unknown")
    choice.listing.has = {other.owner: frozenset({"x"}), able.owner: frozenset({"h"})}
    assert (await choice.group.place(entries(1))).bucket_id == other.id


async def test_what_an_agent_has_is_read_with_the_buckets() -> None:
    able, other = bucket(), bucket()
    choice = BucketChoiceFixture({"default": FakeProducerStore()}, [able, other], handler="h")
    choice.listing.has = {able.owner: frozenset({"h"}), other.owner: frozenset()}
    assert {(await choice.group.place(entries(1))).bucket_id for _ in range(20)} == {able.id}
    choice.listing.has = {}
    choice.clock.now += 1.0
    await choice.map.renew()
    assert not choice.map.mixed
    assert {(await choice.group.place(entries(1))).bucket_id for _ in range(40)} == {able.id, other.id}


async def test_owners_get_jobs_by_their_shares() -> None:
    small, big = bucket(), bucket()
    store = FakeProducerStore()
    choice = BucketChoiceFixture({"default": store}, [small, big])
    choice.listing.shares = {small.owner: 0.5, big.owner: 1.5}
    for _ in range(400):
        await choice.group.place(entries(1))
    assert not choice.map.mixed
    went = Counter(bucket_id for bucket_id, _ in store.calls)
    assert 240 < went[big.id] < 360, "three quarters, give or take seven standard deviations"
    handle = choice.map.handle(big.id)
    assert handle is not None
    handle.answered(1000, choice.clock.now)
    assert {(await choice.group.place(entries(1))).bucket_id for _ in range(20)} == {small.id}
    choice.clock.now += DEPTH_SECONDS
    assert {(await choice.group.place(entries(1))).bucket_id for _ in range(40)} == {small.id, big.id}, (
        "that is long ago"
    )
