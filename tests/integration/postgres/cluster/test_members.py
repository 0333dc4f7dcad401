"""Agents, leases, certificates, the leader's lease, and the life of buckets."""

from __future__ import annotations

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.model.agent import AgentState, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import Conflict
from jobmaster.ports import EVERY_OWNER
from tests.integration.postgres.fixture import World, in_flight_row, new_job, uuids

_OVERDUE = "UPDATE agent SET lease_until = clock_timestamp() - interval '1 ms' WHERE id = $1"


async def _overdue(world: World, agent_id: bytes) -> None:
    await world.sql.execute(_OVERDUE, *uuids([agent_id]))


async def _patient(world: World) -> None:
    """Everybody has held its lease for long, and promises less than this server's age."""
    await world.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day', lease_seconds = 0.001")


# ------------------------------------------------------------ leases


async def test_a_renewal_prolongs_the_lease_by_the_servers_clock(world: World) -> None:
    assert (await world.master.members.renew(world.owner, 33.0)).alive
    left = "SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM agent"
    assert 30 < await world.sql.fetchval(left) <= 33


async def test_a_late_renewal_is_good_while_there_is_no_certificate(world: World) -> None:
    await _overdue(world, world.owner)
    assert (await world.master.members.renew(world.owner, 10.0)).alive


async def test_a_gap_in_the_lease_starts_the_term_anew(world: World) -> None:
    held = "SELECT held_since FROM agent WHERE id = $1"
    since = await world.sql.fetchval(held, *uuids([world.owner]))
    await world.master.members.renew(world.owner, 10.0)
    assert await world.sql.fetchval(held, *uuids([world.owner])) == since
    await _overdue(world, world.owner)
    await world.master.members.renew(world.owner, 10.0)
    assert await world.sql.fetchval(held, *uuids([world.owner])) > since


async def test_an_agent_that_ended_cannot_renew_or_register_again(world: World) -> None:
    await world.lost()
    assert not (await world.master.members.renew(world.owner, 10.0)).alive
    with pytest.raises(Conflict, match="an id is used once"):
        await world.agent(world.owner)
    assert not (await world.master.members.renew(new_id(), 10.0)).alive, "nor one that never was"


async def test_a_renewal_says_what_an_agent_must_know(world: World, rescuer: bytes) -> None:
    quiet = await world.master.members.renew(world.owner, 10.0)
    assert (quiet.drain_requested, quiet.leader, quiet.lost_stores, quiet.cancel_requested) == (
        False, None, [], [],
    )  # fmt: skip
    await world.master.leadership.acquire(rescuer, 1, 5.0)
    await world.master.members.request_drain(world.owner, "ann")
    lost = await world.bucket()
    await world.master.buckets.move_bucket(lost.bucket_id, 1, world.owner, BucketState.LOST, "test")
    told = await world.master.members.renew(world.owner, 10.0)
    assert (told.drain_requested, told.leader, told.lost_stores) == (True, rescuer, ["store"])
    assert not (await world.master.members.renew(rescuer, 10.0)).drain_requested


# ------------------------------------------------------------ certificates


async def test_only_the_overdue_are_certified_and_their_buckets_lost(world: World, rescuer: bytes) -> None:
    await _patient(world)
    assert await world.master.members.certify_dead(rescuer, 10) == []
    await _overdue(world, world.owner)
    assert await world.master.members.certify_dead(rescuer, 10) == [world.owner]
    assert (await world.bucket_row(world.fence.bucket_id)).state is BucketState.LOST
    states = {agent.id: agent.state for agent in await world.master.queries.agents(all_=True)}
    assert states == {world.owner: AgentState.DEAD, rescuer: AgentState.ACTIVE}
    assert await world.master.members.certify_dead(rescuer, 10) == [], "one certificate an agent"


async def test_nobody_judges_with_a_lease_of_its_own_run_out(world: World, rescuer: bytes) -> None:
    await _patient(world)
    await _overdue(world, world.owner)
    await _overdue(world, rescuer)
    assert await world.master.members.certify_dead(rescuer, 10) == []
    assert await world.master.members.certify_dead(new_id(), 10) == [], "nor who has none"


@pytest.mark.parametrize("long_term", ["the judge's", "the accused's"])
async def test_nobody_judges_before_it_held_its_lease_for_a_full_term(
    world: World, rescuer: bytes, long_term: str
) -> None:
    """After an outage everybody is overdue: who comes back first must let the others come back too."""
    judge, accused = uuids([rescuer, world.owner])
    # A term that the server has been up for, so that only the judge's own standing is in question.
    term = await world.sql.fetchval("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) / 2")
    await _overdue(world, world.owner)
    await _overdue(world, rescuer)
    assert (await world.master.members.renew(rescuer, 60.0)).alive
    await world.sql.execute(
        "UPDATE agent SET lease_seconds = CASE WHEN (id = $1) = $3 THEN $2 ELSE 0.001 END",
        judge, float(term), long_term == "the judge's",
    )  # fmt: skip
    assert await world.master.members.certify_dead(rescuer, 10) == []
    await world.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day' WHERE id = $1", judge)
    assert await world.master.members.certify_dead(rescuer, 10) == [accused.bytes]


async def test_nobody_is_judged_before_the_server_has_been_up_for_a_full_term(world: World, rescuer: bytes) -> None:
    await world.sql.execute("UPDATE agent SET held_since = held_since - interval '1 year', lease_seconds = 10000000")
    await _overdue(world, world.owner)
    assert await world.master.members.certify_dead(rescuer, 10) == []


async def test_a_certificate_finds_buckets_that_an_earlier_one_missed(world: World, rescuer: bytes) -> None:
    await world.sql.execute("UPDATE agent SET state = 'DEAD' WHERE id = $1", *uuids([world.owner]))
    await world.master.members.certify_dead(rescuer, 10)
    assert (await world.bucket_row(world.fence.bucket_id)).state is BucketState.LOST


async def test_a_dead_rescuers_buckets_are_lost_again(world: World, rescuer: bytes) -> None:
    await world.lost()
    taken = await world.take(rescuer)
    await world.master.members.end_agent(rescuer, dead=True, reason="test")
    assert (await world.bucket_row(taken.bucket_id)).state is BucketState.LOST
    third = await world.agent(new_id())
    assert (await world.take(third)).epoch == taken.epoch + 1


async def test_an_agent_retires_with_nothing_behind(world: World) -> None:
    assert not await world.master.members.end_agent(world.owner, dead=False, reason="done")
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        assert await world.master.buckets.move_bucket(*world.fence, to, "test")
    for _ in range(2):
        assert await world.master.members.end_agent(world.owner, dead=False, reason="done")
    assert not await world.master.members.end_agent(world.owner, dead=True, reason="late"), "it is not dead but retired"
    assert not (await world.master.members.renew(world.owner, 10.0)).alive
    assert not await world.master.members.request_drain(world.owner, "ann")


# ------------------------------------------------------------ buckets


async def test_a_bucket_moves_only_for_its_owner_and_epoch_and_by_the_table(world: World) -> None:
    bucket, epoch, owner = world.fence
    move = world.master.buckets.move_bucket
    assert not await move(bucket, 2, owner, BucketState.COMPLETING, "test")
    assert not await move(bucket, epoch, new_id(), BucketState.COMPLETING, "test")
    assert not await move(bucket, epoch, owner, BucketState.READY_TO_DELETE, "test"), "not from ACTIVE"
    assert not await move(bucket, epoch, owner, BucketState.DRAINING, "test"), "never by its owner"
    assert (await world.bucket_row(bucket)).state is BucketState.ACTIVE
    assert await move(bucket, epoch, owner, BucketState.COMPLETING, "leaving")
    assert await move(bucket, epoch, owner, BucketState.COMPLETING, "leaving"), "sent again"
    events = await world.sql.fetch("SELECT from_state, to_state, reason FROM bucket_event ORDER BY seq")
    assert [tuple(row) for row in events] == [(None, "ACTIVE", "created"), ("ACTIVE", "COMPLETING", "leaving")]


async def test_only_the_housekeeper_loses_a_retired_bucket(world: World) -> None:
    """An owner whose memory is behind the master's row would have its own clean exit rescued (I14)."""
    bucket = await world.bucket_row(world.fence.bucket_id)
    assert not await world.master.buckets.adopt_remains(bucket, "jobs"), "not of a living bucket"
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        assert await world.master.buckets.move_bucket(*world.fence, to, "test")
    assert not await world.master.buckets.move_bucket(*world.fence, BucketState.LOST, "test")
    assert (await world.bucket_row(bucket.id)).state is BucketState.READY_TO_DELETE
    assert [each.id for each in await world.master.buckets.owned_buckets(world.owner)] == [bucket.id], (
        "its tombstone is known"
    )
    assert not await world.master.buckets.adopt_remains(msgspec.structs.replace(bucket, epoch=7), "jobs"), (
        "of another epoch"
    )
    assert await world.master.buckets.adopt_remains(bucket, "jobs")
    assert await world.master.buckets.adopt_remains(bucket, "jobs"), "sent again"
    assert (await world.bucket_row(bucket.id)).state is BucketState.LOST
    (event,) = await world.sql.fetch("SELECT from_state, actor, reason FROM bucket_event WHERE to_state = 'LOST'")
    assert tuple(event) == ("READY_TO_DELETE", None, "jobs")


async def test_buckets_are_made_once(world: World) -> None:
    made = await world.bucket_row(world.fence.bucket_id)
    assert await world.master.buckets.create_buckets([made])
    assert len(await world.master.queries.list_buckets()) == 1


async def test_tombstones_are_kept_for_a_while_and_dropped_only_when_retired(world: World) -> None:
    bucket = world.fence.bucket_id
    await world.master.buckets.drop_bucket(bucket)
    assert [b.id for b in await world.master.queries.list_buckets()] == [bucket], "a living bucket is not dropped"
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        await world.master.buckets.move_bucket(*world.fence, to, "test")
    assert await world.master.buckets.forget_buckets(3600.0, ["store"]) == []
    assert [b.id for b in await world.master.buckets.forget_buckets(0.0, ["store"])] == [bucket]
    assert await world.master.buckets.forget_buckets(0.0, ["another"]) == []
    assert await world.master.buckets.forget_buckets(0.0, ["store"], others=True) == []
    assert [b.id for b in await world.master.buckets.forget_buckets(0.0, [], others=True)] == [bucket]
    await world.master.buckets.drop_bucket(bucket)
    assert await world.master.queries.list_buckets() == []


async def test_states_filter_buckets(world: World) -> None:
    assert [b.state for b in await world.master.queries.list_buckets(states=[BucketState.ACTIVE])] == [
        BucketState.ACTIVE
    ]
    assert await world.master.queries.list_buckets(states=[BucketState.LOST, BucketState.DRAINING]) == []
    assert isinstance((await world.master.queries.list_buckets())[0], Bucket)


# ------------------------------------------------------------ handlers


async def test_handlers_are_published_and_read_back(world: World) -> None:
    spec = HandlerSpec(name="resize", schema={"type": "object"}, timeout_seconds=5.0, digest="1")
    agent = (await world.master.queries.agents())[0]
    await world.master.members.register(agent, ["default"], [spec])
    assert await world.master.queries.handlers() == {"resize": spec}
    newer = HandlerSpec(name="resize", schema={}, digest="2")
    await world.master.members.register(agent, ["default"], [newer])
    assert await world.master.queries.handlers() == {"resize": newer}


# ------------------------------------------------------------ the leader


async def test_one_agent_holds_the_leaders_lease_and_its_epoch_grows_with_every_change(
    world: World, rescuer: bytes
) -> None:
    lead = world.master.leadership.acquire
    assert await lead(world.owner, 1, 60.0) == 1
    assert await lead(world.owner, 1, 60.0) == 1
    assert await lead(rescuer, 1, 60.0) is None
    await world.master.leadership.resign(world.owner, 9)
    assert await lead(rescuer, 1, 60.0) is None, "only the present epoch may resign"
    await world.master.leadership.resign(world.owner, 1)
    assert await lead(rescuer, 1, 60.0) == 2
    assert await lead(world.owner, 1, 60.0) is None


async def test_an_expired_lease_is_taken(world: World, rescuer: bytes) -> None:
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    await world.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 ms'")
    assert await world.master.leadership.acquire(rescuer, 1, 60.0) == 2


async def test_a_heavier_candidate_goes_first_for_half_a_lease(world: World) -> None:
    heavy = await world.agent(new_id(), weight=9)
    light = await world.agent(new_id(), weight=2)
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    await world.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")
    assert await world.master.leadership.acquire(light, 2, 60.0) is None
    assert await world.master.leadership.acquire(heavy, 9, 60.0) == 2
    await world.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '31 seconds'")
    assert await world.master.leadership.acquire(light, 2, 60.0) == 3, "but not for ever"


@pytest.mark.parametrize(
    "why", ["mode = 'execution'", "lease_until = clock_timestamp() - interval '1 s'", "drain_requested = true"]
)
async def test_nobody_waits_for_a_heavier_agent_that_will_not_lead(world: World, rescuer: bytes, why: str) -> None:
    heavy = await world.agent(new_id(), weight=9)
    await world.sql.execute(f"UPDATE agent SET {why} WHERE id = $1", *uuids([heavy]))
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    await world.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 ms'")
    assert await world.master.leadership.acquire(rescuer, 1, 60.0) == 2


async def test_the_leaders_lease_goes_to_the_heaviest_agent_by_name_and_no_other_gets_it(
    world: World, rescuer: bytes
) -> None:
    heavy, heaviest = await world.agent(new_id(), weight=5), await world.agent(new_id(), weight=9)
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    assert not (await world.master.leadership.tick(world.owner, 1, 60.0, 60.0)).heavier, (
        "not before it has been there for a lease"
    )
    assert await world.master.leadership.transfer(world.owner, 1, 1) is None
    await world.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    assert (await world.master.leadership.tick(world.owner, 1, 60.0, 60.0)).heavier
    assert await world.master.leadership.transfer(world.owner, 1, 2) is None, "only under the present epoch"
    assert await world.master.leadership.transfer(world.owner, 1, 1) == heaviest
    assert await world.master.leadership.transfer(world.owner, 1, 1) is None
    for candidate, weight in ((world.owner, 1), (rescuer, 1), (heavy, 5)):
        assert await world.master.leadership.acquire(candidate, weight, 60.0) is None
    assert (await world.master.members.renew(heaviest, 60.0)).leader == heaviest
    assert await world.master.leadership.acquire(heaviest, 9, 60.0) == 2
    assert not (await world.master.leadership.tick(heaviest, 9, 60.0, 60.0)).heavier


@pytest.mark.parametrize(
    "why",
    ["mode = 'execution'", "lease_until = clock_timestamp() - interval '1 s'", "drain_requested = true", "weight = 1"],
)
async def test_nothing_is_handed_to_an_agent_that_will_not_lead(world: World, why: str) -> None:
    heavy = await world.agent(new_id(), weight=9)
    await world.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    await world.sql.execute(f"UPDATE agent SET {why} WHERE id = $1", *uuids([heavy]))
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    assert not (await world.master.leadership.tick(world.owner, 1, 60.0, 60.0)).heavier
    assert await world.master.leadership.transfer(world.owner, 1, 1) is None
    assert await world.master.leadership.acquire(world.owner, 1, 60.0) == 1


async def test_an_heir_that_dies_before_it_leads_leaves_no_gap(world: World, rescuer: bytes) -> None:
    heir = await world.agent(new_id(), weight=9)
    await world.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    assert await world.master.leadership.transfer(world.owner, 1, 1) == heir
    await world.master.members.end_agent(heir, dead=True, reason="test")
    assert await world.master.leadership.acquire(rescuer, 1, 60.0) == 3


async def test_tending_keeps_the_leaders_lease_and_sees_what_is_due_and_overdue(world: World, rescuer: bytes) -> None:
    tick = world.master.leadership.tick
    assert (await tick(world.owner, 1, 60.0, 60.0)).epoch is None
    await world.master.leadership.acquire(world.owner, 1, 60.0)
    assert await tick(world.owner, 1, 60.0, 60.0) == (1, [], False, False)
    now = await world.sql.fetchval("SELECT to_us(clock_timestamp())")
    await world.master.intake.insert_held(
        [
            *(new_job(new_id(), priority=2) for _ in range(3)),
            new_job(new_id(), lane="payroll", priority=5, due_us=now + 30_000_000),
            new_job(new_id(), lane="payroll", priority=1, due_us=now + 300_000_000),
        ]
    )
    await _overdue(world, rescuer)
    tended = await tick(world.owner, 1, 60.0, 60.0)
    assert (tended.epoch, tended.overdue) == (1, True)
    assert tended.due == [("default", 2), ("payroll", 5)]
    assert (await tick(world.owner, 1, 60.0, 600.0)).due == [("default", 2), ("payroll", 1), ("payroll", 5)]
    assert (await tick(rescuer, 1, 60.0, 60.0)).epoch is None


# ------------------------------------------------------------ upkeep


async def test_rows_of_no_live_bucket_come_back_and_others_do_not(world: World) -> None:
    (living,) = await world.processing()
    (orphan,) = await world.processing()
    (older,) = await world.assigned()
    await world.sql.execute("UPDATE job SET bucket_id = gen_random_uuid() WHERE id = $1", *uuids([orphan]))
    await world.sql.execute("UPDATE job SET bucket_epoch = 0 WHERE id = $1", *uuids([older]))
    assert (await world.master.maintenance.return_orphans(3600.0, 10, max_rescues=3)).moved == 0, (
        "not before the grace is over"
    )
    assert (await world.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 2
    views = [await world.view(id_) for id_ in (living, orphan, older)]
    assert [(v.state, v.token, v.rescues) for v in views] == [("PROCESSING", 1, 0), ("HELD", 2, 1), ("HELD", 3, 0)]
    assert await world.lines(orphan) == [(1, "lost")]


async def test_an_orphan_that_killed_its_agents_too_often_ends_like_in_a_sweep(world: World) -> None:
    culprit, stopped, first = await world.processing(3)
    (queued,) = await world.assigned()
    await world.sql.execute("UPDATE job SET bucket_id = gen_random_uuid(), rescues = 2")
    await world.sql.execute("UPDATE job SET rescues = 1 WHERE id = $1", *uuids([first]))
    await world.sql.execute("UPDATE job SET cancel_requested = true WHERE id = $1", *uuids([stopped]))
    assert await world.master.maintenance.return_orphans(0.0, 10, max_rescues=3) == (4, 3, 1)
    views = {job_id: await world.view(job_id) for job_id in (culprit, stopped, first, queued)}
    assert [(view.state, view.rescues, view.token) for view in views.values()] == [
        ("FAILED", 3, 1), ("CANCELLED", 3, 1), ("HELD", 2, 2), ("HELD", 2, 3),
    ]  # fmt: skip
    error = views[culprit].error
    assert error is not None
    assert error.reason == "agent_lost"
    assert await world.lines(culprit) == [], "the row is the concluding line of this identity"


@pytest.mark.parametrize("state", ["LOST", "DRAINING", "FROZEN", "COMPLETING"])
async def test_rows_of_a_bucket_that_somebody_cares_for_are_not_orphans(world: World, state: str) -> None:
    await world.processing()
    await world.sql.execute("UPDATE bucket SET state = $1", state)
    assert (await world.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 0


async def test_rows_of_a_bucket_are_paged_in_id_order(world: World) -> None:
    ids = await world.processing(5)
    await world.bucket()
    pages, after = [], None
    while page := await world.master.onboarding.bucket_rows(world.fence.bucket_id, after, 2):
        pages.append([row.id for row in page])
        after = page[-1].id
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    (row,) = await world.master.onboarding.bucket_rows(world.fence.bucket_id, ids[3], 2)
    assert (row.identity, row.state) == ((1, world.fence.bucket_id, 1), "PROCESSING")
    assert row.changed_us > 1_700_000_000_000_000


async def test_generations_of_stores_are_remembered_from_the_first(world: World) -> None:
    first, second = new_id(), new_id()
    assert await world.master.stores.store_generation("store", first) == first
    assert await world.master.stores.store_generation("store", second) == first


async def test_states_of_many(world: World) -> None:
    (job_id,) = await world.processing()
    await world.master.outcomes.persist(world.fence, [in_flight_row(job_id)])
    assert await world.master.queries.states([job_id, new_id()]) == {job_id: "PROCESSING"}
    assert await world.master.queries.states([]) == {}


async def test_a_judge_goes_by_what_the_accused_promised_and_not_by_its_own_setting(world: World) -> None:
    """A large cluster renews less often: its rows say so, and a judge with a short lease waits as long as they say."""
    slow, quick = await world.agent(new_id(), lease_seconds=10.0), await world.agent(new_id(), lease_seconds=0.05)
    assert (await world.master.members.renew(slow, 300.0)).agents == 3
    await world.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day', lease_seconds = 0.05")
    await world.sql.execute("UPDATE agent SET lease_seconds = 300.0 WHERE id = $1", *uuids([slow]))
    await world.sql.execute("SELECT pg_sleep(0.1)")
    assert await world.master.members.certify_dead(world.owner, 10) == [quick]


async def test_who_can_run_what_is_told_where_owners_of_buckets_differ(world: World) -> None:
    assert await world.master.queries.served() == {EVERY_OWNER: (frozenset(), 1.0)}
    other = await world.agent(new_id())
    await world.bucket(other)
    assert await world.master.queries.served() == {EVERY_OWNER: (frozenset(), 1.0)}, "all are alike"
    await world.sql.execute("UPDATE agent SET share = 2.5 WHERE id = $1", *uuids([other]))
    assert await world.master.queries.served() == {world.owner: (frozenset(), 1.0), other: (frozenset(), 2.5)}
    await world.sql.execute("UPDATE agent SET handlers = '{a,b}' WHERE id = $1", *uuids([other]))
    idle = await world.agent(new_id())
    await world.sql.execute("UPDATE agent SET handlers = '{c}' WHERE id = $1", *uuids([idle]))
    assert await world.master.queries.served() == {
        world.owner: (frozenset(), 1.0), other: (frozenset({"a", "b"}), 2.5),
    }  # fmt: skip
    await world.sql.execute("UPDATE bucket SET state = 'FROZEN'")
    assert await world.master.queries.served() == {}


async def test_an_agent_publishes_what_must_be_alike_and_how_its_clock_stands(world: World) -> None:
    agent = (await world.master.queries.agents())[0]
    now_us = (await world.master.members.renew(agent.id, 30.0)).now_us
    assert now_us is not None
    fresh = msgspec.structs.replace(agent, id=new_id(), settings={"leases.lease": 9.0}, clock_us=now_us + 60_000_000)
    await world.master.members.register(fresh, ["default"], [])
    (row,) = await world.sql.fetch("SELECT settings, clock_ahead_seconds FROM agent WHERE id = $1", *uuids([fresh.id]))
    assert row["settings"] == '{"leases.lease": 9.0}'
    assert 0.0 < row["clock_ahead_seconds"] <= 60.0
