"""An operator's stop in the master: what it refuses, what it lets pass, and how it ends."""

from __future__ import annotations

import json

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import Fence, Identity
from jobmaster.ports import RowRef
from tests.integration.postgres.fixture import (
    LANE,
    PRIORITY,
    MasterFixture,
    entry,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
)


async def freeze(db: MasterFixture) -> None:
    frozen = await db.master.buckets.freeze([db.fence.bucket_id], None, "ann@here", "charges twice")
    assert [(bucket.id, bucket.state) for bucket in frozen] == [(db.fence.bucket_id, BucketState.FROZEN)]


async def unfreeze(db: MasterFixture) -> Fence:
    [bucket] = await db.master.buckets.unfreeze([db.fence.bucket_id], None, "ann@here", "mended")
    assert bucket.state is BucketState.ACTIVE
    return db.fence._replace(epoch=bucket.epoch)


async def test_binding_writes_are_refused_by_the_bucket_and_outcomes_pass(db: MasterFixture) -> None:
    running, unknown, retried = (await db.processing())[0], new_id(), (await db.processing())[0]
    await db.master.intake.insert_held([new_job(held := new_id())])
    await freeze(db)
    before = await db.jobs()
    assert not (await db.master.outcomes.persist(db.fence, [in_flight_row(new_id())])).bucket_ok
    assert not (await db.master.outcomes.retry_here(db.fence, [hold_row(retried)])).bucket_ok
    assert not (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).bucket_ok
    assert not (
        await db.master.intake.insert_assigned(db.fence.bucket_id, db.fence.epoch, [new_job(new_id())])
    ).bucket_ok
    assert await db.jobs() == before
    assert (await db.master.outcomes.record_final([final_row(running, db.fence)])).accepted == {running}
    assert await db.master.outcomes.copy_final([final_row(unknown, db.fence)])
    assert (await db.master.outcomes.hold(db.fence, [hold_row(retried)])).accepted == {retried}
    assert [await db.state(id_) for id_ in (running, unknown, retried, held)] == [
        "SUCCEEDED", "SUCCEEDED", "HELD", "HELD",
    ]  # fmt: skip


async def test_the_epoch_grows_and_every_step_is_logged(db: MasterFixture) -> None:
    await freeze(db)
    assert await db.master.buckets.freeze([db.fence.bucket_id], None, "ann@here", "again") == []
    fence = await unfreeze(db)
    assert fence.epoch == db.fence.epoch + 1
    assert not (await db.master.outcomes.persist(db.fence, [in_flight_row(new_id())])).bucket_ok
    assert (await db.master.outcomes.persist(fence, [in_flight_row(new_id())])).bucket_ok
    events = await db.sql.fetch("SELECT to_state::text, epoch, actor, reason FROM bucket_event ORDER BY seq")
    assert [tuple(row) for row in events][1:] == [
        ("FROZEN", 1, None, "frozen by ann@here: charges twice"),
        ("ACTIVE", 2, None, "unfrozen by ann@here: mended"),
    ]
    log = await db.sql.fetch("SELECT actor, action, detail FROM operator_log ORDER BY seq")
    assert [(row["actor"], row["action"], json.loads(row["detail"])["reason"]) for row in log] == [
        ("ann@here", "bucket freeze", "charges twice"),
        ("ann@here", "bucket unfreeze", "mended"),
    ]


async def test_a_lane_or_all_of_them_may_be_stopped_at_once(db: MasterFixture) -> None:
    other = await db.bucket(lane="payroll")
    assert [bucket.id for bucket in await db.master.buckets.freeze(None, "payroll", "ann", "x")] == [other.bucket_id]
    assert [bucket.id for bucket in await db.master.buckets.freeze(None, None, "ann", "x")] == [db.fence.bucket_id]
    assert len(await db.master.buckets.unfreeze(None, None, "ann", "x")) == 2


async def test_a_renewal_names_what_is_frozen_and_counts_what_is_at_work(db: MasterFixture) -> None:
    await db.bucket()
    await freeze(db)
    renewal = await db.master.members.renew(db.owner, 10.0)
    assert (list(renewal.frozen), renewal.at_work, renewal.epochs) == ([db.fence.bucket_id], 2, 2)
    await unfreeze(db)
    renewal = await db.master.members.renew(db.owner, 10.0)
    assert (list(renewal.frozen), renewal.at_work, renewal.epochs) == ([], 2, 3)
    assert {bucket.id for bucket in await db.master.buckets.owned_buckets(db.owner)} >= {db.fence.bucket_id}


async def test_a_frozen_bucket_of_a_dead_owner_is_lost_and_rescued(db: MasterFixture, rescuer: bytes) -> None:
    running = (await db.processing())[0]
    await freeze(db)
    await db.lost()
    assert (await db.bucket_row(db.fence.bucket_id)).state is BucketState.LOST
    assert await db.master.buckets.unfreeze(None, None, "ann", "too late") == []
    fence = await db.take(rescuer)
    assert (await db.master.rescue.sweep(fence, 10, max_rescues=3)).moved == 1
    assert await db.state(running) == "HELD"


def row(db: MasterFixture, job_id: bytes, state: str, token: int = 1, epoch: int = 1) -> RowRef:
    return RowRef(job_id, Identity(token, db.fence.bucket_id, epoch), state, 0)


async def test_rows_from_before_the_stop_are_their_owner_s_and_not_the_leader_s(db: MasterFixture) -> None:
    [running] = await db.processing()
    [assigned] = await db.assigned()
    await freeze(db)
    await unfreeze(db)
    assert (await db.master.maintenance.return_orphans(0.0, 10, max_rescues=3)).moved == 0
    rows = [row(db, running, "PROCESSING"), row(db, assigned, "ASSIGNED", 2)]
    assert await db.master.onboarding.give_back(db.fence.bucket_id, rows) == 2
    assert await db.state(running) == await db.state(assigned) == "HELD"
    assert ((await db.view(running)).token, (await db.view(assigned)).token) == (2, 3)
    assert await db.lines(running) == [(1, "lost")]
    assert (await db.view(running)).rescues == 0
    late = await db.master.outcomes.record_final([final_row(running, db.fence)])
    assert late.refused == {running}, "given back is given back"


async def test_two_copies_with_one_token_are_distinguished_after_the_stop(db: MasterFixture) -> None:
    """A copy from before the stop is given back by its owner; a write of a copy of the new epoch is no repeat of that."""
    [running] = await db.processing()
    await freeze(db)
    fence = await unfreeze(db)
    await db.master.onboarding.give_back(db.fence.bucket_id, [row(db, running, "PROCESSING")])
    failed = await db.master.outcomes.hold(fence, [hold_row(running, error=b"{}", attempt=1)])
    assert failed.refused == {running}
    assert (await db.view(running)).attempt == 0


async def test_only_the_identity_that_was_missed_is_given_back(db: MasterFixture) -> None:
    [running] = await db.processing()
    before = await db.jobs()
    assert await db.master.onboarding.give_back(db.fence.bucket_id, [row(db, running, "PROCESSING", token=2)]) == 0
    assert await db.master.onboarding.give_back(db.fence.bucket_id, [row(db, running, "PROCESSING", epoch=2)]) == 0
    assert await db.master.onboarding.give_back(new_id(), [row(db, running, "PROCESSING")]) == 0
    assert await db.jobs() == before
    await db.master.outcomes.record_final([final_row(running, db.fence)])
    assert await db.master.onboarding.give_back(db.fence.bucket_id, [row(db, running, "PROCESSING")]) == 0


async def test_a_cancel_request_outlives_it(db: MasterFixture) -> None:
    [running] = await db.processing()
    await db.master.requests.cancel(running, tombstone=None, actor="ann")
    assert await db.master.onboarding.give_back(db.fence.bucket_id, [row(db, running, "PROCESSING")]) == 1
    assert await db.state(running) == "CANCELLED"


async def test_a_rescuer_s_page_is_not_stopped_by_an_older_freeze(db: MasterFixture, rescuer: bytes) -> None:
    await freeze(db)
    await db.lost()
    fence = await db.take(rescuer)
    page = await db.master.rescue.rescue_page(fence, [entry(new_id())], LANE, PRIORITY, claimed=False, max_rescues=3)
    assert page.bucket_ok
