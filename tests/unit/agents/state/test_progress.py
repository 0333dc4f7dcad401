"""A task that hangs while the loop turns withholds the renewal of the lease; idle tasks and outages do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.model.job import Entry
from jobmaster.ports import Renewal
from jobmaster.settings.model import ClusterSettings, Leases, MasterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents import call_retry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.lease.heartbeat import Heartbeat, StoreBeat, attestation
from jobmaster_agents.outcomes import kept
from jobmaster_agents.state.ownership import OwnedBucket
from jobmaster_agents.state.progress import Progress, silence_seconds
from tests.support.bucket_worker_fixture import SILENCE_SECONDS, Row, WorkerHarness
from tests.support.fakes.scripted import DOWN, Gate, turns
from tests.support.hand_clock import HandClock
from tests.support.waiting import until

LONG_SECONDS = 10.0 * SILENCE_SECONDS


class LeaseMaster:
    def __init__(self) -> None:
        self.renewals = 0

    async def renew(self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        self.renewals += 1
        return Renewal(alive=True, drain_requested=False, leader=None, lost_stores=[], cancel_requested=[])


class BeatStore:
    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None:
        return


class HeartbeatingAgent:
    """The working half of an agent, and its heartbeat."""

    def __init__(self, harness: WorkerHarness) -> None:
        self.harness = harness
        self.master = LeaseMaster()
        self.telemetry = Telemetry()
        log, leases = EventLog(), Leases()
        beat = StoreBeat(harness.ownership.agent_id, BeatStore(), leases, harness.clock, self.telemetry, log)
        self.heartbeat = Heartbeat(
            harness.ownership, self.master, leases, harness.clock, attestation(beat, harness.progress), lambda _: None,
            lambda _: None, self.telemetry, log,
        )  # fmt: skip
        self.heartbeat.registered(harness.clock.now)

    @property
    def withheld(self) -> int:
        return self.telemetry.renewals["withheld"]

    async def live(self, seconds: float, step: float = 1.0) -> None:
        """The clock goes on in steps, and the loop turns after each."""
        end = self.harness.clock.now + seconds
        while self.harness.clock.now < end:
            self.harness.clock.now += step
            await turns(25)
            await self.heartbeat.tick()


def handlers() -> Handlers:
    made = Handlers()

    @made.job(name="work")
    async def work() -> None:
        return

    @made.job(name="fenced", start="fenced")
    async def fenced() -> None:
        return

    return made


def job(name: str = "work") -> Entry:
    return Entry(new_id(), 1, name, b"[[],{}]", 0)


def only_bucket(harness: WorkerHarness) -> OwnedBucket:
    return next(iter(harness.ownership.buckets.values()))


@pytest.fixture
async def agent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HeartbeatingAgent]:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_LOOK_SECONDS", 0.0)
    harness = WorkerHarness(handlers())

    async def wait_wake(bucket_ids: object, timeout_seconds: float) -> bytes | None:
        """The pop of a store ends after its time-out."""
        end = harness.clock.now + timeout_seconds
        while harness.clock.now < end and harness.store.tokens.empty():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return None if harness.store.tokens.empty() else harness.store.tokens.get_nowait()

    monkeypatch.setattr(harness.store, "wait_wake", wait_wake)
    async with harness:
        harness.bucket()
        await turns()
        yield HeartbeatingAgent(harness)


# ---------------------------------------------------------------- a task that hangs


async def test_a_claimer_that_hangs_withholds_the_renewal(agent: HeartbeatingAgent) -> None:
    """The call has lost its time limit: no answer, no error, while the loop turns and the store beats are answered."""
    gate = Gate()
    agent.harness.store.script["claim"].append(gate)
    agent.harness.submit(next(iter(agent.harness.ownership.buckets.values())), [job()])
    await agent.live(SILENCE_SECONDS / 2)
    assert gate.reached.is_set()
    assert (agent.withheld, agent.harness.ownership.fenced.is_set()) == (0, False)
    await agent.live(SILENCE_SECONDS)
    assert agent.withheld
    assert agent.harness.ownership.fenced.is_set()
    assert "lease could not be renewed" in agent.harness.ownership.fenced_why


async def test_a_claimer_that_goes_on_is_no_reason_any_more(agent: HeartbeatingAgent) -> None:
    gate = Gate()
    agent.harness.store.script["claim"].append(gate)
    agent.harness.submit(next(iter(agent.harness.ownership.buckets.values())), [job()])
    while not agent.withheld:
        await agent.live(1.0)
    gate.opened.set()
    await agent.live(LONG_SECONDS, 2.0)
    assert not agent.harness.ownership.fenced.is_set()
    assert agent.withheld == 1


@pytest.mark.parametrize("call", ["copy_final", "onboard"])
async def test_an_outcome_writer_or_due_fetcher_that_hangs_withholds_the_renewal(
    agent: HeartbeatingAgent, call: str
) -> None:
    agent.harness.master.script[call].append(gate := Gate())
    owned = next(iter(agent.harness.ownership.buckets.values()))
    agent.harness.submit(owned, [job()])
    agent.harness.bucket_worker.due_fetcher.kick(owned.fence.bucket_id)
    await agent.live(SILENCE_SECONDS * 1.5)
    assert gate.reached.is_set()
    assert agent.withheld


async def test_a_wake_listener_that_hangs_withholds_the_renewal(
    agent: HeartbeatingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(agent.harness.store, "wait_wake", hang)
    await agent.live(SILENCE_SECONDS * 1.5)
    assert agent.withheld


async def wrong_after(harness: WorkerHarness, seconds: float) -> str | None:
    """The clock goes on in steps while the loop turns; then the answer of the attestation."""
    for _ in range(12):
        harness.clock.now += seconds / 12.0
        await turns(50)
    return await attested(harness.progress, harness.clock.now)


@pytest.mark.parametrize(
    ("port", "call", "name", "task"),
    [
        ("store", "settle", "work", "the acknowledger"),
        ("master", "persist", "fenced", "the writer of fenced starts"),
        ("master", "cancel_waiting", "cancelled", "the cancellation"),
    ],
)
async def test_each_other_task_that_serves_jobs_and_hangs_is_named(
    agent: HeartbeatingAgent, port: str, call: str, name: str, task: str
) -> None:
    harness = agent.harness
    gate = Gate()
    getattr(harness, port).script[call].append(gate)
    if name == "cancelled":
        harness.bucket_worker.cancel([new_id()])
    else:
        harness.submit(only_bucket(harness), [job(name)])
    assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    assert gate.reached.is_set()
    assert str(await wrong_after(harness, SILENCE_SECONDS)).startswith(task)
    gate.opened.set()
    await turns()
    assert await wrong_after(harness, SILENCE_SECONDS * 3.0) is None


async def test_a_bucket_enqueuer_that_hangs_is_named(agent: HeartbeatingAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket fetches nothing while a put into it is repeated."""
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    harness, entry = agent.harness, job()
    harness.master.rows[entry.id] = Row("HELD", 1, due_us=harness.clock.wall_us())
    harness.master.entries[entry.id] = entry
    harness.store.script["assign"].append(OutcomeUnknown("no answer"))
    harness.store.script["find"] += [DOWN, DOWN, gate := Gate()]
    harness.bucket_worker.due_fetcher.kick(only_bucket(harness).fence.bucket_id)
    await gate.reached.wait()
    assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    assert str(await wrong_after(harness, SILENCE_SECONDS)).startswith("the bucket enqueuer")


async def test_a_task_that_keeps_outcomes_and_hangs_is_named(agent: HeartbeatingAgent) -> None:
    """Past the lease: what it does not put into the store has only memory, and is lost with it."""
    harness = agent.harness
    harness.store.script["keep_outcomes"].append(gate := Gate())
    harness.suspend()
    harness.submit(only_bucket(harness), [job()])
    await gate.reached.wait()
    assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    assert str(await wrong_after(harness, SILENCE_SECONDS)).startswith("the writer of kept outcomes")


@pytest.mark.parametrize(("port", "call"), [("store", "read_kept"), ("store", "remove_kept"), ("master", "copy_final")])
async def test_a_task_that_replays_kept_outcomes_and_hangs_is_named(
    agent: HeartbeatingAgent, port: str, call: str
) -> None:
    harness = agent.harness
    harness.suspend()
    harness.submit(only_bucket(harness), [job()])
    await until(
        lambda: only_bucket(harness).kept and not len(harness.bucket_worker.job_table), "the outcome to be kept"
    )
    getattr(harness, port).script[call].append(gate := Gate())
    harness.trust()
    await gate.reached.wait()
    assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    assert str(await wrong_after(harness, SILENCE_SECONDS)).startswith("the replay of kept outcomes")
    gate.opened.set()
    await until(lambda: not only_bucket(harness).kept, "the outcome to be in the master")
    assert await wrong_after(harness, SILENCE_SECONDS * 3.0) is None


# ---------------------------------------------------------------- what is no silence


async def test_an_idle_agent_withholds_nothing(agent: HeartbeatingAgent) -> None:
    await agent.live(LONG_SECONDS, 2.0)
    assert agent.master.renewals > LONG_SECONDS / 10.0
    assert agent.withheld == 0


async def test_an_agent_without_buckets_withholds_nothing(agent: HeartbeatingAgent) -> None:
    for bucket_id in list(agent.harness.ownership.buckets):
        agent.harness.bucket_worker.forget(bucket_id, "it is another's")
    await agent.live(LONG_SECONDS, 2.0)
    assert agent.withheld == 0


@pytest.mark.slow
async def test_a_master_that_does_not_answer_is_no_silence(agent: HeartbeatingAgent) -> None:
    """Its calls end by their time limits; they are repeated until it answers, however long that takes."""
    for name in ("copy_final", "record_final", "onboard", "hold", "release", "persist", "cancel_waiting"):
        agent.harness.master.script[name].extend([DOWN] * 100_000)
    owned = next(iter(agent.harness.ownership.buckets.values()))
    agent.harness.submit(owned, [job() for _ in range(20)] + [job("fenced")])
    agent.harness.bucket_worker.cancel([new_id()])
    agent.harness.bucket_worker.due_fetcher.kick(owned.fence.bucket_id)
    await agent.live(LONG_SECONDS, 2.0)
    assert len(agent.harness.master.of("record_final")) > 100
    assert len(agent.harness.master.of("onboard")) > 100
    assert len(agent.harness.master.of("persist")) > 100
    assert len(agent.harness.master.of("cancel_waiting")) > 100
    assert agent.withheld == 0


async def test_a_store_that_does_not_answer_is_no_silence(agent: HeartbeatingAgent) -> None:
    """(Its beats fail too, which withholds renewals by itself: here they are answered.)"""
    for name in ("claim", "settle", "assign", "claimed_lists"):
        agent.harness.store.script[name].extend([DOWN] * 100_000)
    agent.harness.submit(next(iter(agent.harness.ownership.buckets.values())), [job()])
    await agent.live(LONG_SECONDS, 2.0)
    assert len(agent.harness.store.of("claim")) > 100
    assert agent.withheld == 0


async def test_an_outage_of_both_servers_is_no_silence(agent: HeartbeatingAgent) -> None:
    """Outcomes are kept nowhere and replayed from nowhere; each call ends by its time limit, and is tried again."""
    harness = agent.harness
    harness.suspend()
    harness.submit(only_bucket(harness), [job()])
    await until(lambda: only_bucket(harness).kept == 1, "an outcome to be kept")
    for name in ("keep_outcomes", "read_kept"):
        harness.store.script[name].extend([DOWN] * 100_000)
    harness.submit(only_bucket(harness), [job()])
    await until(lambda: len(harness.store.of("keep_outcomes")) > 2, "tries to keep another")
    assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    harness.trust()
    for _ in range(20):
        assert await wrong_after(harness, SILENCE_SECONDS / 2.0) is None
    assert len(harness.store.of("read_kept")) > 100


async def test_tasks_that_wait_for_a_lease_are_no_silence(agent: HeartbeatingAgent) -> None:
    """They wait for the very renewal that a silence would withhold."""
    harness = agent.harness
    harness.ownership.soft_until = harness.ownership.hard_until = 0.0
    owned = next(iter(harness.ownership.buckets.values()))
    harness.submit(owned, [job()])
    harness.bucket_worker.due_fetcher.kick(owned.fence.bucket_id)
    for _ in range(100):
        harness.clock.now += SILENCE_SECONDS
        await turns(25)
        harness.progress.expect_turn(asyncio.get_running_loop())
        await turns(25)
        assert harness.progress.attest(harness.clock.now) is None
        assert not harness.store.of("claim")[1:]


async def test_a_process_that_was_stopped_and_continues_is_no_silence(agent: HeartbeatingAgent) -> None:
    agent.harness.ownership.trust(agent.harness.ownership.term._replace(hard_until=1e9))  # type: ignore[union-attr]
    agent.harness.clock.now += 2.0 * SILENCE_SECONDS
    await agent.heartbeat.tick()  # before any other task had its turn
    await agent.live(60.0)
    assert agent.withheld <= 1
    assert agent.master.renewals


# ---------------------------------------------------------------- the promise itself


async def attested(progress: Progress, now: float) -> str | None:
    progress.expect_turn(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return progress.attest(now)


async def test_a_loop_that_has_not_turned() -> None:
    clock = HandClock()
    progress = Progress(clock.boottime, 10.0)
    assert await attested(progress, clock.now) is None
    assert progress.attest(clock.now) == "the event loop has not turned"
    assert await attested(progress, clock.now) is None


async def test_a_task_is_watched_from_its_promise_to_its_end() -> None:
    clock = HandClock()
    progress = Progress(clock.boottime, 10.0)
    steps: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    async def work() -> None:
        with progress.expect("a task"):
            for _ in range(2):
                (await steps.get())()
        await steps.get()

    task = asyncio.ensure_future(work())
    assert await attested(progress, clock.now) is None
    clock.now += 11.0
    assert await attested(progress, clock.now) == "a task has made no progress for 11.0 s"
    progress.note()  # of another task: it has promised nothing
    assert await attested(progress, clock.now) is not None
    steps.put_nowait(progress.note)
    await turns(5)
    assert await attested(progress, clock.now) is None
    clock.now += 11.0
    assert await attested(progress, clock.now) is not None
    steps.put_nowait(lambda: None)
    await turns(5)
    assert await attested(progress, clock.now) is None
    task.cancel()


def test_a_task_that_is_closed_after_its_loop_has_ended_leaves_quietly() -> None:
    """Found by the simulation, where the tasks of a killed host are closed."""
    progress = Progress(lambda: 0.0, silence_seconds=1.0)

    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def waits_for_ever() -> None:
        with progress.waiting:
            await Never()

    async def begin() -> Coroutine[None, None, None]:
        left = waits_for_ever()
        left.send(None)
        return left

    asyncio.run(begin()).close()


async def test_a_task_notes_nothing_for_the_one_that_started_it() -> None:
    """A claimer starts the tasks of handlers: what these wait for shows nothing about it."""
    clock = HandClock()
    progress = Progress(clock.boottime, 10.0)

    async def child() -> None:
        with progress.waiting:
            await asyncio.sleep(0)
        progress.note()

    with progress.expect("the parent"):
        clock.now += 11.0
        await asyncio.ensure_future(child())
        assert await attested(progress, clock.now) == "the parent has made no progress for 11.0 s"


def test_the_longest_calls_are_no_silence() -> None:
    """One step of a task makes a few calls, each with the time limits of the configuration."""
    assert silence_seconds(ClusterSettings()) >= 6.0 * Leases().lease_seconds
    slow = ClusterSettings(master=MasterSettings(statement_timeout_seconds=120.0))
    assert silence_seconds(slow) >= 1200.0
