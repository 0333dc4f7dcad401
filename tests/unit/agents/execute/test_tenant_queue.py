"""Fair turns between tenants: the bounds of ``TenantQueue``, and of an agent whose bucket one tenant floods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.errors import InputError
from jobmaster.model.flow.tenant import NO_TENANT, checked_tenant, tenant_of
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, Headers
from jobmaster.settings.model import AgentSettings, ClusterSettings, Tenants
from jobmaster_agents.execute.bucket_queues import BucketQueue
from jobmaster_agents.execute.tenant_queue import CONTESTED_SECONDS, TenantQueue, spare_slots
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobPhase
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import WorkerHarness
from tests.support.waiting import until

OWNED = OwnedBucket(Fence(BucketId(new_id()), 1, AgentId(b"me" * 8)), "default", 3, "default")
order: list[str] = []
handlers = Handlers()
go = asyncio.Event()


@handlers.job(name="note")
async def note(ctx: JobContext[Any]) -> None:
    order.append(tenant_of(encode_headers(Headers(tenant=(ctx.metadata["for"],)))))
    await asyncio.sleep(0)


@handlers.job(name="block", timeout=1e6)
async def block() -> None:
    await go.wait()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    order.clear()
    go.clear()
    async with WorkerHarness(handlers, AgentSettings(max_running=1, slots=1, bucket_buffer=20)) as made:
        yield made


def entry(tenant: str, handler: str = "note") -> Entry:
    return Entry(new_id(), 1, handler, b"{}", 0, encode_headers(Headers(tenant=(tenant,), metadata={"for": tenant})))


def job(tenant: str, at: float = 0.0) -> ClaimedJob:
    headers = encode_headers(Headers(tenant=(tenant,))) if tenant else b""
    return ClaimedJob(Entry(new_id(), 1, "note", b"{}", 0, headers), ClaimedList(OWNED, "me-1", at, 0), None)


def name(of: ClaimedJob) -> str:
    return tenant_of(of.entry.headers)


def taken(queue: TenantQueue, count: int) -> list[str]:
    return [name(queue.popleft()) for _ in range(count)]


def test_a_job_of_another_tenant_is_next_however_many_wait() -> None:
    queue = TenantQueue({}, [job("heavy") for _ in range(1000)])
    assert taken(queue, 10) == ["heavy"] * 10
    queue.append(job("light"))
    queue.append(job(NO_TENANT))
    assert sorted(taken(queue, 3)) == sorted(["heavy", "light", NO_TENANT])
    assert taken(queue, 5) == ["heavy"] * 5


def test_no_tenant_saves_up_turns_and_none_gains_by_coming_one_by_one() -> None:
    queue = TenantQueue({}, [job("a") for _ in range(500)])
    taken(queue, 100)
    started = []
    for _ in range(100):  # one job at a time, each when the last one has started
        queue.append(job("b"))
        while (one := name(queue.popleft())) != "b":
            started.append(one)
    assert 99 <= len(started) <= 101, "every second start"


@pytest.mark.parametrize("seed", range(5))
def test_between_two_starts_another_tenant_has_no_more_than_its_weight_allows(seed: int) -> None:
    chance = random.Random(seed)
    weights = {"a": 1, "b": 2, "c": 5}
    queue = TenantQueue(weights)
    since = {one: dict.fromkeys("abcd", 0) for one in "abcd"}
    waiting = dict.fromkeys("abcd", 0)
    for _ in range(3000):
        if chance.random() < 0.6:
            one = chance.choice("aaaaaabbbccd")
            queue.append(job(one))
            if not waiting[one]:
                since[one] = dict.fromkeys("abcd", 0)
            waiting[one] += 1
        elif queue:
            one = name(queue.popleft())
            waiting[one] -= 1
            for other in "abcd":
                since[other][one] += other != one
            since[one] = dict.fromkeys("abcd", 0)
        for one in (each for each in "abcd" if waiting[each]):
            for other in set("abcd") - {one}:
                assert since[one][other] <= weights.get(other, 1) / weights.get(one, 1) + 1
    assert len(queue) == sum(waiting.values()) == len(list(queue))


def test_a_job_that_comes_back_is_next_and_costs_no_second_turn() -> None:
    queue = TenantQueue({}, [job("a"), job("a"), job("b"), job("b")])
    first = queue.popleft()
    queue.extendleft([first])
    assert queue[0] is first
    assert queue.popleft() is first
    assert taken(queue, 3) == ["b", "a", "b"]
    assert not queue


def test_what_is_shed_are_the_newest_jobs_of_those_with_more_than_their_share() -> None:
    heavy, other = [job("heavy") for _ in range(60)], [job("other") for _ in range(30)]
    queue = TenantQueue({}, [*heavy, *other, job("light")])
    assert sorted(queue.over_share(60, 2)) == ["heavy", "other"]
    shed = queue.shed(60, 2)
    assert shed == heavy[:28:-1]
    assert len(queue) == 60
    assert [each for each in queue if name(each) == "light"]
    assert queue.shed(60, 2) == []


def test_what_comes_after_shed_jobs_waits_behind_them_until_they_are_fetched() -> None:
    queue = TenantQueue({}, [job("heavy") for _ in range(60)])
    queue.append(job("light"))
    assert len(queue.shed(40, 5)) == 21
    mine, other = job("heavy"), job("light")
    fetched = ClaimedJob(Entry(new_id(), 3, "note", b"{}", 0, mine.entry.headers), mine.claimed_list, None)
    assert queue.take_behind([mine, other, fetched], 5) == ([other, fetched], [mine])
    queue.fetched_all(["heavy"])
    assert queue.take_behind([mine], 5) == ([], [mine])
    taken(queue, 40)
    many = [job("heavy") for _ in range(7)]
    assert queue.take_behind(many, 5) == (many[:5], many[5:]), "slots are not idle meanwhile"
    queue.fetched_all([])
    assert queue.take_behind(many, 5) == (many, [])


def test_nothing_is_shed_of_tenants_within_their_share() -> None:
    queue = TenantQueue({}, [job(f"t{n}") for n in range(45)])
    assert queue.over_share(40, 3) == []
    assert queue.shed(40, 3) == []


def test_a_share_grows_with_the_weight() -> None:
    queue = TenantQueue({}, [job(one) for one in ("big", "small") for _ in range(30)])
    queue.reweigh({"big": 3})
    assert [name(each) for each in queue.shed(40, 2)] == ["small"] * 20
    assert taken(queue, 8).count("big") == 6


def test_a_bucket_is_contested_while_jobs_of_two_tenants_come() -> None:
    queue = TenantQueue({}, [job("a", at=10.0), job("a", at=11.0)])
    assert not queue.is_contested(11.0)
    queue.append(job("b", at=20.0))
    assert queue.is_contested(20.0)
    queue.append(job("a", at=21.0))
    assert queue.is_contested(20.0 + CONTESTED_SECONDS - 1)
    assert not queue.is_contested(20.0 + CONTESTED_SECONDS + 1)


def test_removed_jobs_leave_the_others_in_their_order() -> None:
    jobs = [job(one) for one in "aaabbc"]
    queue = TenantQueue({}, jobs)
    queue.remove([jobs[0], jobs[5]])
    assert len(queue) == 4
    assert taken(queue, 4) == ["a", "b", "a", "b"]


@pytest.mark.parametrize("bad", ["", " a", "a b", 'a"', "a\\", "ä", "a" * 101, 7, None, "-a"])
def test_a_bad_name_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="is not the name of a tenant"):
        checked_tenant(bad)


@pytest.mark.parametrize("tenant", ["a", "Acme.Corp:eu/1@x+y-z_0", "a" * 100])
def test_the_tenant_is_read_from_the_bytes_of_the_headers(tenant: str) -> None:
    assert checked_tenant(tenant) == tenant
    lies = {"tenant": "other", 'x"tenant":["other"]': '"tenant":["other"]'}
    headers = Headers(tags=("tenant", '"tenant":["other"]'), metadata=lies, tenant=(tenant,), at_most_once=True)
    assert tenant_of(encode_headers(headers)) == tenant
    assert tenant_of(encode_headers(Headers(tags=("tenant",), metadata=lies))) == NO_TENANT
    assert tenant_of(b"") == NO_TENANT


# ---------------------------------------------------------------- an agent


async def test_a_flood_of_one_tenant_delays_another_by_one_start(harness: WorkerHarness) -> None:
    """Memory holds 21 jobs. Those of others come behind 2,000 in the store, and are claimed although memory is full."""
    bucket = harness.bucket()
    harness.submit(bucket, [entry("heavy", "block"), entry("light", "block")])
    executor = harness.bucket_worker.executor
    await until(lambda: executor.running, "the slot to be taken")
    harness.submit(bucket, [entry("heavy") for _ in range(2000)])
    harness.submit(bucket, [entry(f"t{n}") for n in range(5)])
    await until(lambda: not harness.store.buckets[bucket.fence.bucket_id].pending, "every job to be claimed")
    queue = executor.queue_of(bucket.fence.bucket_id)
    assert queue is not None
    assert len(queue.jobs) <= 22, "memory is bounded"
    go.set()
    await harness.settled()
    assert {"t0", "t1", "t2", "t3", "t4"} <= set(order[:7]), "each after one start of the heavy tenant at most"
    held = [row for row in harness.master.rows.values() if row.state == "HELD"]
    assert len(held) + len(order) == 2005, "what memory has no room for waits in the master"
    assert len(order) >= 19


async def test_jobs_are_on_their_way_until_the_master_has_them_or_cannot_have_them() -> None:
    queue = BucketQueue(OWNED, 1, 10)
    first, second = job("a"), job("a")
    queue.gave_back([first, second])
    assert queue.is_giving_back
    first.phase = JobPhase.GONE
    assert queue.is_giving_back
    second.unwritable = True
    assert not queue.is_giving_back
    assert queue.returned_jobs == 2


async def test_weights_change_with_the_configuration(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [entry("a", "block"), *(entry(one) for one in "ab" for _ in range(8))])
    await until(lambda: harness.bucket_worker.executor.running, "the slot to be taken")
    settings = ClusterSettings(tenants=Tenants(weights={"b": 3}))
    harness.bucket_worker.retune(settings, AgentSettings(max_running=1, slots=1, bucket_buffer=20))
    go.set()
    await harness.settled()
    assert order[:8].count("b") >= 6


async def test_one_tenant_alone_is_not_spilled(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [entry("only", "block"), *(entry("only") for _ in range(200))])
    await until(lambda: harness.bucket_worker.executor.running, "the slot to be taken")
    go.set()
    await harness.settled()
    assert order == ["only"] * 200
    assert not [row for row in harness.master.rows.values() if row.state == "HELD"]


# ---------------------------------------------------------------- spare slots


@pytest.mark.parametrize(("slots", "part", "spare"), [(50, 0.06, 3), (10, 0.06, 1), (9, 0.06, 0), (50, 0.0, 0)])
def test_spare_slots_are_a_part_of_the_slots(slots: int, part: float, spare: int) -> None:
    assert spare_slots(slots, part) == spare


def with_spare(weights: dict[str, int], jobs: list[ClaimedJob]) -> TenantQueue:
    queue = TenantQueue(weights, jobs)
    queue.slots, queue.spare = 20, 2
    return queue


def fill(queue: TenantQueue, free: int, now: float = 1.0) -> dict[str, int]:
    """Start jobs until there is no free slot for any that waits."""
    started: dict[str, int] = {}
    while (started_job := queue.take(free, now)) is not None:
        queue.started(started_job)
        started[name(started_job)] = started.get(name(started_job), 0) + 1
        free -= 1
    assert not queue.may_start(free, now)
    return started


def test_a_flood_leaves_the_spare_slots_to_others_while_these_come() -> None:
    queue = with_spare({}, [job("light"), *(job("heavy") for _ in range(100))])
    assert fill(queue, 20) == {"light": 1, "heavy": 17}
    for _ in range(3):
        queue.append(job("light"))
    assert fill(queue, 2) == {"light": 2}
    ended = job("heavy")
    queue.ended(ended)
    assert fill(queue, 1) == {"light": 1}, "within its share it is passed over nowhere"
    queue.ended(ended)
    assert fill(queue, 1) == {}
    assert fill(queue, 1, now=CONTESTED_SECONDS + 2.0) == {"heavy": 1}, "no other has come for a minute"


def test_a_tenant_that_was_passed_over_saves_up_no_turns() -> None:
    queue = with_spare({}, [job("heavy") for _ in range(100)])
    queue.append(job("light"))
    assert fill(queue, 20) == {"heavy": 17, "light": 1}
    for _ in range(200):  # in the spare slots, while the flood has its share
        queue.append(job("light"))
        assert fill(queue, 2) == {"light": 1}
        queue.ended(job("light"))
    queue = emptied(queue)
    for _ in range(20):
        queue.append(job("light"))
    assert fill(queue, 20) == {"heavy": 9, "light": 9}


def emptied(queue: TenantQueue) -> TenantQueue:
    """No job runs."""
    for running in ["heavy"] * 17 + ["light"]:
        queue.ended(job(running))
    return queue


def test_a_share_of_the_slots_goes_by_weight() -> None:
    tenants = [f"t{n}" for n in range(5)]
    queue = with_spare({"big": 60}, [job(one) for one in ["big", *tenants] for _ in range(30)])
    assert fill(queue, 20) == {"big": 15, **dict.fromkeys(tenants, 1)}, "no tenant above its share is before it"
    equal = with_spare({}, [job(f"t{n}") for n in range(25) for _ in range(3)])
    assert sum(fill(equal, 20).values()) == 20, "many tenants, each within its share, fill every slot"


def test_a_job_that_comes_back_does_not_start_in_a_spare_slot_of_others() -> None:
    queue = with_spare({}, [job("light"), *(job("heavy") for _ in range(100))])
    fill(queue, 20)
    queue.appendleft(job("heavy"))
    assert queue.take(2, 1.0) is None
    queue.append(job("light"))
    taken_job = queue.take(2, 1.0)
    assert taken_job is not None
    assert name(taken_job) == "light"
    assert [name(each) for each in (queue.take(3, 1.0), queue.take(3, 1.0)) if each is not None] == ["heavy"] * 2


async def test_a_job_starts_at_once_while_a_flood_of_another_tenant_runs() -> None:
    order.clear()
    go.clear()
    async with WorkerHarness(handlers, AgentSettings(max_running=20, slots=20, bucket_buffer=60)) as harness:
        bucket = harness.bucket()
        executor = harness.bucket_worker.executor
        harness.submit(bucket, [entry("heavy", "block") for _ in range(41)])
        await until(lambda: executor.running == 20, "a tenant alone to have every slot")
        harness.submit(bucket, [entry("light", "block")])
        queue = executor.queue_of(bucket.fence.bucket_id)
        assert queue is not None
        await until(lambda: len(queue.jobs) == 22, "the job of another tenant to wait")
        go.set()
        await harness.settled()
        go.clear()
        harness.submit(bucket, [entry("heavy", "block") for _ in range(40)])
        await until(lambda: executor.running == 19, "the flood to have all slots but the spare one")
        harness.submit(bucket, [entry("light")])
        await until(lambda: order == ["light"], "the job of another tenant to run")
        await until(lambda: executor.running == 19, "its slot to stay free")
        settings = ClusterSettings(tenants=Tenants(spare=0.0))
        harness.bucket_worker.retune(settings, AgentSettings(max_running=20, slots=20, bucket_buffer=60))
        await until(lambda: executor.running == 20, "no slot to be spare")
        go.set()
        await harness.settled()
