"""An operator's stop in the store, and the owner's return under a new epoch."""

from __future__ import annotations

from jobmaster.codec import encode_entry
from jobmaster.model.ids import Fence
from jobmaster.ports import ReplyStatus
from tests.integration.store.fixture import ROOM, OneBucketStore, assert_ok, make_entry, make_items, new_fence

LIST = "unfrozen-1"


def stepped(fence: Fence) -> Fence:
    return fence._replace(epoch=fence.epoch + 1)


async def freeze(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.freeze(*one_bucket.fence))


async def test_a_frozen_bucket_takes_nothing_and_gives_nothing(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    await one_bucket.submit(make_items(3))
    await freeze(one_bucket)
    await freeze(one_bucket)
    before = await one_bucket.contents()
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.CLOSED
    assert (await store.claim(fence, "a", 10)).status is ReplyStatus.CLOSED
    assert await store.assign(fence, [(0, encode_entry(make_entry(token=2)))]) is ReplyStatus.CLOSED
    assert (
        await store.put(fence.bucket_id, fence.epoch, [(0, encode_entry(make_entry(token=2)))], **ROOM)
    ).status is ReplyStatus.CLOSED
    assert await store.close_intake(fence) is ReplyStatus.CLOSED
    assert await one_bucket.contents() == before


async def test_what_was_claimed_before_the_stop_is_settled_and_kept_under_it(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    await one_bucket.submit(make_items(2))
    await store.claim(fence, "a", 1)
    await store.claim(fence, "b", 1)
    await freeze(one_bucket)
    await assert_ok(store.settle(fence, ["a"], []))
    await assert_ok(store.keep_outcomes(fence, [b"outcome"], ["b"]))
    assert await store.claimed_lists(fence) == (ReplyStatus.OK, [])


async def test_only_the_epoch_and_owner_of_the_master_s_row_are_stopped(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    assert await store.freeze(*stepped(fence)) is ReplyStatus.FENCED
    assert await store.freeze(fence.bucket_id, fence.epoch, new_fence().owner) is ReplyStatus.FENCED
    assert await store.freeze(*new_fence()) is ReplyStatus.NO_BUCKET
    assert await one_bucket.field("state") == b"ACTIVE"
    await assert_ok(store.close_intake(fence))
    assert await store.freeze(*fence) is ReplyStatus.CLOSED


async def test_the_operator_is_no_owner_and_leaves_the_change_counter(one_bucket: OneBucketStore) -> None:
    before = await one_bucket.field("ver")
    await freeze(one_bucket)
    assert await one_bucket.field("ver") == before


async def test_unfrozen_it_works_under_the_new_epoch_alone(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    await one_bucket.submit(make_items(2))
    await freeze(one_bucket)
    await assert_ok(store.unfreeze(stepped(fence), LIST))
    assert await one_bucket.tokens() == 1
    assert (await store.claim(fence, "late", 10)).status is ReplyStatus.FENCED
    assert len((await store.claim(stepped(fence), "a", 10)).entries) == 2
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.OK


async def test_what_had_been_onboarded_waits_in_a_list_named_after_its_epoch(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    onboarded = [make_entry(token=2) for _ in range(3)]
    await store.assign(fence, [(0, encode_entry(entry)) for entry in onboarded])
    await freeze(one_bucket)
    await assert_ok(store.unfreeze(stepped(fence), LIST))
    assert (await store.claim(stepped(fence), "a", 10)).entries == []
    assert await store.claimed_lists(stepped(fence)) == (ReplyStatus.OK, [LIST])
    found = await store.read_claimed(stepped(fence), LIST)
    assert {entry.id for entry in found.entries} == {entry.id for entry in onboarded}


async def test_asked_again_it_changes_nothing_more(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, stepped(one_bucket.fence)
    await freeze(one_bucket)
    await assert_ok(store.unfreeze(fence, LIST))
    await store.assign(fence, [(0, encode_entry(make_entry(token=3)))])
    before = await one_bucket.contents()
    await assert_ok(store.unfreeze(fence, LIST))
    assert await one_bucket.contents() == before


async def test_a_stop_that_never_reached_the_store_is_over_too(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.unfreeze(stepped(one_bucket.fence), LIST))
    assert await one_bucket.field("epoch") == b"2"


async def test_a_stop_that_the_master_has_forgotten_is_over_under_the_same_epoch(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    entry = make_entry(token=2)
    await store.assign(fence, [(0, encode_entry(entry))])
    await freeze(one_bucket)
    await assert_ok(store.unfreeze(fence, LIST))
    assert await one_bucket.tokens() == 1
    assert [found.id for found in (await store.claim(fence, "a", 10)).entries] == [entry.id], "its row is of this epoch"
    assert await store.claimed_lists(fence) == (ReplyStatus.OK, ["a"])


async def test_a_bucket_that_a_rescuer_has_is_not_unfrozen(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    await freeze(one_bucket)
    rescuer = fence._replace(epoch=5, owner=new_fence().owner)
    assert (await store.fence(rescuer))[0] is ReplyStatus.OK
    before = await one_bucket.contents()
    assert await store.unfreeze(stepped(fence), LIST) is ReplyStatus.FENCED
    assert await store.unfreeze(fence._replace(epoch=9), LIST) is ReplyStatus.FENCED
    assert await one_bucket.contents() == before


async def test_a_bucket_that_is_being_emptied_is_not_unfrozen(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.close_intake(one_bucket.fence))
    assert await one_bucket.store.unfreeze(stepped(one_bucket.fence), LIST) is ReplyStatus.CLOSED


async def test_a_store_that_came_back_empty_or_older_is_not_unfrozen(one_bucket: OneBucketStore) -> None:
    store, fence = one_bucket.store, one_bucket.fence
    await freeze(one_bucket)
    await one_bucket.force(ver=0)
    assert await store.unfreeze(stepped(fence), LIST) is ReplyStatus.ROLLBACK
    await one_bucket.raw.delete(one_bucket.meta)
    assert await store.unfreeze(stepped(fence), LIST) is ReplyStatus.GENERATION
