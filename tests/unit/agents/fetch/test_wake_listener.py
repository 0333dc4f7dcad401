"""Wake tokens are hints: a lost one delays no job for long."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry
from jobmaster_agents.fetch import wake_listener
from tests.support.bucket_worker_fixture import WorkerHarness, turns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

handlers = Handlers()
ran: list[int] = []


@handlers.job(name="note")
async def note() -> None:
    ran.append(1)


async def test_a_bucket_whose_token_was_lost_is_claimed_although_others_get_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server sent it into a dead connection that no side has noticed; no pop of ours times out."""
    monkeypatch.setattr(wake_listener.WakeListener, "wake_seconds", 0.05)
    async with WorkerHarness(handlers) as harness:
        busy, quiet = harness.bucket(), harness.bucket()
        await until(lambda: any(len(args[0]) == 2 for args in harness.store.of("wait_wake")))
        await turns()
        harness.store.buckets[quiet.fence.bucket_id].pending.append(Entry(new_id(), 1, "note", b"{}"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not ran:
                harness.store.tokens.put_nowait(busy.fence.bucket_id)
                await asyncio.sleep(0)


async def test_a_claim_is_sent_two_turns_of_the_loop_after_its_token() -> None:
    """One for the answer of the pop, one for the claimer; each may take milliseconds where jobs run."""
    async with WorkerHarness(handlers) as harness:
        bucket = harness.bucket()
        await until(lambda: harness.store.of("wait_wake"))
        await turns()
        claims = len(harness.store.of("claim"))
        harness.store.tokens.put_nowait(bucket.fence.bucket_id)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # two turns are over when this one begins
        assert len(harness.store.of("claim")) == claims + 1
