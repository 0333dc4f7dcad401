"""One live copy per id in an agent, and whose list waits for whom (written interleavings)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry, JobState
from jobmaster_agents import until_answered
from tests.support.bucket_worker_fixture import Gate, Kit, Row, turns
from tests.support.waiting import until

handlers = Handlers()
ran: list[bytes] = []
go = asyncio.Event()


@handlers.job(name="note")
async def note() -> None:
    ran.append(b"note")


@handlers.job(name="wait", timeout=1e6)
async def wait() -> str:
    ran.append(b"wait")
    await go.wait()
    return "done"


@handlers.job(name="fail", max_attempts=2, backoff=7, backoff_jitter=0.0)
async def fail() -> None:
    raise RuntimeError("as asked")


@handlers.job(name="fenced", start="fenced", timeout=1e6)
async def fenced() -> None:
    ran.append(b"fenced")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with Kit(handlers) as made:
        yield made


def job(name: str = "note", token: int = 1) -> Entry:
    return Entry(new_id(), token, name, b"{}")


def state_of(kit: Kit, entry: Entry) -> str:
    row = kit.master.rows.get(entry.id)
    return row.state if row is not None else "none"


async def test_the_list_of_a_second_copy_goes_only_after_the_first_has_settled(kit: Kit) -> None:
    one, two = kit.bucket(), kit.bucket()
    entry = job("wait")
    kit.submit(one, [entry])
    await until(lambda: ran)
    kit.submit(two, [entry])
    await until(lambda: kit.lists(two))
    kit.clock.now += 1.0
    await kit.bucket_worker.in_flight_writer.tick()
    await until(lambda: not kit.lists(one))
    assert kit.lists(two), "the row in flight protects the first copy, not the second one's list"
    go.set()
    await kit.settled()
    assert not kit.lists(two)
    assert len(ran) == 1


async def test_a_copy_that_was_onboarded_while_the_answer_was_on_its_way_has_its_turn(kit: Kit) -> None:
    """Given back, onboarded again to the same agent, claimed: all before the answer to the first write came."""
    one, two = kit.bucket(), kit.bucket()
    entry = Entry(new_id(), 1, "nobody", b"{}")
    held = Gate(late=True)
    kit.master.script["hold"].append(held)
    kit.submit(one, [entry])
    await held.reached.wait()
    kit.master.rows[entry.id] = Row("ASSIGNED", 2, two.fence.bucket_id, 1)
    kit.store.buckets[two.fence.bucket_id].assigned.append((0, Entry(entry.id, 2, "note", b"{}")))
    kit.bucket_worker.claimers[two.fence.bucket_id].wake()
    await until(lambda: kit.bucket_worker.job_table.duplicates)
    held.opened.set()
    await until(lambda: ran)
    await kit.settled()
    assert state_of(kit, entry) == JobState.SUCCEEDED


async def test_a_copy_of_the_same_refused_identity_does_not_run(kit: Kit) -> None:
    bucket = kit.bucket()
    entry = job("wait")
    kit.submit(bucket, [entry, entry])
    await until(lambda: ran)
    kit.master.rows[entry.id] = Row("CANCELLED", 1, b"x" * 16, 1)
    go.set()
    await kit.settled()
    assert len(ran) == 1
    assert not kit.lists(bucket)


async def test_a_job_claimed_after_its_bucket_was_lost_is_not_adopted(kit: Kit) -> None:
    """Else its id would stay live for ever, and a good copy elsewhere would wait behind it for ever."""
    one, two = kit.bucket(), kit.bucket()
    entry = job()
    await until(lambda: len(kit.store.of("claim")) >= 2)
    claim = Gate()
    kit.store.script["claim"].append(claim)
    kit.submit(one, [entry])
    await claim.reached.wait()
    claimed_for = kit.store.of("claim")[-1][0].bucket_id
    assert claimed_for == one.fence.bucket_id
    kit.bucket_worker.forget(one.fence.bucket_id, "the test says so")
    claim.opened.set()
    await turns()
    assert len(kit.bucket_worker.job_table) == 0
    assert kit.lists(one)
    kit.submit(two, [entry])
    await until(lambda: ran)
    await kit.settled()


async def test_a_second_copy_with_another_payload_is_told_and_does_not_run(kit: Kit) -> None:
    """One id sent with two payloads to two buckets, which no store can see."""
    one, two = kit.bucket(), kit.bucket()
    entry = job("wait")
    kit.submit(one, [entry])
    await until(lambda: ran)
    kit.submit(two, [Entry(entry.id, 1, "note", b'{"x":1}')])
    await until(lambda: kit.bucket_worker.job_table.duplicates)
    await turns()
    assert kit.bucket_worker._telemetry.value("jobs_conflicting") == 1
    assert not kit.bucket_worker.job_table.conflicts
    go.set()
    await kit.settled()
    assert ran == [b"wait"]
    assert state_of(kit, entry) == "SUCCEEDED"
