"""One connection for many calls: every caller gets its own answer or an honest error, whatever is cancelled or breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Protocol

import pytest
import redis.asyncio

from jobmaster.agentstore.calls import pack
from jobmaster.agentstore.pipelined_connection import WRITTEN_AT_ONCE, PipelinedConnection
from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT
from jobmaster.model.errors import OutcomeUnknown, StoreRefused, Unavailable
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import OneBucketStore, assert_ok, make_items, new_fence, submit
from tests.support.patience import PATIENCE_SECONDS
from tests.support.proxy.tcp_proxy import SILENT, SLOW, slow_store_proxy
from tests.support.waiting import eventually


class Server(Protocol):
    """What these tests do with a store of their own."""

    url: str

    def kill(self) -> None: ...

    def start(self) -> object: ...


NewServer = Callable[..., Server]


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_cancelled_calls_never_yields_a_foreign_answer(
    one_bucket: OneBucketStore, connect: Connect, store_url: str, seed: int
) -> None:
    """Bucket i holds i jobs; a call for bucket i must return i, while half of all calls are cancelled at any moment."""
    fences = [new_fence() for _ in range(25)]
    for count, fence in enumerate(fences):
        await assert_ok(one_bucket.store.open_bucket(fence))
        await submit(one_bucket.store, fence.bucket_id, make_items(count))
    chance = random.Random(seed)
    async with slow_store_proxy(store_url, seed=seed) as proxy:
        store = await connect(url=proxy.store_url, initialise=False)

        async def ask(number: int) -> int:
            (depth,) = await store.depths([fences[number].bucket_id])
            assert depth is not None
            assert depth.pending == number
            return number

        calls = [asyncio.ensure_future(ask(number % len(fences))) for number in range(600)]
        for call in calls:
            if chance.random() < 0.5:
                call.cancel()
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        late = [call for call in calls if chance.random() < 0.2]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in late:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {int, asyncio.CancelledError}
        # The cancelled calls did not affect others: no call failed and no connection was replaced.
        assert proxy.counts["connections"] == 1
        await store.close()


async def test_cancelled_calls_to_a_paused_server_do_not_shift_the_answers(
    connect: Connect, new_valkey: NewServer
) -> None:
    server = new_valkey()
    store = await connect(url=server.url)
    fences = [new_fence() for _ in range(5)]
    for count, fence in enumerate(fences):
        await assert_ok(store.open_bucket(fence))
        await submit(store, fence.bucket_id, make_items(count))
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.client_pause(300)
        calls = [asyncio.ensure_future(store.depths([fences[number % 5].bucket_id])) for number in range(300)]
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
    for number, answer in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
        if number % 3 == 0:
            assert isinstance(answer, asyncio.CancelledError)
        else:
            assert not isinstance(answer, BaseException)
            assert answer[0] is not None
            assert answer[0].pending == number % 5


async def test_a_lost_connection_fails_what_was_under_way_and_nothing_after(
    one_bucket: OneBucketStore, connect: Connect, store_url: str
) -> None:
    async with slow_store_proxy(store_url) as proxy:
        store = await connect(url=proxy.store_url)
        proxy.set(SILENT)
        items = make_items(3)
        write = asyncio.ensure_future(submit(store, one_bucket.bucket_id, items))
        await eventually(lambda: _depth_is(one_bucket, 3), 10, "the store has the jobs")
        look = asyncio.ensure_future(store.depths([one_bucket.bucket_id]))
        await asyncio.sleep(0)
        proxy.reset()
        with pytest.raises(OutcomeUnknown) as caught:
            await write
        assert caught.value.id_bytes == tuple(item[ID_AT] for item in items)
        with pytest.raises(Unavailable) as only_read:
            await look
        assert not isinstance(only_read.value, OutcomeUnknown)
        proxy.set(SLOW)
        (depth,) = await store.depths([one_bucket.bucket_id])
        assert depth is not None
        assert depth.pending == 3
        await store.close()


async def _depth_is(one_bucket: OneBucketStore, pending: int) -> bool:
    (depth,) = await one_bucket.store.depths([one_bucket.bucket_id])
    return depth is not None and depth.pending == pending


async def test_a_claim_whose_answer_was_lost_is_asked_again(
    one_bucket: OneBucketStore, connect: Connect, store_url: str
) -> None:
    items = make_items(4)
    await one_bucket.submit(items)
    async with slow_store_proxy(store_url) as proxy:
        store = await connect(url=proxy.store_url)
        proxy.set(SILENT)
        claim = asyncio.ensure_future(store.claim(one_bucket.fence, "a", 3))
        await eventually(lambda: _depth_is(one_bucket, 1), 10, "the store has moved the jobs")
        proxy.reset()
        with pytest.raises(OutcomeUnknown):
            await claim
        proxy.set(SLOW)
        assert (await store.claim(one_bucket.fence, "a", 3)).raw == items[:3]
        assert await _depth_is(one_bucket, 1)
        await store.close()


@pytest.mark.slow
async def test_no_answer_in_time_is_an_unknown_outcome_and_the_line_recovers(
    one_bucket: OneBucketStore, connect: Connect, store_url: str
) -> None:
    async with slow_store_proxy(store_url) as proxy:
        store = await connect(
            url=proxy.store_url, call_timeout_seconds=1.0, connect_timeout_seconds=1.0, initialise=False
        )
        proxy.set(SILENT)
        with pytest.raises(OutcomeUnknown, match=r"no answer within 1 s"):
            await submit(store, one_bucket.bucket_id, make_items(1))
        with pytest.raises(Unavailable) as only_read:
            await store.depths([one_bucket.bucket_id])
        assert not isinstance(only_read.value, OutcomeUnknown)
        with pytest.raises(Unavailable):
            await store.beat(new_id(), 5)
        proxy.set(SLOW)

        async def depths() -> object:
            with contextlib.suppress(Unavailable):  # a second is not enough for each call on a busy machine
                return await store.depths([one_bucket.bucket_id])
            return None

        assert await eventually(depths) == await one_bucket.store.depths([one_bucket.bucket_id])
        await store.close()


@pytest.mark.slow
async def test_a_blocking_wait_whose_answer_never_comes_is_given_up(
    one_bucket: OneBucketStore, connect: Connect, store_url: str
) -> None:
    async with slow_store_proxy(store_url) as proxy:
        store = await connect(url=proxy.store_url, call_timeout_seconds=2.0)
        assert await store.wait_wake([one_bucket.bucket_id], 0.01) is None
        proxy.set(SILENT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Unavailable, match="did not answer"):
                await store.wait_wake([one_bucket.bucket_id], 0.01)
        proxy.set(SLOW)
        assert await store.wait_wake([one_bucket.bucket_id], 0.01) is None
        await store.close()


async def test_a_loop_that_stood_still_does_not_blame_the_store(one_bucket: OneBucketStore, connect: Connect) -> None:
    store = await connect(call_timeout_seconds=1.0)
    call = asyncio.ensure_future(store.depths([one_bucket.bucket_id]))
    # The command goes out, then this process blocks for longer than any answer may take.
    while not store._connection._link._waiting:  # type: ignore[union-attr]  # noqa: ASYNC110
        await asyncio.sleep(0)
    time.sleep(1.1)
    assert await call != [None]


async def test_a_few_commands_go_out_at_once_and_later_ones_of_the_same_turn_together(connect: Connect) -> None:
    """Two batches of submits, a claim: none waits for a turn of the loop because another call is on its way."""
    store = await connect()
    assert isinstance(store._connection, PipelinedConnection)
    link = store._connection._link
    assert link is not None
    replies = [link.call(pack(b"ECHO", b"%d" % number)) for number in range(WRITTEN_AT_ONCE + 3)]
    assert (len(link._waiting), len(link._outbox)) == (WRITTEN_AT_ONCE, 3)
    await asyncio.sleep(0)
    assert not link._outbox
    assert await asyncio.gather(*replies) == [b"%d" % number for number in range(WRITTEN_AT_ONCE + 3)]


async def test_commands_wait_while_the_socket_takes_no_more(connect: Connect) -> None:
    store = await connect()
    assert isinstance(store._connection, PipelinedConnection)
    link = store._connection._link
    assert link is not None
    texts = [bytes([number]) * 2_000_000 for number in range(8)]
    replies = [link.call(pack(b"ECHO", texts[0]))]
    assert link._paused
    replies += [link.call(pack(b"ECHO", text)) for text in texts[1:]]
    assert len(link._outbox) == 7
    assert await asyncio.gather(*replies) == texts
    assert not link._paused


async def test_a_server_that_is_gone_is_unavailable_to_all_callers_at_once(
    connect: Connect, new_valkey: NewServer
) -> None:
    server = new_valkey(appendfsync="always")  # a write to its file may else wait for the disk, and the kill forgets it
    store = await connect(url=server.url)
    fence = new_fence()
    await assert_ok(store.open_bucket(fence))
    server.kill()
    results = await asyncio.gather(*[store.depths([fence.bucket_id]) for _ in range(50)], return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    # The first write may have met the dead connection; this one meets none, so nothing can have happened.
    with pytest.raises(Unavailable) as caught:
        await submit(store, fence.bucket_id, make_items(1))
    assert type(caught.value) is Unavailable
    with pytest.raises(Unavailable):
        await store.wait_wake([fence.bucket_id], 1)
    server.start()
    # Its append-only file brought data and functions back.
    assert (await store.claim(fence, "a", 1)).status is ReplyStatus.OK
    assert (await submit(store, fence.bucket_id, make_items(1))).status is ReplyStatus.OK


async def test_an_emptied_server_gets_its_functions_again_and_refuses_the_owner_by_generation(
    connect: Connect, new_valkey: NewServer
) -> None:
    server = new_valkey(appendonly="no")
    owner = await connect(url=server.url)
    producer = await connect(url=server.url, initialise=False)
    fence = new_fence()
    await assert_ok(owner.open_bucket(fence))
    server.kill()
    server.start()
    await _meet_the_dead_connection(owner)
    await _meet_the_dead_connection(producer)
    with pytest.raises(StoreRefused, match=r"functions are missing.*jobmaster store init"):
        await submit(producer, fence.bucket_id, make_items(1))
    assert await owner.depths([fence.bucket_id]) == [None]
    assert (await owner.claim(fence, "a", 1)).status is ReplyStatus.GENERATION
    assert (await submit(producer, fence.bucket_id, make_items(1))).status is ReplyStatus.NO_BUCKET


async def _meet_the_dead_connection(store: AgentStore) -> None:
    """The server died while this loop stood still, so the first call is the one that notices."""
    with contextlib.suppress(Unavailable):
        await store.health()


async def test_a_connection_attempt_outlives_the_caller_that_began_it(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    store = await connect(url=server.url)
    await store._connection._link.close()  # type: ignore[union-attr]
    first = asyncio.ensure_future(store.known_buckets())
    second = asyncio.ensure_future(store.known_buckets())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == []


async def test_calls_to_a_closed_store_raise_an_error(connect: Connect) -> None:
    store = await connect()
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="closed by this process"):
        await store.health()
