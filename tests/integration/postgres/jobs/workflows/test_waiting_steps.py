"""Steps of workflows that wait for a signal before they run."""

from __future__ import annotations

from uuid import UUID

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from jobmaster.model.flow.signal import OutgoingSignal
from jobmaster.model.flow.workflow import StepState, WorkflowState
from jobmaster.model.job import JobState, SignalWait
from tests.integration.postgres.fixture import MasterFixture
from tests.integration.postgres.jobs.workflows.workflow_steps import (
    end,
    fetched,
    final,
    job_of,
    read,
    start,
    states,
    step,
    workflow_id,
)

S, X, B, P, R, C = (
    StepState.SUCCEEDED, StepState.EXPIRED, StepState.BLOCKED, StepState.PENDING, StepState.STARTED, StepState.CANCELLED,
)  # fmt: skip
PAID = SignalWait(key="paid:ü {x}")


def signal(keep: float = 0.0, to: str = "all") -> OutgoingSignal:
    return OutgoingSignal(new_id(), PAID.key, b'{"amount":20}', to, keep)


async def state_of(db: MasterFixture, of: bytes, number: int) -> JobState:
    return (await db.view(await job_of(db, of, number))).state


async def test_a_step_waits_for_its_signal_when_the_steps_before_it_have_ended(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, waits=PAID), step(of, 3, 2))
    assert (await db.master.signals.send(signal(), "test")).delivered == 0, "nothing waits before that"
    await end(db, of, 1)
    assert (await states(db, of), await state_of(db, of, 2)) == ([S, R, P], JobState.WAITING)
    assert await fetched(db) == {}
    assert (await db.master.signals.send(signal(), "test")).delivered == 1
    made = await db.view(await job_of(db, of, 2))
    assert made.headers.received is not None
    assert (made.state, made.headers.received.payload) == (JobState.HELD, '{"amount":20}')
    await end(db, of, 2)
    await end(db, of, 3)
    assert (await read(db, of)).state is WorkflowState.SUCCEEDED


async def test_a_signal_that_is_kept_reaches_the_step_when_it_is_made(db: MasterFixture) -> None:
    of = workflow_id()
    await db.master.signals.send(signal(keep=600.0, to="one"), "test")
    await start(db, of, step(of, 1, waits=PAID), step(of, 2, waits=PAID), step(of, 3, 1))
    assert [await state_of(db, of, 1), await state_of(db, of, 2)] == [JobState.HELD, JobState.WAITING]
    assert await db.master.signals.kept(PAID.key, 10) == []
    await end(db, of, 1)
    assert await states(db, of) == [S, R, R]


async def test_the_time_out_is_counted_from_the_end_of_the_steps_before(db: MasterFixture) -> None:
    of, late = workflow_id(), SignalWait(key=PAID.key, seconds=0.000001)
    runs = SignalWait(key=PAID.key, seconds=0.000001, run=True)
    await start(db, of, step(of, 1), step(of, 2, 1, waits=late), step(of, 3, 2), step(of, 4, 1, waits=runs))
    assert await db.master.signals.expire_waits(10) == (0, 0)
    await end(db, of, 1)
    assert await db.master.signals.expire_waits(10) == (1, 1)
    assert await states(db, of) == [S, X, B, R]
    assert await state_of(db, of, 4) is JobState.HELD
    await end(db, of, 4)
    assert (await read(db, of)).state is WorkflowState.FAILED
    assert await db.master.workflows.retry(of, "ann")
    assert (await states(db, of), await state_of(db, of, 2)) == ([S, R, P, S], JobState.WAITING)


async def test_a_cancel_of_the_workflow_ends_the_wait(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1, waits=PAID), step(of, 2, 1))
    await db.master.workflows.cancel(of, "ann")
    assert await states(db, of) == [C, C]
    assert (await db.master.signals.send(signal(), "test")).delivered == 0
    assert (await read(db, of)).state is WorkflowState.CANCELLED


async def test_a_signal_and_a_step_that_begins_to_wait_never_miss_each_other(db: MasterFixture) -> None:
    """Each of the two waits for the other one's commit, and then sees its row."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, waits=PAID))
    entry = (await fetched(db))[await job_of(db, of, 1)]
    kept = signal(keep=600.0)
    sent = (UUID(bytes=kept.id), kept.key, kept.payload, "all", 600.0, 1000, "test", 10)
    async with db.open_transaction("signals/send", *sent) as commit:
        outcome = db.master.outcomes.record_final([final(db.fence, entry)])
        await db.after_lock("record_final", outcome, commit)
    assert await state_of(db, of, 2) is JobState.HELD
    other = workflow_id()
    await db.sql.execute("UPDATE signal SET kept_until = NULL")
    await start(db, other, step(other, 1), step(other, 2, 1, waits=PAID))
    job = await job_of(db, other, 1)
    connection = await db.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", UUID(bytes=job))
    answer = await db.after_lock("signals/send", db.master.signals.send(signal(), "test"), transaction.commit)
    await connection.close()
    assert answer.delivered == 1
    assert await state_of(db, other, 2) is JobState.HELD


async def test_a_cancel_of_a_waiting_job_and_a_signal_to_its_key_do_not_deadlock(db: MasterFixture) -> None:
    """The cancel has locked the job, and a step behind it begins to wait for the same key: that locks the key second."""
    of = workflow_id()
    await start(db, of, step(of, 1, waits=PAID), step(of, 2, 1, waits=PAID, on="end"))
    job = UUID(bytes=await job_of(db, of, 1))
    connection = await db.connect(deadlock_timeout="10ms")  # a deadlock would end the cancel
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", job)

    async def cancel() -> None:
        assert await connection.fetchval(statement("requests/cancel").text, job, "ann") == "CANCELLED"
        await transaction.commit()

    answer = await db.after_lock("signals/send", db.master.signals.send(signal(), "test"), cancel)
    assert (answer.delivered, answer.finished) == (1, True)
    await connection.close()
    assert await states(db, of) == [C, R]
    assert await state_of(db, of, 2) is JobState.HELD


async def test_a_job_that_is_being_changed_leaves_its_signal_unfinished(db: MasterFixture) -> None:
    """It began to wait after the signal had locked those that waited; under the key no row is waited for."""
    of, other = workflow_id(), await db.connect()
    await start(db, of, step(of, 1), step(of, 2, 1, waits=PAID))
    key = "signal_lock(signal_key_form($1))"
    sent = signal(keep=600.0, to="one")

    async def begin_to_wait() -> None:
        await holder.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", UUID(bytes=await job_of(db, of, 1)))
        await transaction.start()
        await other.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", UUID(bytes=await job_of(db, of, 2)))
        await holder.execute(f"SELECT pg_advisory_unlock({key})", PAID.key)

    holder, transaction = await db.connect(), other.transaction()
    await holder.execute(f"SELECT pg_advisory_lock({key})", PAID.key)
    answer = await db.after_lock("signals/send", db.master.signals.send(sent, "test"), begin_to_wait)
    assert (answer.delivered, answer.finished, answer.kept_until_us) == (0, False, None)
    await transaction.rollback()
    again = await db.master.signals.send(sent, "test")
    assert (again.delivered, again.finished) == (1, True)
    assert await state_of(db, of, 2) is JobState.HELD
    for connection in (holder, other):
        await connection.close()
