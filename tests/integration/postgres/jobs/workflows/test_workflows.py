"""Workflows in the master: the next step exists if and only if the outcome of the step before it stands."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.flow.workflow import NewWorkflow, StepState, WorkflowState
from jobmaster.model.job import Headers
from jobmaster.ports import RecordKind
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

S, F, B, P, R, K, C = (
    StepState.SUCCEEDED, StepState.FAILED, StepState.BLOCKED, StepState.PENDING, StepState.STARTED, StepState.SKIPPED,
    StepState.CANCELLED,
)  # fmt: skip


async def test_the_next_step_is_made_by_the_outcome_and_gets_its_result(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, args=b'{"a":,"b":2}', refs='[[5,1,["x","0"]]]'))
    assert await states(db, of) == [R, P]
    await end(db, of, 1, result=b'{"x":[7,8]}')
    assert await states(db, of) == [S, R]
    made = await db.view(await job_of(db, of, 2))
    assert made.arguments == {"a": 7, "b": 2}
    await end(db, of, 2)
    found = await read(db, of)
    assert (found.state, found.steps_total, found.steps_ended, found.steps_failed) == (WorkflowState.SUCCEEDED, 2, 2, 0)
    assert found.ended_us is not None


async def test_an_outcome_that_is_sent_again_makes_nothing_more(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    entry = (await fetched(db))[await job_of(db, of, 1)]
    row = final(db.fence, entry)
    for _ in range(3):
        await db.master.outcomes.record_final([row])
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 2
    assert (await db.master.workflows.steps(of))[1].tries == 1


async def test_a_refused_outcome_makes_no_step(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    entry = (await fetched(db))[await job_of(db, of, 1)]
    written = await db.master.outcomes.record_final([final(db.fence._replace(epoch=9), entry)])
    assert not written.accepted
    assert await states(db, of) == [R, P]


async def test_an_outcome_that_is_rolled_back_makes_no_step(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    transaction = db.sql.transaction()
    await transaction.start()
    await db.sql.execute("UPDATE job SET state = 'SUCCEEDED'")
    assert await states(db, of) == [R, P], "another session sees nothing before the commit"
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 2
    await transaction.rollback()
    assert await states(db, of) == [R, P]
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 1


async def test_a_copied_outcome_is_found_by_the_start_of_its_step(db: MasterFixture) -> None:
    """A failover has forgotten the start of a step whose job runs: its row, and the state of the step, which is written with
    it. Its outcome comes by COPY, which asks no trigger for each row; the next start of the step finds it."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2))
    await end(db, of, 1)
    entry = (await fetched(db))[await job_of(db, of, 2)]
    first = UUID(bytes=await job_of(db, of, 1))
    await db.sql.execute("DELETE FROM job WHERE id <> $1", first)
    await db.sql.execute("UPDATE workflow_step SET state = 'PENDING', job_id = NULL, tries = 0 WHERE step = 2")
    await db.sql.execute("UPDATE workflow_step SET state = 'STARTED', result = NULL WHERE step = 1")
    await db.sql.execute("UPDATE job SET state = 'ASSIGNED' WHERE id = $1", first)
    assert await db.master.outcomes.copy_final([final(db.fence, entry)])
    assert await states(db, of) == [R, P, P]
    await db.sql.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", first)
    assert await states(db, of) == [S, S, R]


async def test_a_copy_of_outcomes_asks_no_trigger_for_each_row(db: MasterFixture) -> None:
    rows, inserts = 1, 4  # bits of tgtype
    found = await db.sql.fetch(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 'job'::regclass AND NOT tgisinternal AND tgtype & $1 = $1",
        rows | inserts,
    )
    assert [row["tgname"] for row in found] == []


async def test_of_parents_that_end_at_once_the_last_one_makes_the_join(db: MasterFixture) -> None:
    """The lock comes before the look at the other parents: without it, each would miss the end of the other one."""
    for _ in range(20):
        of = workflow_id()
        await start(db, of, step(of, 1), step(of, 2), step(of, 3), step(of, 4, 1, 2, 3))
        entries = await fetched(db)
        await asyncio.gather(*(db.master.outcomes.record_final([final(db.fence, entry)]) for entry in entries.values()))
        assert await states(db, of) == [S, S, S, R]
        await end(db, of, 4)


async def test_a_parent_waits_for_the_lock_of_the_other_one(db: MasterFixture) -> None:
    """One transaction has ended its step and not committed: the other one waits for it, and then sees its end."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2), step(of, 3, 1, 2))
    first, second = UUID(bytes=await job_of(db, of, 1)), UUID(bytes=await job_of(db, of, 2))
    one, two = await db.connect(), await db.connect()
    update = "UPDATE job SET state = 'EXPIRED' WHERE id = $1 /* end */"
    transaction = one.transaction()
    await transaction.start()
    await one.execute(update, first)
    await db.after_lock("/* end */", two.execute(update, second), transaction.commit)
    assert await states(db, of) == [StepState.EXPIRED, StepState.EXPIRED, B]
    assert (await read(db, of)).state is WorkflowState.FAILED
    await one.close()
    await two.close()


async def test_the_lock_comes_before_the_look_at_the_step_itself(db: MasterFixture) -> None:
    """A failover has forgotten that a step was started, and its job runs. The start that is made again, and the end of the
    job, meet: without the lock the end would find a step that is not started, and nothing would follow it."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2))
    first = UUID(bytes=await job_of(db, of, 1))
    await db.sql.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", first)
    second = UUID(bytes=await job_of(db, of, 2))
    await db.sql.execute("UPDATE job SET state = 'HELD' WHERE id = $1", first)
    await db.sql.execute("UPDATE workflow_step SET state = 'STARTED' WHERE step = 1")
    await db.sql.execute("UPDATE workflow_step SET state = 'PENDING', job_id = NULL, tries = 0 WHERE step = 2")
    one, two = await db.connect(), await db.connect()
    update = "UPDATE job SET state = 'SUCCEEDED' WHERE id = $1 /* end */"
    transaction = one.transaction()
    await transaction.start()
    await one.execute(update, first)
    await db.after_lock("/* end */", two.execute(update, second), transaction.commit)
    assert await states(db, of) == [S, S, R]
    await one.close()
    await two.close()


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "EXPIRED"])
async def test_a_failed_step_blocks_what_needs_it_and_runs_what_waits_for_a_failure(
    db: MasterFixture, state: str
) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2), step(of, 4, 1, 2, 3, on="failure"),
                step(of, 5, 1, 2, 3, on="end"))  # fmt: skip
    await end(db, of, 1, state=state)
    assert await states(db, of) == [StepState(state), B, B, R, R]
    assert (await read(db, of)).state is WorkflowState.RUNNING
    entries = await fetched(db)
    await db.master.outcomes.record_final([final(db.fence, entry) for entry in entries.values()])
    assert (await read(db, of)).state is WorkflowState.FAILED


async def test_a_failure_that_did_not_happen_is_skipped(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, on="failure"), step(of, 3, 2))
    await end(db, of, 1)
    assert await states(db, of) == [S, K, K]
    assert (await read(db, of)).state is WorkflowState.SUCCEEDED


@pytest.mark.parametrize(
    ("result", "taken"), [(b"true", [R, K, K]), (b"false", [K, R, K]), (b'"true"', [K, K, R]), (None, [K, K, R])]
)
async def test_a_branch_is_chosen_by_the_result(
    db: MasterFixture, result: bytes | None, taken: list[StepState]
) -> None:
    of = workflow_id()

    def case(values: str, otherwise: str = "false") -> str:
        return f'{{"step":1,"path":[],"in":[{values}],"else":{otherwise}}}'

    await start(db, of, step(of, 1), step(of, 2, 1, choice=case('"true"')), step(of, 3, 1, choice=case('"false"')),
                step(of, 4, 1, choice=case('"true","false"', "true")), step(of, 5, 2, 3, 4))  # fmt: skip
    await end(db, of, 1, result=result)
    assert await states(db, of) == [S, *taken, P]
    await end(db, of, 2 + taken.index(R))
    assert (await states(db, of))[4] is R, "branches that were not taken do not stop what follows them"


async def test_compensations_run_in_reverse_order_of_the_ends(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2), step(of, 4, 3), step(of, 5, 1, on="undo"),
                step(of, 6, 2, on="undo"), step(of, 7, 3, on="undo"))  # fmt: skip
    await end(db, of, 1)
    await end(db, of, 2)
    await end(db, of, 3, state="FAILED")
    assert await states(db, of) == [S, S, F, B, P, R, P]
    assert (await read(db, of)).state is WorkflowState.COMPENSATING
    await end(db, of, 6)
    assert await states(db, of) == [S, S, F, B, R, S, P]
    await end(db, of, 5)
    assert await states(db, of) == [S, S, F, B, S, S, K]
    assert (await read(db, of)).state is WorkflowState.FAILED
    assert not await db.master.workflows.retry(of, "me"), "all of it is undone"


async def test_after_a_failure_nothing_is_begun_that_would_be_undone(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2), step(of, 3, 2), step(of, 4, 2, on="undo"))
    entries = await fetched(db)
    one, two = entries[await job_of(db, of, 1)], entries[await job_of(db, of, 2)]
    await db.master.outcomes.record_final([final(db.fence, one, state="FAILED")])
    assert (await read(db, of)).state is WorkflowState.FAILING
    await db.master.outcomes.record_final([final(db.fence, two)])
    assert await states(db, of) == [F, S, B, R]


async def test_a_failed_compensation_stops_and_is_retried(db: MasterFixture) -> None:
    of = workflow_id()
    await start(
        db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2), step(of, 4, 1, on="undo"), step(of, 5, 2, on="undo")
    )
    await end(db, of, 1)
    await end(db, of, 2)
    await end(db, of, 3, state="FAILED")
    await end(db, of, 5, state="FAILED")
    assert await states(db, of) == [S, S, F, B, F]
    assert (await read(db, of)).state is WorkflowState.FAILED
    assert await db.master.workflows.retry(of, "me")
    assert await states(db, of) == [S, S, F, P, R]
    await end(db, of, 5)
    await end(db, of, 4)
    assert await states(db, of) == [S, S, F, S, S]
    assert (await read(db, of)).state is WorkflowState.FAILED


async def test_a_retried_workflow_goes_on_from_the_step_that_failed(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2))
    await end(db, of, 1)
    await end(db, of, 2, state="FAILED")
    failed = await job_of(db, of, 2)
    assert await db.master.workflows.cancel(of, "me") == (False, [])
    assert await db.master.workflows.retry(of, "me")
    assert not await db.master.workflows.retry(of, "me")
    assert await states(db, of) == [S, R, P]
    assert await job_of(db, of, 2) > failed
    await end(db, of, 2)
    await end(db, of, 3)
    assert (await read(db, of)).state is WorkflowState.SUCCEEDED


async def test_a_cancelled_workflow_begins_nothing_more_and_undoes_what_was_done(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2), step(of, 4, 1, on="undo"))
    await end(db, of, 1)
    entry = (await fetched(db))[await job_of(db, of, 2)]
    assert await db.master.workflows.cancel(of, "me") == (True, [entry.id])
    assert await db.master.workflows.cancel(of, "me") == (False, [entry.id])
    assert (await db.view(entry.id)).cancel_requested, "its owner reads that with its next renewal, at the latest"
    assert await states(db, of) == [S, R, C, P]
    assert (await read(db, of)).state is WorkflowState.CANCELLING
    await db.master.outcomes.record_final([final(db.fence, entry, state="CANCELLED")])
    assert await states(db, of) == [S, C, C, R]
    assert await db.master.workflows.cancel(of, "me") == (False, []), "compensations are not cancelled"
    await end(db, of, 4)
    assert (await read(db, of)).state is WorkflowState.CANCELLED


async def test_a_cancel_ends_the_jobs_that_wait_in_the_same_transaction(db: MasterFixture) -> None:
    """A client that dies after the call leaves nothing to do."""
    of = workflow_id()
    await start(
        db, of, step(of, 1), step(of, 2), step(of, 3, 1, 2), step(of, 4, 1, on="undo"), step(of, 5, 3, on="end")
    )
    assert (await db.master.workflows.cancel(of, "me"))[0]
    assert await states(db, of) == [C, C, C, P, R]
    assert [await db.state(await job_of(db, of, number)) for number in (1, 2)] == ["CANCELLED", "CANCELLED"]
    await end(db, of, 5)
    assert await states(db, of) == [C, C, C, K, S]
    assert (await read(db, of)).state is WorkflowState.CANCELLED


async def test_a_cancel_that_ends_every_step_ends_the_workflow(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 1, on="undo"))
    assert (await db.master.workflows.cancel(of, "me"))[0]
    assert await states(db, of) == [C, C, K]
    assert (await read(db, of)).state is WorkflowState.CANCELLED


async def test_a_cancel_and_the_end_of_a_step_follow_one_another(db: MasterFixture) -> None:
    """Both lock the job first and the workflow second: no deadlock, whichever comes first."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2))
    first = UUID(bytes=await job_of(db, of, 1))
    one, two = await db.connect(), await db.connect()
    transaction = one.transaction()
    await transaction.start()
    await one.execute("UPDATE job SET state = 'SUCCEEDED' WHERE id = $1", first)
    cancel = two.fetchrow("SELECT * FROM workflow_cancel($1, 'me') /* cancel */", UUID(bytes=of))
    with pytest.raises(asyncpg.SerializationError, match="a step has begun meanwhile"):
        await db.after_lock("/* cancel */", cancel, transaction.commit)
    assert (await db.master.workflows.cancel(of, "me"))[0]
    assert await states(db, of) == [S, C, C]
    await one.close()
    await two.close()


async def test_a_workflow_that_has_ended_stays_as_it_is(db: MasterFixture) -> None:
    """A workflow with compensations would begin to undo itself once more."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 1, on="undo"))
    await end(db, of, 1)
    await end(db, of, 2, state="FAILED")
    await end(db, of, 3)
    before = await read(db, of)
    await db.sql.execute("SELECT workflow_advance($1)", UUID(bytes=of))
    assert await read(db, of) == before


async def test_what_runs_after_a_failure_is_not_called_off_by_it(db: MasterFixture) -> None:
    """A chain of steps on failure, in a workflow with compensations."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 2), step(of, 4, 1, 2, 3, on="failure"), step(of, 5, 4),
                step(of, 6, 1, on="undo"))  # fmt: skip
    await end(db, of, 1)
    await end(db, of, 2, state="FAILED")
    assert await states(db, of) == [S, F, B, R, P, P]
    assert (await read(db, of)).state is WorkflowState.FAILING
    assert await db.master.workflows.cancel(of, "me") == (True, []), "nor by a cancel"
    assert await states(db, of) == [S, F, B, R, P, P]
    await end(db, of, 4)
    await end(db, of, 5)
    assert await states(db, of) == [S, F, B, S, S, R]


async def test_a_retry_decides_again_what_runs_after_a_failure_or_at_the_end(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1), step(of, 3, 1, 2, on="failure"), step(of, 4, 3),
                step(of, 5, 1, 2, on="end"))  # fmt: skip
    for _ in range(2):
        await end(db, of, 1, state="FAILED")
        assert await states(db, of) == [F, B, R, P, R]
        entries = await fetched(db)
        await db.master.outcomes.record_final([final(db.fence, entry) for entry in entries.values()])
        await end(db, of, 4)
        assert (await read(db, of)).state is WorkflowState.FAILED
        assert await db.master.workflows.retry(of, "me")
    await end(db, of, 1)
    await end(db, of, 2)
    assert await states(db, of) == [S, S, K, K, R]
    assert [each.tries for each in await db.master.workflows.steps(of)] == [3, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("result", "error"), [(b'{"y":1}', "has no x"), (b'{"x":"' + b"a" * 995 + b'"}', "the limit is 1000"),
                          (b'{"x":"\\u0000"}', "cannot be passed on")],
)  # fmt: skip
async def test_a_result_that_cannot_be_passed_on_fails_the_step(db: MasterFixture, result: bytes, error: str) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, args=b'{"a":}', refs='[[5,1,["x"]]]'), step(of, 3, 2))
    await end(db, of, 1, result=result)
    assert await states(db, of) == [S, F, B]
    assert error in (await db.master.workflows.steps(of))[1].error
    assert (await read(db, of)).state is WorkflowState.FAILED


async def test_a_whole_result_is_passed_byte_for_byte(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, args=b'{"a":,"b":}', refs="[[10,1,[]],[5,1,[]]]"))
    await end(db, of, 1, result='{"x":"\\u0000ä"}'.encode())
    assert (await db.view(await job_of(db, of, 2))).arguments == {"a": {"x": "\0ä"}, "b": {"x": "\0ä"}}


async def test_a_step_with_a_delay_is_due_later(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, delay_us=3_600_000_000))
    await end(db, of, 1)
    assert await fetched(db) == {}


async def test_a_workflow_that_is_started_again_starts_nothing(db: MasterFixture) -> None:
    of = workflow_id()
    steps = (step(of, 1), step(of, 2, 1, args=b'{"a":1}'))
    await start(db, of, *steps)
    again = db.master.workflows.start
    assert await again(NewWorkflow(of, "order", 1000, steps)) is False
    for other in (
        NewWorkflow(of, "another", 1000, steps),
        NewWorkflow(of, "order", 1000, steps[:1]),
        NewWorkflow(of, "order", 1000, (*steps, step(of, 3))),
        NewWorkflow(of, "order", 1000, (steps[0], step(of, 2, args=b'{"a":1}'))),
        NewWorkflow(of, "order", 1000, (steps[0], step(of, 2, 1, args=b'{"a":2}'))),
    ):
        assert await again(other) is None, "it is another workflow"
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 1


@pytest.mark.parametrize("days", [-800, 800])
async def test_a_workflow_of_another_time_has_jobs_of_the_present(db: MasterFixture, days: int) -> None:
    """Its id was made long ago, or by a clock that is wrong: there is no partition for such a job, or it would vanish."""
    now = new_id()
    of = (int.from_bytes(now[:6]) + days * 86_400_000).to_bytes(6) + now[6:12] + bytes(4)
    await start(db, of, step(of, 1), step(of, 2, 1))
    await end(db, of, 1)
    await end(db, of, 2)
    assert (await read(db, of)).state is WorkflowState.SUCCEEDED
    second = await job_of(db, of, 2)
    assert abs(int.from_bytes(second[:6]) - int.from_bytes(now[:6])) < 3_600_000
    assert second[6:12] == of[6:12]


async def test_a_workflow_below_the_floor_has_jobs_above_it(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    entry = (await fetched(db))[await job_of(db, of, 1)]
    floor = await db.sql.fetchval("SELECT floor FROM watermark")
    await db.sql.execute("UPDATE watermark SET floor = $1", UUID(bytes=of[:12] + b"\0\1\0\0"))
    await db.master.outcomes.record_final([final(db.fence, entry)])
    await db.sql.execute("UPDATE watermark SET floor = $1", floor)
    assert await states(db, of) == [S, R]
    assert (await job_of(db, of, 2))[:6] > of[:6]


async def test_a_step_that_failed_shows_the_error_of_its_job(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    await end(db, of, 1, state="FAILED")
    assert [each.error for each in await db.master.workflows.steps(of)] == ["ValueError: no", ""]


async def test_workflows_are_listed_by_state_and_name_from_the_newest_on(db: MasterFixture) -> None:
    made = [workflow_id() for _ in range(4)]
    for of in made:
        await start(db, of, step(of, 1))
    await end(db, made[1], 1)

    async def listed(limit: int = 10, **only: Any) -> list[bytes]:
        return [found.id.bytes for found in await db.master.workflows.list(limit, **only)]

    assert await listed() == made[::-1]
    assert await listed(2) == [made[3], made[2]]
    assert await listed(2, before=made[2]) == [made[1], made[0]]
    assert await listed(states=[WorkflowState.SUCCEEDED]) == [made[1]]
    assert await listed(1, states=[WorkflowState.SUCCEEDED, WorkflowState.RUNNING]) == [made[3]]
    assert await listed(name="order") == made[::-1]
    assert await listed(name="another") == []


async def test_words_in_metadata_are_no_workflow(db: MasterFixture) -> None:
    headers = encode_headers(Headers(metadata={"workflow": '["x",1]', "a": '"workflow":["'}))
    await db.sql.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, due_at, args, headers) "
        "VALUES ($1, 'HELD', 3, 'default', 'handler', 1, now(), '{}', $2)",
        UUID(bytes=new_id()),
        headers,
    )
    assert await db.sql.fetchval("SELECT position('\"workflow\":['::bytea IN headers) FROM job") == 0
    assert await db.sql.fetchval("SELECT workflow_of(headers) FROM job") is None


async def test_ended_workflows_are_forgotten_after_their_retention(db: MasterFixture) -> None:
    old, running = workflow_id(), workflow_id()
    await start(db, old, step(old, 1))
    await end(db, old, 1)
    await start(db, running, step(running, 1))
    await db.sql.execute("UPDATE workflow SET ended_at = ended_at - interval '3 days'")
    assert await db.master.maintenance.forget(RecordKind.WORKFLOWS, 4.0, 100) == 0
    assert await db.master.maintenance.forget(RecordKind.WORKFLOWS, 2.0, 100) == 1
    assert await db.sql.fetchval("SELECT count(*) FROM workflow_step") == 1
    assert [found.id.bytes for found in await db.master.workflows.list(10)] == [running]


async def test_a_step_without_its_trace_context_keeps_what_its_metadata_says(db: MasterFixture) -> None:
    metadata, tenant = {"user": "1", "traceparent": "x"}, ("t",)
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    for plain, traced in (
        (Headers(metadata=metadata), Headers(metadata=metadata, traceparent=parent, trace_linked=True)),
        (
            Headers(metadata=metadata, tenant=tenant),
            Headers(metadata=metadata, traceparent=parent, tracestate="k=v", tenant=tenant),
        ),
        (Headers(metadata=metadata), Headers(metadata=metadata)),
    ):
        assert await db.sql.fetchval("SELECT untraced($1)", encode_headers(traced)) == encode_headers(plain).decode()
