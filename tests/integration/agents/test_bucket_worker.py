"""The working half of an agent over real servers, with every single call to them going wrong once.

One life of an agent is played: jobs of every kind come, run, fail, wait, and the agent leaves in order. The calls it makes
are counted; then the same life is played again for each of them, which is cut before it has an effect (the server was
away), after it (the answer was lost), or is the last thing the process does. Whatever happens, every job ends up with one
outcome or back in the master, and nothing lies in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Any

import pytest

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry
from jobmaster.handlers import Handlers
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.ids import text
from jobmaster.model.job import Entry, NewJob
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings, JobDefaults
from jobmaster.telemetry import Telemetry
from jobmaster_agents import call_retry
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.buckets import graceful_shutdown
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import HIGH_WATER, PRIORITY, AgentKilled, DrivenCluster, Owner
from tests.support.idle import is_idle
from tests.support.master_parts import PARTS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

handlers = Handlers()
go = asyncio.Event()
ran: list[str] = []
failed: set[str] = set()


@handlers.job(name="note")
async def note() -> str:
    ran.append("note")
    return "done"


@handlers.job(name="again", backoff=0, backoff_jitter=0.0)
async def again(key: str) -> None:
    """Fails once."""
    if key not in failed:
        failed.add(key)
        raise RuntimeError("as asked")


@handlers.job(name="fenced", start="fenced")
async def fenced() -> None:
    ran.append("fenced")


@handlers.job(name="slow", timeout=1e6)
async def slow() -> None:
    ran.append("slow")
    await go.wait()


class End(Enum):
    """What goes wrong with one call."""

    AWAY = "away"
    LOST = "lost"
    KILLED = "killed"


class Fate:
    """Counts the calls of an agent; the n-th ends badly."""

    def __init__(self, at: int = -1, end: End = End.AWAY) -> None:
        self.at = at
        self.end = end
        self.names: list[str] = []
        self.away: frozenset[str] = frozenset()
        """Calls that find their server away from now on."""

    def over(self, thing: object) -> Any:
        return _Fated(thing, self)


class _Fated:
    def __init__(self, thing: object, fate: Fate) -> None:
        self._thing = thing
        self._fate = fate

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        call = getattr(self._thing, name)
        fate = self._fate
        if name in PARTS and not callable(call):  # a part and a method may be called alike
            return _Fated(call, fate)  # type: ignore[return-value]
        if name == "wait_wake":  # how often it is called depends on the weather
            return call  # type: ignore[no-any-return]

        async def fated(*arguments: object, **named: object) -> object:
            mine = len(fate.names) == fate.at
            fate.names.append(name)
            if name in fate.away or (mine and fate.end is End.AWAY):
                raise Unavailable(f"{name} was not sent")
            answer = await call(*arguments, **named)
            if mine:
                raise OutcomeUnknown(f"the answer to {name} was lost") if fate.end is End.LOST else AgentKilled
            return answer

        return fated


class Life:
    """One agent with one bucket and its jobs."""

    def __init__(self, owner: Owner, fate: Fate) -> None:
        self.owner = owner
        owner.ownership.trust(term(SystemClock().boottime(), 600.0))
        self.bucket_worker = BucketWorker(
            ClusterSettings(jobs=JobDefaults(backoff_seconds=0.0)),
            AgentSettings(slots=4, bucket_buffer=8),
            fate.over(owner.master),
            fate.over(owner.store),
            owner.ownership,
            handlers,
            SystemClock(),
            Telemetry(),
            EventLog(),
            owner.agent_id.hex()[-12:],
        )
        self.owned = OwnedBucket(owner.fence, owner.lane, PRIORITY, "default")
        self.jobs: dict[bytes, str] = {}

    def entry(self, name: str, due_us: int = 0) -> bytes:
        job_id = new_id()
        args = b'{"key":"%s"}' % job_id.hex().encode() if name == "again" else b"{}"
        self.jobs[job_id] = name
        return encode_entry(Entry(job_id, 1, name, args, due_us))

    async def bring(self) -> None:
        """Jobs from producers and from the master."""
        later = SystemClock().wall_us() + 60_000_000
        entries = [self.entry("note") for _ in range(3)]
        entries += [self.entry(name) for name in ("again", "fenced", "slow")] + [self.entry("note", later)]
        entries.append(entries[0])  # the same id twice
        held = [NewJob(new_id(), PRIORITY, self.owner.lane, "note", b"{}", b"", due) for due in (0, 0, later)]
        await self.owner.master.intake.insert_held(held)
        self.jobs.update({job.id: "note" for job in held})
        answer = await self.owner.store.submit(self.owner.fence.bucket_id, entries, **HIGH_WATER)
        assert answer.status is ReplyStatus.OK

    async def play(self) -> list[bytes]:
        """From the first claim to the graceful exit; the buckets left behind."""
        await self.bring()
        self.bucket_worker.open(self.owned)
        self.bucket_worker.due_fetcher.kick(self.owner.fence.bucket_id)
        await until(lambda: "slow" in ran and ran.count("note") >= 3)
        self.bucket_worker.in_flight_writer._within_seconds = 0.0
        with contextlib.suppress(Unavailable):
            await self.bucket_worker.in_flight_writer.tick()
        go.set()
        await until(lambda: is_idle(self.bucket_worker))
        return await self.bucket_worker.complete([self.owner.fence.bucket_id], 60.0, "the test says so")

    async def run(self) -> list[bytes] | None:
        """``play`` beside the pumps; ``None`` when the agent was killed."""
        running = asyncio.ensure_future(self.bucket_worker.run())
        playing = asyncio.ensure_future(self.play())
        try:
            await asyncio.wait((running, playing), return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_SECONDS)
            if playing.done() and not isinstance(playing.exception(), AgentKilled):
                return playing.result()
            if running.done() and (error := running.exception()) is not None and not _was_killed(error):
                raise error
            assert running.done() or playing.done(), "this life has no end"
            return None
        finally:
            for task in (running, playing):
                task.cancel()
            await asyncio.gather(running, playing, return_exceptions=True)
            await self.bucket_worker.aclose()


def _was_killed(error: BaseException) -> bool:
    return isinstance(error, AgentKilled) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(AgentKilled) is not None
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(graceful_shutdown, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(graceful_shutdown, "_RETRY_SECONDS", 0.001)


@pytest.fixture
async def born(driven: DrivenCluster) -> AsyncIterator[Callable[[Fate], Awaitable[Life]]]:
    async def be_born(fate: Fate) -> Life:
        go.clear()
        ran.clear()
        failed.clear()
        return Life(await driven.owner(), fate)

    yield be_born
    go.set()


async def check(driven: DrivenCluster, life: Life) -> None:
    """One outcome or back in the master, nothing twice, nothing left."""
    ids = list(life.jobs)
    rows = await driven.rows("SELECT id, state::text, bucket_id FROM job WHERE id = ANY ($1::uuid[])", ids_text(ids))
    assert len(rows) == len(ids), "a job is lost"
    assert {row["state"] for row in rows} <= {"SUCCEEDED", "HELD"}
    twice = await driven.rows("SELECT job_id FROM ledger WHERE concluding GROUP BY 1 HAVING count(*) > 1")
    assert not twice
    depth = (await life.owner.store.depths([life.owner.fence.bucket_id]))[0]
    assert depth is None or (depth.pending, depth.assigned, depth.claimed_lists, depth.kept) == (0, 0, 0, 0)


def ids_text(ids: list[bytes]) -> list[str]:
    return [text(job_id) for job_id in ids]


THIRDS = pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=[pytest.mark.slow, pytest.mark.long]) for at in (1, 2))]
)
"""Every third call, from the first one on; the others in the slow part."""


async def test_a_life_without_faults(driven: DrivenCluster, born: Callable[[Fate], Awaitable[Life]]) -> None:
    life = await born(Fate())
    assert await life.run() == []
    await check(driven, life)
    rows = await driven.rows("SELECT id, state::text, rescues FROM job")
    unfinished = [row for row in rows if row["state"] == "HELD"]
    assert len(unfinished) == 2, "only what was not due"
    assert {row["rescues"] for row in rows} == {0}
    assert (await driven.bucket_state(life.owner.fence.bucket_id))[0] == "READY_TO_DELETE"
    assert ran.count("note") == 5, "nothing runs twice when nothing fails"
    [attempt] = await driven.rows("SELECT outcome FROM attempt")
    assert attempt["outcome"] == "failed"


@THIRDS
@pytest.mark.parametrize("end", [End.AWAY, End.LOST])
async def test_every_call_may_fail_once(
    driven: DrivenCluster, born: Callable[[Fate], Awaitable[Life]], end: End, first: int
) -> None:
    counted = Fate()
    await (await born(counted)).run()
    for at in range(first, len(counted.names) + 3, 3):
        fate = Fate(at, end)
        life = await born(fate)
        left = await life.run()
        what = f"call {at}: {fate.names[at] if at < len(fate.names) else 'none'}"
        assert left == [], what
        await check(driven, life)
        state = await driven.bucket_state(life.owner.fence.bucket_id)
        assert state[0] == "READY_TO_DELETE", what


@THIRDS
async def test_at_every_call_the_process_may_die(
    driven: DrivenCluster, born: Callable[[Fate], Awaitable[Life]], first: int
) -> None:
    counted = Fate()
    await (await born(counted)).run()
    helper = await driven.agent()
    rescue = helper.rescue()
    for at in range(first, len(counted.names), 3):
        fate = Fate(at, End.KILLED)
        life = await born(fate)
        if await life.run() is not None:
            continue  # this life had fewer calls
        await life.owner.die()
        while (await driven.bucket_state(life.owner.fence.bucket_id))[0] != "READY_TO_DELETE":
            await rescue.tick()
        await check(driven, life)


async def test_what_had_ended_when_the_master_went_away_does_not_run_again(
    driven: DrivenCluster, born: Callable[[Fate], Awaitable[Life]]
) -> None:
    fate = Fate()
    life = await born(fate)
    bucket_worker = life.bucket_worker
    fate.away = frozenset({"copy_final", "record_final", "hold", "retry_here", "persist"})
    entries = [life.entry("note") for _ in range(5)] + [life.entry("again"), life.entry("slow")]
    running = asyncio.ensure_future(bucket_worker.run())
    await life.owner.store.submit(life.owner.fence.bucket_id, entries, **HIGH_WATER)
    bucket_worker.open(life.owned)
    await until(lambda: bucket_worker.outcome_writer.backlog == 6 and "slow" in ran)
    life.owner.ownership._term = None
    life.owner.ownership.trust(term(SystemClock().boottime() - 30.0, 50.0))  # past half the lease
    await bucket_worker.kept_outcomes.keep()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bucket_worker.aclose()
    await life.owner.die()
    rescue = (await driven.agent()).rescue()
    while (await driven.bucket_state(life.owner.fence.bucket_id))[0] != "READY_TO_DELETE":
        await rescue.tick()
    await check(driven, life)
    rows = await driven.rows("SELECT handler, state::text, attempt, rescues FROM job ORDER BY handler, id")
    found = [tuple(row) for row in rows]
    assert found == [("again", "HELD", 1, 0), *[("note", "SUCCEEDED", 1, 0)] * 5, ("slow", "HELD", 0, 1)]
