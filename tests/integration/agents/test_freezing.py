"""A freeze of a bucket at work, over real servers: nothing starts, nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.ids import text
from jobmaster.model.job import Entry, NewJob
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster_agents.buckets.anti_entropy import GRACE_SHARE, AntiEntropy, _Watch
from jobmaster_agents.event_log import EventLog
from tests.integration.agents.fixture import PRIORITY, DrivenCluster
from tests.integration.agents.freezing_fixture import (
    Life,
    began,
    encoded,
    gates,
    look_at_nothing,
    nothing_lies_there,
    states,
)
from tests.support.hand_clock import HandClock
from tests.support.idle import is_idle
from tests.support.waiting import eventually, until


async def test_a_freeze_with_jobs_in_every_place(driven: DrivenCluster, life: Life) -> None:
    """Jobs in every place a living owner has them: running with and without a row, queued with and without, onboarded, and
    waiting. Frozen: what runs ends and is recorded, nothing starts. Unfrozen: each of the others runs, once."""
    owner, bucket_worker = life.owner, life.bucket_worker
    known, known_entry = encoded("first")
    await life.submit(known_entry)
    await until(lambda: began[known] == 1)
    await bucket_worker.in_flight_writer.tick()  # it runs and has a row; its list goes
    unknown, unknown_entry = encoded("first")
    queued = [encoded("then") for _ in range(4)]
    waiting = [encoded("then") for _ in range(3)]
    await life.submit(unknown_entry, queued[0][1], queued[1][1])
    await until(lambda: began[unknown] == 1 and bucket_worker.executor.backlog(owner.fence.bucket_id) == 4)
    held = bucket_worker.in_flight_writer._running_before
    bucket_worker.in_flight_writer._running_before = lambda moment: []
    jobs = [job for job in bucket_worker.job_table.of_bucket(owner.fence.bucket_id) if job.entry.id == queued[0][0]]
    assert await bucket_worker.in_flight.write(life.owned, jobs)  # one that waits for a slot has a row
    bucket_worker.in_flight_writer._running_before = held
    await life.submit(*(entry for _, entry in queued[2:] + waiting))
    await until(lambda: bucket_worker.executor.backlog(owner.fence.bucket_id) == 6)
    onboarded = [NewJob(new_id(), PRIORITY, owner.lane, "gated", b'{"gate":"then"}', b"", 0) for _ in range(2)]
    await owner.master.intake.insert_held(onboarded)
    bucket_worker.due_fetcher.kick(owner.fence.bucket_id)

    async def lie_there() -> bool:
        depth = (await owner.store.depths([owner.fence.bucket_id]))[0]
        return depth is not None and (depth.assigned, depth.pending) == (2, 3)

    await eventually(lie_there)

    await life.freeze()
    await life.beat()
    assert life.owned.frozen
    assert life.telemetry.value("buckets_frozen") == 1
    assert await life.submit(encoded("then")[1]) is ReplyStatus.CLOSED
    gates["first"].set()
    await until(lambda: bucket_worker.executor.running == 0 and not bucket_worker.outcome_writer.backlog)
    assert await states(driven, [known, unknown]) == {known: "SUCCEEDED", unknown: "SUCCEEDED"}
    gates["then"].set()
    await bucket_worker.in_flight_writer.tick()
    await asyncio.sleep(0.05)
    assert sum(began.values()) == 2, "nothing starts in a frozen bucket"

    await life.unfreeze()
    await life.beat()
    assert not life.owned.frozen
    assert life.owned.fence.epoch == 2
    others = [job_id for job_id, _ in queued + waiting] + [job.id for job in onboarded]

    async def all_done() -> bool:
        bucket_worker.due_fetcher.kick(owner.fence.bucket_id)
        return set((await states(driven, others)).values()) == {"SUCCEEDED"} and len(await states(driven, others)) == 9

    await eventually(all_done)
    assert set(began.values()) == {1}, "each ran once"
    assert life.lost == []
    assert (await driven.bucket_state(owner.fence.bucket_id)) == ("ACTIVE", 2)
    rows = await driven.rows("SELECT rescues, attempt FROM job")
    assert {tuple(row) for row in rows} == {(0, 1)}
    await nothing_lies_there(life)


async def test_a_refused_write_does_not_lose_a_frozen_bucket(driven: DrivenCluster, life: Life) -> None:
    """The owner's first sign of the freeze is a refusal by the bucket lock, before a reply of the store or a renewal."""
    job_id, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[job_id] == 1)
    await life.freeze(tell_store=False)
    await life.bucket_worker.in_flight_writer.tick()
    await life.ownership_check.tick()
    assert life.owned.frozen
    assert await life.submit(encoded("then")[1]) is ReplyStatus.CLOSED, "the owner tells the store"
    assert life.lost == []
    assert await driven.bucket_state(life.owner.fence.bucket_id) == ("FROZEN", 1)
    gates["first"].set()
    await until(lambda: is_idle(life.bucket_worker))
    assert await states(driven, [job_id]) == {job_id: "SUCCEEDED"}


async def test_a_failed_attempt_goes_back_to_the_master_and_a_fenced_start_waits(
    driven: DrivenCluster, life: Life
) -> None:
    failing, entry = encoded("fails")
    await life.submit(entry)
    await until(lambda: began[failing] == 1)
    await life.freeze(tell_store=False)
    strict = new_id()
    await life.submit(encode_entry(Entry(strict, 1, "fenced", b"{}")))
    await until(lambda: bool(life.ownership_check._to_check))  # the start was refused
    gates["fails"].set()
    await until(lambda: life.bucket_worker.executor.running == 0 and not life.bucket_worker.outcome_writer.backlog)
    await life.ownership_check.tick()
    assert (began[failing], began[strict]) == (1, 0)
    assert await states(driven, [failing, strict]) == {failing: "HELD"}
    await life.unfreeze()
    await life.beat()

    async def done() -> bool:
        life.bucket_worker.due_fetcher.kick(life.owner.fence.bucket_id)
        return await states(driven, [failing, strict]) == {failing: "SUCCEEDED", strict: "SUCCEEDED"}

    await eventually(done)
    assert (began[failing], began[strict]) == (2, 1)


async def test_what_runs_on_through_the_stop_is_recorded_after_it(driven: DrivenCluster, life: Life) -> None:
    known, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[known] == 1)
    await life.bucket_worker.in_flight_writer.tick()
    rowless, entry = encoded("first")
    failing, third = encoded("fails")
    await life.submit(entry)
    await until(lambda: began[rowless] == 1)
    await life.freeze()
    await life.beat()
    await life.unfreeze()
    await life.beat()
    await life.submit(third)
    assert life.owned.fence.epoch == 2
    gates["first"].set()
    gates["fails"].set()
    await until(lambda: began[failing] == 2 and is_idle(life.bucket_worker))
    assert set((await states(driven, [known, rowless, failing])).values()) == {"SUCCEEDED"}
    epochs = await driven.rows("SELECT id, bucket_epoch FROM job")
    assert {row["id"].bytes: row["bucket_epoch"] for row in epochs} == {known: 1, rowless: 2, failing: 2}
    assert (began[known], began[rowless]) == (1, 1)
    assert life.lost == []


async def test_frozen_again_before_the_owner_was_unfrozen(driven: DrivenCluster, life: Life) -> None:
    await life.freeze()
    await life.beat()
    await life.unfreeze()
    await life.freeze(tell_store=False)
    await life.beat()
    assert life.owned.frozen
    assert life.lost == []
    await life.unfreeze()
    await life.beat()
    assert life.owned.fence.epoch == 3
    job_id, entry = encoded("first")
    assert await life.submit(entry) is ReplyStatus.OK
    gates["first"].set()
    await until(lambda: began[job_id] == 1 and is_idle(life.bucket_worker))


async def test_an_agent_leaves_a_frozen_bucket_without_a_rescue_of_what_it_held(
    driven: DrivenCluster, life: Life
) -> None:
    running = [encoded("first") for _ in range(2)]
    queued = [encoded("then") for _ in range(3)]
    await life.submit(*(entry for _, entry in running + queued))
    await until(lambda: life.bucket_worker.executor.backlog(life.owner.fence.bucket_id) == 5)
    await life.freeze()
    await life.beat()
    gates["first"].set()
    assert await life.bucket_worker.complete([life.owner.fence.bucket_id], 60.0, "test") == []
    assert await driven.bucket_state(life.owner.fence.bucket_id) == ("LOST", 1)
    rescue = (await driven.agent()).rescue()
    while (await driven.bucket_state(life.owner.fence.bucket_id))[0] != "READY_TO_DELETE":
        await rescue.tick()
    rows = await driven.rows("SELECT state::text, rescues, attempt FROM job ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [("HELD", 0, 0)] * 3 + [("SUCCEEDED", 0, 1)] * 2


async def test_a_bucket_with_another_owner_is_lost(driven: DrivenCluster, life: Life) -> None:
    job_id, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[job_id] == 1)
    await driven.rows("UPDATE bucket SET state = 'LOST' WHERE id = $1", text(life.owner.fence.bucket_id))
    await life.bucket_worker.in_flight_writer.tick()
    await life.ownership_check.tick()
    assert len(life.lost) == 1


async def test_a_bucket_that_a_failover_gave_back_to_its_owner_is_declared_lost_again(
    driven: DrivenCluster, life: Life
) -> None:
    """The owner declared it LOST, and a standby without that commit becomes the master: ACTIVE, and no agent serves it."""
    bucket_id = life.owner.fence.bucket_id
    life.owner.ownership.lose(bucket_id, "its store was emptied")
    await life.beat()
    await life.beat()
    assert (await driven.bucket_state(bucket_id))[0] == "LOST"
    await driven.rows("UPDATE bucket SET state = 'ACTIVE' WHERE id = $1", text(bucket_id))  # the failover
    await life.beat()
    assert (await driven.bucket_state(bucket_id))[0] == "ACTIVE", "one renewal may cross a bucket that is being made"
    await life.beat()
    assert (await driven.bucket_state(bucket_id))[0] == "LOST"


async def test_a_bucket_that_a_failover_forgot_is_lost(driven: DrivenCluster, life: Life) -> None:
    await driven.rows("DELETE FROM bucket WHERE id = $1", text(life.owner.fence.bucket_id))
    await life.beat()
    await life.beat()
    assert len(life.lost) == 1


async def test_a_bucket_that_is_being_created_is_not_declared_lost(driven: DrivenCluster, life: Life) -> None:
    bucket_id = life.owner.fence.bucket_id
    life.owner.ownership.buckets.clear()
    life.owner.ownership.opening.add(bucket_id)
    for _ in range(4):
        await life.beat()
    assert (await driven.bucket_state(bucket_id))[0] == "ACTIVE"


async def test_the_answer_to_the_unfreezing_is_lost(
    driven: DrivenCluster, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the new epoch and the owner does not know it: a list that is settled now is refused, and not lost."""
    job_id, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[job_id] == 1)
    await life.freeze()
    await life.beat()
    await life.unfreeze()
    unfreeze = life.owner.store.unfreeze

    async def unanswered(*arguments: object) -> ReplyStatus:
        await unfreeze(*arguments)  # type: ignore[arg-type]
        raise OutcomeUnknown("the answer to unfreeze was lost")

    monkeypatch.setattr(life.owner.store, "unfreeze", unanswered)
    with pytest.raises(OutcomeUnknown):
        await life.beat()
    gates["first"].set()
    await until(lambda: life.bucket_worker.executor.running == 0 and not life.bucket_worker.outcome_writer.backlog)
    await asyncio.sleep(0.05)  # the list is asked to be deleted meanwhile, in vain
    monkeypatch.setattr(life.owner.store, "unfreeze", unfreeze)
    await life.ownership_check.tick()
    await nothing_lies_there(life)
    assert life.lost == []
    assert life.owned.fence.epoch == 2
    assert await states(driven, [job_id]) == {job_id: "SUCCEEDED"}


# ---------------------------------------------------------------- a failover that forgot commits


async def test_a_running_row_that_a_failover_brought_back_runs_again(driven: DrivenCluster, life: Life) -> None:
    """The outcome was recorded, the list deleted, and a standby without it became the master: its row says
    PROCESSING, its owner lives and knows nothing of it."""
    gates["first"].set()
    bucket_id = life.owner.fence.bucket_id
    job_id, entry = encoded("first")
    await life.submit(entry)
    await until(lambda: began[job_id] == 1)
    await nothing_lies_there(life)
    assert await states(driven, [job_id]) == {job_id: "SUCCEEDED"}
    await driven.rows("UPDATE job SET state = 'PROCESSING', result = NULL, attempt = 0 WHERE id = $1", text(job_id))
    clock = HandClock()
    life.owner.ownership._term = None
    life.owner.ownership.trust(term(clock.now, 600.0))
    owner, job_table = life.owner, life.bucket_worker.job_table
    comparing = AntiEntropy(
        owner.ownership,
        owner.master.onboarding,
        owner.store,
        job_table,
        look_at_nothing,
        life.bucket_worker.outcome_writer.bucket_enqueuer.being_put,
        clock,
        life.telemetry,
        EventLog(),
        every_seconds=30.0,
    )
    watch = _Watch(0.0)
    await comparing.compare(life.owned, watch)
    clock.now += 30.0 * GRACE_SHARE - 1.0
    await comparing.compare(life.owned, watch)
    assert await states(driven, [job_id]) == {job_id: "PROCESSING"}, "not before the grace is over"
    clock.now += 2.0
    await comparing.compare(life.owned, watch)
    life.owner.ownership._term = None
    life.owner.ownership.trust(term(SystemClock().boottime(), 600.0))

    async def done() -> bool:
        life.bucket_worker.due_fetcher.kick(bucket_id)
        return await states(driven, [job_id]) == {job_id: "SUCCEEDED"}

    await eventually(done)
    assert began[job_id] == 2
    lines = await driven.rows("SELECT token, outcome, concluding FROM ledger ORDER BY token")
    assert [(row["token"], row["concluding"]) for row in lines] == [(1, False), (3, True)]
