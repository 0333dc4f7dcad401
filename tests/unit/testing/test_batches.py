"""Batches of an application, in the memory of its test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jobmaster
from jobmaster import Call, Conflict, Handlers, InputError, JobContext, Unique, call
from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.batch_ids import BatchIds, new_range
from jobmaster.client.batches.batches import Batches
from jobmaster.clock import SystemClock
from jobmaster.model.flow.batch import AS_BEFORE, BatchState, Position
from jobmaster.model.job_view import JobView
from jobmaster.testing import Jobs

handlers = Handlers()
seen: list[tuple[str, str]] = []


@handlers.job(name="resize", max_attempts=1)
async def resize(path: str) -> None:
    if path.startswith("bad"):
        raise ValueError(path)


@handlers.job(name="report")
async def report(ctx: JobContext, word: str) -> None:
    seen.append((word, ctx.metadata["batch"]))


@handlers.job(name="sole", unique=Unique())
async def sole(ctx: JobContext) -> None:
    seen.append(("sole", ctx.metadata["batch"]))


@handlers.job(name="split")
async def split(ctx: JobContext) -> None:
    async with jobmaster.connect() as cluster, cluster.batch("inner", parent=ctx.batch) as inner:
        await inner.submit(call(resize, "c"))


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    seen.clear()
    return handlers


CALLBACKS: jobmaster.BatchOptions = {
    "on_complete": call(report, "complete"),
    "on_success": call(report, "success"),
    "on_failure": call(report, "failure"),
}


async def test_callbacks_follow_the_last_job(jobs: Jobs) -> None:
    cluster = jobs.cluster
    async with cluster.batch("images", **CALLBACKS) as batch:
        await batch.submit(call(resize, "a"))
        await batch.submit_many(call(resize, str(number)) for number in range(10))
    view = await batch.progress()
    assert (view.state, view.size, view.name) == (BatchState.CLOSED, 11, "images")
    await jobs.drain()
    assert (await batch.wait()).state is BatchState.SUCCEEDED
    assert sorted(seen) == [("complete", str(batch.id)), ("success", str(batch.id))]


async def test_what_failed_is_retried_as_a_new_batch(jobs: Jobs) -> None:
    cluster = jobs.cluster
    async with cluster.batch("images", **CALLBACKS) as batch:
        await batch.submit_many([call(resize, "bad"), call(resize, "good")])
    await jobs.drain(raise_errors=False)
    view = await batch.get()
    assert view.counts is not None
    assert (view.state, view.counts.failed, view.counts.succeeded) == (BatchState.FAILED, 1, 1)
    again = await cluster.batches.retry_failed(batch)
    assert (await again.get()).size == 1
    assert (await again.get()).retry_of == batch.id
    with pytest.raises(Conflict, match="is retried by batch"):
        await cluster.batches.retry_failed(batch)
    await jobs.drain(raise_errors=False)
    assert (await again.get()).state is BatchState.FAILED
    assert sorted(word for word, of in seen if of == str(again.id)) == ["complete", "failure"]
    assert [each.id for each in await cluster.batches.list(state="failed")] == [again.id, batch.id]
    with pytest.raises(Conflict, match="is retried by batch"):  # else what has succeeded there would run a second time
        await cluster.batches.retry_failed(batch)


async def test_a_retry_that_was_broken_off_goes_on(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = jobs.cluster
    async with cluster.batch("images") as batch:
        await batch.submit_many(call(resize, f"bad{number}") for number in range(5))
    await jobs.drain(raise_errors=False)
    retry_one, begun = Batches._retry_one, list[JobView]()

    async def breaks_off(self: Batches, again: Batch, view: JobView) -> None:
        if len(begun) == 2:
            raise RuntimeError("the caller is gone")
        begun.append(view)
        await retry_one(self, again, view)

    monkeypatch.setattr(Batches, "_retry_one", breaks_off)
    with pytest.raises(RuntimeError, match="the caller is gone"):
        await cluster.batches.retry_failed(batch)
    monkeypatch.setattr(Batches, "_retry_one", retry_one)
    again = await cluster.batches.retry_failed(batch)
    await jobs.drain(raise_errors=False)
    view = await again.wait()
    assert view.counts is not None
    assert (view.size, view.counts.failed) == (5, 5)
    assert len(await cluster.batches.list()) == 2


async def _die(batch: Batch) -> None:
    """Its process is gone, and with it what it knew."""
    await batch._sign(batch._position())
    batch._stop_touching()


@pytest.mark.parametrize("many", [True, False])
async def test_a_batch_with_a_key_is_filled_where_an_earlier_run_has_ended(jobs: Jobs, many: bool) -> None:
    cluster = jobs.cluster

    async def fill(batch: Batch, first: int, end: int) -> int:
        if many:
            return (await batch.submit_many(call(resize, str(number)) for number in range(first, end))).submitted
        receipts = [await batch.submit(call(resize, str(number))) for number in range(first, end)]
        return sum(not receipt.duplicate for receipt in receipts)

    batch = await cluster.batch("images", key="monday").__aenter__()
    assert await fill(batch, 0, 7) == 7
    await _die(batch)
    again = await cluster.batch("images", key="monday").__aenter__()
    assert again.id == batch.id
    assert await fill(again, 0, 12) == 5
    assert again.submitted == 12
    again._stop_touching()  # dies without a sign: its jobs are in doubt
    async with cluster.batch("images", key="monday") as last:
        assert await fill(last, 0, 5) == 0
        assert await fill(last, 5, 15) == 3
    assert (await last.get()).size == 15
    async with cluster.batch("images", key="monday") as closed:
        assert await fill(closed, 0, 15) == 0
        if not many:
            with pytest.raises(Conflict, match="was closed with 15 jobs"):
                await fill(closed, 15, 16)
    await jobs.drain()
    view = await closed.wait()
    assert (view.state, view.size, view.key) == (BatchState.SUCCEEDED, 15, "monday")
    assert [each.id for each in await cluster.batches.list(key="monday")] == [batch.id]


async def test_how_far_a_producer_has_come_is_unknown_while_calls_overlap(jobs: Jobs) -> None:
    """The first of two submits may be without an answer when the second one has its own."""
    async with jobs.cluster.batch("images", key="monday") as batch:
        with batch._adding():
            with batch._adding():
                await batch._own_ids.take()
            assert batch._position() == AS_BEFORE
        await batch.submit(call(resize, "a"))
        assert batch._position() == Position(2, 1)


async def test_ids_are_given_in_the_order_of_the_calls_while_numbers_are_reserved(jobs: Jobs) -> None:
    """So submits that are gathered get the same numbers in each run."""
    asked = []

    async def reserve(number: int) -> int:
        asked.append(number)
        await asyncio.sleep(0.001)
        return number + 3

    async def add_range(lowest: bytes, first: int) -> None:
        raise AssertionError("one range is enough")

    ids = BatchIds(new_range(), add_range, SystemClock(), 60.0, reserve=reserve)

    async def late() -> bytes:
        await asyncio.sleep(0.0015)  # the first numbers are there, and others wait for more
        return await ids.take()

    taken = await asyncio.gather(*(ids.take() for _ in range(8)), late())
    assert [ids.number_of(each) for each in taken] == list(range(9))
    assert asked == [0, 3, 6]


async def test_an_async_stream_is_resumed(jobs: Jobs) -> None:
    cluster = jobs.cluster

    async def calls(count: int) -> AsyncIterator[Call[None]]:
        for number in range(count):
            yield call(resize, str(number))

    batch = await cluster.batch("images", key="monday").__aenter__()
    await batch.submit_many(calls(4))
    batch._stop_touching()
    async with cluster.batch("images", key="monday") as again:
        assert (await again.submit_many(calls(6))).submitted == 2
    assert (await again.get()).size == 6


async def test_a_run_that_gives_fewer_jobs_than_an_earlier_one_closes_nothing(jobs: Jobs) -> None:
    cluster = jobs.cluster
    batch = await cluster.batch("images", key="monday").__aenter__()
    await batch.submit_many(call(resize, str(number)) for number in range(4))
    await _die(batch)
    with pytest.raises(InputError, match="this run has given 1 jobs to batch 'images', and an earlier one 4"):
        async with cluster.batch("images", key="monday") as again:
            await again.submit(call(resize, "0"))
    assert (await batch.get()).state is BatchState.OPEN


async def test_an_exception_leaves_a_batch_with_a_key_open(jobs: Jobs) -> None:
    batch = jobs.cluster.batch("images", key="monday")

    async def produce() -> None:
        async with batch:
            await batch.submit(call(resize, "a"))
            raise RuntimeError("no more paths")

    with pytest.raises(RuntimeError, match="no more paths") as raised:
        await produce()
    assert "the next run with its key goes on" in raised.value.__notes__[0]
    assert (await batch.get()).state is BatchState.OPEN


async def test_a_job_opens_a_batch_inside_its_own(jobs: Jobs) -> None:
    cluster = jobs.cluster
    async with cluster.batch("outer", **CALLBACKS) as outer:
        await outer.submit(call(split))
    await jobs.drain()
    (inner,) = await cluster.batches.list(name="inner")
    assert (inner.parent, inner.state) == (outer.id, BatchState.SUCCEEDED)
    assert (await outer.get()).state is BatchState.SUCCEEDED
    with pytest.raises(Conflict, match="its parent has ended"):
        await cluster.batch("late", parent=outer).__aenter__()


async def test_an_exception_cancels_the_batch(jobs: Jobs) -> None:
    batch = jobs.cluster.batch("images", **CALLBACKS)

    async def produce() -> None:
        async with batch:
            await batch.submit(call(resize, "a"))
            raise RuntimeError("no more paths")

    with pytest.raises(RuntimeError, match="no more paths"):
        await produce()
    assert (await batch.get()).state is BatchState.CANCELLED
    await jobs.drain()
    assert [word for word, _ in seen] == ["complete"]


async def test_two_batches_have_their_callbacks_though_the_handler_is_unique(jobs: Jobs) -> None:
    for name in ("one", "two"):
        async with jobs.cluster.batch(name, on_complete=call(sole)) as batch:
            pass
        (callback,) = await jobs.cluster.batches._master.callbacks(batch.id_bytes)
        assert b"unique" not in callback.headers, "it holds no key, so it must not look as if it did"
    await jobs.drain()
    assert len(seen) == 2


async def test_an_empty_batch_has_its_callbacks(jobs: Jobs) -> None:
    async with jobs.cluster.batch("images", **CALLBACKS):
        pass
    await jobs.drain()
    assert sorted(word for word, _ in seen) == ["complete", "success"]


async def test_what_a_batch_cannot_be_is_refused_before_anything_is_stored(jobs: Jobs) -> None:
    cluster = jobs.cluster
    with pytest.raises(InputError, match="a batch has no option 'on_end'"):
        cluster.batch("images", on_end=call(report, "x"))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="'on_success' must be a call, not str"):
        cluster.batch("images", on_success="report")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'timeout' must be from"):
        cluster.batch("images", timeout=0)
    with pytest.raises(InputError, match="name of a batch"):
        cluster.batch("")
    with pytest.raises(InputError, match="is no batch"):
        cluster.batch("images", parent="images")
    with pytest.raises(InputError, match="'abandon_after' must be a number"):
        cluster.batch("images", abandon_after=True)
    with pytest.raises(InputError, match="word"):
        await cluster.batch("images", on_success=Call(report, {})).__aenter__()
    batch = cluster.batch("images")
    with pytest.raises(InputError, match="the batch is not open"):
        await batch.submit(call(resize, "a"))
    assert await cluster.batches.list() == []
    async with batch:
        for option in ("idempotency_key", "job_id", "connection", "on_success", "on_failure"):
            given: Any = {option: "x"}
            with pytest.raises(InputError, match=f"a job of a batch cannot have '{option}'"):
                await batch.submit(call(resize, "a"), **given)
        with pytest.raises(InputError, match="a batch ends after it was closed"):
            await batch.wait()
    with pytest.raises(Conflict, match="is closed"):
        await batch.submit(call(resize, "a"))
    with pytest.raises(InputError, match="has been used"):
        await batch.__aenter__()
    assert (await batch.get()).size == 0
