"""Freezes that cross a write under way, a renewal, or an owner that never saw them, over real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.ids import Fence, text
from jobmaster.model.job import Entry, InFlightRow, NewJob
from jobmaster.ports import ReplyStatus, Written
from tests.integration.agents.fixture import PRIORITY, DrivenCluster
from tests.integration.agents.freezing_fixture import Life, began, encoded, gates, nothing_lies_there, states
from tests.support.idle import is_idle
from tests.support.waiting import eventually, until


async def test_a_fenced_start_that_is_asked_for_through_the_stop_goes_back(driven: DrivenCluster, life: Life) -> None:
    """Its write is under way while the bucket is stopped and goes on: under the epoch that is past it can never start."""
    writes = life.bucket_worker.in_flight_writer._in_flight._outcomes
    persist, sent, answer = writes.persist, asyncio.Event(), asyncio.Event()

    async def slow(fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        sent.set()
        await answer.wait()
        return await persist(fence, rows)

    with patch.object(writes, "persist", slow):
        strict = new_id()
        await life.submit(encode_entry(Entry(strict, 1, "fenced", b"{}")))
        await sent.wait()
        await life.freeze()
        await life.beat()
        await life.unfreeze()
        await life.beat()
        assert life.owned.fence.epoch == 2
        answer.set()
        await until(lambda: life.bucket_worker.executor.running == 0)

    async def done() -> bool:
        life.bucket_worker.due_fetcher.kick(life.owner.fence.bucket_id)
        return await states(driven, [strict]) == {strict: "SUCCEEDED"}

    await eventually(done)
    assert began[strict] == 1
    assert life.lost == []
    await nothing_lies_there(life)


async def test_a_freeze_that_was_over_before_the_owner_saw_it(driven: DrivenCluster, life: Life) -> None:
    """No renewal has named the bucket, no write has been refused, and the store was out of reach of the operator: the
    sum of the epochs shows the stop."""
    gates["first"].set()
    before, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[before] == 1)
    await nothing_lies_there(life)
    await life.freeze(tell_store=False)
    await life.unfreeze()
    job_id, entry = encoded("first")
    await life.beat()
    assert life.owned.fence.epoch == 1, "one renewal may have crossed the change"
    await life.beat()
    assert (life.owned.fence.epoch, life.owned.frozen) == (2, False)
    assert await life.submit(entry) is ReplyStatus.OK
    await until(lambda: began[job_id] == 1)  # it is idle before the job is claimed, too
    await until(lambda: is_idle(life.bucket_worker))
    assert await states(driven, [job_id]) == {job_id: "SUCCEEDED"}
    assert life.lost == []


async def test_a_freeze_that_a_failover_has_lost_ends(driven: DrivenCluster, life: Life) -> None:
    """A failover has lost the commit: the store is stopped, and no unfreezing will ever come."""
    waits, entry = encoded("first")
    gates["first"].set()
    await life.submit(entry)
    fence = life.owner.fence
    assert await life.owner.store.freeze(fence.bucket_id, fence.epoch, fence.owner) is ReplyStatus.OK
    onboarded = NewJob(new_id(), PRIORITY, life.owner.lane, "gated", b'{"gate":"first"}', b"", 0)
    await life.owner.master.intake.insert_held([onboarded])
    life.bucket_worker.due_fetcher.kick(fence.bucket_id)

    async def goes_on() -> bool:
        await life.ownership_check.tick()
        life.bucket_worker.due_fetcher.kick(fence.bucket_id)
        return await states(driven, [waits, onboarded.id]) == {waits: "SUCCEEDED", onboarded.id: "SUCCEEDED"}

    await eventually(goes_on)
    assert life.owned.fence == fence
    assert life.lost == []
    assert (began[waits], began[onboarded.id]) == (1, 1)
    await nothing_lies_there(life)


async def test_a_freeze_that_a_failover_loses_after_the_owner_saw_it_ends_too(
    driven: DrivenCluster, life: Life
) -> None:
    waits, entry = encoded("first")
    gates["first"].set()
    await life.freeze()
    await life.beat()
    assert life.owned.frozen
    await driven.rows("UPDATE bucket SET state = 'ACTIVE'")  # what a failover that forgets leaves
    await life.beat()
    assert not life.owned.frozen
    assert await life.submit(entry) is ReplyStatus.OK
    await until(lambda: began[waits] == 1)
    await nothing_lies_there(life)
    assert (life.owned.fence, life.lost) == (life.owner.fence, [])
    assert await states(driven, [waits]) == {waits: "SUCCEEDED"}


async def test_an_owner_that_completes_a_bucket_finds_a_freeze_that_it_has_not_seen(
    driven: DrivenCluster, life: Life
) -> None:
    """The master refuses COMPLETING under the epoch before the freeze. The bucket is not closed by that."""
    await life.freeze(tell_store=False)
    await life.unfreeze()
    bucket_id = life.owned.fence.bucket_id
    assert await life.bucket_worker.complete([bucket_id], 60.0, "test") == [bucket_id]
    await life.beat()
    await life.beat()
    assert life.owned.fence.epoch == 2
    assert await life.bucket_worker.complete([bucket_id], 60.0, "test") == []
    rows = await driven.rows("SELECT state::text FROM bucket WHERE id = $1", text(bucket_id))
    assert rows[0]["state"] == "READY_TO_DELETE"
