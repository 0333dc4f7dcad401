"""Work under a store lease, and afterwards: what starts, what is kept, and that every outcome counts once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobmaster.model.errors import Refused
from jobmaster.model.job import Entry, JobState
from jobmaster.rules.batching import BatchSize
from jobmaster.settings.model import AgentSettings, StoreSettings
from jobmaster_agents.outcomes.kept_codec import decode_kept
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import free_thread, go, handlers, job, ran

pytestmark = pytest.mark.usefixtures("no_delays")


@pytest.fixture
async def harness(no_delays: None) -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers, AgentSettings(slots=2, bucket_buffer=20)) as made:
        yield made


def kept_in(harness: WorkerHarness, bucket: OwnedBucket) -> list[bytes]:
    return harness.store.buckets[bucket.fence.bucket_id].kept


async def kept_are(
    harness: WorkerHarness, bucket: OwnedBucket, entries: list[Entry], *, also_in_memory: bool = False
) -> None:
    ids = {entry.id for entry in entries}

    def all_there() -> bool:
        there = {decode_kept(raw).id for raw in kept_in(harness, bucket)} == ids
        return there and (also_in_memory or not any(harness.bucket_worker.job_table.get(job_id) for job_id in ids))

    await until(all_there, "the outcomes in the store")


async def test_jobs_start_and_their_outcomes_leave_memory_for_the_store(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    entries = [job() for _ in range(50)]
    harness.submit(bucket, entries)
    await kept_are(harness, bucket, entries)
    await until(lambda: not len(harness.bucket_worker.job_table), "memory to be empty")
    await until(lambda: not harness.lists(bucket), "the claimed lists to be gone")
    assert ran.count("note") == 50
    assert harness.bucket_worker.outcome_writer.backlog == 0
    assert not harness.master.calls, "no call goes to the master"


async def test_afterwards_every_outcome_is_written_and_then_removed(harness: WorkerHarness) -> None:
    harness.bucket_worker.kept_replay.size = BatchSize(20)
    bucket = harness.bucket()
    harness.suspend()
    entries = [job() for _ in range(50)]
    harness.submit(bucket, entries)
    await kept_are(harness, bucket, entries)
    harness.trust()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    assert sorted(row.id for row in harness.master.finals) == sorted(entry.id for entry in entries)
    assert {row.state for row in harness.master.finals} == {JobState.SUCCEEDED}
    assert len(harness.store.of("remove_kept")) == 3
    await until(
        lambda: set(harness.store.news) >= {entry.id for entry in entries}, "the ends of the jobs to be published"
    )
    await until(lambda: bucket.kept == 0, "the count")


async def test_master_first_store_second_and_an_unknown_commit_is_sent_again(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    entries = [job(), job()]
    harness.submit(bucket, entries)
    await kept_are(harness, bucket, entries)
    lost = Gate(LOST)
    harness.master.script["copy_final"].append(lost)
    harness.master.script["record_final"].append(LOST)
    harness.trust()
    await lost.reached.wait()
    await turns()
    assert len(kept_in(harness, bucket)) == 2, "removed only after the commit is known"
    lost.opened.set()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    assert len(harness.master.of("record_final")) == 2
    assert len(harness.master.finals) == 2, "each once, although the answer of the first commit was lost"


async def test_a_removal_whose_answer_is_lost_removes_nothing_twice(harness: WorkerHarness) -> None:
    harness.bucket_worker.kept_replay.size = BatchSize(2)
    bucket = harness.bucket()
    harness.suspend()
    entries = [job() for _ in range(6)]
    harness.submit(bucket, entries)
    await kept_are(harness, bucket, entries)
    harness.store.script["remove_kept"] += [LOST, DOWN]
    harness.store.script["read_kept"] += [DOWN]
    harness.trust()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    assert sorted(row.id for row in harness.master.finals) == sorted(entry.id for entry in entries)


async def test_a_retry_is_kept_and_becomes_held(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    entry = job("fail")
    harness.submit(bucket, [entry])
    await kept_are(harness, bucket, [entry])
    assert harness.bucket_worker.outcome_builder.retried == 1
    harness.trust()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    row = harness.master.rows[entry.id]
    assert (row.state, row.token) == ("HELD", 1)
    assert len(harness.master.attempts) == 1


async def test_what_needs_an_accepted_write_waits_and_keeps_no_slot(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    waits, runs = [job("fenced") for _ in range(5)], [job() for _ in range(5)]
    harness.submit(bucket, [*waits, *runs])
    await kept_are(harness, bucket, runs)
    await turns()
    assert "fenced" not in ran
    assert harness.bucket_worker.executor.deferred(bucket.fence.bucket_id) == 5
    harness.trust()
    await until(lambda: ran.count("fenced") == 5, "the fenced jobs to run")
    await harness.settled()
    assert len(harness.master.finals) == 10
    assert len({row.id for row in harness.master.finals}) == 10


async def test_a_fenced_start_that_waits_for_the_master_leaves_its_slot(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    gate = Gate(LOST)
    harness.master.script["persist"].append(gate)
    harness.submit(bucket, [job("fenced") for _ in range(2)])
    await gate.reached.wait()
    await turns()
    harness.suspend()
    harness.submit(bucket, [job()])
    await until(lambda: ran == ["note"], "a job behind the two that waited in both slots")
    harness.trust()
    gate.opened.set()
    await until(lambda: ran.count("fenced") == 2, "the fenced jobs to run")
    await harness.settled()
    assert ran.count("fenced") == 2


async def test_threads_too_start_only_what_needs_no_accepted_write(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    harness.submit(bucket, [job("fenced-thread"), job("thread")])
    await until(lambda: ran == ["thread"], "the thread")
    await until(lambda: kept_in(harness, bucket), "its outcome")
    assert ran == ["thread"]
    harness.trust()
    await until(lambda: ran == ["thread", "fenced-thread"], "the other one")
    await harness.settled()


async def test_what_waits_for_a_thread_and_for_an_accepted_write_does_not_start_without_the_master() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=5, threads=1)) as harness:
        bucket = harness.bucket()
        harness.submit(bucket, [job("busy-thread")])
        await until(lambda: ran == ["busy"], "the thread to be busy")
        harness.submit(bucket, [job("fenced-thread")])
        await until(lambda: harness.bucket_worker.executor.running == 2, "both to be out of the queue")
        harness.suspend()
        free_thread.set()
        await until(lambda: kept_in(harness, bucket), "the busy thread to end")
        await asyncio.sleep(0.15)  # the sweep, which lets in what waits, goes by the loop's own time
        assert ran == ["busy"]
        harness.trust()
        await until(lambda: ran == ["busy", "fenced-thread"], "the other one")
        await harness.settled()


async def test_without_a_store_lease_nothing_starts_and_nothing_is_claimed(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend(term_seconds=10.0)
    harness.clock.now += 5.0
    harness.submit(bucket, [job()])
    await turns()
    assert not ran
    assert not harness.store.of("claim") or not harness.lists(bucket)
    harness.suspend()
    await until(lambda: ran == ["note"], "the job")


async def test_a_bucket_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=2, bucket_buffer=8)) as harness:
        bucket = harness.bucket()
        claimer = harness.bucket_worker.claimers[bucket.fence.bucket_id]
        claimer._store_settings = StoreSettings(kept_outcomes=30)
        harness.suspend()
        entries = [job() for _ in range(100)]
        harness.submit(bucket, entries)
        await until(lambda: len(kept_in(harness, bucket)) >= 30, "the bound")
        await turns()
        assert len(kept_in(harness, bucket)) <= 30 + 10, "what was claimed when it was reached is finished"
        assert bucket.full
        claims = len(harness.store.of("claim"))
        harness.store.tokens.put_nowait(bucket.fence.bucket_id)
        await turns()
        assert len(harness.store.of("claim")) == claims
        harness.trust()
        await until(lambda: len(harness.master.finals) == 100, "all of them")
        assert len({row.id for row in harness.master.finals}) == 100
        assert not bucket.full


async def test_jobs_whose_start_waits_for_the_master_are_bounded_too(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    harness.submit(bucket, [job("fenced") for _ in range(200)])
    await until(lambda: harness.bucket_worker.executor.deferred(bucket.fence.bucket_id) >= 22, "what it may hold")
    await turns()
    assert len(harness.bucket_worker.job_table) <= 2 * 22


async def test_a_copy_behind_another_stays_in_memory_with_it(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    entry = job("wait")
    harness.submit(bucket, [entry, entry])
    await until(lambda: ran == ["wait"], "the first copy")
    go.set()
    await kept_are(harness, bucket, [entry], also_in_memory=True)
    await turns()
    assert harness.lists(bucket), "the second copy is in no other place"
    assert len(harness.bucket_worker.job_table) == 1
    harness.trust()
    await harness.settled()
    assert len(harness.master.finals) == 1
    assert not harness.lists(bucket)


async def test_what_a_writer_has_taken_stays_in_memory_and_counts_once(harness: WorkerHarness) -> None:
    """Its commit may be on its way: the copy in the store is a second one."""
    bucket = harness.bucket()
    gate = Gate(LOST)
    harness.master.script["copy_final"].append(gate)
    entries = [job(), job()]
    harness.submit(bucket, entries)
    await gate.reached.wait()
    await turns()
    harness.suspend()
    await kept_are(harness, bucket, entries, also_in_memory=True)
    await turns()
    assert len(harness.bucket_worker.job_table) == 2
    harness.trust()
    gate.opened.set()
    await harness.settled()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    assert sorted(row.id for row in harness.master.finals) == sorted(entry.id for entry in entries)


async def test_one_job_that_goes_on_does_not_keep_its_neighbours_in_memory(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    long, others = job("wait"), [job() for _ in range(10)]
    harness.submit(bucket, [long, *others])
    await kept_are(harness, bucket, others)
    await until(lambda: len(harness.bucket_worker.job_table) == 1, "memory")
    assert harness.lists(bucket), "the list holds the job that runs"
    (claimed_list,) = harness.bucket_worker.job_table.unpersisted(harness.clock.now)
    assert len(claimed_list.jobs) == 1
    go.set()
    await until(lambda: not harness.lists(bucket), "the list to go with its last job")
    harness.trust()
    await until(lambda: len(harness.master.finals) == 11, "all outcomes")


async def test_a_fenced_call_to_keep_drops_the_bucket_and_its_jobs(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    harness.submit(bucket, [job("wait")])
    await until(lambda: ran == ["wait"], "the job")
    harness.rescue(bucket)
    go.set()
    await until(lambda: bucket.lost, "the loss")
    assert not kept_in(harness, bucket)
    assert harness.lists(bucket), "the rescuer finds it where it lies"


async def test_a_bucket_that_was_taken_is_not_emptied(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    harness.submit(bucket, [job()])
    await until(lambda: kept_in(harness, bucket) and not len(harness.bucket_worker.job_table), "the outcome")
    harness.rescue(bucket)
    harness.trust()
    await until(lambda: bucket.lost, "the loss")
    assert len(kept_in(harness, bucket)) == 1
    assert not harness.master.finals


async def test_a_kept_outcome_of_a_job_that_was_taken_away_is_refused_and_counted(harness: WorkerHarness) -> None:
    """Cut off from the master alone, while another agent rescued the row."""
    bucket = harness.bucket()
    harness.suspend()
    entry = job()
    harness.submit(bucket, [entry])
    await kept_are(harness, bucket, [entry])
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, b"x" * 16, 1)
    harness.trust()
    await until(lambda: not kept_in(harness, bucket), "the store to be empty")
    assert not harness.master.finals
    assert harness.bucket_worker.outcome_writer.refused == 1


async def test_a_value_that_the_master_refuses_stays_and_the_rest_is_written(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    entries = [job() for _ in range(3)]
    harness.submit(bucket, entries)
    await kept_are(harness, bucket, entries)
    no = Refused("a value")
    harness.master.script["copy_final"] += [False] * 4
    harness.master.script["record_final"] += [no, no]
    harness.trust()
    await until(lambda: len(kept_in(harness, bucket)) == 1, "all but one")
    await until(lambda: len(harness.master.finals) == 2, "the two that can be written")
    await until(lambda: bucket.kept == 1, "the count")
