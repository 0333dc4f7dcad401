"""Jobs that wait longer than their ``accept_time`` go back to the master, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.handlers import Handlers
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import Entry, Headers
from jobmaster.settings.model import AgentSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.fetch.accept_time import AcceptTime
from jobmaster_agents.fetch.claimer import PrefetchLimit
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import ME, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import free_thread, go, ran
from tests.unit.agents.worker_handlers import handlers as usual

pytestmark = pytest.mark.usefixtures("no_delays")

handlers = Handlers()
for each in usual:
    if each.name in ("wait", "busy-thread"):
        handlers.job(name=each.name, timeout=1e6, mode=each.options.mode.value)(each.function)


@handlers.job(name="urgent", accept_time=30, timeout=1e6)
async def urgent() -> None:
    ran.append("urgent")


@handlers.job(name="urgent-thread", mode="thread", accept_time=30, timeout=1e6)
def urgent_thread() -> None:
    ran.append("urgent-thread")


@handlers.job(name="urgent-once", delivery="at_most_once", mode="thread", accept_time=30, timeout=1e6)
def urgent_once() -> None:
    ran.append("urgent-once")


class Others:
    """What the master knows of other agents."""

    def __init__(self) -> None:
        self.handlers = {"urgent", "urgent-thread", "urgent-once", "wait"}
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self.silent = False

    async def other_owners(self, agent_id: bytes, lane: str, priority: int, names: Sequence[str]) -> frozenset[str]:
        assert agent_id == ME
        self.asked.append((lane, priority, tuple(names)))
        if self.silent:
            raise Unavailable("away")
        return frozenset(self.handlers & set(names))


class AcceptHarness(WorkerHarness):
    """One slot and one thread, so that the second job waits."""

    def __init__(self) -> None:
        super().__init__(handlers, AgentSettings(slots=8, max_running=1, threads=1))
        self.others = Others()
        self.telemetry = Telemetry()
        self.alone = False
        self.accept_time = AcceptTime(
            self.bucket_worker,
            self.ownership,
            self.others,
            lambda: self.alone,
            self.clock,
            self.telemetry,
            EventLog(),
        )

    def entry(self, handler: str, *, age: float = 0.0, token: int = 1, **headers: float) -> Entry:
        made_ms = self.clock.wall_us() // 1000 - int(age * 1000)
        job_id = made_ms.to_bytes(6, "big") + new_id()[6:]
        return Entry(job_id, token, handler, b"{}", headers=encode_headers(Headers(**headers)) if headers else b"")  # type: ignore[arg-type]

    async def busy(self, bucket: OwnedBucket, handler: str = "wait") -> None:
        """The only place is taken."""
        self.submit(bucket, [self.entry(handler)])
        await until(lambda: ran)

    async def queued(self, bucket: OwnedBucket, *entries: Entry) -> None:
        """Claimed, and waiting for the place."""
        known = self.bucket_worker.job_table
        self.submit(bucket, entries)
        await until(lambda: all(known.get(entry.id) is not None for entry in entries))
        await turns(5)

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        await self.accept_time.tick()
        await turns(20)

    async def __aenter__(self) -> AcceptHarness:
        await super().__aenter__()
        return self

    def held(self) -> list[bytes]:
        return [row.id for _, rows in self.master.of("hold") for row in rows]


@pytest.fixture
async def harness() -> AsyncIterator[AcceptHarness]:
    async with AcceptHarness() as made:
        yield made
        go.set()
        free_thread.set()


async def test_a_job_that_waits_too_long_is_held_unrun_and_its_list_goes(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    late = harness.entry("urgent")
    await harness.queued(bucket, late)
    await harness.later(29.0)
    assert not harness.master.of("hold")
    assert not harness.others.asked, "nothing is asked while no job is late"
    await harness.later(2.0)
    ((_, (row,)),) = harness.master.of("hold")
    assert (row.id, row.attempt, row.error) == (late.id, 0, None)
    assert harness.others.asked == [("default", 3, ("urgent",))]
    assert harness.telemetry.jobs_not_accepted == 1
    assert harness.bucket_worker.backlog(bucket.fence.bucket_id) == 1, "its place in memory is free"
    go.set()
    await harness.settled()
    assert ran == ["wait"], "it never ran here"


async def test_the_limit_of_a_submit_goes_before_that_of_the_handler(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    sooner, never, own = (
        harness.entry("urgent", accept_seconds=5.0),
        harness.entry("urgent", accept_seconds=0.0),
        harness.entry("wait", accept_seconds=5.0),
    )
    await harness.queued(bucket, sooner, never, own, harness.entry("wait"))
    await harness.later(6.0)
    assert harness.held() == [sooner.id, own.id]
    await harness.later(100.0)
    assert len(harness.held()) == 2


async def test_the_wait_in_the_bucket_counts_and_that_in_the_master_does_not(harness: AcceptHarness) -> None:
    """A copy that was given back to the master is old; it is late only when it has waited here."""
    bucket = harness.bucket()
    await harness.busy(bucket)
    from_producer, onboarded = harness.entry("urgent", age=40.0), harness.entry("urgent", age=40.0, token=2)
    await harness.queued(bucket, from_producer, onboarded)
    await harness.later(1.0)
    assert harness.held() == [from_producer.id]
    await harness.later(30.0)
    assert harness.held() == [from_producer.id, onboarded.id]


async def test_a_job_goes_round_a_few_times_where_all_agents_are_busy(harness: AcceptHarness) -> None:
    """Each round costs writes in the master: their number must not grow with the time that the cluster is busy."""
    bucket = harness.bucket()
    await harness.busy(bucket)
    job = harness.entry("urgent")
    await harness.queued(bucket, job)
    rounds: list[int] = []
    for _ in range(200):
        await harness.later(31.0)
        if len(harness.held()) > len(rounds):
            rounds.append(job.token)
            job = msgspec.structs.replace(job, token=job.token + 1)
            await harness.queued(bucket, job)
    assert rounds == [1, 2, 3, 4, 5, 6], "and not two hundred times"


async def test_it_stays_where_no_other_agent_has_its_handler(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    await harness.queued(bucket, harness.entry("urgent"))
    harness.others.handlers = {"wait"}
    await harness.later(60.0)
    assert harness.others.asked
    harness.others.silent = True
    await harness.later(1.0)
    harness.others.silent, harness.others.handlers, harness.alone = False, {"urgent"}, True
    await harness.later(1.0)
    assert not harness.held()
    harness.alone = False
    harness.bucket_worker.freeze(bucket)
    await harness.later(1.0)
    assert not harness.held(), "an emergency stop leaves everything where it is"


async def test_a_job_that_has_started_is_not_given_back(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    await harness.later(1.0)
    running = harness.entry("wait", accept_seconds=5.0)
    go.set()
    go.clear()
    await harness.queued(bucket, running)
    await until(lambda: len(ran) == 2)
    await harness.later(60.0)
    assert not harness.held()


async def test_late_jobs_behind_a_full_memory_are_spilled_by_the_portion(harness: AcceptHarness) -> None:
    """The memory is full of jobs without a limit, so no late job is in it."""
    bucket = harness.bucket()
    await harness.busy(bucket)
    claimer = harness.bucket_worker.claimers[bucket.fence.bucket_id]
    claimer.prefetch_limit = PrefetchLimit(1, 1)
    await harness.queued(bucket, harness.entry("wait"))
    stored = harness.store.buckets[bucket.fence.bucket_id].pending
    late, young = [harness.entry("urgent", age=31.0) for _ in range(150)], harness.entry("urgent")
    harness.submit(bucket, [*late, young])
    harness.others.handlers = set()
    for _ in range(3):
        await harness.later(0.5)
    assert len(stored) == 151, "no other agent can run them"
    harness.others.handlers = {"urgent"}
    await harness.later(0.5)
    await until(harness.held, "the return of the first portion")
    assert len(harness.held()) == 100, "a look spills one portion"
    await harness.later(0.5)
    await until(lambda: len(harness.held()) == 151, "the return of the second portion")
    assert {entry.id for entry in late} < set(harness.held())
    assert not stored
    await harness.later(0.5)
    assert harness.telemetry.jobs_not_accepted == 151
    go.set()
    await harness.settled()
    assert ran == ["wait", "wait"]


async def test_young_jobs_in_the_store_stay_there(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    harness.bucket_worker.claimers[bucket.fence.bucket_id].prefetch_limit = PrefetchLimit(1, 1)
    await harness.queued(bucket, harness.entry("wait"))
    harness.submit(bucket, [harness.entry("urgent") for _ in range(3)])
    for _ in range(4):
        await harness.later(0.5)
    assert len(harness.store.buckets[bucket.fence.bucket_id].pending) == 3
    assert not harness.others.asked
    go.set()
    await harness.settled()


@pytest.mark.parametrize("handler", ["urgent-thread", "urgent-once"])
async def test_a_job_that_waits_for_a_thread_has_not_started(handler: str) -> None:
    async with AcceptHarness() as harness:
        harness.bucket_worker.executor.set_slots(AgentSettings(slots=8, max_running=8, threads=1))
        bucket = harness.bucket()
        await harness.busy(bucket, "busy-thread")
        late = harness.entry(handler)
        await harness.queued(bucket, late)
        await until(lambda: harness.bucket_worker.executor.running == 2, "the dispatch of both")
        await harness.later(31.0)
        await until(lambda: harness.held() == [late.id], "the return of the job")
        assert harness.bucket_worker.executor.running == 1
        free_thread.set()
        await harness.settled()
        assert ran == ["busy"]


async def test_nothing_is_given_back_from_a_paused_bucket(harness: AcceptHarness) -> None:
    """It would start nowhere else, and wait in the master."""
    bucket = harness.bucket()
    await harness.busy(bucket)
    await harness.queued(bucket, harness.entry("urgent"))
    bucket.paused = True
    await harness.later(60.0)
    assert not harness.held()
    bucket.paused = False
    await harness.later(0.5)
    assert len(harness.held()) == 1


async def test_late_jobs_in_the_store_of_a_paused_bucket_stay_there(harness: AcceptHarness) -> None:
    bucket = harness.bucket()
    await harness.busy(bucket)
    claimer = harness.bucket_worker.claimers[bucket.fence.bucket_id]
    claimer.prefetch_limit = PrefetchLimit(1, 1)
    await harness.queued(bucket, harness.entry("wait"))
    bucket.paused = True
    stored = harness.store.buckets[bucket.fence.bucket_id].pending
    harness.submit(bucket, [harness.entry("urgent", age=31.0) for _ in range(150)])
    for _ in range(4):
        await harness.later(0.5)
    assert (len(stored), harness.others.asked) == (150, [])
    bucket.paused = False
    for _ in range(4):
        await harness.later(0.5)
    await until(lambda: len(harness.held()) == 150, "the return of the portions")
