"""Taking a bucket over and emptying it page by page."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_entry
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import Page, ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import ROOM, Bench, assert_ok, make_items, new_fence


@pytest.fixture
async def rescuer(bench: Bench) -> Fence:
    """The fence of an agent that takes the bucket over."""
    return Fence(bench.bucket_id, 2, AgentId(new_id()))


async def test_a_higher_epoch_takes_the_bucket_and_shuts_everybody_out(bench: Bench, rescuer: Fence) -> None:
    await bench.submit(make_items(1))
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert (await bench.store.claim(bench.fence, "a", 1)).status is ReplyStatus.FENCED
    assert (await bench.submit(make_items(1))).status is ReplyStatus.CLOSED
    assert (await bench.store.put(bench.bucket_id, 1, [(0, make_items(1)[0])], **ROOM)).status is ReplyStatus.FENCED
    assert (await bench.store.put(bench.bucket_id, 2, [(0, make_items(1)[0])], **ROOM)).status is ReplyStatus.CLOSED


async def test_the_same_fence_again_is_accepted(bench: Bench, rescuer: Fence) -> None:
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_refused_fence_names_the_epoch_that_stands(bench: Bench, rescuer: Fence, epoch: int) -> None:
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)
    before = await bench.contents()
    late = Fence(bench.bucket_id, epoch, AgentId(new_id()))
    assert await bench.store.fence(late) == (ReplyStatus.FENCED, 2)
    assert await bench.contents() == before
    assert await bench.store.fence(late._replace(epoch=3)) == (ReplyStatus.OK, 3)


async def test_fence_makes_the_bucket_of_a_lost_store(bench: Bench) -> None:
    lost = Bench(bench.store, new_fence(epoch=5), bench.raw)
    assert await lost.store.fence(lost.fence) == (ReplyStatus.OK, 5)
    assert await lost.field("state") == b"DRAINING"
    assert (await lost.store.read_page(lost.fence, 10)) == Page(ReplyStatus.OK, "", "", [], [])
    await assert_ok(lost.store.close_if_empty(lost.fence))


async def test_a_rescuer_that_had_seen_the_bucket_before_is_not_bound_by_that(bench: Bench, rescuer: Fence) -> None:
    """The store came back older; the process that noticed it is also the one that rescues."""
    await bench.submit(make_items(1))
    await bench.store.claim(bench.fence, "a", 1)
    await bench.force(ver=0)
    assert (await bench.store.claim(bench.fence, "b", 1)).status is ReplyStatus.ROLLBACK
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert (await bench.store.read_page(rescuer, 10)).status is ReplyStatus.OK


async def test_pages_come_in_the_order_of_the_protocol_and_each_is_removed_exactly(
    bench: Bench, rescuer: Fence
) -> None:
    store = bench.store
    items = make_items(9)
    await bench.submit(items[:6])
    await store.claim(bench.fence, "late", 3)
    await store.claim(bench.fence, "early", 1)
    await assert_ok(store.assign(bench.fence, [(9 * 10**15 + i, item) for i, item in enumerate(items[6:])]))
    await assert_ok(store.keep_outcomes(bench.fence, [b"one", b"two", b"three"], []))
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
    assert await bench.field("bytes") == b"0"
    await assert_ok(store.delete_bucket(bench.bucket_id))


@pytest.mark.parametrize("place", ["kept", "claimed", "pending", "assigned"])
async def test_a_page_removed_twice_takes_nothing_of_the_next(bench: Bench, rescuer: Fence, place: str) -> None:
    """The reply of a remove was lost: sending it again must not cut off what the master does not know yet."""
    items = make_items(6)
    if place == "kept":
        await assert_ok(bench.store.keep_outcomes(bench.fence, items, []))
    elif place == "assigned":
        await assert_ok(bench.store.assign(bench.fence, list(enumerate(items))))
    else:
        await bench.submit(items)
    if place == "claimed":
        await bench.store.claim(bench.fence, "a", 6)
    await bench.store.fence(rescuer)
    page = await bench.store.read_page(rescuer, 3)
    assert (page.kind, page.raw) == (place, items[:3])
    for _ in range(3):
        await assert_ok(bench.store.remove_page(rescuer, page))
    assert (await bench.store.read_page(rescuer, 10)).raw == items[3:]


async def test_pages_of_thousands(bench: Bench, rescuer: Fence) -> None:
    items = make_items(7000)
    await bench.submit(items[:3500])
    await assert_ok(bench.store.assign(bench.fence, list(enumerate(items[3500:]))))
    await bench.store.fence(rescuer)
    for expected in (items[:3500], items[3500:]):
        page = await bench.store.read_page(rescuer, 5000)
        assert page.raw == expected
        await assert_ok(bench.store.remove_page(rescuer, page))
    await assert_ok(bench.store.close_if_empty(rescuer))


async def test_a_name_without_its_list_does_not_hold_the_bucket_for_ever(bench: Bench, rescuer: Fence) -> None:
    await bench.raw.sadd(bench.store.keys.bucket(bench.bucket_id).lists, "ghost")
    await bench.store.fence(rescuer)
    page = await bench.store.read_page(rescuer, 10)
    assert page == Page(ReplyStatus.OK, "claimed", "ghost", [], [])
    await assert_ok(bench.store.remove_page(rescuer, page))
    await assert_ok(bench.store.close_if_empty(rescuer))


async def test_of_two_rescuers_one_moves_the_bucket(bench: Bench, connect: Connect) -> None:
    await bench.submit(make_items(10))
    fences = [Fence(bench.bucket_id, 2, AgentId(new_id())) for _ in range(2)]
    stores = [bench.store, await connect()]
    answers = await asyncio.gather(*[store.fence(fence) for store, fence in zip(stores, fences, strict=True)])
    assert sorted(status for status, _ in answers) == [ReplyStatus.FENCED, ReplyStatus.OK]
    for store, fence, (status, _) in zip(stores, fences, answers, strict=True):
        page = await store.read_page(fence, 10)
        assert page.status is status
