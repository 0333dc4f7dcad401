"""Waking the owner without polling: no wake-up is lost, whatever the order, and a lost token loses no job."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import CodeError, Unavailable
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import ROOM, OneBucketStore, assert_ok, blocked_pops, make_items, new_fence, submit
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

LONG_SECONDS = PATIENCE_SECONDS
"""Longer than any test may take: who gets here has missed a wake-up."""


async def _wake_by_submit(one_bucket: OneBucketStore) -> None:
    await one_bucket.submit(make_items(1))


async def _wake_by_put(one_bucket: OneBucketStore) -> None:
    assert (
        await one_bucket.store.put(one_bucket.bucket_id, 1, [(1, make_items(1)[0])], **ROOM)
    ).status is ReplyStatus.OK


async def _wake_by_assign(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.assign(one_bucket.fence, [(1, make_items(1)[0])]))


async def _wake_by_hint(one_bucket: OneBucketStore) -> None:
    await one_bucket.store.hint(one_bucket.bucket_id)


async def _wake_by_cancel(one_bucket: OneBucketStore) -> None:
    await assert_ok(one_bucket.store.request_cancel(one_bucket.bucket_id, new_id()))


WAKERS: dict[str, Callable[[OneBucketStore], Awaitable[None]]] = {
    "submit": _wake_by_submit,
    "put": _wake_by_put,
    "assign": _wake_by_assign,
    "hint": _wake_by_hint,
    "request_cancel": _wake_by_cancel,
}
every_waker = pytest.mark.parametrize("waker", WAKERS)


async def _has_news(one_bucket: OneBucketStore) -> bool:
    claimed = await one_bucket.store.claim(one_bucket.fence, new_id().hex(), 10)
    return bool(claimed.raw or claimed.hint or claimed.cancelled)


async def _waiting(one_bucket: OneBucketStore) -> bool:
    return await blocked_pops(one_bucket.raw, one_bucket.store.cluster) == 1


@every_waker
@pytest.mark.parametrize("moment", ["before the claim", "between claim and wait", "during the wait"])
async def test_news_reach_an_owner_that_claims_then_waits_then_claims(
    one_bucket: OneBucketStore, waker: str, moment: str
) -> None:
    wake = WAKERS[waker]
    if moment == "before the claim":
        await wake(one_bucket)
        assert await _has_news(one_bucket)
        return
    assert not await _has_news(one_bucket)
    if moment == "between claim and wait":
        await wake(one_bucket)
        woken = await one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS)
    else:
        wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
        await eventually(lambda: _waiting(one_bucket), 10, "the owner stands in its blocking pop")
        await wake(one_bucket)
        woken = await wait
    assert woken == one_bucket.bucket_id
    assert await _has_news(one_bucket)


@every_waker
async def test_there_is_one_token_at_most(one_bucket: OneBucketStore, waker: str) -> None:
    for _ in range(3):
        await WAKERS[waker](one_bucket)
        assert await one_bucket.tokens() == 1


async def test_only_an_earlier_due_time_wakes(one_bucket: OneBucketStore) -> None:
    wake_key = one_bucket.store.keys.bucket(one_bucket.bucket_id).wake
    for due_us, woken in ((3000, 1), (4000, 0), (3000, 0), (2000, 1)):
        await one_bucket.raw.delete(wake_key)
        await assert_ok(
            one_bucket.store.assign(one_bucket.fence, [(due_us + 1, make_items(1)[0]), (due_us, make_items(1)[0])])
        )
        assert await one_bucket.tokens() == woken


async def test_nothing_wakes_at_the_timeout(one_bucket: OneBucketStore) -> None:
    assert await one_bucket.store.wait_wake([one_bucket.bucket_id], 0.02) is None
    assert await one_bucket.store.wait_wake([one_bucket.bucket_id], 0) is None


async def test_a_busy_bucket_does_not_starve_the_others(one_bucket: OneBucketStore) -> None:
    fences = [new_fence() for _ in range(3)]
    for fence in fences:
        await assert_ok(one_bucket.store.open_bucket(fence))
    ids = [fence.bucket_id for fence in fences]
    woken = set()
    for _ in range(6):
        for bucket_id in ids:
            await one_bucket.store.hint(bucket_id)
        woken.add(await one_bucket.store.wait_wake(ids, LONG_SECONDS))
    assert woken == set(ids)


async def test_a_second_waiter_is_a_mistake_of_ours(one_bucket: OneBucketStore) -> None:
    wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(one_bucket), 10, "the owner stands in its blocking pop")
    with pytest.raises(CodeError, match="already waiting"):
        await one_bucket.store.wait_wake([one_bucket.bucket_id], 1)
    wait.cancel()
    await asyncio.wait([wait])
    await eventually(lambda: _nobody_waits(one_bucket), 10, "the server noticed that the waiter is gone")
    with pytest.raises(CodeError, match="at least one"):
        await one_bucket.store.wait_wake([], 1)


async def _nobody_waits(one_bucket: OneBucketStore) -> bool:
    return await blocked_pops(one_bucket.raw, one_bucket.store.cluster) == 0


async def test_a_cancelled_wait_leaves_no_waiter_and_no_foreign_answer(one_bucket: OneBucketStore) -> None:
    other = new_fence()
    await assert_ok(one_bucket.store.open_bucket(other))
    wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(one_bucket), 10, "the owner stands in its blocking pop")
    wait.cancel()
    await asyncio.wait([wait])
    # Both answers at once: a connection that was kept would now give the first one to the second question.
    await one_bucket.store.hint(one_bucket.bucket_id)
    await one_bucket.store.hint(other.bucket_id)
    assert await one_bucket.store.wait_wake([other.bucket_id], LONG_SECONDS) == other.bucket_id


async def test_waits_cancelled_at_any_moment_lose_no_job(one_bucket: OneBucketStore) -> None:
    """The owner's rule, claim once after every cancellation, against a producer that never stops."""
    chance = random.Random(1)
    expected, found = 150, 0

    async def produce() -> None:
        for _ in range(expected):
            await one_bucket.submit(make_items(1))

    producer = asyncio.ensure_future(produce())
    async with asyncio.timeout(LONG_SECONDS):
        for round_ in range(10_000):
            wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            wait.cancel()
            await asyncio.wait([wait])
            found += len((await one_bucket.store.claim(one_bucket.fence, f"r{round_}", 10)).raw)
            if found == expected:
                break
    await producer
    assert found == expected


async def test_a_wait_whose_connection_is_killed_raises_and_the_next_one_works(one_bucket: OneBucketStore) -> None:
    wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(one_bucket), 10, "the owner stands in its blocking pop")
    for client in await one_bucket.raw.client_list():
        if client["name"] == f"jobmaster:{one_bucket.store.cluster}:wake":
            await one_bucket.raw.client_kill_filter(_id=client["id"])
    with pytest.raises(Unavailable):
        await wait
    await one_bucket.store.hint(one_bucket.bucket_id)
    assert await one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS) == one_bucket.bucket_id


async def test_closing_the_store_ends_its_subscriptions(connect: Connect) -> None:
    store = await connect()
    news = store.finished()
    assert await anext(news) == b""
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Unavailable):
        await waiting


@pytest.mark.slow
async def test_a_quiet_subscription_stands_and_a_dead_one_is_noticed(
    connect: Connect, new_valkey: Callable[..., object]
) -> None:
    server = new_valkey()
    store = await connect(url=server.url, call_timeout_seconds=2.0)  # type: ignore[attr-defined]
    fence, job_id = new_fence(), new_id()
    await assert_ok(store.open_bucket(fence))
    news = store.finished()
    assert await anext(news) == b""
    next_id = asyncio.ensure_future(anext(news))
    # Several times the quiet time after which it asks whether the server is there.
    assert await asyncio.wait([next_id], timeout=5.0) == (set(), {next_id})
    await assert_ok(store.settle(fence, [], [job_id]))
    assert await next_id == job_id
    server.kill()  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await anext(news)


async def test_submits_to_a_waiting_owner_are_claimed_within_milliseconds(one_bucket: OneBucketStore) -> None:
    """Not a benchmark: an owner that polled, or missed wake-ups, would need the whole time-out for each."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(50):
        wait = asyncio.ensure_future(one_bucket.store.wait_wake([one_bucket.bucket_id], LONG_SECONDS))
        assert (await submit(one_bucket.store, one_bucket.bucket_id, make_items(1))).status is ReplyStatus.OK
        assert await wait == one_bucket.bucket_id
        assert len((await one_bucket.store.claim(one_bucket.fence, f"n{number}", 10)).raw) == 1
    assert loop.time() - start < LONG_SECONDS / 3
