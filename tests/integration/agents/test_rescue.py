"""Rescue against real servers: nothing is lost, nothing is counted twice, wherever owner or rescuer dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.master.master import Master
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import Fence, text
from jobmaster.model.job import Entry
from jobmaster.ports import Page, ReplyStatus, Written
from jobmaster.rules.batching import BATCH_BYTES
from jobmaster.settings.model import MasterSettings
from jobmaster_agents.event_log import Event
from jobmaster_agents.rescue.evacuation import Evacuation, EvacuationEnd
from tests.integration.agents.fixture import (
    HIGH_WATER,
    AgentKilled,
    CallCutter,
    CutMoment,
    DrivenCluster,
    check,
    hold_row,
    in_flight,
)

# ---------------------------------------------------------------- the owner dies


async def test_every_job_of_a_dead_owner_is_held_or_concluded_exactly_once(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live()
    await owner.die()
    await rescuer.rescue().tick()
    await check(driven, owner, lived)
    assert rescuer.telemetry.buckets_drained == 1
    assert rescuer.telemetry.drain_refusals >= len(lived.finished)
    assert rescuer.told == [{(owner.lane, 3)}]  # the owners of such buckets fetch the jobs now


async def test_small_pages_move_the_same(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(5)
    await owner.die()
    await rescuer.rescue(page_jobs=2).tick()
    await check(driven, owner, lived)


class Watched:
    """A port whose method is another's, and which notes what its calls were about.

    Args:
        more: in the place of methods of that name.
    """

    def __init__(self, port: object, **more: object) -> None:
        self._port = port
        self._more = more

    def __getattr__(self, name: str) -> Any:
        return self._more.get(name) or getattr(self._port, name)


async def test_a_bucket_full_of_large_jobs_is_moved_in_pages_of_bounded_bytes(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    size, count = 120 * 1024, 45
    entries = [Entry(new_id(), 1, "work", b'"' + b"x" * size + b'"') for _ in range(count)]
    submitted = await owner.store.submit(owner.fence.bucket_id, [encode_entry(e) for e in entries], **HIGH_WATER)
    assert submitted.status is ReplyStatus.OK
    first = await owner.store.claim(owner.fence, "one", count)
    assert sum(map(len, first.raw)) <= BATCH_BYTES < sum(map(len, first.raw)) + size
    await owner.die()
    pages: list[int] = []

    async def read_page(fence: Fence, limit: int, bytes_max: int) -> Page:
        page = await rescuer.store.read_page(fence, limit, bytes_max)
        pages.append(sum(map(len, page.raw)))
        return page

    await rescuer.rescue(store=Watched(rescuer.store, read_page=read_page)).tick()
    assert rescuer.telemetry.buckets_drained == 1
    assert max(pages) <= BATCH_BYTES
    rows = await driven.rows("SELECT state::text FROM job WHERE lane = $1", owner.lane)
    assert [row["state"] for row in rows] == ["HELD"] * count


@pytest.mark.slow
async def test_a_page_that_the_master_does_not_write_in_its_time_goes_in_parts(driven: DrivenCluster) -> None:
    """The real time-out of a real statement: each row takes a twentieth of it."""
    owner, rescuer = await driven.owner(), await driven.agent()
    submitted = await owner.submit(60)
    await owner.die()
    settings = MasterSettings(pool_size=1, statement_timeout_seconds=0.5)
    slow = await Master.connect(dsn=driven.dsn, schema=driven.schema, settings=settings, application_name="slow")
    driven.opened.append(slow)
    await driven.rows(
        f"CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.lane = '{owner.lane}' THEN PERFORM pg_sleep(0.025); END IF; RETURN NEW; END $$"
    )
    await driven.rows("CREATE TRIGGER slow BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION be_slow()")
    tries: list[int] = []

    async def rescue_page(fence: Fence, entries: Sequence[Entry], *args: Any, **options: Any) -> Written:
        tries.append(len(entries))
        return await slow.rescue.rescue_page(fence, entries, *args, **options)

    try:
        rescue = rescuer.rescue(Watched(rescuer.master, rescue=Watched(rescuer.master.rescue, rescue_page=rescue_page)))
        await rescue.tick()
        while not rescuer.telemetry.buckets_drained:  # (a single row that is late, on a busy machine)
            await asyncio.sleep(0.1)
            await rescue.tick()
    finally:
        await driven.rows("DROP TRIGGER slow ON job")
        await driven.rows("DROP FUNCTION be_slow")
    assert tries[0] == 60
    assert max(tries[1:]) <= 30, "what timed out was not sent again as it was"
    rows = await driven.rows("SELECT id, state::text FROM job WHERE lane = $1", owner.lane)
    assert sorted((row["id"].bytes, row["state"]) for row in rows) == sorted((job_id, "HELD") for job_id in submitted)


async def test_the_event_of_a_drained_bucket_counts_the_moved_jobs(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    await owner.submit(4)
    await owner.claim("one", 2)
    await owner.die()
    await rescuer.rescue().tick()
    rows = await driven.rows(
        "SELECT jobs_moved, jobs_rescued, reason FROM bucket_event WHERE to_state = 'READY_TO_DELETE'"
    )
    assert [(row["jobs_moved"], row["jobs_rescued"]) for row in rows] == [(4, 2)]


async def test_a_job_found_with_a_dead_agent_for_the_third_time_fails_with_the_reason(
    driven: DrivenCluster, caplog: pytest.LogCaptureFixture
) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live()
    await owner.die()
    await rescuer.rescue().tick()
    view = await rescuer.master.queries.get(lived.poison[0])
    assert view is not None
    assert view.error is not None
    assert view.error.reason == "agent_lost"
    assert rescuer.telemetry.jobs_given_up == len(lived.poison)
    (told,) = [record for record in caplog.records if record.getMessage() == Event.JOBS_GIVEN_UP]
    assert told.jobmaster_fields["jobs"] == len(lived.poison)  # type: ignore[attr-defined]


async def test_without_a_certificate_nothing_is_taken(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    await owner.live()
    await rescuer.rescue().tick()
    assert await driven.bucket_state(owner.fence.bucket_id) == ("ACTIVE", 1)
    assert rescuer.telemetry.buckets_taken == 0


# ---------------------------------------------------------------- the zombie owner


async def test_a_zombie_owner_is_refused_everywhere(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    await owner.submit(2)
    await owner.persist(running := await owner.claim("run", 2))
    fresh = await owner.submit(2)
    claimed = await owner.claim("new", 2)
    await owner.die()
    await rescuer.rescue().tick()
    before = await driven.jobs()

    zombie, _ = await driven.connect(owner.agent_id)  # its old connections were cut by the rescuer
    ids = {entry.id for entry in (*running, *claimed)}
    assert not (
        await zombie.outcomes.persist(owner.fence, [in_flight(entry, owner.lane) for entry in claimed])
    ).bucket_ok
    assert not await zombie.outcomes.copy_final([owner.final(entry) for entry in claimed])
    recorded = await zombie.outcomes.record_final([owner.final(entry) for entry in (*running, *claimed)])
    assert not recorded.accepted
    assert recorded.refused == ids
    held = await zombie.outcomes.hold(owner.fence, [hold_row(entry, owner.lane) for entry in (*running, *claimed)])
    assert not held.accepted
    assert held.refused == ids
    assert not (
        await zombie.outcomes.retry_here(owner.fence, [hold_row(entry, owner.lane) for entry in claimed])
    ).bucket_ok
    assert not (await zombie.onboarding.onboard(owner.fence, owner.lane, 3, 300.0, 10)).bucket_ok
    assert not (await zombie.members.renew(owner.agent_id, 10.0)).alive
    assert not await zombie.buckets.move_bucket(*owner.fence, BucketState.LOST, "it thinks it owns it")

    assert (await owner.store.claim(owner.fence, "more", 10)).status is ReplyStatus.FENCED
    assert await owner.store.settle(owner.fence, ["new"], []) is ReplyStatus.FENCED
    assert await owner.store.assign(owner.fence, [(0, encode_entry(claimed[0]))]) is ReplyStatus.FENCED
    assert await owner.store.keep_outcomes(owner.fence, [b"x"], []) is ReplyStatus.FENCED
    late = await owner.store.submit(owner.fence.bucket_id, [encode_entry(Entry(new_id(), 1, "w", b"{}"))], **HIGH_WATER)
    assert late.status is ReplyStatus.CLOSED
    assert await driven.jobs() == before
    assert set(fresh) <= set(before)


async def test_the_dead_owners_database_connections_are_cut(driven: DrivenCluster) -> None:
    """A frozen client inside a COPY would hold its locks for ever: no timeout of the server ends it."""
    owner, rescuer = await driven.owner(), await driven.agent()
    await owner.submit(1)
    await owner.claim("one", 1)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
    name = text(owner.agent_id)
    assert (await driven.rows(count, name))[0][0] > 0
    await rescuer.master.members.end_agent(owner.agent_id, dead=True, reason="killed")
    await rescuer.rescue().tick()
    assert (await driven.rows(count, name))[0][0] == 0


async def test_a_living_rescuers_connections_are_not_cut_when_it_declares_a_bucket_lost(driven: DrivenCluster) -> None:
    owner, rescuer, other = await driven.owner(), await driven.agent(), await driven.agent()
    await owner.submit(1)
    await owner.die()
    bucket = await rescuer.master.rescue.take_lost(rescuer.agent_id, ["default"], {})
    assert bucket is not None
    name = text(rescuer.agent_id)
    assert await rescuer.master.buckets.move_bucket(bucket.id, bucket.epoch, bucket.owner, BucketState.LOST, "leaving")
    before = await driven.rows("SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY pid", name)
    assert before
    await other.rescue().tick()
    assert other.telemetry.buckets_drained == 1
    after = await driven.rows("SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY pid", name)
    assert after == before


# ---------------------------------------------------------------- the rescuer dies


EITHER_SIDE = pytest.mark.parametrize(
    "when",
    [pytest.param(CutMoment.BEFORE, id="before", marks=pytest.mark.long), pytest.param(CutMoment.AFTER, id="after")],
)
"""After a call is before the next one: the other side differs at the first call only."""


async def calls_of_a_whole_rescue(driven: DrivenCluster) -> CallCutter:
    """How many calls an undisturbed rescue of such a bucket makes."""
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    ending = CallCutter()
    await rescuer.rescue(ending.over(rescuer.master), ending.over(rescuer.store), page_jobs=2).tick()
    await check(driven, owner, lived)
    return ending


@pytest.mark.slow
@EITHER_SIDE
async def test_a_rescuer_may_die_at_any_call_and_another_finishes(driven: DrivenCluster, when: CutMoment) -> None:
    whole = await calls_of_a_whole_rescue(driven)
    assert {"take_lost", "fence", "read_page", "rescue_page", "remove_page", "record_final", "hold", "close_if_empty",
            "sweep", "close_drained"} <= set(whole.names)  # fmt: skip
    heir = await driven.agent()
    for at in range(whole.calls):
        owner, rescuer = await driven.owner(), await driven.agent()
        lived = await owner.live(2)
        await owner.die()
        ending = CallCutter(at, when)
        with pytest.raises(AgentKilled):
            await rescuer.rescue(ending.over(rescuer.master), ending.over(rescuer.store), page_jobs=2).tick()
        await heir.master.members.end_agent(rescuer.agent_id, dead=True, reason=f"died {when} {ending.names[-1]}")
        await heir.rescue(page_jobs=2).tick()
        await check(driven, owner, lived)
        await rescuer.master.close()
        await rescuer.store.close()
        await owner.store.close()


@pytest.mark.slow
@EITHER_SIDE
async def test_a_rescuer_that_only_lost_answers_finishes_itself(driven: DrivenCluster, when: CutMoment) -> None:
    """Not dead, only interrupted (time-out, cut connection): the same agent comes back to its own bucket."""
    whole = await calls_of_a_whole_rescue(driven)
    for at in range(0, whole.calls, 3):
        owner, rescuer = await driven.owner(), await driven.agent()
        lived = await owner.live(2)
        await owner.die()
        ending = CallCutter(at, when)
        task = rescuer.rescue(ending.over(rescuer.master), ending.over(rescuer.store), page_jobs=2)
        with pytest.raises(AgentKilled):
            await task.tick()
        if task.unfinished:
            for work in task.unfinished.values():
                work.next_at = 0.0
        await task.tick()
        await check(driven, owner, lived)
        await rescuer.master.close()
        await rescuer.store.close()


async def test_a_bucket_taken_by_a_claim_without_reply_is_found_by_its_rescuer(driven: DrivenCluster) -> None:
    """The claim was committed, its answer lost. No other agent may take the bucket while its owner lives."""
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    ending = CallCutter(1, CutMoment.AFTER)
    task = rescuer.rescue(ending.over(rescuer.master), ending.over(rescuer.store), page_jobs=2)
    with pytest.raises(AgentKilled):
        await task.tick()
    assert ending.names[-1] == "take_lost"
    assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "DRAINING"
    assert len(task.unfinished) == 0
    await task.tick()
    await check(driven, owner, lived)


async def test_a_leaving_rescuer_gives_back_a_bucket_claimed_without_reply(driven: DrivenCluster) -> None:
    owner, leaving, heir = await driven.owner(), await driven.agent(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    ending = CallCutter(1, CutMoment.AFTER)
    task = leaving.rescue(ending.over(leaving.master), ending.over(leaving.store))
    with pytest.raises(AgentKilled):
        await task.tick()
    await task.give_back()
    assert await leaving.master.members.end_agent(leaving.agent_id, dead=False, reason="leaving")
    await heir.rescue().tick()
    await check(driven, owner, lived)


async def test_a_zombie_rescuer_moves_nothing_and_removes_nothing(driven: DrivenCluster) -> None:
    """It has read a page and is cut off; another takes the bucket over; then it goes on with what it remembers."""
    owner, zombie, heir = await driven.owner(), await driven.agent(), await driven.agent()
    submitted = await owner.submit(6)
    claimed = await owner.claim("one", 3)
    await owner.die()
    bucket = await zombie.master.rescue.take_lost(zombie.agent_id, ["default"], {})
    assert bucket is not None
    drain = Evacuation(bucket, zombie.master, zombie.store, lambda: True, page_jobs=100, max_rescues=3)
    assert await zombie.store.fence(drain.fence) == (ReplyStatus.OK, drain.fence.epoch)
    page = await zombie.store.read_page(drain.fence, 100)
    assert {entry.id for entry in page.entries} == {entry.id for entry in claimed}

    await heir.master.members.end_agent(zombie.agent_id, dead=True, reason="frozen")
    second = await heir.master.rescue.take_lost(heir.agent_id, ["default"], {})
    assert second is not None
    assert second.epoch > bucket.epoch
    master, _ = await driven.connect(zombie.agent_id)
    late = await master.rescue.rescue_page(drain.fence, page.entries, owner.lane, 3, claimed=True, max_rescues=3)
    assert (late.bucket_ok, late.accepted) == (False, frozenset())
    # The heir has not fenced the store yet: what keeps the page there is that the refusal was obeyed.
    zombie_again = Evacuation(bucket, master, zombie.store, lambda: True, page_jobs=100, max_rescues=3)
    assert await zombie_again.run() is EvacuationEnd.SUPERSEDED
    depth = (await heir.store.depths([bucket.id]))[0]
    assert depth is not None
    assert (depth.pending, depth.claimed_lists) == (3, 1)
    assert await master.rescue.sweep(drain.fence, 100, max_rescues=3) == (0, 0, 0)
    assert not await master.rescue.close_drained(drain.fence, 0, 0)
    assert await driven.jobs() == {}

    heirs = Evacuation(second, heir.master, heir.store, lambda: True, page_jobs=100, max_rescues=3)
    assert await heirs.run() is EvacuationEnd.DRAINED
    rescues = {job_id: after[2] for job_id, after in (await driven.jobs()).items()}
    assert rescues == {job_id: int(job_id in {entry.id for entry in claimed}) for job_id in submitted}
    assert await zombie.store.remove_page(drain.fence, page) is ReplyStatus.FENCED


async def test_an_older_drain_of_the_same_agent_is_refused_like_that_of_another(driven: DrivenCluster) -> None:
    """It gave the bucket back and took it again: the owner is the same, only the epoch differs."""
    owner, rescuer = await driven.owner(), await driven.agent()
    submitted = await owner.submit(2)
    await owner.die()
    first = await rescuer.master.rescue.take_lost(rescuer.agent_id, ["default"], {})
    assert first is not None
    old = Evacuation(first, rescuer.master, rescuer.store, lambda: True, page_jobs=100, max_rescues=3)
    await rescuer.store.fence(old.fence)
    page = await rescuer.store.read_page(old.fence, 100)
    assert await rescuer.master.buckets.move_bucket(*old.fence, BucketState.LOST, "given back")
    second = await rescuer.master.rescue.take_lost(rescuer.agent_id, ["default"], {})
    assert second is not None
    assert second.owner == first.owner
    late = await rescuer.master.rescue.rescue_page(old.fence, page.entries, owner.lane, 3, claimed=True, max_rescues=3)
    assert not late.bucket_ok
    assert await driven.jobs() == {}
    new = Evacuation(second, rescuer.master, rescuer.store, lambda: True, page_jobs=100, max_rescues=3)
    assert await new.run() is EvacuationEnd.DRAINED
    assert await driven.jobs() == dict.fromkeys(submitted, ("HELD", 2, 0))


async def test_two_rescuers_share_the_buckets_and_drain_each_once(driven: DrivenCluster) -> None:
    first, second = await driven.agent(), await driven.agent()
    owners = [await driven.owner() for _ in range(6)]
    lives = [await owner.live(2) for owner in owners]
    for owner in owners:
        await owner.die()
    await asyncio.gather(first.rescue().tick(), second.rescue().tick())
    for owner, lived in zip(owners, lives, strict=True):
        await check(driven, owner, lived)
    assert first.telemetry.buckets_drained + second.telemetry.buckets_drained == 6
    assert first.telemetry.drains_superseded + second.telemetry.drains_superseded == 0


async def test_a_leaving_rescuer_gives_its_unfinished_buckets_back_at_once(driven: DrivenCluster) -> None:
    owner, leaving, heir = await driven.owner(), await driven.agent(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    ending = CallCutter(4)
    task = leaving.rescue(ending.over(leaving.master), ending.over(leaving.store))
    with pytest.raises(AgentKilled):
        await task.tick()
    assert len(task.unfinished) == 1
    await task.give_back()
    assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "LOST"
    assert await leaving.master.members.end_agent(leaving.agent_id, dead=False, reason="leaving")
    await heir.rescue().tick()
    await check(driven, owner, lived)
