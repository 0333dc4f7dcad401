"""Agents, leases, certificates, the leader's lease, and the life of buckets."""

from __future__ import annotations

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.model.agent import AgentState, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import Conflict
from jobmaster.ports import LeaderTick
from tests.integration.postgres.fixture import MasterFixture, in_flight_row, new_job, uuids

_OVERDUE = "UPDATE agent SET lease_until = clock_timestamp() - interval '1 ms' WHERE id = $1"


async def _overdue(db: MasterFixture, agent_id: bytes) -> None:
    await db.sql.execute(_OVERDUE, *uuids([agent_id]))


async def _patient(db: MasterFixture) -> None:
    """Everybody has held its lease for long, and promises less than this server's age."""
    await db.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day', lease_seconds = 0.001")


# ------------------------------------------------------------ leases


async def test_a_renewal_prolongs_the_lease_by_the_servers_clock(db: MasterFixture) -> None:
    assert (await db.master.members.renew(db.owner, 33.0)).alive
    left = "SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM agent"
    assert 30 < await db.sql.fetchval(left) <= 33


async def test_a_late_renewal_is_good_while_there_is_no_certificate(db: MasterFixture) -> None:
    await _overdue(db, db.owner)
    assert (await db.master.members.renew(db.owner, 10.0)).alive


async def test_a_gap_in_the_lease_starts_the_term_anew(db: MasterFixture) -> None:
    held = "SELECT held_since FROM agent WHERE id = $1"
    since = await db.sql.fetchval(held, *uuids([db.owner]))
    await db.master.members.renew(db.owner, 10.0)
    assert await db.sql.fetchval(held, *uuids([db.owner])) == since
    await _overdue(db, db.owner)
    await db.master.members.renew(db.owner, 10.0)
    assert await db.sql.fetchval(held, *uuids([db.owner])) > since


async def test_an_agent_that_ended_cannot_renew_or_register_again(db: MasterFixture) -> None:
    await db.lost()
    assert not (await db.master.members.renew(db.owner, 10.0)).alive
    with pytest.raises(Conflict, match="an id is used once"):
        await db.agent(db.owner)
    assert not (await db.master.members.renew(new_id(), 10.0)).alive, "nor one that never was"


async def test_a_renewal_returns_drain_leader_lost_stores_and_cancel_requests(
    db: MasterFixture, rescuer: bytes
) -> None:
    quiet = await db.master.members.renew(db.owner, 10.0)
    assert (quiet.drain_requested, quiet.leader, quiet.lost_stores, quiet.cancel_requested) == (
        False, None, [], [],
    )  # fmt: skip
    await db.master.leadership.acquire(rescuer, 1, 5.0)
    await db.master.members.request_drain(db.owner, "ann")
    lost = await db.bucket()
    await db.master.buckets.move_bucket(lost.bucket_id, 1, db.owner, BucketState.LOST, "test")
    told = await db.master.members.renew(db.owner, 10.0)
    assert (told.drain_requested, told.leader, told.lost_stores) == (True, rescuer, ["store"])
    assert not (await db.master.members.renew(rescuer, 10.0)).drain_requested


# ------------------------------------------------------------ certificates


async def test_only_the_overdue_are_certified_and_their_buckets_lost(db: MasterFixture, rescuer: bytes) -> None:
    await _patient(db)
    assert await db.master.members.certify_dead(rescuer, 10) == []
    await _overdue(db, db.owner)
    assert await db.master.members.certify_dead(rescuer, 10) == [db.owner]
    assert (await db.bucket_row(db.fence.bucket_id)).state is BucketState.LOST
    states = {agent.id: agent.state for agent in await db.master.queries.agents(all_=True)}
    assert states == {db.owner: AgentState.DEAD, rescuer: AgentState.ACTIVE}
    assert await db.master.members.certify_dead(rescuer, 10) == [], "one certificate an agent"


async def test_an_agent_with_an_expired_lease_certifies_no_other(db: MasterFixture, rescuer: bytes) -> None:
    await _patient(db)
    await _overdue(db, db.owner)
    await _overdue(db, rescuer)
    assert await db.master.members.certify_dead(rescuer, 10) == []
    assert await db.master.members.certify_dead(new_id(), 10) == [], "nor one without a lease"


@pytest.mark.parametrize("long_term", ["the certifier's", "the suspect's"])
async def test_an_agent_certifies_no_other_before_it_held_its_lease_for_a_full_term(
    db: MasterFixture, rescuer: bytes, long_term: str
) -> None:
    """After an outage every agent is overdue: the first one to renew must leave the others time to renew too."""
    certifier, suspect = uuids([rescuer, db.owner])
    # A term that the server has been up for, so that only the certifying agent's own lease decides.
    term = await db.sql.fetchval("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) / 2")
    await _overdue(db, db.owner)
    await _overdue(db, rescuer)
    assert (await db.master.members.renew(rescuer, 60.0)).alive
    await db.sql.execute(
        "UPDATE agent SET lease_seconds = CASE WHEN (id = $1) = $3 THEN $2 ELSE 0.001 END",
        certifier, float(term), long_term == "the certifier's",
    )  # fmt: skip
    assert await db.master.members.certify_dead(rescuer, 10) == []
    await db.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day' WHERE id = $1", certifier)
    assert await db.master.members.certify_dead(rescuer, 10) == [suspect.bytes]


async def test_no_agent_is_certified_before_the_server_has_been_up_for_a_full_term(
    db: MasterFixture, rescuer: bytes
) -> None:
    await db.sql.execute("UPDATE agent SET held_since = held_since - interval '1 year', lease_seconds = 10000000")
    await _overdue(db, db.owner)
    assert await db.master.members.certify_dead(rescuer, 10) == []


async def test_a_certificate_finds_buckets_that_an_earlier_one_missed(db: MasterFixture, rescuer: bytes) -> None:
    await db.sql.execute("UPDATE agent SET state = 'DEAD' WHERE id = $1", *uuids([db.owner]))
    await db.master.members.certify_dead(rescuer, 10)
    assert (await db.bucket_row(db.fence.bucket_id)).state is BucketState.LOST


async def test_a_dead_rescuers_buckets_are_lost_again(db: MasterFixture, rescuer: bytes) -> None:
    await db.lost()
    taken = await db.take(rescuer)
    await db.master.members.end_agent(rescuer, dead=True, reason="test")
    assert (await db.bucket_row(taken.bucket_id)).state is BucketState.LOST
    third = await db.agent(new_id())
    assert (await db.take(third)).epoch == taken.epoch + 1


async def test_an_agent_retires_with_nothing_behind(db: MasterFixture) -> None:
    assert not await db.master.members.end_agent(db.owner, dead=False, reason="done")
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        assert await db.master.buckets.move_bucket(*db.fence, to, "test")
    for _ in range(2):
        assert await db.master.members.end_agent(db.owner, dead=False, reason="done")
    assert not await db.master.members.end_agent(db.owner, dead=True, reason="late"), "it is not dead but retired"
    assert not (await db.master.members.renew(db.owner, 10.0)).alive
    assert not await db.master.members.request_drain(db.owner, "ann")


# ------------------------------------------------------------ buckets


async def test_a_bucket_moves_only_for_its_owner_and_epoch_and_by_the_table(db: MasterFixture) -> None:
    bucket, epoch, owner = db.fence
    move = db.master.buckets.move_bucket
    assert not await move(bucket, 2, owner, BucketState.COMPLETING, "test")
    assert not await move(bucket, epoch, new_id(), BucketState.COMPLETING, "test")
    assert not await move(bucket, epoch, owner, BucketState.READY_TO_DELETE, "test"), "not from ACTIVE"
    assert not await move(bucket, epoch, owner, BucketState.DRAINING, "test"), "never by its owner"
    assert (await db.bucket_row(bucket)).state is BucketState.ACTIVE
    assert await move(bucket, epoch, owner, BucketState.COMPLETING, "leaving")
    assert await move(bucket, epoch, owner, BucketState.COMPLETING, "leaving"), "sent again"
    events = await db.sql.fetch("SELECT from_state, to_state, reason FROM bucket_event ORDER BY seq")
    assert [tuple(row) for row in events] == [(None, "ACTIVE", "created"), ("ACTIVE", "COMPLETING", "leaving")]


async def test_only_the_housekeeper_loses_a_retired_bucket(db: MasterFixture) -> None:
    """An owner whose memory is behind the master's row would have its own clean exit rescued (I14)."""
    bucket = await db.bucket_row(db.fence.bucket_id)
    assert not await db.master.buckets.resurrect_retired(bucket, "jobs"), "not of a living bucket"
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        assert await db.master.buckets.move_bucket(*db.fence, to, "test")
    assert not await db.master.buckets.move_bucket(*db.fence, BucketState.LOST, "test")
    assert (await db.bucket_row(bucket.id)).state is BucketState.READY_TO_DELETE
    assert [each.id for each in await db.master.buckets.owned_buckets(db.owner)] == [bucket.id], (
        "its tombstone is known"
    )
    assert not await db.master.buckets.resurrect_retired(msgspec.structs.replace(bucket, epoch=7), "jobs"), (
        "of another epoch"
    )
    assert await db.master.buckets.resurrect_retired(bucket, "jobs")
    assert await db.master.buckets.resurrect_retired(bucket, "jobs"), "sent again"
    assert (await db.bucket_row(bucket.id)).state is BucketState.LOST
    (event,) = await db.sql.fetch("SELECT from_state, actor, reason FROM bucket_event WHERE to_state = 'LOST'")
    assert tuple(event) == ("READY_TO_DELETE", None, "jobs")


async def test_buckets_are_made_once(db: MasterFixture) -> None:
    made = await db.bucket_row(db.fence.bucket_id)
    assert await db.master.buckets.create_buckets([made])
    assert len(await db.master.queries.list_buckets()) == 1


async def test_tombstones_are_kept_for_a_while_and_dropped_only_when_retired(db: MasterFixture) -> None:
    bucket = db.fence.bucket_id
    await db.master.buckets.drop_bucket(bucket)
    assert [b.id for b in await db.master.queries.list_buckets()] == [bucket], "a living bucket is not dropped"
    for to in (BucketState.COMPLETING, BucketState.READY_TO_DELETE):
        await db.master.buckets.move_bucket(*db.fence, to, "test")
    assert await db.master.buckets.forget_buckets(3600.0, ["store"]) == []
    assert [b.id for b in await db.master.buckets.forget_buckets(0.0, ["store"])] == [bucket]
    assert await db.master.buckets.forget_buckets(0.0, ["another"]) == []
    assert await db.master.buckets.forget_buckets(0.0, ["store"], others=True) == []
    assert [b.id for b in await db.master.buckets.forget_buckets(0.0, [], others=True)] == [bucket]
    await db.master.buckets.drop_bucket(bucket)
    assert await db.master.queries.list_buckets() == []


async def test_states_filter_buckets(db: MasterFixture) -> None:
    assert [b.state for b in await db.master.queries.list_buckets(states=[BucketState.ACTIVE])] == [BucketState.ACTIVE]
    assert await db.master.queries.list_buckets(states=[BucketState.LOST, BucketState.DRAINING]) == []
    assert isinstance((await db.master.queries.list_buckets())[0], Bucket)


# ------------------------------------------------------------ handlers


async def test_handlers_are_published_and_read_back(db: MasterFixture) -> None:
    spec = HandlerSpec(name="resize", schema={"type": "object"}, timeout_seconds=5.0, digest="1")
    agent = (await db.master.queries.agents())[0]
    await db.master.members.register(agent, ["default"], [spec])
    assert await db.master.queries.handlers() == {"resize": spec}
    newer = HandlerSpec(name="resize", schema={}, digest="2")
    await db.master.members.register(agent, ["default"], [newer])
    assert await db.master.queries.handlers() == {"resize": newer}


# ------------------------------------------------------------ the leader


async def test_one_agent_holds_the_leaders_lease_and_its_epoch_grows_with_every_change(
    db: MasterFixture, rescuer: bytes
) -> None:
    lead = db.master.leadership.acquire
    assert await lead(db.owner, 1, 60.0) == 1
    assert await lead(db.owner, 1, 60.0) == 1
    assert await lead(rescuer, 1, 60.0) is None
    await db.master.leadership.resign(db.owner, 9)
    assert await lead(rescuer, 1, 60.0) is None, "only the present epoch may resign"
    await db.master.leadership.resign(db.owner, 1)
    assert await lead(rescuer, 1, 60.0) == 2
    assert await lead(db.owner, 1, 60.0) is None


async def test_an_expired_lease_is_taken(db: MasterFixture, rescuer: bytes) -> None:
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    await db.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 ms'")
    assert await db.master.leadership.acquire(rescuer, 1, 60.0) == 2


async def test_a_heavier_candidate_goes_first_for_half_a_lease(db: MasterFixture) -> None:
    heavy = await db.agent(new_id(), weight=9)
    light = await db.agent(new_id(), weight=2)
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    await db.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")
    assert await db.master.leadership.acquire(light, 2, 60.0) is None
    assert await db.master.leadership.acquire(heavy, 9, 60.0) == 2
    await db.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '31 seconds'")
    assert await db.master.leadership.acquire(light, 2, 60.0) == 3, "but not for ever"


@pytest.mark.parametrize(
    "why", ["mode = 'execution'", "lease_until = clock_timestamp() - interval '1 s'", "drain_requested = true"]
)
async def test_the_lease_is_not_reserved_for_a_heavier_agent_that_will_not_lead(
    db: MasterFixture, rescuer: bytes, why: str
) -> None:
    heavy = await db.agent(new_id(), weight=9)
    await db.sql.execute(f"UPDATE agent SET {why} WHERE id = $1", *uuids([heavy]))
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    await db.sql.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 ms'")
    assert await db.master.leadership.acquire(rescuer, 1, 60.0) == 2


async def test_the_leaders_lease_goes_to_the_heaviest_agent_by_name_and_no_other_gets_it(
    db: MasterFixture, rescuer: bytes
) -> None:
    heavy, heaviest = await db.agent(new_id(), weight=5), await db.agent(new_id(), weight=9)
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    assert not (await db.master.leadership.tick(db.owner, 1, 60.0, 60.0)).heavier, (
        "not before it has been there for a lease"
    )
    assert await db.master.leadership.transfer(db.owner, 1, 1) is None
    await db.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    assert (await db.master.leadership.tick(db.owner, 1, 60.0, 60.0)).heavier
    assert await db.master.leadership.transfer(db.owner, 1, 2) is None, "only under the present epoch"
    assert await db.master.leadership.transfer(db.owner, 1, 1) == heaviest
    assert await db.master.leadership.transfer(db.owner, 1, 1) is None
    for candidate, weight in ((db.owner, 1), (rescuer, 1), (heavy, 5)):
        assert await db.master.leadership.acquire(candidate, weight, 60.0) is None
    assert (await db.master.members.renew(heaviest, 60.0)).leader == heaviest
    assert await db.master.leadership.acquire(heaviest, 9, 60.0) == 2
    assert not (await db.master.leadership.tick(heaviest, 9, 60.0, 60.0)).heavier


@pytest.mark.parametrize(
    "why",
    ["mode = 'execution'", "lease_until = clock_timestamp() - interval '1 s'", "drain_requested = true", "weight = 1"],
)
async def test_nothing_is_handed_to_an_agent_that_will_not_lead(db: MasterFixture, why: str) -> None:
    heavy = await db.agent(new_id(), weight=9)
    await db.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    await db.sql.execute(f"UPDATE agent SET {why} WHERE id = $1", *uuids([heavy]))
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    assert not (await db.master.leadership.tick(db.owner, 1, 60.0, 60.0)).heavier
    assert await db.master.leadership.transfer(db.owner, 1, 1) is None
    assert await db.master.leadership.acquire(db.owner, 1, 60.0) == 1


async def test_an_heir_that_dies_before_it_leads_leaves_no_gap(db: MasterFixture, rescuer: bytes) -> None:
    heir = await db.agent(new_id(), weight=9)
    await db.sql.execute("UPDATE agent SET started_at = started_at - interval '1 minute'")
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    assert await db.master.leadership.transfer(db.owner, 1, 1) == heir
    await db.master.members.end_agent(heir, dead=True, reason="test")
    assert await db.master.leadership.acquire(rescuer, 1, 60.0) == 3


async def test_tending_keeps_the_leaders_lease_and_sees_what_is_due_and_overdue(
    db: MasterFixture, rescuer: bytes
) -> None:
    tick = db.master.leadership.tick
    assert (await tick(db.owner, 1, 60.0, 60.0)).epoch is None
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    assert await tick(db.owner, 1, 60.0, 60.0) == LeaderTick(1, [], overdue=False)
    now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
    await db.master.intake.insert_held(
        [
            *(new_job(new_id(), priority=2) for _ in range(3)),
            new_job(new_id(), lane="payroll", priority=5, due_us=now + 30_000_000),
            new_job(new_id(), lane="payroll", priority=1, due_us=now + 300_000_000),
        ]
    )
    await _overdue(db, rescuer)
    tended = await tick(db.owner, 1, 60.0, 60.0)
    assert (tended.epoch, tended.overdue) == (1, True)
    assert tended.due == [("default", 2), ("payroll", 5)]
    assert (await tick(db.owner, 1, 60.0, 600.0)).due == [("default", 2), ("payroll", 1), ("payroll", 5)]
    assert (await tick(rescuer, 1, 60.0, 60.0)).epoch is None


# ------------------------------------------------------------ upkeep


async def test_rows_of_no_live_bucket_come_back_and_others_do_not(db: MasterFixture) -> None:
    (living,) = await db.processing()
    (orphan,) = await db.processing()
    (older,) = await db.assigned()
    await db.sql.execute("UPDATE job SET bucket_id = gen_random_uuid() WHERE id = $1", *uuids([orphan]))
    await db.sql.execute("UPDATE job SET bucket_epoch = 0 WHERE id = $1", *uuids([older]))
    assert (await db.master.maintenance.return_orphans(3600.0, 10, max_rescues=3)).moved == 0, (
        "not before the grace is over"
    )
    assert (await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 2
    views = [await db.view(id_) for id_ in (living, orphan, older)]
    assert [(v.state, v.token, v.rescues) for v in views] == [("PROCESSING", 1, 0), ("HELD", 2, 1), ("HELD", 3, 0)]
    assert await db.lines(orphan) == [(1, "lost")]


async def test_an_orphan_that_killed_its_agents_too_often_ends_like_in_a_sweep(db: MasterFixture) -> None:
    culprit, stopped, first = await db.processing(3)
    (queued,) = await db.assigned()
    await db.sql.execute("UPDATE job SET bucket_id = gen_random_uuid(), rescues = 2")
    await db.sql.execute("UPDATE job SET rescues = 1 WHERE id = $1", *uuids([first]))
    await db.sql.execute("UPDATE job SET cancel_requested = true WHERE id = $1", *uuids([stopped]))
    assert await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3) == (4, 3, 1)
    views = {job_id: await db.view(job_id) for job_id in (culprit, stopped, first, queued)}
    assert [(view.state, view.rescues, view.token) for view in views.values()] == [
        ("FAILED", 3, 1), ("CANCELLED", 3, 1), ("HELD", 2, 2), ("HELD", 2, 3),
    ]  # fmt: skip
    error = views[culprit].error
    assert error is not None
    assert error.reason == "agent_lost"
    assert await db.lines(culprit) == [], "the row is the concluding line of this identity"


@pytest.mark.parametrize("state", ["LOST", "DRAINING", "FROZEN", "COMPLETING"])
async def test_rows_of_a_bucket_with_an_owner_or_rescuer_are_not_orphans(db: MasterFixture, state: str) -> None:
    await db.processing()
    await db.sql.execute("UPDATE bucket SET state = $1", state)
    assert (await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 0


async def test_rows_of_a_bucket_are_paged_in_id_order(db: MasterFixture) -> None:
    ids = await db.processing(5)
    await db.bucket()
    pages, after = [], None
    while page := await db.master.onboarding.bucket_rows(db.fence.bucket_id, after, 2):
        pages.append([row.id for row in page])
        after = page[-1].id
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    (row,) = await db.master.onboarding.bucket_rows(db.fence.bucket_id, ids[3], 2)
    assert (row.identity, row.state) == ((1, db.fence.bucket_id, 1), "PROCESSING")
    assert row.changed_us > 1_700_000_000_000_000


async def test_generations_of_stores_are_remembered_from_the_first(db: MasterFixture) -> None:
    first, second = new_id(), new_id()
    assert (await db.master.stores.store_generation("store", first)).generation == first
    assert (await db.master.stores.store_generation("store", second)).generation == first


async def test_a_store_has_served_once_a_bucket_names_it(db: MasterFixture) -> None:
    first, second = new_id(), new_id()
    assert await db.master.stores.store_generation("store", first) == (first, True), "the bucket of the fixture"
    assert await db.master.stores.store_generation("another", second) == (second, False)
    await db.sql.execute("DELETE FROM bucket")
    assert await db.master.stores.store_generation("store", second) == (first, False)


async def test_states_of_many(db: MasterFixture) -> None:
    (job_id,) = await db.processing()
    await db.master.outcomes.persist(db.fence, [in_flight_row(job_id)])
    assert await db.master.queries.states([job_id, new_id()]) == {job_id: "PROCESSING"}
    assert await db.master.queries.states([]) == {}


async def test_a_certificate_uses_the_lease_length_of_the_certified_agent(db: MasterFixture) -> None:
    """A large cluster renews less often: its rows hold the longer lease, and an agent with a short lease waits that long."""
    slow, quick = await db.agent(new_id(), lease_seconds=10.0), await db.agent(new_id(), lease_seconds=0.05)
    assert (await db.master.members.renew(slow, 300.0)).agents == 3
    await db.sql.execute("UPDATE agent SET held_since = held_since - interval '1 day', lease_seconds = 0.05")
    await db.sql.execute("UPDATE agent SET lease_seconds = 300.0 WHERE id = $1", *uuids([slow]))
    await db.sql.execute("SELECT pg_sleep(0.1)")
    assert await db.master.members.certify_dead(db.owner, 10) == [quick]


async def test_an_agent_publishes_what_must_be_alike_and_how_its_clock_stands(db: MasterFixture) -> None:
    agent = (await db.master.queries.agents())[0]
    now_us = (await db.master.members.renew(agent.id, 30.0)).now_us
    assert now_us is not None
    fresh = msgspec.structs.replace(agent, id=new_id(), settings={"leases.lease": 9.0}, clock_us=now_us + 60_000_000)
    await db.master.members.register(fresh, ["default"], [])
    (row,) = await db.sql.fetch("SELECT settings, clock_ahead_seconds FROM agent WHERE id = $1", *uuids([fresh.id]))
    assert row["settings"] == '{"leases.lease": 9.0}'
    assert 0.0 < row["clock_ahead_seconds"] <= 60.0
