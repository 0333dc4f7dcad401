"""Batches with real stores: memory of the producer, a producer that dies, and two of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from jobmaster.client.batches import batch as batch_module
from jobmaster.client.batches import batches as batches_module
from jobmaster.client.batches.batch import Batch
from jobmaster.client.bulk import BulkFailed
from jobmaster.model.errors import Conflict
from jobmaster.model.flow.batch import BatchState
from tests.integration.client.fixture import ClientFixture, resize

KEY = "import of monday"


def _paths(count: int) -> Iterator[dict[str, str]]:
    return ({"path": str(number)} for number in range(count))


@pytest.mark.slow
async def test_the_memory_of_a_producer_does_not_grow_with_the_batch(client: ClientFixture) -> None:
    """But for the ids in the summary: 16 bytes for each job."""
    peaks = {}
    async with client.cluster.batch("images", key=KEY) as batch:
        await batch.submit_many(_paths(10_000), resize)
        for count in (10_000, 50_000):
            tracemalloc.start()
            try:
                await batch.submit_many(_paths(count), resize)
                peaks[count] = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    assert peaks[50_000] - peaks[10_000] < 40_000 * 16 * 2, peaks


@pytest.fixture
def quick_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "SILENT_SECONDS", 0.0)


async def _left(client: ClientFixture, count: int) -> Batch:
    """A producer that has stored some jobs and is gone: what it knew it has not said."""
    batch = await client.cluster.batch("images", key=KEY).__aenter__()
    await batch.submit_many(_paths(count), resize)
    batch._stop_touching()
    return batch


@pytest.mark.usefixtures("quick_takeover")
async def test_the_next_producer_stores_what_the_first_one_has_not(client: ClientFixture) -> None:
    """Of the first one's jobs some have ended, and the others wait in a bucket or are in an agent's hands."""
    batch = await _left(client, 1300)
    for bucket in client.agent.buckets["default", 3]:
        claimed = await client.agent.claim(bucket)
        if claimed[1] and not await client.rows():
            await client.agent.finish(bucket, claimed)
    assert 0 < len(await client.rows()) <= 1300
    async with client.cluster.batch("images", key=KEY) as again:
        summary = await again.submit_many(_paths(1700), resize)
    assert again.id == batch.id
    view = await again.get()
    assert (view.state, view.size) == (BatchState.CLOSED, 1700)
    assert summary.submitted == 400
    known = [await client.cluster.batches._cluster._job_lookup.existing([*summary.ids.as_bytes()])]
    assert len(known[0]) == 400


@pytest.mark.usefixtures("quick_takeover")
async def test_a_job_in_doubt_that_was_never_stored_becomes_a_row_under_its_own_id(client: ClientFixture) -> None:
    """It is due now, so it is put into a bucket at once."""
    batch = await _left(client, 3)
    for bucket in client.agent.buckets["default", 3]:  # as if it had not been stored
        name, _ = await client.agent.claim(bucket)
        await client.store.settle(client.agent.fence(bucket), [name], [])
    async with client.cluster.batch("images", key=KEY) as again:
        assert (await again.submit_many(_paths(3), resize)).submitted == 3
    assert set(await client.rows()) == {batch.id_bytes[:12] + number.to_bytes(4, "big") for number in (1, 2, 3)}


@pytest.mark.slow
async def test_a_batch_that_is_being_filled_has_one_producer(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "SILENT_SECONDS", 2.5)
    monkeypatch.setattr(batch_module, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr(batches_module, "_LOOK_SECONDS_MAX", 0.05)
    async with client.cluster.batch("images", key=KEY) as batch:
        with pytest.raises(Conflict, match="is being filled by another producer"):
            await client.cluster.batch("images", key=KEY).__aenter__()
        await batch.submit_many(_paths(3), resize)
    assert (await batch.get()).size == 3


@pytest.mark.usefixtures("quick_takeover")
async def test_a_producer_that_has_lost_its_batch_closes_nothing_and_gets_no_more_numbers(
    client: ClientFixture,
) -> None:
    first = await _left(client, 10)
    async with client.cluster.batch("images", key=KEY) as second:
        with pytest.raises(BulkFailed, match="it has ended, or another producer fills it"):
            await first.submit_many(_paths(20_000), resize)
        with pytest.raises(Conflict, match="was not closed"):
            await first.close()
        assert (await second.get()).state is BatchState.OPEN
        await second.submit_many(_paths(10), resize)
    assert (await second.get()).state is BatchState.CLOSED


async def test_a_closed_batch_gets_nothing_more(client: ClientFixture) -> None:
    summaries: list[Any] = []
    for _ in range(2):
        async with client.cluster.batch("images", key=KEY) as batch:
            summaries.append(await batch.submit_many(_paths(5), resize))
        assert batch.submitted == 5
    assert [summary.submitted for summary in summaries] == [5, 0]
    assert len(await client.waiting()) == 5


async def test_a_submit_that_was_cancelled_counts_what_it_has_stored(client: ClientFixture) -> None:
    """Otherwise the batch would end before its last jobs."""
    going_on = asyncio.Event()

    async def paths() -> AsyncIterator[dict[str, str]]:
        for number in range(25_000):
            yield {"path": str(number)}
        going_on.set()
        await asyncio.sleep(3600)

    async with client.cluster.batch("images") as batch:
        adding = asyncio.create_task(batch.submit_many(paths(), resize))
        await going_on.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
    stored = len(await client.waiting())
    assert (await batch.get()).size == stored > 0
