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
from tests.integration.store.fixture import ROOM, Bench, assert_ok, blocked_pops, make_items, new_fence, submit
from tests.support.waiting import eventually

LONG_SECONDS = 30.0
"""Longer than any test may take: who gets here has missed a wake-up."""


async def _wake_by_submit(bench: Bench) -> None:
    await bench.submit(make_items(1))


async def _wake_by_put(bench: Bench) -> None:
    assert (await bench.store.put(bench.bucket_id, 1, [(1, make_items(1)[0])], **ROOM)).status is ReplyStatus.OK


async def _wake_by_assign(bench: Bench) -> None:
    await assert_ok(bench.store.assign(bench.fence, [(1, make_items(1)[0])]))


async def _wake_by_hint(bench: Bench) -> None:
    await bench.store.hint(bench.bucket_id)


async def _wake_by_cancel(bench: Bench) -> None:
    await assert_ok(bench.store.request_cancel(bench.bucket_id, new_id()))


WAKERS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "submit": _wake_by_submit,
    "put": _wake_by_put,
    "assign": _wake_by_assign,
    "hint": _wake_by_hint,
    "request_cancel": _wake_by_cancel,
}
every_waker = pytest.mark.parametrize("waker", WAKERS)


async def _has_news(bench: Bench) -> bool:
    claimed = await bench.store.claim(bench.fence, new_id().hex(), 10)
    return bool(claimed.raw or claimed.hint or claimed.cancelled)


async def _waiting(bench: Bench) -> bool:
    return await blocked_pops(bench.raw, bench.store.cluster) == 1


@every_waker
@pytest.mark.parametrize("moment", ["before the claim", "between claim and wait", "during the wait"])
async def test_news_reach_an_owner_that_claims_then_waits_then_claims(bench: Bench, waker: str, moment: str) -> None:
    wake = WAKERS[waker]
    if moment == "before the claim":
        await wake(bench)
        assert await _has_news(bench)
        return
    assert not await _has_news(bench)
    if moment == "between claim and wait":
        await wake(bench)
        woken = await bench.store.wait_wake([bench.bucket_id], LONG_SECONDS)
    else:
        wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
        await eventually(lambda: _waiting(bench), 10, "the owner stands in its blocking pop")
        await wake(bench)
        woken = await wait
    assert woken == bench.bucket_id
    assert await _has_news(bench)


@every_waker
async def test_there_is_one_token_at_most(bench: Bench, waker: str) -> None:
    for _ in range(3):
        await WAKERS[waker](bench)
        assert await bench.tokens() == 1


async def test_only_an_earlier_due_time_wakes(bench: Bench) -> None:
    wake_key = bench.store.keys.bucket(bench.bucket_id).wake
    for due_us, woken in ((3000, 1), (4000, 0), (3000, 0), (2000, 1)):
        await bench.raw.delete(wake_key)
        await assert_ok(bench.store.assign(bench.fence, [(due_us + 1, make_items(1)[0]), (due_us, make_items(1)[0])]))
        assert await bench.tokens() == woken


async def test_nothing_wakes_at_the_timeout(bench: Bench) -> None:
    assert await bench.store.wait_wake([bench.bucket_id], 0.02) is None
    assert await bench.store.wait_wake([bench.bucket_id], 0) is None


async def test_a_busy_bucket_does_not_starve_the_others(bench: Bench) -> None:
    fences = [new_fence() for _ in range(3)]
    for fence in fences:
        await assert_ok(bench.store.open_bucket(fence))
    ids = [fence.bucket_id for fence in fences]
    woken = set()
    for _ in range(6):
        for bucket_id in ids:
            await bench.store.hint(bucket_id)
        woken.add(await bench.store.wait_wake(ids, LONG_SECONDS))
    assert woken == set(ids)


async def test_a_second_waiter_is_a_mistake_of_ours(bench: Bench) -> None:
    wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(bench), 10, "the owner stands in its blocking pop")
    with pytest.raises(CodeError, match="already waiting"):
        await bench.store.wait_wake([bench.bucket_id], 1)
    wait.cancel()
    await asyncio.wait([wait])
    await eventually(lambda: _nobody_waits(bench), 10, "the server noticed that the waiter is gone")
    with pytest.raises(CodeError, match="at least one"):
        await bench.store.wait_wake([], 1)


async def _nobody_waits(bench: Bench) -> bool:
    return await blocked_pops(bench.raw, bench.store.cluster) == 0


async def test_a_cancelled_wait_leaves_no_waiter_and_no_foreign_answer(bench: Bench) -> None:
    other = new_fence()
    await assert_ok(bench.store.open_bucket(other))
    wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(bench), 10, "the owner stands in its blocking pop")
    wait.cancel()
    await asyncio.wait([wait])
    # Both answers at once: a connection that was kept would now give the first one to the second question.
    await bench.store.hint(bench.bucket_id)
    await bench.store.hint(other.bucket_id)
    assert await bench.store.wait_wake([other.bucket_id], LONG_SECONDS) == other.bucket_id


async def test_waits_cancelled_at_any_moment_lose_no_job(bench: Bench) -> None:
    """The owner's rule, claim once after every cancellation, against a producer that never stops."""
    chance = random.Random(1)
    expected, found = 150, 0

    async def produce() -> None:
        for _ in range(expected):
            await bench.submit(make_items(1))

    producer = asyncio.ensure_future(produce())
    async with asyncio.timeout(LONG_SECONDS):
        for round_ in range(10_000):
            wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            wait.cancel()
            await asyncio.wait([wait])
            found += len((await bench.store.claim(bench.fence, f"r{round_}", 10)).raw)
            if found == expected:
                break
    await producer
    assert found == expected


async def test_a_wait_whose_connection_is_killed_says_so_and_the_next_one_works(bench: Bench) -> None:
    wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
    await eventually(lambda: _waiting(bench), 10, "the owner stands in its blocking pop")
    for client in await bench.raw.client_list():
        if client["name"] == f"jobmaster:{bench.store.cluster}:wake":
            await bench.raw.client_kill_filter(_id=client["id"])
    with pytest.raises(Unavailable):
        await wait
    await bench.store.hint(bench.bucket_id)
    assert await bench.store.wait_wake([bench.bucket_id], LONG_SECONDS) == bench.bucket_id


async def test_closing_the_store_ends_its_subscriptions(connect: Connect) -> None:
    store = await connect()
    news = store.finished()
    assert await anext(news) == b""
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_a_quiet_subscription_stands_and_a_dead_one_is_noticed(
    connect: Connect, new_valkey: Callable[..., object]
) -> None:
    server = new_valkey()
    store = await connect(url=server.url, call_timeout_seconds=0.5)  # type: ignore[attr-defined]
    fence, job_id = new_fence(), new_id()
    await assert_ok(store.open_bucket(fence))
    news = store.finished()
    assert await anext(news) == b""
    next_id = asyncio.ensure_future(anext(news))
    # Several times the quiet time after which it asks whether the server is there.
    assert await asyncio.wait([next_id], timeout=1.5) == (set(), {next_id})
    await assert_ok(store.settle(fence, [], [job_id]))
    assert await next_id == job_id
    server.kill()  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await anext(news)


async def test_submits_to_a_waiting_owner_are_claimed_within_milliseconds(bench: Bench) -> None:
    """Not a benchmark: an owner that polled, or missed wake-ups, would need the whole time-out for each."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(50):
        wait = asyncio.ensure_future(bench.store.wait_wake([bench.bucket_id], LONG_SECONDS))
        assert (await submit(bench.store, bench.bucket_id, make_items(1))).status is ReplyStatus.OK
        assert await wait == bench.bucket_id
        assert len((await bench.store.claim(bench.fence, f"n{number}", 10)).raw) == 1
    assert loop.time() - start < LONG_SECONDS / 3
