"""Waiting, results, looking up and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.jobs import result_waiter as waiting_module
from jobmaster.clock import new_id
from jobmaster.model.errors import InputError, JobFailed, NotFound, Unavailable, WaitTimeout
from jobmaster.model.job import Durability, ErrorInfo, JobState
from jobmaster.settings.model import StoreSettings
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, Size, resize
from tests.support.patience import PATIENCE_SECONDS
from tests.support.proxy.tcp_proxy import slow_store_proxy
from tests.support.waiting import until

T = TypeVar("T")
SIZE = b'{"width":4,"height":2}'


@pytest.fixture
def never_reread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait gets the news or does not: the safety net is taken away. (A wait looks once more when its own time is
    over, so tests await with ``soon``, which is sooner than that.)"""
    monkeypatch.setattr(waiting_module, "REREAD_SECONDS", 3600.0)


async def soon(what: Awaitable[T]) -> T:
    """The answer, and sooner than the end of its own wait."""
    return await asyncio.wait_for(what, PATIENCE_SECONDS / 2)


@pytest.mark.usefixtures("never_reread")
async def test_a_result_arrives_by_the_news_and_typed(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    waiter = asyncio.create_task(receipt.result(timeout=PATIENCE_SECONDS))
    await asyncio.sleep(0)
    await client.agent.work_off(result=SIZE)
    assert await soon(waiter) == Size(4, 2)
    # Finished before the first wait:
    assert await client.cluster.result(receipt.id_bytes, timeout=PATIENCE_SECONDS) == Size(4, 2)
    assert await client.cluster.wait(str(receipt)) is JobState.SUCCEEDED


@pytest.mark.usefixtures("never_reread")
async def test_many_waiters_on_many_jobs_get_their_own_results(client: ClientFixture) -> None:
    receipts = [await client.cluster.submit(resize, {"path": str(i)}) for i in range(40)]
    waiters = [asyncio.create_task(receipt.wait(timeout=PATIENCE_SECONDS)) for receipt in receipts]
    everything = asyncio.create_task(client.cluster.wait_all(receipts, timeout=PATIENCE_SECONDS))
    await asyncio.sleep(0)
    assert await client.agent.work_off(result=SIZE) == 40
    assert set(await soon(asyncio.gather(*waiters))) == {JobState.SUCCEEDED}
    assert await soon(everything) == {receipt.id: JobState.SUCCEEDED for receipt in receipts}


@pytest.mark.usefixtures("never_reread")
async def test_confirm_waits_until_the_master_has_the_job_not_until_its_end(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    with pytest.raises(WaitTimeout, match=r"within 0\.05 s"):
        await receipt.wait_saved(timeout=0.05)
    durable = await client.cluster.submit(resize, {"path": "a"}, durability="master")
    await soon(durable.wait_saved(timeout=PATIENCE_SECONDS))
    with pytest.raises(WaitTimeout):
        await durable.wait(timeout=0.05)


async def test_lost_news_cost_seconds_not_the_result(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "REREAD_SECONDS", 0.2)
    receipt = await client.cluster.submit(resize, {"path": "a"})
    waiter = asyncio.create_task(receipt.wait(timeout=PATIENCE_SECONDS))
    await asyncio.sleep(0)
    for bucket in client.agent.buckets["default", 3]:
        name, entries = await client.agent.claim(bucket)
        await client.agent.finish(bucket, (name, entries), result=SIZE)
    assert await waiter is JobState.SUCCEEDED


async def test_a_wait_outlasts_a_master_that_does_not_answer(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "REREAD_SECONDS", 0.05)
    receipt = await client.cluster.submit(resize, {"path": "a"})
    states = client.master.queries.states
    down = asyncio.Event()

    async def away(job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        down.set()
        raise Unavailable("the master is away")

    monkeypatch.setattr(client.cluster.master.queries, "states", away)
    with pytest.raises(WaitTimeout, match="the master does not answer: the master is away"):
        await receipt.wait(timeout=0.1)
    waiter = asyncio.create_task(receipt.result(timeout=PATIENCE_SECONDS))
    down.clear()
    await down.wait()
    monkeypatch.setattr(client.cluster.master.queries, "states", states)
    await client.agent.work_off(result=SIZE)
    assert await soon(waiter) == Size(4, 2)


async def test_a_wait_ends_in_time_although_a_frozen_master_holds_its_question(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "READ_SECONDS", 0.05)
    receipt = await client.cluster.submit(resize, {"path": "a"})
    unfrozen = asyncio.Event()

    async def frozen(job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        await unfrozen.wait()
        return {}

    monkeypatch.setattr(client.cluster.master.queries, "states", frozen)
    try:
        with pytest.raises(WaitTimeout):
            await soon(receipt.wait(timeout=0.1))
    finally:
        unfrozen.set()


@pytest.mark.usefixtures("never_reread")
async def test_what_is_published_while_a_subscription_is_broken_is_not_missed(
    client: ClientFixture, store_url: str, opened: AsyncExitStack, open_cluster: OpenCluster
) -> None:
    async with slow_store_proxy(store_url, seed=3) as proxy:
        store = await AgentStore.connect(
            cluster=client.settings.cluster, name="default", url=proxy.store_url, settings=StoreSettings()
        )
        published = asyncio.Event()
        subscribe = store.finished

        async def only_after_it_was_published() -> AsyncIterator[bytes]:
            await published.wait()
            async for news in subscribe():
                yield news

        cluster = await open_cluster(stores={"default": store})
        receipt = await cluster.submit(resize, {"path": "a"})
        waiter = asyncio.create_task(receipt.wait(timeout=PATIENCE_SECONDS))
        waiting = cluster._open_waiter()
        await until(lambda: receipt.id_bytes in waiting._waiters and waiting._standing["default"].is_set())
        store.finished = only_after_it_was_published  # type: ignore[method-assign]
        proxy.reset()
        await until(lambda: not waiting._standing["default"].is_set())
        await client.agent.work_off(result=SIZE)
        published.set()
        assert await soon(waiter) is JobState.SUCCEEDED
        await cluster.close()
        await store.close()


@pytest.mark.usefixtures("never_reread")
async def test_a_job_that_ends_between_the_first_read_and_the_wait_is_noticed(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    states = client.master.queries.states
    looks = 0

    async def stale(job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        # The row is read, then the job ends and is announced, then the old answer arrives.
        nonlocal looks
        looks += 1
        answer = await states(job_ids)
        if looks == 1:
            await client.agent.work_off(result=SIZE)
        return answer

    client.master.queries.states = stale  # type: ignore[method-assign]  # the interleaving, written down
    assert await soon(receipt.wait(timeout=PATIENCE_SECONDS)) is JobState.SUCCEEDED
    assert looks == 2


async def test_the_result_of_a_failed_job_raises_its_state_and_error(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    info = ErrorInfo(type="ValueError", message="no such picture")
    for bucket in client.agent.buckets["default", 3]:
        await client.agent.finish(bucket, await client.agent.claim(bucket), state=JobState.FAILED, error=info)
    with pytest.raises(JobFailed, match="ended as FAILED: ValueError: no such picture") as caught:
        await receipt.result(timeout=PATIENCE_SECONDS)
    assert caught.value.info == info
    assert caught.value.state is JobState.FAILED


async def test_a_timed_out_wait_leaves_nothing_behind(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    for _ in range(3):
        with pytest.raises(WaitTimeout):
            await receipt.wait(timeout=0.01)
    assert client.cluster._waiter is not None
    assert client.cluster._waiter._waiters == {}


async def test_get_finds_a_job_wherever_it_is(client: ClientFixture, open_cluster: OpenCluster) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, tags=["x"])
    stranger = await open_cluster()
    for job in (receipt, receipt.id, receipt.id_bytes, str(receipt), await receipt.get()):
        view = await (client.cluster if job is receipt else stranger).get(job)
        assert (view.state, view.handler, view.lane) == (JobState.SAVE_PENDING, "images.resize", "default")
        assert view.bucket_id == receipt.bucket_id
    bucket = next(b for b in client.agent.buckets["default", 3] if b.id == receipt.bucket_id)
    claimed = await client.agent.claim(bucket)
    view = await receipt.get()
    assert view.state is JobState.QUEUED, "an agent has it in memory, and it has no row yet"
    assert (view.handler, view.bucket_id) == ("images.resize", receipt.bucket_id)
    await client.agent.finish(bucket, claimed, result=SIZE)
    view = await receipt.get()
    assert (view.state, view.result_json) == (JobState.SUCCEEDED, SIZE)
    held = await client.cluster.submit(resize, {"path": "a"}, after=3600)
    assert await client.cluster.state(held) is JobState.HELD


async def test_what_is_nowhere_is_not_found(client: ClientFixture) -> None:
    for act in (client.cluster.get, client.cluster.cancel):
        with pytest.raises(NotFound, match="there is no job"):
            await act(new_id())
    for bad in ("nonsense", b"short", 7):
        job: Any = bad
        with pytest.raises(InputError):
            await client.cluster.get(job)


async def test_cancel_of_a_held_job_is_final_at_once(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, after=3600)
    assert await receipt.cancel() is JobState.CANCELLED
    assert await client.cluster.cancel(receipt) is JobState.CANCELLED
    with pytest.raises(JobFailed, match="ended as CANCELLED"):
        await receipt.result(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("known_bucket", [True, False])
async def test_cancel_of_a_job_only_a_bucket_knows_writes_the_row_and_refuses_the_copy(
    client: ClientFixture, known_bucket: bool
) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"})
    assert await client.cluster.cancel(receipt if known_bucket else receipt.id_bytes) is JobState.CANCELLED
    assert await client.rows() == {receipt.id_bytes: "CANCELLED"}
    # The agent that runs it all the same cannot record anything.
    await client.agent.work_off(result=SIZE)
    assert await client.rows() == {receipt.id_bytes: "CANCELLED"}


async def test_cancel_of_a_job_in_flight_is_a_request_in_its_owners_next_claim(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, durability="master")
    assert receipt.level is Durability.MASTER
    assert await receipt.cancel() is JobState.ASSIGNED
    bucket = next(b for b in client.agent.buckets["default", 3] if b.id == receipt.bucket_id)
    answer = await client.store.claim(client.agent.fence(bucket), "hear", 10)
    assert receipt.id_bytes in answer.cancelled
    assert (await receipt.get()).cancel_requested
