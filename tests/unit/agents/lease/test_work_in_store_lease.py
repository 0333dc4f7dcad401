"""Work under a store lease, and afterwards: what starts, what is kept, and that every outcome counts once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import Refused
from jobmaster.model.job import Entry, JobState
from jobmaster.rules.batching import BatchSize
from jobmaster.settings.model import AgentSettings, StoreSettings
from jobmaster_agents import until_answered
from jobmaster_agents.outcomes import kept
from jobmaster_agents.outcomes.kept_codec import decode_kept
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Kit, Row, turns
from tests.support.waiting import until

handlers = Handlers()
ran: list[str] = []
go = asyncio.Event()
free_thread = threading.Event()


@handlers.job(name="note")
async def note() -> str:
    ran.append("note")
    return "done"


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    ran.append("wait")
    await go.wait()


@handlers.job(name="fail", backoff=7, backoff_jitter=0.0)
async def fail() -> None:
    raise RuntimeError("as asked")


@handlers.job(name="fenced", start="fenced")
async def fenced() -> None:
    ran.append("fenced")


@handlers.job(name="busy-thread", mode="thread")
def busy_thread() -> None:
    ran.append("busy")
    free_thread.wait(10)


@handlers.job(name="thread", mode="thread")
def thread() -> None:
    ran.append("thread")


@handlers.job(name="fenced-thread", mode="thread", start="fenced")
def fenced_thread() -> None:
    ran.append("fenced-thread")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_LOOK_SECONDS", 0.0)
    ran.clear()
    go.clear()
    free_thread.clear()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with Kit(handlers, AgentSettings(slots=2, bucket_buffer=20)) as made:
        yield made


def job(name: str = "note") -> Entry:
    return Entry(new_id(), 1, name, b"{}")


def kept_in(kit: Kit, bucket: OwnedBucket) -> list[bytes]:
    return kit.store.buckets[bucket.fence.bucket_id].kept


async def kept_are(kit: Kit, bucket: OwnedBucket, entries: list[Entry], *, also_in_memory: bool = False) -> None:
    ids = {entry.id for entry in entries}

    def all_there() -> bool:
        there = {decode_kept(raw).id for raw in kept_in(kit, bucket)} == ids
        return there and (also_in_memory or not any(kit.bucket_worker.job_table.get(job_id) for job_id in ids))

    await until(all_there, "the outcomes in the store")


async def test_jobs_start_and_their_outcomes_leave_memory_for_the_store(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    entries = [job() for _ in range(50)]
    kit.submit(bucket, entries)
    await kept_are(kit, bucket, entries)
    await until(lambda: not len(kit.bucket_worker.job_table), "memory to be empty")
    await until(lambda: not kit.lists(bucket), "the claimed lists to be gone")
    assert ran.count("note") == 50
    assert kit.bucket_worker.outcome_writer.backlog == 0
    assert not kit.master.calls, "the master is not asked"


async def test_afterwards_every_outcome_is_written_and_then_removed(kit: Kit) -> None:
    kit.bucket_worker.kept_replay.size = BatchSize(20)
    bucket = kit.bucket()
    kit.suspend()
    entries = [job() for _ in range(50)]
    kit.submit(bucket, entries)
    await kept_are(kit, bucket, entries)
    kit.trust()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    assert sorted(row.id for row in kit.master.finals) == sorted(entry.id for entry in entries)
    assert {row.state for row in kit.master.finals} == {JobState.SUCCEEDED}
    assert len(kit.store.of("remove_kept")) == 3
    await until(lambda: set(kit.store.news) >= {entry.id for entry in entries}, "waiting callers to be told")
    await until(lambda: bucket.kept == 0, "the count")


async def test_master_first_store_second_and_an_unknown_commit_is_sent_again(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    entries = [job(), job()]
    kit.submit(bucket, entries)
    await kept_are(kit, bucket, entries)
    lost = Gate(LOST)
    kit.master.script["copy_final"].append(lost)
    kit.master.script["record_final"].append(LOST)
    kit.trust()
    await lost.reached.wait()
    await turns()
    assert len(kept_in(kit, bucket)) == 2, "removed only after the commit is known"
    lost.opened.set()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    assert len(kit.master.of("record_final")) == 2
    assert len(kit.master.finals) == 2, "each once, although the first commit was answered to nobody"


async def test_a_removal_whose_answer_is_lost_removes_nothing_twice(kit: Kit) -> None:
    kit.bucket_worker.kept_replay.size = BatchSize(2)
    bucket = kit.bucket()
    kit.suspend()
    entries = [job() for _ in range(6)]
    kit.submit(bucket, entries)
    await kept_are(kit, bucket, entries)
    kit.store.script["remove_kept"] += [LOST, DOWN]
    kit.store.script["read_kept"] += [DOWN]
    kit.trust()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    assert sorted(row.id for row in kit.master.finals) == sorted(entry.id for entry in entries)


async def test_a_retry_is_kept_and_becomes_held(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    entry = job("fail")
    kit.submit(bucket, [entry])
    await kept_are(kit, bucket, [entry])
    assert kit.bucket_worker.outcome_builder.retried == 1
    kit.trust()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    row = kit.master.rows[entry.id]
    assert (row.state, row.token) == ("HELD", 1)
    assert len(kit.master.attempts) == 1


async def test_what_needs_an_accepted_write_waits_and_keeps_no_slot(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    waits, runs = [job("fenced") for _ in range(5)], [job() for _ in range(5)]
    kit.submit(bucket, [*waits, *runs])
    await kept_are(kit, bucket, runs)
    await turns()
    assert "fenced" not in ran
    assert kit.bucket_worker.executor.deferred(bucket.fence.bucket_id) == 5
    kit.trust()
    await until(lambda: ran.count("fenced") == 5, "the fenced jobs to run")
    await kit.settled()
    assert len(kit.master.finals) == 10
    assert len({row.id for row in kit.master.finals}) == 10


async def test_a_fenced_start_that_waits_for_the_master_leaves_its_slot(kit: Kit) -> None:
    bucket = kit.bucket()
    gate = Gate(LOST)
    kit.master.script["persist"].append(gate)
    kit.submit(bucket, [job("fenced") for _ in range(2)])
    await gate.reached.wait()
    await turns()
    kit.suspend()
    kit.submit(bucket, [job()])
    await until(lambda: ran == ["note"], "a job behind the two that waited in both slots")
    kit.trust()
    gate.opened.set()
    await until(lambda: ran.count("fenced") == 2, "the fenced jobs to run")
    await kit.settled()
    assert ran.count("fenced") == 2


async def test_threads_too_start_only_what_needs_no_accepted_write(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    kit.submit(bucket, [job("fenced-thread"), job("thread")])
    await until(lambda: ran == ["thread"], "the thread")
    await until(lambda: kept_in(kit, bucket), "its outcome")
    assert ran == ["thread"]
    kit.trust()
    await until(lambda: ran == ["thread", "fenced-thread"], "the other one")
    await kit.settled()


async def test_what_waits_for_a_thread_and_for_an_accepted_write_does_not_start_without_the_master() -> None:
    async with Kit(handlers, AgentSettings(slots=5, threads=1)) as kit:
        bucket = kit.bucket()
        kit.submit(bucket, [job("busy-thread")])
        await until(lambda: ran == ["busy"], "the thread to be busy")
        kit.submit(bucket, [job("fenced-thread")])
        await until(lambda: kit.bucket_worker.executor.running == 2, "both to be out of the queue")
        kit.suspend()
        free_thread.set()
        await until(lambda: kept_in(kit, bucket), "the busy thread to end")
        await asyncio.sleep(0.15)  # the sweep, which lets in what waits, goes by the loop's own time
        assert ran == ["busy"]
        kit.trust()
        await until(lambda: ran == ["busy", "fenced-thread"], "the other one")
        await kit.settled()


async def test_without_a_store_lease_nothing_starts_and_nothing_is_claimed(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend(term_seconds=10.0)
    kit.clock.now += 5.0
    kit.submit(bucket, [job()])
    await turns()
    assert not ran
    assert not kit.store.of("claim") or not kit.lists(bucket)
    kit.suspend()
    await until(lambda: ran == ["note"], "the job")


async def test_a_bucket_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Kit(handlers, AgentSettings(slots=2, bucket_buffer=8)) as kit:
        bucket = kit.bucket()
        claimer = kit.bucket_worker.claimers[bucket.fence.bucket_id]
        claimer._store_settings = StoreSettings(kept_outcomes=30)
        kit.suspend()
        entries = [job() for _ in range(100)]
        kit.submit(bucket, entries)
        await until(lambda: len(kept_in(kit, bucket)) >= 30, "the bound")
        await turns()
        assert len(kept_in(kit, bucket)) <= 30 + 10, "what was claimed when it was reached is finished"
        assert bucket.full
        claims = len(kit.store.of("claim"))
        kit.store.tokens.put_nowait(bucket.fence.bucket_id)
        await turns()
        assert len(kit.store.of("claim")) == claims
        kit.trust()
        await until(lambda: len(kit.master.finals) == 100, "all of them")
        assert len({row.id for row in kit.master.finals}) == 100
        assert not bucket.full


async def test_jobs_whose_start_waits_for_the_master_are_bounded_too(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    kit.submit(bucket, [job("fenced") for _ in range(200)])
    await until(lambda: kit.bucket_worker.executor.deferred(bucket.fence.bucket_id) >= 22, "what it may hold")
    await turns()
    assert len(kit.bucket_worker.job_table) <= 2 * 22


async def test_a_copy_behind_another_stays_in_memory_with_it(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    entry = job("wait")
    kit.submit(bucket, [entry, entry])
    await until(lambda: ran == ["wait"], "the first copy")
    go.set()
    await kept_are(kit, bucket, [entry], also_in_memory=True)
    await turns()
    assert kit.lists(bucket), "the second copy is in no other place"
    assert len(kit.bucket_worker.job_table) == 1
    kit.trust()
    await kit.settled()
    assert len(kit.master.finals) == 1
    assert not kit.lists(bucket)


async def test_what_a_writer_has_taken_stays_in_memory_and_counts_once(kit: Kit) -> None:
    """Its commit may be on its way: the copy in the store is a second one."""
    bucket = kit.bucket()
    gate = Gate(LOST)
    kit.master.script["copy_final"].append(gate)
    entries = [job(), job()]
    kit.submit(bucket, entries)
    await gate.reached.wait()
    await turns()
    kit.suspend()
    await kept_are(kit, bucket, entries, also_in_memory=True)
    await turns()
    assert len(kit.bucket_worker.job_table) == 2
    kit.trust()
    gate.opened.set()
    await kit.settled()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    assert sorted(row.id for row in kit.master.finals) == sorted(entry.id for entry in entries)


async def test_one_job_that_goes_on_does_not_keep_its_neighbours_in_memory(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    long, others = job("wait"), [job() for _ in range(10)]
    kit.submit(bucket, [long, *others])
    await kept_are(kit, bucket, others)
    await until(lambda: len(kit.bucket_worker.job_table) == 1, "memory")
    assert kit.lists(bucket), "the list holds the job that runs"
    (claimed_list,) = kit.bucket_worker.job_table.unpersisted(kit.clock.now)
    assert len(claimed_list.jobs) == 1
    go.set()
    await until(lambda: not kit.lists(bucket), "the list to go with its last job")
    kit.trust()
    await until(lambda: len(kit.master.finals) == 11, "all outcomes")


async def test_a_fenced_call_to_keep_drops_the_bucket_and_its_jobs(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    kit.submit(bucket, [job("wait")])
    await until(lambda: ran == ["wait"], "the job")
    kit.rescue(bucket)
    go.set()
    await until(lambda: bucket.lost, "the loss")
    assert not kept_in(kit, bucket)
    assert kit.lists(bucket), "the rescuer finds it where it lies"


async def test_a_bucket_that_was_taken_is_not_emptied(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    kit.submit(bucket, [job()])
    await until(lambda: kept_in(kit, bucket) and not len(kit.bucket_worker.job_table), "the outcome")
    kit.rescue(bucket)
    kit.trust()
    await until(lambda: bucket.lost, "the loss")
    assert len(kept_in(kit, bucket)) == 1
    assert not kit.master.finals


async def test_a_kept_outcome_of_a_job_that_was_taken_away_is_refused_and_counted(kit: Kit) -> None:
    """Cut off from the master alone, while another agent rescued the row."""
    bucket = kit.bucket()
    kit.suspend()
    entry = job()
    kit.submit(bucket, [entry])
    await kept_are(kit, bucket, [entry])
    kit.master.rows[entry.id] = Row("ASSIGNED", 2, b"x" * 16, 1)
    kit.trust()
    await until(lambda: not kept_in(kit, bucket), "the store to be empty")
    assert not kit.master.finals
    assert kit.bucket_worker.outcome_writer.refused == 1


async def test_a_value_that_the_master_refuses_stays_and_the_rest_is_written(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.suspend()
    entries = [job() for _ in range(3)]
    kit.submit(bucket, entries)
    await kept_are(kit, bucket, entries)
    no = Refused("a value")
    kit.master.script["copy_final"] += [False] * 4
    kit.master.script["record_final"] += [no, no]
    kit.trust()
    await until(lambda: len(kept_in(kit, bucket)) == 1, "all but one")
    await until(lambda: len(kit.master.finals) == 2, "the two that can be written")
    await until(lambda: bucket.kept == 1, "the count")
