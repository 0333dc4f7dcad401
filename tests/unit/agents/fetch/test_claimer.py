"""Claims: nothing is taken twice or lost with a reply, everything is taken without polling, what cannot wait is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry, Headers, JobState
from jobmaster.ports import Claimed, ReplyStatus
from jobmaster.settings.model import AgentSettings, SlotCounts
from jobmaster_agents import call_retry
from jobmaster_agents.fetch import claimer
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until

handlers = Handlers()
ran: list[int] = []
go = asyncio.Event()


@handlers.job(name="note")
async def note(value: int = 0) -> None:
    ran.append(value)


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    ran.append(-1)
    await go.wait()


@handlers.job(name="one_by_one", timeout=1e6)
async def one_by_one(value: int = 0) -> None:
    await asyncio.sleep(0)
    ran.append(value)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers) as made:
        yield made


def job(name: str = "note", token: int = 1, due_us: int = 0, headers: bytes = b"") -> Entry:
    return Entry(new_id(), token, name, b"{}", due_us, headers)


def names(harness: WorkerHarness) -> list[str]:
    return [name for _, name, _ in harness.store.of("claim")]


# ---------------------------------------------------------------- lost replies


async def test_a_claim_whose_reply_was_lost_is_repeated_under_its_name(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    harness.store.script["claim"] += [LOST, LOST, DOWN]
    harness.submit(bucket, [job(), job()])
    await harness.settled()
    assert names(harness)[1:5] == [names(harness)[1]] * 4
    assert len(ran) == 2
    assert len(set(names(harness))) == len(names(harness)) - 3, "every other claim has a name of its own"


async def test_the_clock_of_a_claim_is_that_of_the_answer_and_its_promise_that_of_the_first_try(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    gate = Gate(LOST)
    harness.store.script["claim"].append(gate)
    due = harness.clock.wall_us() + 8_000_000
    harness.submit(bucket, [job("wait"), job(due_us=due)])
    await gate.reached.wait()
    harness.clock.now += 5.0
    gate.opened.set()
    await until(lambda: ran == [-1])
    await turns()
    assert ran == [-1], "five seconds of waiting for a reply do not make a job due three seconds early"
    assert harness.bucket_worker.job_table.unpersisted(harness.clock.now - 4.0), (
        "persist_within counts from the first try"
    )
    go.set()
    await harness.settled()


async def test_lists_whose_reply_never_came_are_read_again(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    entry = job()
    harness.store.buckets[bucket.fence.bucket_id].claimed["me-99"] = [entry]
    await harness.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
    await harness.settled()
    assert ran == [0]
    assert not harness.lists(bucket)


async def test_a_fence_that_no_claim_shows_is_noticed(harness: WorkerHarness) -> None:
    """A fenced bucket takes no submits, so nothing wakes it and no claim asks."""
    bucket = harness.bucket()
    bucket_id = bucket.fence.bucket_id
    await until(lambda: names(harness))
    harness.store.script["claimed_lists"].append((ReplyStatus.FENCED, []))
    await harness.bucket_worker.claimers[bucket_id].adopt_unknown_lists()
    assert bucket.lost
    assert bucket_id not in harness.bucket_worker.claimers


async def test_the_list_of_a_claim_under_way_is_not_adopted_before_its_answer(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    gate = Gate(late=True)
    harness.store.script["claim"] += [LOST, gate]
    harness.submit(bucket, [job()])
    await gate.reached.wait()
    assert harness.lists(bucket)
    await harness.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
    await turns()
    assert not harness.bucket_worker.job_table.duplicates
    gate.opened.set()
    await harness.settled()
    await turns()
    assert not harness.bucket_worker.job_table.duplicates
    assert ran == [0]


async def test_an_abandoned_claim_leaves_its_list_to_be_read(harness: WorkerHarness) -> None:
    """The bucket was frozen for a moment: the claim ended in CLOSED after a try that had moved jobs."""
    bucket = harness.bucket()
    await until(lambda: names(harness))
    harness.store.script["claim"] += [LOST, Claimed(ReplyStatus.CLOSED, [], [], 0, 0, False, 0)]
    harness.submit(bucket, [job()])
    await until(lambda: len(names(harness)) == 3)
    await turns()
    assert harness.lists(bucket)
    await harness.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
    await harness.settled()
    assert ran == [0]


# ---------------------------------------------------------------- nothing is forgotten, nothing polls


@pytest.mark.parametrize(("slots", "buffer"), [(1, 0), (3, 0), (2, 1), (5, 7), (50, 1000)])
@pytest.mark.parametrize("name", ["note", "one_by_one"])
async def test_more_jobs_than_fit_are_all_claimed_from_one_wake_token(slots: int, buffer: int, name: str) -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=slots, bucket_buffer=buffer)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job(name) for _ in range(300)])
        await harness.settled()
        assert len(ran) == 300
        assert harness.store.tokens.empty()


async def test_no_more_is_claimed_than_slots_and_buffer_hold() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=3, bucket_buffer=4)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job("wait") for _ in range(30)])
        await until(lambda: len(ran) == 3)
        await turns()
        assert len(harness.bucket_worker.job_table) == 7, "three run, four wait in memory"
        assert len(harness.store.buckets[bucket.fence.bucket_id].pending) == 23
        go.set()
        await harness.settled()
        assert len(ran) == 30


@pytest.mark.parametrize(
    ("seconds", "buffer", "above", "most"),
    [(1e-5, 1000, 1250, 2001), (1e-3, 1000, 750, 1001), (1e-5, 999, 750, 1000)],
    ids=["short jobs", "long jobs", "a small buffer"],
)
async def test_memory_has_room_for_one_more_full_claim_of_short_jobs(
    seconds: float, buffer: int, above: int, most: int
) -> None:
    made = Handlers()
    waiting: list[int] = []

    @made.job(name="note")
    async def note() -> None:
        harness.clock.now += seconds
        waiting.append(harness.bucket_worker.executor.backlog(bucket.fence.bucket_id))

    async with WorkerHarness(made, AgentSettings(slots=1, bucket_buffer=buffer)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job() for _ in range(6000)])
        await harness.settled()
        assert len(waiting) == 6000
        assert above < max(waiting) <= most, "some run while a claim is on its way"


async def test_memory_has_no_further_room_once_jobs_have_become_long() -> None:
    made = Handlers()
    waiting: list[int] = []

    @made.job(name="note")
    async def note() -> None:
        harness.clock.now += 1e-5 if len(waiting) < 5000 else 1e-3
        waiting.append(harness.bucket_worker.executor.backlog(bucket.fence.bucket_id))

    async with WorkerHarness(made, AgentSettings(slots=1, bucket_buffer=1000)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job() for _ in range(12_000)])
        await harness.settled()
        assert 1250 < max(waiting) <= 2001
        assert 500 < max(waiting[8000:]) <= 1001


async def test_few_jobs_are_not_claimed_while_each_slot_has_one() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=50, bucket_buffer=1000)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job() for _ in range(6000)])
        await harness.settled()
        assert len(ran) == 6000
        assert all(limit >= 250 for _, _, limit in harness.store.of("claim") if limit)


async def test_few_jobs_are_claimed_where_tenants_take_turns() -> None:
    def waits(tenant: str) -> Entry:
        return job("wait", headers=encode_headers(Headers(tenant=(tenant,))))

    async with WorkerHarness(handlers, AgentSettings(slots=50, bucket_buffer=1000)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [waits("heavy") for _ in range(900)])
        await until(lambda: ran)
        await turns()
        harness.submit(bucket, [waits("light")])
        await turns()
        assert not harness.store.buckets[bucket.fence.bucket_id].pending, "the job of the other tenant is in memory"
        go.set()
        await harness.settled()


async def test_a_free_slot_is_filled_by_a_claim_of_one_job() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=50, bucket_buffer=40)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job("wait") for _ in range(90)])
        await until(lambda: len(ran) == 50)
        claimer_ = harness.bucket_worker.claimers[bucket.fence.bucket_id]
        assert claimer_.full
        claimer_.prefetch_limit = claimer_.prefetch_limit._replace(slots=95)
        assert not claimer_.full, "four slots have no job"
        go.set()
        await harness.settled()


async def test_a_priority_has_slots_of_its_own() -> None:
    settings = AgentSettings(slots=3, priority_slots=SlotCounts(low=1, critical=5), bucket_buffer=1)
    async with WorkerHarness(handlers, settings) as harness:
        buckets = {priority: harness.bucket(priority) for priority in (2, 3, 5)}
        await until(lambda: len(names(harness)) >= 3)
        for bucket in buckets.values():
            harness.submit(bucket, [job("wait") for _ in range(10)])
        await until(lambda: len(ran) == 9, "1, 3 and 5 jobs to run")
        await turns()
        left = {level: len(harness.store.buckets[each.fence.bucket_id].pending) for level, each in buckets.items()}
        assert left == {2: 8, 3: 6, 5: 4}, "so many run, and one waits in memory"
        changed = AgentSettings(slots=3, priority_slots=SlotCounts(low=2), bucket_buffer=1)
        harness.bucket_worker.retune(harness.bucket_worker._settings, changed)
        await until(lambda: len(ran) == 10, "another slot for low jobs")
        await turns()
        assert len(ran) == 10
        go.set()
        await harness.settled()
        assert len(ran) == 30


async def test_a_free_slot_is_filled_while_the_others_run_on() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=3, bucket_buffer=0)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job("wait"), job("wait"), *(job() for _ in range(10))])
        await until(lambda: ran.count(0) == 10, "the third slot to run everything that the other two leave")
        go.set()
        await harness.settled()


async def test_buckets_woken_in_the_same_turn_all_get_a_slot(harness: WorkerHarness) -> None:
    one, two, three = harness.bucket(), harness.bucket(), harness.bucket(5)
    await until(lambda: len(names(harness)) >= 3)
    for bucket in (one, two, three):
        harness.submit(bucket, [job("wait")])
    await until(lambda: len(ran) == 3, "all three jobs to run at once")
    go.set()
    await harness.settled()


async def test_a_new_bucket_is_served_at_once(harness: WorkerHarness) -> None:
    one = harness.bucket()
    await until(lambda: harness.store.of("wait_wake"))
    two = harness.bucket()
    await until(lambda: set(harness.store.of("wait_wake")[-1][0]) == {one.fence.bucket_id, two.fence.bucket_id})


async def test_after_a_broken_wait_every_claimer_is_woken_once(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    await until(lambda: any(len(args[0]) == 2 for args in harness.store.of("wait_wake")))
    await turns()
    for bucket in (one, two):
        harness.store.buckets[bucket.fence.bucket_id].pending.append(job())  # their tokens died with the connection
    harness.store.script["wait_wake"].append(DOWN)
    harness.store.tokens.put_nowait(None)
    await until(lambda: len(ran) == 2)
    await harness.settled()


async def test_the_next_due_job_arms_a_timer(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    due = harness.clock.wall_us() + 20_000
    harness.store.buckets[bucket.fence.bucket_id].assigned.append((due, job(token=2, due_us=due)))
    harness.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await turns()
    assert not ran
    harness.clock.now += 0.03
    await until(lambda: ran, "the timer")


async def test_nothing_is_claimed_past_half_the_lease(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: names(harness))
    harness.clock.now = harness.ownership.soft_until + 1.0
    harness.submit(bucket, [job()])
    await turns()
    assert len(names(harness)) == 1
    harness.trust()
    await harness.settled()
    assert ran == [0]


# ---------------------------------------------------------------- without room


async def test_without_room_cancellations_are_read_and_a_full_bucket_is_spilled() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=2, bucket_buffer=0)) as harness:
        bucket = harness.bucket()
        harness.bucket_worker.claimers[bucket.fence.bucket_id]._spill_jobs = 50
        await until(lambda: names(harness))
        running = [job("wait"), job("wait")]
        harness.submit(bucket, running)
        await until(lambda: len(ran) == 2)
        harness.clock.now += 1.0
        waiting = [job() for _ in range(claimer.CLAIM_JOBS_MAX + 70)]
        harness.submit(bucket, waiting)
        await until(lambda: len(harness.store.buckets[bucket.fence.bucket_id].pending) == 0, "the spill")
        await until(lambda: sum(row.state == "HELD" for row in harness.master.rows.values()) == len(waiting))
        assert ran == [-1, -1]
        harness.store.buckets[bucket.fence.bucket_id].cancelled.add(running[0].id)
        harness.clock.now += 1.0
        harness.store.tokens.put_nowait(bucket.fence.bucket_id)
        await until(lambda: running[0].id in harness.master.rows)
        assert harness.master.rows[running[0].id].state == JobState.CANCELLED
        go.set()
        await harness.settled()


async def test_wake_ups_without_room_do_not_become_a_claim_each() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=0)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        harness.submit(bucket, [job("wait")])
        await until(lambda: ran)
        before = len(names(harness))
        for _ in range(100):
            harness.store.tokens.put_nowait(bucket.fence.bucket_id)
            await turns(5)
        assert len(names(harness)) <= before + 1
        go.set()
        await harness.settled()


# ---------------------------------------------------------------- cancelled, late, unreadable


async def test_a_cancelled_job_that_still_waits_in_the_bucket_is_not_started_later() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=0)) as harness:
        bucket = harness.bucket()
        await until(lambda: names(harness))
        victim = job()
        harness.store.buckets[bucket.fence.bucket_id].cancelled.add(victim.id)
        harness.submit(bucket, [job("wait"), victim])
        await until(lambda: ran)
        go.set()
        await harness.settled()
        assert ran == [-1]
        assert harness.master.rows[victim.id].state == JobState.CANCELLED


async def test_cancel_ends_what_waits_at_once_and_what_runs() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=10)) as harness:
        bucket = harness.bucket()
        first, second = job("wait"), job()
        harness.submit(bucket, [first, second])
        await until(lambda: ran)
        harness.bucket_worker.cancel([second.id, first.id])
        await harness.settled()
        assert [harness.master.rows[each.id].state for each in (first, second)] == ["CANCELLED", "CANCELLED"]
        assert ran == [-1]


async def test_a_job_due_later_waits_in_the_bucket_if_soon_and_in_the_master_if_not(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    now = harness.clock.wall_us()
    soon, late = job(due_us=now + 60_000_000), job(due_us=now + 86_400_000_000)
    harness.submit(bucket, [soon, late, job()])
    await harness.settled()
    assert ran == [0]
    assert (harness.master.rows[soon.id].state, harness.master.rows[soon.id].token) == ("ASSIGNED", 2)
    assert (harness.master.rows[late.id].state, harness.master.rows[late.id].token) == ("HELD", 1)
    assert [entry.id for _, entry in harness.store.buckets[bucket.fence.bucket_id].assigned] == [soon.id]
    assert not harness.master.attempts


async def test_an_expired_job_is_not_started(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    late = job(headers=encode_headers(Headers(expires_us=harness.clock.wall_us() - 1)))
    harness.submit(bucket, [late])
    await harness.settled()
    assert harness.master.rows[late.id].state == JobState.EXPIRED
    assert harness.master.finals[0].attempt == 0


async def test_unreadable_headers_cost_their_job_and_no_slot(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    bad = job(headers=b"\xff not json")
    harness.submit(bucket, [bad] + [job() for _ in range(5)])
    await harness.settled()
    assert harness.master.rows[bad.id].state == JobState.FAILED
    assert len(ran) == 5


# ---------------------------------------------------------------- fenced


async def test_a_fenced_claim_forgets_the_bucket_and_runs_nothing_more(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("wait")])
    await until(lambda: ran)
    harness.rescue(bucket)
    harness.submit(bucket, [job()])
    await until(lambda: bucket.lost)
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await turns()
    assert ran == [-1]
    assert not harness.master.finals
    assert harness.lists(bucket)


async def test_jobs_that_were_only_in_a_lost_store_and_in_memory_are_counted() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=1)) as harness:
        bucket = harness.bucket()
        harness.submit(bucket, [job("wait", token=2), *(job("wait") for _ in range(4))])
        await until(lambda: harness.bucket_worker.claimers[bucket.fence.bucket_id].waiting == 3)
        harness.ownership.lose(bucket.fence.bucket_id, "its store was emptied")
        assert bucket.at_risk == 4, "three that waited and one in memory; the fifth has its row"


async def test_a_copy_promoted_from_a_lost_bucket_runs_in_its_own(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    entry = job("wait")
    harness.submit(one, [entry])
    await until(lambda: ran)
    harness.submit(two, [entry])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    harness.rescue(one)
    harness.bucket_worker.forget(one.fence.bucket_id, "on request of the test")
    await until(lambda: len(ran) == 2)
    go.set()
    await harness.settled()
    assert harness.master.rows[entry.id].bucket_id == two.fence.bucket_id
    assert len(harness.master.finals) == 1


async def test_a_promoted_copy_that_is_not_due_is_not_run_early(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    due = harness.clock.wall_us() + 60_000_000
    entry = job(due_us=due)
    write = Gate()
    harness.master.script["retry_here"].append(write)
    harness.submit(one, [entry])
    await write.reached.wait()
    harness.submit(two, [entry])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    harness.master.rows[entry.id] = Row("HELD", 1)
    write.opened.set()
    await turns()
    assert not ran


async def test_failed_claims_of_many_buckets_are_logged_as_of_one_store(
    harness: WorkerHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    for _ in range(8):
        harness.store.script["claim"] += [DOWN] * 4
    buckets = [harness.bucket() for _ in range(8)]
    await until(lambda: not harness.store.script["claim"])
    await turns(20)
    failures = [record for record in caplog.records if getattr(record, "jobmaster_fields", {}).get("what") == "claim"]
    assert len(buckets) == 8
    assert 1 <= len(failures) <= 8, "32 failures in a row, or a few rows of them: the 1st, 2nd, 4th, 8th ... is logged"
