"""Many callers, few calls; and no caller's fate touches another's."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from jobmaster.client.coalescer import ANSWERED_AT_ONCE, CHUNK_BYTES_MAX, Coalescer, PendingLimit
from jobmaster.model.errors import BucketsFull, OutcomeUnknown, Unavailable
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until


class DoublingBatchTarget:
    """Doubles numbers, records its calls, and can hold them."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails: Exception | None = None

    async def send(self, items: list[int]) -> list[int | Exception]:
        self.calls.append(items)
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        return [ValueError("odd one out") if item == 13 else item * 2 for item in items]


def gathering(
    target: DoublingBatchTarget, *, chunk: int = 100, calls_max: int = 2, pending_limit: PendingLimit | None = None
) -> Coalescer[int, int]:
    return Coalescer(target.send, chunk=chunk, calls_max=calls_max, pending_limit=pending_limit or PendingLimit())


async def test_what_comes_in_one_turn_of_the_loop_leaves_in_one_call() -> None:
    target = DoublingBatchTarget()
    line = gathering(target)

    async def caller(number: int) -> int:
        return await line.put(number, 1)

    assert await asyncio.gather(*(caller(number) for number in range(50) if number != 13)) == [
        number * 2 for number in range(50) if number != 13
    ]
    assert len(target.calls) == 1


async def test_chunks_are_bounded_in_items_and_bytes_and_keep_their_order() -> None:
    target = DoublingBatchTarget()
    line = gathering(target, chunk=10, calls_max=100)
    await asyncio.gather(*[line.put(number, 1) for number in range(100, 125)])
    assert [len(call) for call in target.calls] == [10, 10, 5]
    assert [item for call in target.calls for item in call] == list(range(100, 125))
    target.calls.clear()
    await asyncio.gather(*[line.put(number, CHUNK_BYTES_MAX // 2) for number in range(5)])
    assert [len(call) for call in target.calls] == [2, 2, 1]
    target.calls.clear()
    # A single item over the limit of a call still leaves, alone.
    await asyncio.gather(line.put(1, CHUNK_BYTES_MAX * 2), line.put(2, 1))
    assert [len(call) for call in target.calls] == [1, 1]


async def test_a_thousand_callers_go_on_some_hundred_in_each_turn_of_the_loop() -> None:
    """Between two portions the loop reads replies and sends what waits."""
    target = DoublingBatchTarget()
    line = gathering(target, chunk=1000)
    turn = 0
    went_on: Counter[int] = Counter()

    async def caller(number: int) -> int:
        answer = await line.put(number, 1)
        went_on[turn] += 1
        return answer

    callers = asyncio.gather(*(caller(number) for number in range(100, 1100)))
    while not callers.done():
        turn += 1
        await asyncio.sleep(0)
    assert await callers == [number * 2 for number in range(100, 1100)]
    assert [len(call) for call in target.calls] == [1000]
    assert list(went_on.values()) == [ANSWERED_AT_ONCE] * (1000 // ANSWERED_AT_ONCE)


async def test_the_next_batch_leaves_before_the_callers_of_the_last_one_go_on() -> None:
    target = DoublingBatchTarget()
    line = gathering(target, chunk=10, calls_max=1)
    calls_seen: list[int] = []

    async def caller(number: int) -> None:
        await line.put(number, 1)
        calls_seen.append(len(target.calls))

    await asyncio.gather(*(caller(number) for number in range(100, 130)))
    assert len(calls_seen) == 30
    assert min(calls_seen) >= 2, "calls that had left when a caller went on"


async def test_known_answers_reach_their_callers_when_the_call_is_cancelled() -> None:
    """At the end of the loop: what is stored must not be called unknown."""
    target = DoublingBatchTarget()
    line = gathering(target, chunk=1000)
    futures = [line.put(number, 1) for number in range(100, 1100)]
    await until(futures[0].done, "the first portion has its answers")
    assert not futures[-1].done()
    (call,) = line._tasks
    call.cancel()
    assert await asyncio.gather(*futures) == [number * 2 for number in range(100, 1100)]


async def test_while_enough_calls_are_under_way_later_items_gather() -> None:
    target = DoublingBatchTarget()
    target.open.clear()
    line = gathering(target, calls_max=2)
    futures = []
    for number in range(100, 120):
        futures.append(line.put(number, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [len(call) for call in target.calls] == [1, 1]
    target.open.set()
    await asyncio.gather(*futures)
    assert [len(call) for call in target.calls] == [1, 1, 18]


async def test_a_cancelled_caller_leaves_its_neighbours_alone() -> None:
    target = DoublingBatchTarget()
    target.open.clear()
    line = gathering(target)

    async def caller(number: int) -> int:
        return await line.put(number, 1)

    tasks = [asyncio.create_task(caller(number)) for number in range(3)]
    await until(lambda: target.calls)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    target.open.set()
    assert await tasks[0] == 0
    assert await tasks[2] == 4


async def test_an_error_of_one_item_is_its_own_and_an_error_of_the_call_is_that_of_all() -> None:
    target = DoublingBatchTarget()
    line = gathering(target)
    answers = await asyncio.gather(line.put(12, 1), line.put(13, 1), return_exceptions=True)
    assert answers[0] == 24
    assert isinstance(answers[1], ValueError)
    target.fails = Unavailable("gone")
    answers = await asyncio.gather(line.put(1, 1), line.put(2, 1), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)


async def test_an_answer_for_every_item_or_it_is_an_error() -> None:
    async def forgetful(items: list[int]) -> list[int | Exception]:
        return [1]

    line: Coalescer[int, int] = Coalescer(forgetful, chunk=10, calls_max=1, pending_limit=PendingLimit())
    answers = await asyncio.gather(line.put(1, 1), line.put(2, 1), return_exceptions=True)
    assert isinstance(answers[1], ValueError)


async def test_closing_answers_every_caller() -> None:
    target = DoublingBatchTarget()
    target.open.clear()
    pending_limit = PendingLimit()
    line = gathering(target, calls_max=1, pending_limit=pending_limit)
    sent = line.put(1, 5)
    await until(lambda: target.calls)
    unsent = line.put(2, 5)
    closing = asyncio.create_task(line.close())
    with pytest.raises(Unavailable, match="before the call was sent"):
        await unsent
    assert not isinstance(unsent.exception(), OutcomeUnknown)
    target.open.set()
    await closing
    assert await sent == 2
    assert not pending_limit.reached


async def test_the_gate_shuts_on_jobs_or_bytes_and_opens_when_answers_come() -> None:
    for pending_limit in (PendingLimit(jobs_max=2), PendingLimit(bytes_max=20)):
        target = DoublingBatchTarget()
        target.open.clear()
        line = gathering(target, pending_limit=pending_limit)
        futures = [line.put(number, 10) for number in range(2)]
        assert pending_limit.reached
        with pytest.raises(BucketsFull, match=r"2 jobs \(20 bytes\)"):
            await pending_limit.wait(0.01)
        waiting = asyncio.create_task(pending_limit.wait(30.0))
        await asyncio.sleep(0)
        target.open.set()
        await asyncio.gather(*futures)
        await waiting
        assert not pending_limit.reached


async def test_a_single_caller_makes_its_calls_in_its_own_task() -> None:
    target = DoublingBatchTarget()
    senders: list[asyncio.Task[object] | None] = []

    async def send(items: list[int]) -> list[int | Exception]:
        senders.append(asyncio.current_task())
        return await target.send(items)

    line = Coalescer(send, chunk=100, calls_max=2, pending_limit=PendingLimit())
    for number in range(100, 105):
        assert await line.answer(number, 1) == number * 2
    own = asyncio.current_task()
    assert [sender is own for sender in senders] == [False, False, True, True, True]
    with pytest.raises(ValueError, match="odd one out"):
        await line.answer(13, 1)


async def test_callers_that_come_together_share_calls_again() -> None:
    target, limit = DoublingBatchTarget(), PendingLimit()

    async def send(items: list[int]) -> list[int | Exception]:
        await asyncio.sleep(0)  # a store does not answer in the same turn
        return await target.send(items)

    line = Coalescer(send, chunk=100, calls_max=2, pending_limit=limit)

    async def caller(number: int) -> int:
        return await line.answer(number, 1)

    for number in range(100, 105):
        await caller(number)
    target.calls.clear()
    for _ in range(3):
        await asyncio.gather(*(caller(number) for number in range(100, 150)))
    # The first call of the first round left before the others came.
    assert [len(call) for call in target.calls] == [1, 49, 50, 50]
    assert (limit.jobs, limit.bytes) == (0, 0)


async def test_closing_waits_for_the_call_that_a_single_caller_makes() -> None:
    target = DoublingBatchTarget()
    line = gathering(target)
    for number in range(100, 103):
        await line.answer(number, 1)
    target.open.clear()

    async def caller() -> int:
        return await line.answer(7, 1)

    call = asyncio.ensure_future(caller())
    await until(lambda: len(target.calls) == 4, "the call")
    closing = asyncio.ensure_future(line.close())
    await asyncio.sleep(0)
    assert not closing.done()
    target.open.set()
    await closing
    assert await call == 14


async def test_a_single_caller_that_is_cancelled_leaves_the_place_to_the_next() -> None:
    target, limit = DoublingBatchTarget(), PendingLimit()
    line = gathering(target, pending_limit=limit)
    for number in range(100, 103):
        await line.answer(number, 1)
    target.open.clear()

    async def caller(number: int) -> int:
        return await line.answer(number, 1)

    first = asyncio.ensure_future(caller(1))
    second = asyncio.ensure_future(caller(2))
    await until(lambda: len(target.calls) == 5, "both calls")
    first.cancel()
    target.open.set()
    assert await second == 4
    assert first.cancelled()
    assert (limit.jobs, limit.bytes) == (0, 0)
    assert await caller(3) == 6


@pytest.mark.parametrize("turns", range(8))
async def test_closing_ends_whenever_an_item_comes(turns: int) -> None:
    target = DoublingBatchTarget()
    target.open.clear()
    line = gathering(target)
    first = line.put(1, 1)
    await until(lambda: len(target.calls) == 1, "a call under way")
    target.open.set()

    async def late() -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await line.put(2, 1)

    late_call = asyncio.ensure_future(late())
    await asyncio.wait_for(line.close(), PATIENCE_SECONDS)
    assert await first == 2
    await asyncio.wait({late_call})
