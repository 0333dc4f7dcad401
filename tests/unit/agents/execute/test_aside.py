"""Jobs that wait for permits in an agent: which of them ask, when, and what is left of those that end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.handlers import Handlers, Limit
from jobmaster.model.bucket import BucketState
from jobmaster.model.flow.limit import FullLimit, LimitUse, Loan
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, Headers, InFlightRow
from jobmaster.model.pause import Pause, PauseKind, PausesInForce
from jobmaster.ports import Admission
from jobmaster_agents.execute import aside
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.state import limited_starts
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList
from jobmaster_agents.state.limited_job import LimitedJob
from jobmaster_agents.state.ownership import OwnedBucket
from jobmaster_agents.state.permit_loans import HOT_STARTS
from tests.support.bucket_worker_fixture import WorkerHarness, turns
from tests.support.waiting import until

handlers = Handlers()
SHARED = Limit("shared", 3, weight=lambda arguments: int(arguments["weight"]))
gates: dict[str, asyncio.Event] = {}
ran: list[str] = []


async def _wait(name: str) -> None:
    ran.append(name)
    await gates.setdefault(name, asyncio.Event()).wait()


@handlers.job(name="shared", limit=SHARED, timeout=1e6)
async def shared(name: str, weight: int = 1) -> None:
    await _wait(name)


@handlers.job(name="also.shared", limit=SHARED, timeout=1e6)
async def also_shared(name: str, weight: int = 1) -> None:
    await _wait(name)


LIGHT = Limit("light", 9)


@handlers.job(name="light", limit=LIGHT, timeout=1e6)
async def light(name: str) -> None:
    await _wait(name)


@handlers.job(name="heavy", limit=[LIGHT, SHARED], timeout=1e6)
async def heavy(name: str, weight: int = 1) -> None:
    await _wait(name)


@handlers.job(name="tenant", limit=Limit("tenant", 2, key="{tenant}"), timeout=1e6)
async def tenant(name: str, tenant: str) -> None:
    await _wait(name)


@handlers.job(name="ordered", timeout=1e6)
async def ordered(name: str) -> None:
    await _wait(name)


SHARED_HANDLER = handlers.get("shared")
SOME_LIST = ClaimedList(
    OwnedBucket(Fence(BucketId(new_id()), 1, AgentId(b"a" * 16)), "default", 3, "default"), "list", 0.0, 0
)


def job(handler: str, name: str, *, ordering_key: str | None = None, **arguments: Any) -> Entry:
    headers = encode_headers(Headers(ordering_key=ordering_key))
    return Entry(new_id(), 2, handler, msgspec.json.encode({"name": name, **arguments}), headers=headers)


class Permits:
    """Admissions of the fake master: permits follow its rows."""

    def __init__(self, harness: WorkerHarness) -> None:
        self._rows = harness.master.rows
        self._persist = harness.master.persist
        self.asked: list[list[bytes]] = []
        self.uses: dict[bytes, Sequence[LimitUse]] = {}
        self.most = {"shared": 3, "tenant": 2, "light": 9, "": 1}
        self.in_order: list[bytes] = []
        """Of these jobs of one ordering key each starts when those before it have ended."""
        self.on_their_way: asyncio.Event | None = None
        """Answers come when it is set."""

    def _taken(self, use: LimitUse) -> int:
        return sum(
            each.weight
            for job_id, uses in self.uses.items()
            for each in uses
            if (each.name, each.key) == (use.name, use.key) and self._rows[job_id].state == "PROCESSING"
        )

    async def admit(
        self, fence: Fence, rows: Sequence[InFlightRow], uses: Mapping[bytes, Sequence[LimitUse]]
    ) -> Admission:
        self.asked.append([row.id for row in rows])
        denied: dict[bytes, FullLimit] = {}
        for row in rows:
            full = [use for use in uses[row.id] if self._taken(use) + use.weight > self.most[use.name]]
            before = self.in_order[: self.in_order.index(row.id)] if row.id in self.in_order else []
            if not all(one in self._rows and self._rows[one].state == "SUCCEEDED" for one in before):
                full = list(uses[row.id])
            if full:
                denied[row.id] = FullLimit(full[0].name, full[0].key, 0.0)
            else:
                await self._persist(fence, [row])
                self.uses[row.id] = uses[row.id]
        written = await self._persist(fence, [row for row in rows if row.id not in denied])
        if self.on_their_way is not None:
            await self.on_their_way.wait()
        return Admission(written, denied)


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkerHarness]:
    gates.clear()
    ran.clear()
    monkeypatch.setattr(aside, "KEY_JOBS_MAX", 5)
    made = WorkerHarness(handlers)
    master: Any = made.master
    master.permits = Permits(made)
    master.admit = master.permits.admit
    async with made:
        yield made
        if master.permits.on_their_way is not None:
            master.permits.on_their_way.set()
        for gate in gates.values():
            gate.set()


def limits(harness: WorkerHarness) -> limited_starts.LimitedStarts:
    return harness.bucket_worker.limits


def waiting(harness: WorkerHarness, bucket: OwnedBucket) -> int:
    return harness.bucket_worker.executor.deferred(bucket.fence.bucket_id)


async def end(*names: str) -> None:
    for name in names:
        gates[name].set()
    await turns(200)


async def passed(harness: WorkerHarness, seconds: float) -> None:
    """So much time has passed, and what was due then has happened."""
    harness.clock.now += seconds
    limits(harness)._ask()
    await turns(200)


def lend(harness: WorkerHarness, permits: int) -> None:
    """The master has lent so many permits of the limit of the light jobs."""
    loans = limits(harness).loans
    for _ in range(HOT_STARTS):
        loans.take(("light", ""), 1)
    loans.questions(lambda _: permits)
    loans.answered([Loan("light", "", permits, permits)])


async def test_a_job_with_a_lent_permit_starts_without_a_write(harness: WorkerHarness) -> None:
    lend(harness, 1)
    harness.submit(harness.bucket(), [job("light", "a")])
    await until(lambda: ran == ["a"])
    assert not harness.master.permits.asked  # type: ignore[attr-defined]
    assert not harness.master.of("persist")


@pytest.mark.parametrize("rescues", [0, 1])
async def test_what_must_be_written_before_its_start_is_although_a_permit_is_lent(
    harness: WorkerHarness, rescues: int
) -> None:
    """A job that its submit has asked to be started once, and one that was rescued."""
    lend(harness, 1)
    one = msgspec.structs.replace(
        job("light", "a"), headers=b"" if rescues else encode_headers(Headers(at_most_once=True)), rescues=rescues
    )
    seen: list[list[str]] = []
    admit = harness.master.permits.admit  # type: ignore[attr-defined]

    async def watched(*args: Any) -> Admission:
        await turns()
        seen.append(list(ran))
        return await admit(*args)  # type: ignore[no-any-return]

    harness.master.admit = watched  # type: ignore[attr-defined]
    harness.submit(harness.bucket(), [one])
    await until(lambda: ran == ["a"])
    assert seen == [[]], "one write, before the start"


async def test_while_its_agent_is_suspended_a_job_starts_with_no_lent_permit(harness: WorkerHarness) -> None:
    """It is deferred until the master answers."""
    bucket = harness.bucket()
    lend(harness, 1)
    harness.suspend()
    harness.submit(bucket, [job("light", "a")])
    await until(lambda: waiting(harness, bucket) == 1)
    await turns(50)
    assert not ran
    assert not limits(harness).loans._held["light", ""].in_use
    harness.trust()
    await until(lambda: ran == ["a"])
    assert not harness.master.permits.asked, "with the lent permit"  # type: ignore[attr-defined]


async def test_a_lent_permit_goes_to_the_next_job_that_may_start_with_it(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.master.permits.most["light"] = 0  # type: ignore[attr-defined]
    first, heavier = job("light", "0"), job("heavy", "heavy")
    harness.submit(bucket, [first, heavier, job("light", "1"), job("light", "2")])
    await until(lambda: waiting(harness, bucket) == 4)
    found = harness.bucket_worker.executor.aside
    assert found.could_borrow(("light", "")) == 3, "the one with another limit may not"
    assert found.start_soon(found._queues[bucket.fence.bucket_id]) == 4, "nothing is known in the first seconds"
    lend(harness, 1)
    harness.clock.now += 20.0
    assert limits(harness).wake_borrowers(("light", ""), 1) == 1
    await until(lambda: ran == ["0"])
    await end("0")
    await until(lambda: ran == ["0", "1"])
    limits(harness).loans.questions(found.could_borrow)
    queue = found._queues[bucket.fence.bucket_id]
    assert len(queue.aside) == 2
    assert found.start_soon(queue) == 0, "two starts in twenty seconds"
    limits(harness).loans._held["light", ""].rate = 0.3
    assert found.start_soon(queue) == 1
    limits(harness).loans._held["light", ""].rate = 9.0
    assert [found.start_soon(queue, enough) for enough in (1, 5)] == [2, 2]


async def test_of_jobs_that_start_soon_no_more_are_claimed_than_start_in_half_a_second(harness: WorkerHarness) -> None:
    """What waits for longer is written before its start. Otherwise the buffer is filled, to find what is behind them."""
    bucket = harness.bucket()
    harness.master.permits.most["light"] = 0  # type: ignore[attr-defined]
    harness.submit(bucket, [job("light", f"{n}") for n in range(4)])
    await until(lambda: waiting(harness, bucket) == 4)
    found = harness.bucket_worker.executor.aside
    queue = found._queues[bucket.fence.bucket_id]
    assert found.room(queue) == float("inf"), "nothing is known in the first seconds"
    lend(harness, 1)
    harness.clock.now += 20.0
    held = limits(harness).loans._held["light", ""]
    rooms = []
    for held.rate in (0.5, 1.0, 10.0 * queue.slots):
        rooms.append(found.room(queue))
    assert rooms == [float("inf"), 2 * queue.slots, 5 * queue.slots]
    harness.submit(bucket, [job("light", f"more {n}") for n in range(8 * queue.slots)])
    await until(lambda: waiting(harness, bucket) >= 5 * queue.slots - 2)
    await turns(100)
    assert waiting(harness, bucket) <= 5 * queue.slots


async def test_jobs_of_a_frozen_bucket_borrow_nothing(harness: WorkerHarness) -> None:
    """They do not start, and the permits would be kept from others."""
    frozen, other = harness.bucket(5), harness.bucket(1)
    harness.master.permits.most["light"] = 0  # type: ignore[attr-defined]
    for bucket in (frozen, other):
        harness.submit(bucket, [job("light", f"{n}") for n in range(2)])
    await until(lambda: waiting(harness, frozen) == 2 and waiting(harness, other) == 2)
    harness.bucket_worker.freeze(frozen)
    assert harness.bucket_worker.executor.aside.could_borrow(("light", "")) == 2


async def test_a_heavy_job_that_was_denied_beside_a_light_one_that_was_admitted_starts_in_the_end(
    harness: WorkerHarness,
) -> None:
    """The light one is the last that waits, so the limit counts as free before the heavy one is aside."""
    bucket = harness.bucket()
    harness.submit(bucket, [job("shared", "a", weight=2), job("shared", "b", weight=1)])
    await until(lambda: len(ran) == 2)
    harness.submit(bucket, [job("shared", "heavy", weight=3), job("shared", "light", weight=1)])
    await until(lambda: waiting(harness, bucket) == 2, "both to wait")
    await end("a")
    await until(lambda: "light" in ran)
    assert "heavy" not in ran
    await end("b", "light")
    await passed(harness, 3.0)
    await until(lambda: "heavy" in ran, "the heavy job")


async def test_nothing_is_left_of_jobs_that_end_without_an_outcome(harness: WorkerHarness) -> None:
    """Not of such that waited, that ran, or that are refused by their rows, when their bucket is another's."""
    gc.collect()
    before = sum(type(each) is LimitedJob for each in gc.get_objects())
    for _ in range(3):
        bucket = harness.bucket()
        harness.submit(bucket, [job("shared", name, weight=3) for name in "abcd"])
        await until(lambda b=bucket: waiting(harness, b) == 3)  # type: ignore[misc]
        harness.rescue(bucket)
        harness.bucket_worker.forget(bucket.fence.bucket_id, "the test gives it away")
        for row in harness.master.rows.values():
            row.state = "HELD"
        await passed(harness, 3.0)
    gates.clear()
    harness.master.calls.clear()
    gc.collect()
    assert sum(type(each) is LimitedJob for each in gc.get_objects()) <= before
    assert not limits(harness)._full


async def test_handlers_that_share_a_limit_are_fetched_again_when_few_of_their_jobs_wait(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    executor = harness.bucket_worker.executor
    harness.submit(bucket, [job("shared", "first", weight=3)])
    await until(lambda: ran)
    harness.submit(bucket, [job("shared" if n < 4 else "also.shared", f"{n}", weight=3) for n in range(8)])
    await until(lambda: waiting(harness, bucket) == 8)
    assert executor.aside.full_handlers == {"shared", "also.shared"}
    await end("first")
    for n in range(4):
        await until(lambda n=n: f"{n}" in ran)  # type: ignore[misc]
        await end(f"{n}")
    assert executor.aside.full_handlers == frozenset()


async def test_a_pause_that_gives_them_back_leaves_no_handler_unfetched(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    executor = harness.bucket_worker.executor
    harness.submit(bucket, [job("shared", f"{n}", weight=3) for n in range(9)])
    await until(lambda: waiting(harness, bucket) == 8)
    assert executor.aside.full_handlers == {"shared"}
    pause = Pause(kind=PauseKind.HANDLER, value="shared", actor="ann", reason="", since_us=0)
    harness.bucket_worker.pauses.take(PausesInForce(1, (pause,)), harness.clock.now)
    harness.bucket_worker.apply_pauses()
    assert waiting(harness, bucket) == 0
    assert executor.aside.full_handlers == frozenset()


async def test_jobs_of_one_key_leave_places_for_those_of_others(harness: WorkerHarness) -> None:
    """Beyond its share they go back to the master, each for longer than the one before; the handler is fetched."""
    bucket = harness.bucket()
    executor = harness.bucket_worker.executor
    harness.submit(bucket, [job("tenant", f"{n}", tenant="busy") for n in range(2)])
    await until(lambda: len(ran) == 2)
    more = [job("tenant", f"{n}", tenant="busy") for n in range(2, 20)]
    harness.submit(bucket, more[:1])
    await until(lambda: waiting(harness, bucket) == 1)
    harness.clock.now += 10.0
    harness.submit(bucket, more[1:])
    await until(lambda: len(harness.master.of("hold")) > 0)
    await until(lambda: waiting(harness, bucket) <= 6)
    harness.submit(bucket, [job("tenant", "quiet", tenant="quiet")])
    await until(lambda: "quiet" in ran)
    assert executor.aside.full_handlers == frozenset()
    held = [row for call in harness.master.of("hold") for row in call[1]]
    assert len(held) >= 12
    dues = [row.due_us for row in held]
    assert dues == sorted(dues)
    assert dues[-1] > dues[0]


async def test_the_first_moments_of_a_full_limit_are_no_measure_of_its_starts(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has started yet: a guess from this would send each job away for longer than the one before."""
    monkeypatch.setattr(aside, "KEY_JOBS_MAX", 5)
    bucket = harness.bucket()
    harness.submit(bucket, [job("tenant", f"{n}", tenant="busy") for n in range(2)])
    await until(lambda: len(ran) == 2)
    more = [job("tenant", f"{n}", tenant="busy") for n in range(2, 20)]
    harness.submit(bucket, more[:1])
    await until(lambda: waiting(harness, bucket) == 1)
    harness.clock.now += 0.9
    harness.submit(bucket, more[1:])
    await until(lambda: len(harness.master.of("hold")) > 0)
    await until(lambda: waiting(harness, bucket) <= 6)
    dues = {row.due_us for call in harness.master.of("hold") for row in call[1]}
    assert max(dues) - min(dues) < 1_000_000


async def test_the_earliest_job_of_an_ordering_key_asks_first_whatever_its_priority(harness: WorkerHarness) -> None:
    low, high = harness.bucket(1), harness.bucket(5)
    first, second, third = (job("ordered", name, ordering_key="k") for name in ("first", "second", "third"))
    harness.submit(low, [first])
    await until(lambda: ran)
    harness.submit(high, [third])
    await until(lambda: waiting(harness, high) == 1)
    harness.submit(low, [second])
    await until(lambda: waiting(harness, low) == 1)
    await end("first")
    await until(lambda: ran == ["first", "second"])


async def in_order(harness: WorkerHarness, bucket: OwnedBucket) -> list[Entry]:
    """Three jobs of an ordering key: the first runs, the others wait."""
    jobs = [job("ordered", name, ordering_key="k") for name in ("first", "second", "third")]
    harness.master.permits.in_order = [one.id for one in jobs]  # type: ignore[attr-defined]
    harness.submit(bucket, jobs[:1])
    await until(lambda: ran)
    harness.submit(bucket, jobs[1:])
    await until(lambda: waiting(harness, bucket) == 2)
    return jobs


async def test_a_job_of_an_ordering_key_that_begins_wakes_no_other(harness: WorkerHarness) -> None:
    permits = harness.master.permits  # type: ignore[attr-defined]
    *_, third = await in_order(harness, harness.bucket())
    asked = [ids for ids in permits.asked if third.id in ids]
    await end("first")
    await until(lambda: ran == ["first", "second"])
    await turns(200)
    assert [ids for ids in permits.asked if third.id in ids] == asked, "it would be denied, and then wait for its time"
    await end("second")
    await until(lambda: ran == ["first", "second", "third"])


async def test_an_end_during_a_question_of_its_ordering_key_is_not_missed(harness: WorkerHarness) -> None:
    permits = harness.master.permits  # type: ignore[attr-defined]
    _, second, _ = await in_order(harness, harness.bucket())
    permits.on_their_way, asked = asyncio.Event(), len(permits.asked)
    harness.clock.now += 0.03
    limits(harness).hinted()
    await until(lambda: permits.asked[asked:] == [[second.id]])
    await end("first")  # none but a later one is left to be woken
    assert ran == ["first"]
    permits.on_their_way.set()
    await turns(200)
    harness.clock.now += 0.03
    await until(lambda: ran == ["first", "second"])


async def test_the_next_job_of_an_ordering_key_that_is_free_again_does_not_wait(harness: WorkerHarness) -> None:
    """The denial of the second job set a time for the next question that is long after the end of the second job."""
    bucket = harness.bucket()
    jobs = [job("ordered", name, ordering_key="k") for name in ("first", "second", "third")]
    harness.master.permits.in_order = [one.id for one in jobs]  # type: ignore[attr-defined]
    harness.submit(bucket, jobs[:1])
    await until(lambda: ran)
    harness.submit(bucket, jobs[1:2])
    await until(lambda: waiting(harness, bucket) == 1)
    await end("first")
    await until(lambda: ran == ["first", "second"])
    await end("second")
    await until(lambda: harness.master.rows[jobs[1].id].state == "SUCCEEDED")
    await turns(200)
    harness.clock.now += 0.03
    harness.submit(bucket, jobs[2:])
    await until(lambda: ran == ["first", "second", "third"])


async def test_of_too_many_jobs_of_an_ordering_key_the_latest_is_sent_away(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    jobs = [job("ordered", f"{n}", ordering_key="k") for n in range(8)]
    harness.submit(bucket, jobs[:1])
    await until(lambda: ran)
    harness.submit(bucket, jobs[2:3])
    await until(lambda: waiting(harness, bucket) == 1)
    harness.submit(bucket, jobs[3:7])
    await until(lambda: waiting(harness, bucket) == 5)
    harness.submit(bucket, jobs[1:2])
    await until(lambda: harness.master.of("hold"))
    ((held,),) = (call[1] for call in harness.master.of("hold"))
    assert held.id == jobs[6].id
    await end("0")
    await until(lambda: ran == ["0", "1"])


async def test_cancelled_jobs_of_an_ordering_key_leave_no_trace(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("ordered", "first", ordering_key="k")])
    await until(lambda: ran)
    harness.submit(bucket, [job("ordered", name, ordering_key="k") for name in "bc"])
    await until(lambda: waiting(harness, bucket) == 2)
    for one in list(harness.bucket_worker.job_table):
        if one.entry.args != msgspec.json.encode({"name": "first"}):
            harness.bucket_worker.executor.stop_job(one, StopCause.CANCEL)
    await end("first")
    await passed(harness, 3.0)
    assert waiting(harness, bucket) == 0
    assert not limits(harness)._full


async def test_jobs_of_a_frozen_bucket_do_not_ask_and_others_are_not_behind_them(harness: WorkerHarness) -> None:
    frozen, other = harness.bucket(5), harness.bucket(1)
    harness.submit(other, [job("shared", "first", weight=3)])
    await until(lambda: ran)
    harness.submit(frozen, [job("shared", f"frozen {n}", weight=3) for n in range(3)])
    harness.submit(other, [job("shared", "next", weight=3)])
    await until(lambda: waiting(harness, frozen) == 3 and waiting(harness, other) == 1)
    harness.bucket_worker.freeze(frozen)
    await end("first")
    await until(lambda: ran == ["first", "next"])
    frozen.state = BucketState.ACTIVE
    harness.bucket_worker.resume(frozen)
    await until(lambda: not harness.bucket_worker.executor.backlog(frozen.fence.bucket_id))
    assert waiting(harness, frozen) == 3, "each of them once"
    await end("next")
    await passed(harness, 3.0)
    await until(lambda: "frozen 0" in ran)


async def test_questions_for_a_rescued_job_become_fewer(harness: WorkerHarness) -> None:
    """Each of them makes a process."""
    full = FullLimit("shared", "", 0.0)
    made = [
        ClaimedJob(Entry(new_id(), 2, "shared", b'{"name":"a"}', rescues=n), SOME_LIST, SHARED_HANDLER) for n in (0, 1)
    ]
    pauses = []
    for one in made:
        starts = limited_starts.LimitedStarts(lambda: 100.0)
        for _ in range(4):
            starts.denied(one, full)
        pauses.append(starts._full["shared", ""].pause)
    assert pauses == [0.25, 1.0]


async def test_a_hint_leads_to_a_question_at_once_and_many_hints_to_few(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    permits = harness.master.permits  # type: ignore[attr-defined]
    permits.most["shared"] = 0
    harness.submit(bucket, [job("shared", "a"), job("shared", "b")])
    await until(lambda: waiting(harness, bucket) == 2)
    permits.most["shared"] = 3
    harness.clock.now += 0.03
    asked = len(permits.asked)
    for _ in range(10):
        limits(harness).hinted()
    await until(lambda: len(ran) == 2)
    assert len(permits.asked) - asked <= 3


async def test_a_hint_in_the_store_reaches_the_jobs_that_wait(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    permits = harness.master.permits  # type: ignore[attr-defined]
    permits.most["shared"] = 0
    harness.submit(bucket, [job("shared", "a")])
    await until(lambda: waiting(harness, bucket) == 1)
    permits.most["shared"] = 3
    harness.clock.now += 0.03  # less than the pause between two questions
    harness.store.buckets[bucket.fence.bucket_id].hint = True
    harness.submit(bucket, [])
    await until(lambda: ran == ["a"])


async def test_limits_that_are_free_and_for_which_no_job_waits_here_are_passed_on(harness: WorkerHarness) -> None:
    freed: list[tuple[str, str]] = []
    limits(harness).on_freed = freed.extend
    bucket = harness.bucket()
    harness.submit(bucket, [job("shared", "a", weight=3)])
    await until(lambda: ran)
    harness.submit(bucket, [job("shared", "b", weight=3)])
    await until(lambda: waiting(harness, bucket) == 1)
    await end("a")
    await until(lambda: "b" in ran)
    assert freed == [], "one waits here"
    await end("b")
    await until(lambda: freed == [("shared", "")])


async def test_ordering_keys_are_passed_on_though_jobs_wait_here(harness: WorkerHarness) -> None:
    freed: list[tuple[str, str]] = []
    limits(harness).on_freed = freed.extend
    await in_order(harness, harness.bucket())
    await end("first")
    await until(lambda: freed == [("", "k")])
