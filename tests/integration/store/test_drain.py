"""Taking a bucket over and emptying it page by page."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_entry
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import Page, ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import ROOM, OneBucketStore, assert_ok, make_items, new_fence


@pytest.fixture
async def rescuer(one_bucket: OneBucketStore) -> Fence:
    """The fence of an agent that takes the bucket over."""
    return Fence(one_bucket.bucket_id, 2, AgentId(new_id()))


async def test_a_higher_epoch_takes_the_bucket_and_refuses_all_others(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    await one_bucket.submit(make_items(1))
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 1)).status is ReplyStatus.FENCED
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.CLOSED
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(0, make_items(1)[0])], **ROOM)
    ).status is ReplyStatus.FENCED
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 2, [(0, make_items(1)[0])], **ROOM)
    ).status is ReplyStatus.CLOSED


async def test_the_same_fence_again_is_accepted(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_refused_fence_names_the_epoch_that_stands(
    one_bucket: OneBucketStore, rescuer: Fence, epoch: int
) -> None:
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)
    before = await one_bucket.contents()
    late = Fence(one_bucket.bucket_id, epoch, AgentId(new_id()))
    assert await one_bucket.store.fence(late) == (ReplyStatus.FENCED, 2)
    assert await one_bucket.contents() == before
    assert await one_bucket.store.fence(late._replace(epoch=3)) == (ReplyStatus.OK, 3)


async def test_fence_makes_the_bucket_of_a_lost_store(one_bucket: OneBucketStore) -> None:
    lost = OneBucketStore(one_bucket.store, new_fence(epoch=5), one_bucket.raw)
    assert await lost.store.fence(lost.fence) == (ReplyStatus.OK, 5)
    assert await lost.field("state") == b"DRAINING"
    assert (await lost.store.read_page(lost.fence, 10)) == Page(ReplyStatus.OK, "", "", [], [])
    await assert_ok(lost.store.close_if_empty(lost.fence))


async def test_a_rescuer_that_had_seen_the_bucket_before_is_not_bound_by_that(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    """The store came back older; the process that noticed it is also the one that rescues."""
    await one_bucket.submit(make_items(1))
    await one_bucket.store.claim(one_bucket.fence, "a", 1)
    await one_bucket.force(ver=0)
    assert (await one_bucket.store.claim(one_bucket.fence, "b", 1)).status is ReplyStatus.ROLLBACK
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert (await one_bucket.store.read_page(rescuer, 10)).status is ReplyStatus.OK


async def test_pages_come_in_the_order_of_the_protocol_and_each_is_removed_exactly(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    store = one_bucket.store
    items = make_items(9)
    await one_bucket.submit(items[:6])
    await store.claim(one_bucket.fence, "late", 3)
    await store.claim(one_bucket.fence, "early", 1)
    await assert_ok(store.assign(one_bucket.fence, [(9 * 10**15 + i, item) for i, item in enumerate(items[6:])]))
    await assert_ok(store.keep_outcomes(one_bucket.fence, [b"one", b"two", b"three"], []))
    await store.fence(rescuer)
    seen = []
    while (page := await store.read_page(rescuer, 2)).kind:
        assert page.entries == ([] if page.kind == "kept" else [decode_entry(item) for item in page.raw])
        assert await store.read_page(rescuer, 2) == page
        assert await store.close_if_empty(rescuer) is ReplyStatus.NOT_EMPTY
        seen.append((page.kind, page.list_name, page.raw))
        await assert_ok(store.remove_page(rescuer, page))
    assert seen == [
        ("kept", "", [b"one", b"two"]),
        ("kept", "", [b"three"]),
        ("claimed", "early", [items[3]]),
        ("claimed", "late", items[0:2]),
        ("claimed", "late", [items[2]]),
        ("pending", "", items[4:6]),
        ("assigned", "", items[6:8]),
        ("assigned", "", [items[8]]),
    ]
    await assert_ok(store.close_if_empty(rescuer))
    assert await one_bucket.field("bytes") == b"0"
    await assert_ok(store.delete_bucket(one_bucket.bucket_id))


@pytest.mark.parametrize("place", ["kept", "claimed", "pending", "assigned"])
async def test_a_page_removed_twice_takes_nothing_of_the_next(
    one_bucket: OneBucketStore, rescuer: Fence, place: str
) -> None:
    """The reply of a remove was lost: sending it again must not cut off what the master does not know yet."""
    items = make_items(6)
    if place == "kept":
        await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, items, []))
    elif place == "assigned":
        await assert_ok(one_bucket.store.assign(one_bucket.fence, list(enumerate(items))))
    else:
        await one_bucket.submit(items)
    if place == "claimed":
        await one_bucket.store.claim(one_bucket.fence, "a", 6)
    await one_bucket.store.fence(rescuer)
    page = await one_bucket.store.read_page(rescuer, 3)
    assert (page.kind, page.raw) == (place, items[:3])
    for _ in range(3):
        await assert_ok(one_bucket.store.remove_page(rescuer, page))
    assert (await one_bucket.store.read_page(rescuer, 10)).raw == items[3:]


async def test_pages_of_thousands(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    items = make_items(7000)
    await one_bucket.submit(items[:3500])
    await assert_ok(one_bucket.store.assign(one_bucket.fence, list(enumerate(items[3500:]))))
    await one_bucket.store.fence(rescuer)
    for expected in (items[:3500], items[3500:]):
        page = await one_bucket.store.read_page(rescuer, 5000)
        assert page.raw == expected
        await assert_ok(one_bucket.store.remove_page(rescuer, page))
    await assert_ok(one_bucket.store.close_if_empty(rescuer))


async def test_a_name_without_its_list_does_not_hold_the_bucket_for_ever(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    await one_bucket.raw.sadd(one_bucket.store.keys.bucket(one_bucket.bucket_id).lists, "ghost")
    await one_bucket.store.fence(rescuer)
    page = await one_bucket.store.read_page(rescuer, 10)
    assert page == Page(ReplyStatus.OK, "claimed", "ghost", [], [])
    await assert_ok(one_bucket.store.remove_page(rescuer, page))
    await assert_ok(one_bucket.store.close_if_empty(rescuer))


async def test_of_two_rescuers_one_moves_the_bucket(one_bucket: OneBucketStore, connect: Connect) -> None:
    await one_bucket.submit(make_items(10))
    fences = [Fence(one_bucket.bucket_id, 2, AgentId(new_id())) for _ in range(2)]
    stores = [one_bucket.store, await connect()]
    answers = await asyncio.gather(*[store.fence(fence) for store, fence in zip(stores, fences, strict=True)])
    assert sorted(status for status, _ in answers) == [ReplyStatus.FENCED, ReplyStatus.OK]
    for store, fence, (status, _) in zip(stores, fences, answers, strict=True):
        page = await store.read_page(fence, 10)
        assert page.status is status
