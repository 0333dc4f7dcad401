"""Pauses at work, over real servers: what is paused does not start, wherever it lies, and runs once after it is resumed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry, encode_headers
from jobmaster.model.errors import Unavailable
from jobmaster.model.ids import text
from jobmaster.model.job import Entry, Headers, NewJob
from jobmaster.model.pause import PauseKind, PausesInForce
from jobmaster_agents.buckets.pause_watch import PauseWatch
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import HIGH_WATER, PRIORITY, DrivenCluster
from tests.integration.agents.freezing_fixture import Life, began, encoded, gates, nothing_lies_there, states
from tests.support.hand_clock import HandClock
from tests.support.waiting import eventually, until


class Paused:
    """An agent that follows pauses, call by call."""

    def __init__(self, driven: DrivenCluster, life: Life) -> None:
        self.driven = driven
        self.life = life
        self.worker = life.bucket_worker
        self.pauses = life.owner.master.pauses
        self.watch = PauseWatch(life.owner.agent_id, self.pauses, self.worker, SystemClock(), EventLog())

    async def renew(self) -> float:
        """A renewal, and what follows from it."""
        renewal = await self.life.owner.master.members.renew(self.life.owner.agent_id, 600.0)
        self.watch.renewed(renewal.pauses, renewal.pauses_obeyed)
        return await self.watch.tick()

    async def pause(self, kind: str, value: str, seconds: float | None = None) -> int:
        """An operator pauses, and the agent reads it."""
        written = await self.pauses.pause(PauseKind(kind), value, None, seconds, "ann", "test")
        assert written is not None
        await self.renew()
        return written.version

    async def resume(self, kind: str, value: str) -> None:
        assert await self.pauses.resume(PauseKind(kind), value, "ann", "test") is not None
        await self.renew()

    async def held(self, count: int, handler: str = "gated", headers: bytes = b"") -> list[bytes]:
        """Jobs in the master, due now."""
        args = b"{}" if handler == "fenced" else b'{"gate":"then"}'
        jobs = [NewJob(new_id(), PRIORITY, self.life.owner.lane, handler, args, headers, 0) for _ in range(count)]
        await self.life.owner.master.intake.insert_held(jobs)
        self.worker.due_fetcher.kick(self.life.owner.fence.bucket_id)
        return [job.id for job in jobs]

    async def all_are(self, state: str, ids: list[bytes]) -> None:
        async def so() -> bool:
            return await states(self.driven, ids) == dict.fromkeys(ids, state)

        await eventually(so)

    async def were_left_alone(self, ids: list[bytes]) -> None:
        """Jobs in the master that no agent has fetched."""
        rows = await self.driven.rows("SELECT state::text, token FROM job WHERE id = ANY ($1)", list(map(text, ids)))
        assert {tuple(row) for row in rows} == {("HELD", 1)}

    async def all_ran_once(self, ids: list[bytes]) -> None:
        await self.all_are("SUCCEEDED", ids)
        assert {began[job_id] for job_id in ids} == {1}
        rows = await self.driven.rows("SELECT attempt, rescues FROM job")
        assert {tuple(row) for row in rows} == {(1, 0)}, "no attempt was used and no rescue counted"
        await nothing_lies_there(self.life)


@pytest.fixture
async def paused(driven: DrivenCluster, life: Life) -> Paused:
    """The agent of ``life``, which has read that nothing is paused."""
    made = Paused(driven, life)
    await made.watch.tick()
    return made


def _tagged(*tags: str) -> tuple[bytes, bytes]:
    job_id = new_id()
    headers = encode_headers(Headers(tags=tags))
    return job_id, encode_entry(Entry(job_id, 1, "gated", b'{"gate":"then"}', headers=headers))


async def test_a_paused_handler_with_jobs_in_every_place(paused: Paused) -> None:
    """Running, queued, waiting in the store and in the master: what runs ends, the others wait in the master, and each runs
    once after the pause."""
    gates["then"].set()
    running = [encoded("first") for _ in range(2)]
    queued, later = [encoded("then") for _ in range(4)], [encoded("then") for _ in range(3)]
    await paused.life.submit(*(entry for _, entry in running))
    await until(lambda: sum(began.values()) == 2)
    await paused.life.submit(*(entry for _, entry in queued))
    await until(lambda: paused.worker.executor.backlog(paused.life.owner.fence.bucket_id) == 6)
    version = await paused.pause("handler", "gated")
    assert [(each.id, each.obeys) for each in await paused.pauses.followers(version)] == [
        (paused.life.owner.agent_id, True)
    ]
    await paused.life.submit(*(entry for _, entry in later))
    waiting = [job_id for job_id, _ in queued + later]
    await paused.all_are("HELD", waiting)
    held = await paused.held(3)
    gates["first"].set()
    await paused.all_are("SUCCEEDED", [job_id for job_id, _ in running])
    other = new_id()
    await paused.life.submit(encode_entry(Entry(other, 1, "fenced", b"{}")))
    await paused.all_are("SUCCEEDED", [other])
    assert sum(began.values()) == 3, "only the handler that is not paused has started"
    assert set((await states(paused.driven, waiting)).values()) == {"HELD"}
    await paused.were_left_alone(held)
    await paused.resume("handler", "gated")
    await paused.all_ran_once([other, *(job_id for job_id, _ in running), *waiting, *held])


@pytest.mark.parametrize("kind", ["lane", "priority"])
async def test_a_paused_bucket_takes_jobs_and_starts_none(paused: Paused, kind: str) -> None:
    gates["then"].set()
    running, queued = encoded("first"), [encoded("then") for _ in range(3)]
    blocking = encoded("first")
    await paused.life.submit(running[1], blocking[1])
    await until(lambda: sum(began.values()) == 2)
    await paused.life.submit(*(entry for _, entry in queued))
    await until(lambda: paused.worker.executor.backlog(paused.life.owner.fence.bucket_id) == 5)
    value = paused.life.owner.lane if kind == "lane" else "medium"
    await paused.pause(kind, value)
    await paused.all_are("HELD", [job_id for job_id, _ in queued])
    held = await paused.held(2)
    submitted = [encoded("then") for _ in range(5)]
    await paused.life.submit(*(entry for _, entry in submitted))
    gates["first"].set()
    await paused.all_are("SUCCEEDED", [running[0], blocking[0]])
    claimer = paused.worker.claimers[paused.life.owner.fence.bucket_id]
    # It has looked into the bucket and seen all of them.
    await until(lambda: claimer.waiting == len(submitted) or sum(began.values()) > 2)
    depth = (await paused.life.owner.store.depths([paused.life.owner.fence.bucket_id]))[0]
    assert depth is not None
    assert (depth.pending, depth.claimed_lists) == (5, 0), "they wait in the store, unclaimed"
    assert sum(began.values()) == 2
    await paused.were_left_alone(held)
    await paused.resume(kind, value)
    ids = [job_id for job_id, _ in [running, blocking, *queued, *submitted]]
    await paused.all_ran_once(ids + held)


async def test_a_resume_wakes_the_claimer_of_a_bucket_that_no_submit_would_wake(paused: Paused) -> None:
    gates["then"].set()
    await paused.pause("lane", paused.life.owner.lane)
    claimer = paused.worker.claimers[paused.life.owner.fence.bucket_id]
    job_id, entry = encoded("then")
    await paused.life.submit(entry)
    await until(lambda: claimer.waiting == 1)  # it has looked into the bucket, and the wake token is gone
    await until(lambda: not claimer._woken.is_set())
    paused.worker.pauses.take(PausesInForce(0, ()), SystemClock().boottime())
    paused.worker.apply_pauses()
    assert claimer._woken.is_set()
    await paused.all_ran_once([job_id])


async def test_a_pause_of_another_lane_or_priority_stops_nothing_here(paused: Paused) -> None:
    gates["then"].set()
    for kind, value in (("lane", "elsewhere"), ("priority", "high"), ("handler", "other"), ("tag", "x")):
        await paused.pause(kind, value)
    job_id, entry = encoded("then")
    await paused.life.submit(entry)
    await paused.all_ran_once([job_id, *await paused.held(2)])


async def test_only_jobs_with_the_tag_wait(paused: Paused) -> None:
    gates["then"].set()
    tagged, queued, plain, other = _tagged("x", "y"), _tagged("y"), encoded("then"), _tagged("z")
    blocking = [encoded("first"), encoded("first")]
    await paused.life.submit(*(entry for _, entry in blocking))
    await until(lambda: sum(began.values()) == 2)
    await paused.life.submit(queued[1])
    await until(lambda: paused.worker.executor.backlog(paused.life.owner.fence.bucket_id) == 3)
    await paused.pause("tag", "y")
    await paused.life.submit(tagged[1], plain[1], other[1])
    held = await paused.held(2, headers=encode_headers(Headers(tags=("y",))))
    free = await paused.held(2, headers=encode_headers(Headers(tags=("z",))))
    gates["first"].set()
    await paused.all_are("SUCCEEDED", [plain[0], other[0], *free])
    await paused.all_are("HELD", [tagged[0], queued[0], *held])
    assert not began[tagged[0]] + began[queued[0]]
    await paused.were_left_alone(held)
    await paused.resume("tag", "y")
    await paused.all_are("SUCCEEDED", [tagged[0], queued[0], *held])
    assert set(began.values()) == {1}


async def test_a_bucket_that_is_opened_later_is_paused_too(paused: Paused) -> None:
    await paused.pause("lane", paused.life.owner.lane)
    another = await paused.driven.owner()
    owned = OwnedBucket(another.fence, paused.life.owner.lane, PRIORITY, "default")
    paused.worker.open(owned)
    assert owned.paused


async def test_an_agent_reads_the_pauses_before_it_publishes_that_it_obeys(
    driven: DrivenCluster, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that starts while something is paused: its first tick reads it; a failure is no reading."""
    paused = Paused(driven, life)
    written = await paused.pauses.pause(PauseKind.HANDLER, "gated", None, None, "ann", "")
    assert written is not None

    async def away() -> PausesInForce:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(paused.pauses, "in_force", away)
        with pytest.raises(Unavailable):
            await paused.watch.tick()
        assert not paused.watch.read_once.is_set()
    await paused.watch.tick()
    assert paused.watch.read_once.is_set()
    assert [each.obeys for each in await paused.pauses.followers(written.version)] == [True]
    job_id, entry = encoded("then")
    await life.submit(entry)
    await paused.all_are("HELD", [job_id])


@pytest.mark.parametrize("left", ["NULL", "1"])
async def test_an_agent_confirms_again_what_a_failover_has_forgotten(paused: Paused, left: str) -> None:
    """The standby has the pause, and not the confirmation: the next ``jobmaster pause`` must not wait for it for ever."""
    version = await paused.pause("tag", "x")
    await paused.driven.rows(f"UPDATE agent SET pauses_obeyed = {left} RETURNING id")
    assert [each.obeys for each in await paused.pauses.followers(version)] == [False]
    paused.watch.kicked.clear()
    await paused.renew()
    assert paused.watch.kicked.is_set(), "its task publishes at once"
    assert [each.obeys for each in await paused.pauses.followers(version)] == [True]


async def test_a_pause_ends_by_itself_also_while_the_master_is_away(
    paused: Paused, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates["then"].set()
    clock = HandClock()
    paused.watch = PauseWatch(paused.life.owner.agent_id, paused.pauses, paused.worker, clock, EventLog())
    await paused.pause("lane", paused.life.owner.lane, 600.0)

    async def away() -> PausesInForce:
        raise AssertionError("the end of a pause needs no call")

    monkeypatch.setattr(paused.pauses, "in_force", away)
    job_id, entry = encoded("then")
    await paused.life.submit(entry)
    assert 0.0 < await paused.watch.tick() <= 600.0
    assert paused.life.owned.paused
    clock.now += 600.0
    await paused.watch.tick()
    assert not paused.life.owned.paused
    await paused.all_ran_once([job_id])


async def test_a_start_that_waits_for_its_write_is_given_back(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced start has a slot and has not begun. It must not begin after the agent has confirmed the pause."""
    persist, go_on, waits = paused.life.owner.master.outcomes.persist, asyncio.Event(), asyncio.Event()

    async def late(*args: object) -> object:
        waits.set()
        await go_on.wait()
        return await persist(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(paused.life.owner.master.outcomes, "persist", late)
    job_id = new_id()
    await paused.life.submit(encode_entry(Entry(job_id, 1, "fenced", b"{}")))
    await waits.wait()
    await paused.pause("handler", "fenced")
    go_on.set()
    await paused.all_are("HELD", [job_id])
    assert not began[job_id]
    await paused.resume("handler", "fenced")
    await paused.all_are("SUCCEEDED", [job_id])
    assert began == Counter({job_id: 1})


async def test_a_paused_bucket_over_its_high_water_mark_spills_to_the_master(paused: Paused) -> None:
    gates["then"].set()
    bucket_id = paused.life.owner.fence.bucket_id
    await paused.pause("lane", paused.life.owner.lane)
    paused.worker.claimers[bucket_id]._spill_jobs = 10
    jobs = [encoded("then") for _ in range(30)]
    for _, entry in jobs:
        await paused.life.submit(entry)

    async def spilled() -> bool:
        depth = (await paused.life.owner.store.depths([bucket_id]))[0]
        return depth is not None and depth.pending <= 10

    await eventually(spilled)
    assert not began
    await paused.resume("lane", paused.life.owner.lane)
    await paused.all_ran_once([job_id for job_id, _ in jobs])


async def test_a_rescue_starts_nothing_that_is_paused(paused: Paused) -> None:
    """The jobs of a dead owner come to the master, and wait there."""
    await paused.pause("handler", "gated")
    dead = await paused.driven.owner()
    dead.lane = paused.life.owner.lane
    entries = [encoded("then") for _ in range(3)]
    await dead.store.submit(dead.fence.bucket_id, [entry for _, entry in entries], **HIGH_WATER)
    await dead.die()
    rescuer = await paused.driven.owner()
    await rescuer.rescue().tick()
    ids = [job_id for job_id, _ in entries]
    await paused.all_are("HELD", ids)
    assert not began
