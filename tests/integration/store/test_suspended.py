"""A bucket of an owner whose master is away: it grants terms, keeps outcomes, and returns them page by page."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import ReplyStatus
from tests.integration.store.fixture import OneBucketStore, assert_ok, make_items
from tests.support.waiting import eventually

TERM = 3.0


@pytest.fixture
async def rescuer(one_bucket: OneBucketStore) -> Fence:
    """The fence of an agent that takes the bucket over."""
    return Fence(one_bucket.bucket_id, 2, AgentId(new_id()))


# ---------------------------------------------------------------- terms


@pytest.mark.slow
async def test_a_rescuer_gets_a_wait_until_the_term_is_over(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, TERM))
    status, wait_us = await one_bucket.store.fence(rescuer)
    assert status is ReplyStatus.LEASED
    assert 0 < wait_us <= TERM * 1e6

    async def over() -> bool:
        return (await one_bucket.store.fence(rescuer))[0] is ReplyStatus.OK

    await eventually(over, 60, "the end of the term")
    assert loop.time() - began >= TERM
    assert await one_bucket.field("lease_until") is None
    assert await one_bucket.field("lease_us") is None


async def test_the_owner_is_fenced_at_once_although_the_rescuer_waits(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    await one_bucket.submit(make_items(1))
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, 60.0))
    assert (await one_bucket.store.fence(rescuer))[0] is ReplyStatus.LEASED
    assert await one_bucket.store.grant_term(one_bucket.fence, 60.0) is ReplyStatus.FENCED
    assert (await one_bucket.store.claim(one_bucket.fence, "a", 1)).status is ReplyStatus.FENCED
    assert await one_bucket.store.keep_outcomes(one_bucket.fence, [b"x"], []) is ReplyStatus.FENCED
    assert (await one_bucket.submit(make_items(1))).status is ReplyStatus.CLOSED


async def test_the_next_rescuer_waits_too(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, 60.0))
    assert (await one_bucket.store.fence(rescuer))[0] is ReplyStatus.LEASED
    heir = Fence(one_bucket.bucket_id, 3, AgentId(new_id()))
    assert (await one_bucket.store.fence(heir))[0] is ReplyStatus.LEASED
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.FENCED, 3)


async def test_a_term_that_was_taken_back_delays_no_rescuer(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, 60.0))
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, 0.0))
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)


@pytest.mark.slow
async def test_a_clock_that_was_set_back_costs_one_term_and_no_more(one_bucket: OneBucketStore, rescuer: Fence) -> None:
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, TERM))
    hour_later = int(await one_bucket.field("lease_until") or 0) + 3600 * 10**6
    await one_bucket.force(lease_until=hour_later)
    status, wait_us = await one_bucket.store.fence(rescuer)
    assert status is ReplyStatus.LEASED
    assert wait_us <= TERM * 1e6

    async def over() -> bool:
        return (await one_bucket.store.fence(rescuer))[0] is ReplyStatus.OK

    await eventually(over, 60, "the end of the term")


async def test_granting_a_term_changes_no_counter(one_bucket: OneBucketStore) -> None:
    before = await one_bucket.field("ver")
    await assert_ok(one_bucket.store.grant_term(one_bucket.fence, TERM))
    assert await one_bucket.field("ver") == before


# ---------------------------------------------------------------- kept outcomes of a bucket at work


async def test_pages_are_read_from_the_oldest_and_removed_exactly(one_bucket: OneBucketStore) -> None:
    kept = [b"%d" % number for number in range(7)]
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, kept[:5], []))
    page = await one_bucket.store.read_kept(one_bucket.fence, 3)
    assert (page.status, page.left, page.raw) == (ReplyStatus.OK, 5, kept[:3])
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, kept[5:], []))  # it goes on working
    await one_bucket.submit(make_items(1))
    for _ in range(3):  # the answer was lost: asked again it takes nothing of the next page
        await assert_ok(one_bucket.store.remove_kept(one_bucket.fence, page.raw, []))
    assert await one_bucket.store.read_kept(one_bucket.fence, 10) == (ReplyStatus.OK, 4, kept[3:])


async def test_what_goes_back_lies_at_the_end_once(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, [b"a", b"bad", b"c", b"d"], []))
    page = await one_bucket.store.read_kept(one_bucket.fence, 3)
    for _ in range(2):
        await assert_ok(one_bucket.store.remove_kept(one_bucket.fence, page.raw, [b"bad"]))
    assert (await one_bucket.store.read_kept(one_bucket.fence, 10)).raw == [b"d", b"bad"]


async def test_thousands_go_back_in_one_call(one_bucket: OneBucketStore) -> None:
    many = [b"%d" % number for number in range(9000)]
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, many, []))
    page = await one_bucket.store.read_kept(one_bucket.fence, 9000)
    await assert_ok(one_bucket.store.remove_kept(one_bucket.fence, page.raw, page.raw[1:]))
    assert (await one_bucket.store.read_kept(one_bucket.fence, 9000)).raw == many[1:]


async def test_a_rescuer_finds_what_its_former_owner_had_not_applied(
    one_bucket: OneBucketStore, rescuer: Fence
) -> None:
    await assert_ok(one_bucket.store.keep_outcomes(one_bucket.fence, [b"a", b"b"], []))
    page = await one_bucket.store.read_kept(one_bucket.fence, 1)
    assert await one_bucket.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert await one_bucket.store.remove_kept(one_bucket.fence, page.raw, []) is ReplyStatus.FENCED
    assert (await one_bucket.store.read_page(rescuer, 10)).raw == [b"a", b"b"]
