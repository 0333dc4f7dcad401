"""What a bucket does for an owner whose master is away: it vouches, keeps outcomes, and gives them back page by page."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.model.ids import AgentId, Fence
from jobmaster.ports import ReplyStatus
from tests.integration.store.fixture import Bench, assert_ok, make_items
from tests.support.waiting import eventually

TERM = 0.4


@pytest.fixture
async def rescuer(bench: Bench) -> Fence:
    """The fence of an agent that takes the bucket over."""
    return Fence(bench.bucket_id, 2, AgentId(new_id()))


# ---------------------------------------------------------------- vouching


async def test_a_rescuer_is_told_to_wait_until_the_term_is_over(bench: Bench, rescuer: Fence) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await assert_ok(bench.store.grant_term(bench.fence, TERM))
    status, wait_us = await bench.store.fence(rescuer)
    assert status is ReplyStatus.LEASED
    assert 0 < wait_us <= TERM * 1e6

    async def over() -> bool:
        return (await bench.store.fence(rescuer))[0] is ReplyStatus.OK

    await eventually(over, 10, "the end of the term")
    assert loop.time() - began >= TERM
    assert await bench.field("lease_until") is None
    assert await bench.field("lease_us") is None


async def test_the_owner_is_fenced_at_once_although_the_rescuer_waits(bench: Bench, rescuer: Fence) -> None:
    await bench.submit(make_items(1))
    await assert_ok(bench.store.grant_term(bench.fence, 60.0))
    assert (await bench.store.fence(rescuer))[0] is ReplyStatus.LEASED
    assert await bench.store.grant_term(bench.fence, 60.0) is ReplyStatus.FENCED
    assert (await bench.store.claim(bench.fence, "a", 1)).status is ReplyStatus.FENCED
    assert await bench.store.keep_outcomes(bench.fence, [b"x"], []) is ReplyStatus.FENCED
    assert (await bench.submit(make_items(1))).status is ReplyStatus.CLOSED


async def test_the_next_rescuer_waits_too(bench: Bench, rescuer: Fence) -> None:
    await assert_ok(bench.store.grant_term(bench.fence, 60.0))
    assert (await bench.store.fence(rescuer))[0] is ReplyStatus.LEASED
    heir = Fence(bench.bucket_id, 3, AgentId(new_id()))
    assert (await bench.store.fence(heir))[0] is ReplyStatus.LEASED
    assert await bench.store.fence(rescuer) == (ReplyStatus.FENCED, 3)


async def test_what_was_taken_back_holds_up_nobody(bench: Bench, rescuer: Fence) -> None:
    await assert_ok(bench.store.grant_term(bench.fence, 60.0))
    await assert_ok(bench.store.grant_term(bench.fence, 0.0))
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)


async def test_a_clock_that_was_set_back_costs_one_term_and_no_more(bench: Bench, rescuer: Fence) -> None:
    await assert_ok(bench.store.grant_term(bench.fence, TERM))
    hour_later = int(await bench.field("lease_until") or 0) + 3600 * 10**6
    await bench.force(lease_until=hour_later)
    status, wait_us = await bench.store.fence(rescuer)
    assert status is ReplyStatus.LEASED
    assert wait_us <= TERM * 1e6

    async def over() -> bool:
        return (await bench.store.fence(rescuer))[0] is ReplyStatus.OK

    await eventually(over, 10, "the end of the term")


async def test_vouching_changes_no_counter(bench: Bench) -> None:
    before = await bench.field("ver")
    await assert_ok(bench.store.grant_term(bench.fence, TERM))
    assert await bench.field("ver") == before


# ---------------------------------------------------------------- kept outcomes of a bucket at work


async def test_pages_are_read_from_the_oldest_and_removed_exactly(bench: Bench) -> None:
    kept = [b"%d" % number for number in range(7)]
    await assert_ok(bench.store.keep_outcomes(bench.fence, kept[:5], []))
    page = await bench.store.read_kept(bench.fence, 3)
    assert (page.status, page.left, page.raw) == (ReplyStatus.OK, 5, kept[:3])
    await assert_ok(bench.store.keep_outcomes(bench.fence, kept[5:], []))  # it goes on working
    await bench.submit(make_items(1))
    for _ in range(3):  # the answer was lost: asked again it takes nothing of the next page
        await assert_ok(bench.store.remove_kept(bench.fence, page.raw, []))
    assert await bench.store.read_kept(bench.fence, 10) == (ReplyStatus.OK, 4, kept[3:])


async def test_what_goes_back_lies_at_the_end_once(bench: Bench) -> None:
    await assert_ok(bench.store.keep_outcomes(bench.fence, [b"a", b"bad", b"c", b"d"], []))
    page = await bench.store.read_kept(bench.fence, 3)
    for _ in range(2):
        await assert_ok(bench.store.remove_kept(bench.fence, page.raw, [b"bad"]))
    assert (await bench.store.read_kept(bench.fence, 10)).raw == [b"d", b"bad"]


async def test_thousands_go_back_in_one_call(bench: Bench) -> None:
    many = [b"%d" % number for number in range(9000)]
    await assert_ok(bench.store.keep_outcomes(bench.fence, many, []))
    page = await bench.store.read_kept(bench.fence, 9000)
    await assert_ok(bench.store.remove_kept(bench.fence, page.raw, page.raw[1:]))
    assert (await bench.store.read_kept(bench.fence, 9000)).raw == many[1:]


async def test_a_rescuer_finds_what_its_former_owner_had_not_applied(bench: Bench, rescuer: Fence) -> None:
    await assert_ok(bench.store.keep_outcomes(bench.fence, [b"a", b"b"], []))
    page = await bench.store.read_kept(bench.fence, 1)
    assert await bench.store.fence(rescuer) == (ReplyStatus.OK, 2)
    assert await bench.store.remove_kept(bench.fence, page.raw, []) is ReplyStatus.FENCED
    assert (await bench.store.read_page(rescuer, 10)).raw == [b"a", b"b"]
