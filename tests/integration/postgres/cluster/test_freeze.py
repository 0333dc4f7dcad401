"""An operator's stop in the master: what it refuses, what it lets pass, and how it ends."""

from __future__ import annotations

import json

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import Fence, Identity
from jobmaster.ports import RowRef
from tests.integration.postgres.fixture import LANE, PRIORITY, World, entry, final_row, hold_row, in_flight_row, new_job


async def freeze(world: World) -> None:
    frozen = await world.master.buckets.freeze([world.fence.bucket_id], None, "ann@here", "charges twice")
    assert [(bucket.id, bucket.state) for bucket in frozen] == [(world.fence.bucket_id, BucketState.FROZEN)]


async def unfreeze(world: World) -> Fence:
    [bucket] = await world.master.buckets.unfreeze([world.fence.bucket_id], None, "ann@here", "mended")
    assert bucket.state is BucketState.ACTIVE
    return world.fence._replace(epoch=bucket.epoch)


async def test_binding_writes_are_refused_by_the_bucket_and_outcomes_pass(world: World) -> None:
    running, unknown, retried = (await world.processing())[0], new_id(), (await world.processing())[0]
    await world.master.intake.insert_held([new_job(held := new_id())])
    await freeze(world)
    before = await world.jobs()
    assert not (await world.master.outcomes.persist(world.fence, [in_flight_row(new_id())])).bucket_ok
    assert not (await world.master.outcomes.retry_here(world.fence, [hold_row(retried)])).bucket_ok
    assert not (await world.master.onboarding.onboard(world.fence, LANE, PRIORITY, 60.0, 10)).bucket_ok
    assert not (
        await world.master.intake.insert_assigned(world.fence.bucket_id, world.fence.epoch, [new_job(new_id())])
    ).bucket_ok
    assert await world.jobs() == before
    assert (await world.master.outcomes.record_final([final_row(running, world.fence)])).accepted == {running}
    assert await world.master.outcomes.copy_final([final_row(unknown, world.fence)])
    assert (await world.master.outcomes.hold(world.fence, [hold_row(retried)])).accepted == {retried}
    assert [await world.state(id_) for id_ in (running, unknown, retried, held)] == [
        "SUCCEEDED", "SUCCEEDED", "HELD", "HELD",
    ]  # fmt: skip


async def test_the_epoch_grows_and_every_step_is_told(world: World) -> None:
    await freeze(world)
    assert await world.master.buckets.freeze([world.fence.bucket_id], None, "ann@here", "again") == []
    fence = await unfreeze(world)
    assert fence.epoch == world.fence.epoch + 1
    assert not (await world.master.outcomes.persist(world.fence, [in_flight_row(new_id())])).bucket_ok
    assert (await world.master.outcomes.persist(fence, [in_flight_row(new_id())])).bucket_ok
    events = await world.sql.fetch("SELECT to_state::text, epoch, actor, reason FROM bucket_event ORDER BY seq")
    assert [tuple(row) for row in events][1:] == [
        ("FROZEN", 1, None, "frozen by ann@here: charges twice"),
        ("ACTIVE", 2, None, "unfrozen by ann@here: mended"),
    ]
    log = await world.sql.fetch("SELECT actor, action, detail FROM operator_log ORDER BY seq")
    assert [(row["actor"], row["action"], json.loads(row["detail"])["reason"]) for row in log] == [
        ("ann@here", "bucket freeze", "charges twice"),
        ("ann@here", "bucket unfreeze", "mended"),
    ]


async def test_a_lane_or_all_of_them_may_be_stopped_at_once(world: World) -> None:
    other = await world.bucket(lane="payroll")
    assert [bucket.id for bucket in await world.master.buckets.freeze(None, "payroll", "ann", "x")] == [other.bucket_id]
    assert [bucket.id for bucket in await world.master.buckets.freeze(None, None, "ann", "x")] == [
        world.fence.bucket_id
    ]
    assert len(await world.master.buckets.unfreeze(None, None, "ann", "x")) == 2


async def test_a_renewal_names_what_is_frozen_and_counts_what_is_at_work(world: World) -> None:
    await world.bucket()
    await freeze(world)
    renewal = await world.master.members.renew(world.owner, 10.0)
    assert (list(renewal.frozen), renewal.at_work, renewal.epochs) == ([world.fence.bucket_id], 2, 2)
    await unfreeze(world)
    renewal = await world.master.members.renew(world.owner, 10.0)
    assert (list(renewal.frozen), renewal.at_work, renewal.epochs) == ([], 2, 3)
    assert {bucket.id for bucket in await world.master.buckets.owned_buckets(world.owner)} >= {world.fence.bucket_id}


async def test_a_frozen_bucket_of_a_dead_owner_is_lost_and_rescued(world: World, rescuer: bytes) -> None:
    running = (await world.processing())[0]
    await freeze(world)
    await world.lost()
    assert (await world.bucket_row(world.fence.bucket_id)).state is BucketState.LOST
    assert await world.master.buckets.unfreeze(None, None, "ann", "too late") == []
    fence = await world.take(rescuer)
    assert (await world.master.rescue.sweep(fence, 10, max_rescues=3)).moved == 1
    assert await world.state(running) == "HELD"


def row(world: World, job_id: bytes, state: str, token: int = 1, epoch: int = 1) -> RowRef:
    return RowRef(job_id, Identity(token, world.fence.bucket_id, epoch), state, 0)


async def test_rows_from_before_the_stop_are_their_owner_s_and_not_the_leader_s(world: World) -> None:
    [running] = await world.processing()
    [assigned] = await world.assigned()
    await freeze(world)
    await unfreeze(world)
    assert (await world.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 0
    rows = [row(world, running, "PROCESSING"), row(world, assigned, "ASSIGNED", 2)]
    assert await world.master.onboarding.give_back(world.fence.bucket_id, rows) == 2
    assert await world.state(running) == await world.state(assigned) == "HELD"
    assert ((await world.view(running)).token, (await world.view(assigned)).token) == (2, 3)
    assert await world.lines(running) == [(1, "lost")]
    assert (await world.view(running)).rescues == 0
    late = await world.master.outcomes.record_final([final_row(running, world.fence)])
    assert late.refused == {running}, "given back is given back"


async def test_two_copies_with_one_token_are_told_apart_after_the_stop(world: World) -> None:
    """A copy from before the stop is given back by its owner; one of the new epoch must not take that for its own word."""
    [running] = await world.processing()
    await freeze(world)
    fence = await unfreeze(world)
    await world.master.onboarding.give_back(world.fence.bucket_id, [row(world, running, "PROCESSING")])
    failed = await world.master.outcomes.hold(fence, [hold_row(running, error=b"{}", attempt=1)])
    assert failed.refused == {running}
    assert (await world.view(running)).attempt == 0


async def test_only_the_identity_that_was_missed_is_given_back(world: World) -> None:
    [running] = await world.processing()
    before = await world.jobs()
    assert (
        await world.master.onboarding.give_back(world.fence.bucket_id, [row(world, running, "PROCESSING", token=2)])
        == 0
    )
    assert (
        await world.master.onboarding.give_back(world.fence.bucket_id, [row(world, running, "PROCESSING", epoch=2)])
        == 0
    )
    assert await world.master.onboarding.give_back(new_id(), [row(world, running, "PROCESSING")]) == 0
    assert await world.jobs() == before
    await world.master.outcomes.record_final([final_row(running, world.fence)])
    assert await world.master.onboarding.give_back(world.fence.bucket_id, [row(world, running, "PROCESSING")]) == 0


async def test_a_cancel_request_outlives_it(world: World) -> None:
    [running] = await world.processing()
    await world.master.requests.cancel(running, tombstone=None, actor="ann")
    assert await world.master.onboarding.give_back(world.fence.bucket_id, [row(world, running, "PROCESSING")]) == 1
    assert await world.state(running) == "CANCELLED"


async def test_a_rescuer_s_page_is_not_stopped_by_an_older_freeze(world: World, rescuer: bytes) -> None:
    await freeze(world)
    await world.lost()
    fence = await world.take(rescuer)
    page = await world.master.rescue.rescue_page(fence, [entry(new_id())], LANE, PRIORITY, claimed=False, max_rescues=3)
    assert page.bucket_ok
