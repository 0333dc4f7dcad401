"""Many concurrent callers, few calls: items that arrive in one turn of the loop are sent in one call.

While the allowed number of calls is under way, later items gather in the next batch, so batches grow by themselves exactly
when calls are slow. No task and no timer per item, one future per caller (so that cancelling one caller touches no other).
A caller that has been the only one for a while makes its calls itself.

An answer that a thousand callers wait for would keep the loop for milliseconds, in which no reply is read and nothing is
sent. So the next batch leaves first, and the callers go on some hundred in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from jobmaster.model.errors import BucketsFull, OutcomeUnknown, Unavailable
from jobmaster.rules.batching import BATCH_BYTES

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PENDING_JOBS_MAX = 100_000
"""Jobs of one process that may wait for an answer of the stores."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""The same in bytes."""
CHUNK_BYTES_MAX = BATCH_BYTES
"""Bytes of one call, so that no single call keeps a store busy for long."""
ANSWERED_AT_ONCE = 250
"""Callers that get their answers in one turn of the loop: about a millisecond of theirs."""
_LONE_CALLS = 2
"""After so many calls of one item each, with no other item meanwhile, an item is taken to be of a single caller."""


class PendingLimit:
    """Back-pressure inside the process: how much may wait for an answer, over all batches."""

    __slots__ = ("_bytes_max", "_jobs_max", "_waiters", "bytes", "jobs")

    def __init__(self, jobs_max: int = PENDING_JOBS_MAX, bytes_max: int = PENDING_BYTES_MAX) -> None:
        self._jobs_max = jobs_max
        self._bytes_max = bytes_max
        self.jobs = 0
        """Items that wait for an answer; counted by the caller that takes them."""
        self.bytes = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def reached(self) -> bool:
        """True while as much waits as may."""
        return self.jobs >= self._jobs_max or self.bytes >= self._bytes_max

    def release(self, jobs: int, size: int) -> None:
        """Count items out and wake the waiting callers."""
        self.jobs -= jobs
        self.bytes -= size
        if self._waiters and not self.reached:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until there is room; ``BucketsFull`` when the time is over."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.reached:
                    waiter = loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise BucketsFull(
                f"{self.jobs} jobs ({self.bytes} bytes) of this process wait for an answer of the stores, and nothing "
                f"moved for {timeout_seconds:g} s",
                hint="submit more slowly, or use submit_many, which reads its input only as fast as the stores take it",
            ) from None


class Coalescer(Generic[Item, Answer]):
    """Gathers items into calls of ``send``, which returns one answer (or error) per item."""

    __slots__ = (
        "_alone_over",
        "_bytes",
        "_calls",
        "_calls_max",
        "_chunk",
        "_futures",
        "_items",
        "_lone",
        "_loop",
        "_pending_limit",
        "_scheduled",
        "_send",
        "_sizes",
        "_tasks",
    )

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        chunk: int,
        calls_max: int,
        pending_limit: PendingLimit,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._chunk = chunk
        self._calls_max = calls_max
        self._pending_limit = pending_limit
        self._items: list[Item] = []
        self._futures: list[asyncio.Future[Answer]] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._calls = 0
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._lone = 0
        """Calls of one item, one after the other, during which no other item came."""
        self._alone_over: asyncio.Future[None] | None = None
        """Waited for by ``close``: the last call is over, that of a single caller or one that began meanwhile."""

    def answer(self, item: Item, size: int) -> Awaitable[Answer]:
        """The answer for ``item`` (``size`` bytes), to be awaited at once. A single caller makes the call itself: the
        task, the future and the two turns of the loop of ``put`` cost it as much as the call."""
        if self._lone >= _LONE_CALLS and not self._calls and not self._items:
            return self._call_alone(item, size)
        return self.put(item, size)

    def put(self, item: Item, size: int) -> asyncio.Future[Answer]:
        """The answer for ``item`` (``size`` bytes), which is sent with the next call."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._items.append(item)
        self._futures.append(future)
        self._sizes.append(size)
        self._bytes += size
        pending_limit = self._pending_limit
        pending_limit.jobs += 1
        pending_limit.bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        """Wait for the calls under way; items not sent yet, and later ones, get ``Unavailable``:
        nothing happened."""
        self._send = _refuse
        futures, self._futures = self._futures, []
        self._pending_limit.release(len(futures), self._bytes)
        self._items, self._sizes, self._bytes = [], [], 0
        _fail(futures, closed())
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._calls:
            self._alone_over = self._loop.create_future()
            await self._alone_over

    def _flush(self) -> None:
        self._scheduled = False
        while self._items and self._calls < self._calls_max:
            count, size = self._next_batch()
            items, self._items = self._items[:count], self._items[count:]
            futures, self._futures = self._futures[:count], self._futures[count:]
            self._sizes = self._sizes[count:]
            self._bytes -= size
            self._calls += 1
            task = self._loop.create_task(self._call(items, futures, size))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> tuple[int, int]:
        """How many of the waiting items the next call takes, and their bytes."""
        if self._bytes <= CHUNK_BYTES_MAX and len(self._items) <= self._chunk:
            return len(self._items), self._bytes
        total = 0
        for count, size in enumerate(self._sizes):
            if count and (count == self._chunk or total + size > CHUNK_BYTES_MAX):
                return count, total
            total += size
        return len(self._sizes), total

    async def _call(self, items: list[Item], futures: list[asyncio.Future[Answer]], size: int) -> None:
        answered: list[tuple[asyncio.Future[Answer], Answer | Exception]] = []
        try:
            answered = list(zip(futures, await self._send(items), strict=True))
        except asyncio.CancelledError:
            _fail(futures, OutcomeUnknown("the cluster was closed while the job was being sent"))
            raise
        except Exception as error:
            _fail(futures, error)
        finally:
            next_leaves = self._ended(len(items), size)
        first = 0
        try:
            for first in range(0, len(answered), ANSWERED_AT_ONCE):
                if first or next_leaves:
                    await asyncio.sleep(0)
                _give(answered[first : first + ANSWERED_AT_ONCE])
        except asyncio.CancelledError:
            _give(answered[first:])
            raise

    async def _call_alone(self, item: Item, size: int) -> Answer:
        """One item, sent in the caller's own task. A caller that is cancelled gives up its call, and no other's."""
        self._calls += 1
        self._pending_limit.jobs += 1
        self._pending_limit.bytes += size
        try:
            (answer,) = await self._send([item])
        finally:
            self._ended(1, size)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ended(self, count: int, size: int) -> bool:
        """Count a call out; True: the next one begins in the next turn of the loop."""
        self._calls -= 1
        self._pending_limit.release(count, size)
        self._lone = self._lone + 1 if count == 1 and not self._calls and not self._items else 0
        next_leaves = bool(self._items) and not self._scheduled
        if next_leaves:
            self._flush()
        if not self._calls and self._alone_over is not None and not self._alone_over.done():
            self._alone_over.set_result(None)
        return next_leaves


def closed() -> Unavailable:
    """The error of a call that the closing of its cluster overtook."""
    return Unavailable("the cluster was closed before the call was sent")


async def answer_of(task: asyncio.Task[Answer]) -> Answer:
    """What a task answers that several callers wait for, none of whom ends it.

    Raises:
        Unavailable: the task was ended by the closing of the cluster. The caller itself was not cancelled, so it must not
            see a ``CancelledError``.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise closed() from None
        raise


async def _refuse(items: Sequence[Any]) -> list[Any]:
    raise closed()


def _give(answered: Sequence[tuple[asyncio.Future[Answer], Answer | Exception]]) -> None:
    for future, answer in answered:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _fail(futures: list[asyncio.Future[Answer]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            # A caller that was cancelled in this very turn will not fetch it.
            future.exception()
