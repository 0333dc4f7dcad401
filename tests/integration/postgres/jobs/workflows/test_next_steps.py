"""The next step of a workflow comes with the answer to the outcome of the step before it, assigned to the same bucket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobmaster.codec import encode_headers
from jobmaster.model.flow.workflow import WorkflowState
from jobmaster.model.ids import text
from jobmaster.model.job import Headers
from jobmaster.ports import StepScope
from tests.integration.postgres.fixture import LANE, PRIORITY, SCHEMA, MasterFixture
from tests.integration.postgres.jobs.workflows.workflow_steps import (
    fetched,
    final,
    job_of,
    read,
    start,
    step,
    workflow_id,
)
from tests.support.patience import PATIENCE_SECONDS


def scope(**other: Any) -> StepScope:
    return StepScope(LANE, PRIORITY, ["handler"])._replace(**other)


async def test_the_next_step_comes_with_the_answer_in_the_bucket_of_the_one_before(db: MasterFixture) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1, args=b'{"a":}', refs="[[5,1,[]]]"))
    row = final(db.fence, (await fetched(db))[await job_of(db, of, 1)])
    finished = await db.master.outcomes.finish_steps(db.fence, [row], scope())
    second = await job_of(db, of, 2)
    assert (set(finished.written.accepted), finished.more) == ({row.id}, False)
    (entry,) = finished.entries
    assert (entry.id, entry.token, entry.args) == (second, 2, b'{"a":1}')
    view = await db.view(second)
    assert (view.state.value, view.bucket_id, view.bucket_epoch) == ("ASSIGNED", db.fence.bucket_id, db.fence.epoch)
    again = await db.master.outcomes.finish_steps(db.fence, [row], scope())
    assert (set(again.written.accepted), list(again.entries)) == ({row.id}, []), (
        "sent again, it names none: it lacks a copy"
    )
    last = await db.master.outcomes.finish_steps(db.fence, [final(db.fence, entry)], scope())
    assert (set(last.written.accepted), list(last.entries)) == ({second}, [])
    assert (await read(db, of)).state is WorkflowState.SUCCEEDED


@pytest.mark.parametrize(
    "other",
    [{"handlers": ["another"]}, {"lane": "another"}, {"priority": PRIORITY + 1}, {"without_tags": ["paused"]},
     {"capabilities": []}],
)  # fmt: skip
async def test_a_next_step_that_the_bucket_cannot_run_is_held(db: MasterFixture, other: dict[str, Any]) -> None:
    of = workflow_id()
    headers = encode_headers(Headers(workflow=(text(of), 2), tags=("paused",), complete_seconds=9.0))
    await start(db, of, step(of, 1), step(of, 2, 1)._replace(headers=headers))
    row = final(db.fence, (await fetched(db))[await job_of(db, of, 1)])
    listener, heard = await db.connect(), asyncio.Event()
    await listener.add_listener(SCHEMA, lambda *_: heard.set())
    finished = await db.master.outcomes.finish_steps(db.fence, [row], scope(**other))
    assert (set(finished.written.accepted), list(finished.entries), finished.more) == ({row.id}, [], False)
    assert await db.state(await job_of(db, of, 2)) == "HELD"
    await asyncio.wait_for(heard.wait(), PATIENCE_SECONDS)  # the leader is notified
    await listener.close()


@pytest.mark.parametrize("change", ["state = 'COMPLETING'", "epoch = 2", "owner = gen_random_uuid()"])
async def test_a_bucket_that_is_not_the_callers_gets_no_next_step(db: MasterFixture, change: str) -> None:
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    row = final(db.fence, (await fetched(db))[await job_of(db, of, 1)])
    await db.sql.execute(f"UPDATE bucket SET {change}")
    finished = await db.master.outcomes.finish_steps(db.fence, [row], scope())
    assert (set(finished.written.accepted), list(finished.entries)) == ({row.id}, [])
    assert await db.state(await job_of(db, of, 2)) == "HELD"


async def test_a_bucket_that_is_being_taken_is_not_waited_for(db: MasterFixture) -> None:
    """The call has locked jobs: to wait for the bucket could be a deadlock."""
    of = workflow_id()
    await start(db, of, step(of, 1), step(of, 2, 1))
    row = final(db.fence, (await fetched(db))[await job_of(db, of, 1)])
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE bucket SET state = 'LOST'")
    finished = await db.master.outcomes.finish_steps(db.fence, [row], scope())
    assert (set(finished.written.accepted), list(finished.entries)) == ({row.id}, [])
    await transaction.rollback()
    await other.close()


async def test_a_bucket_takes_as_many_next_steps_as_have_ended(db: MasterFixture) -> None:
    """The rest of a group is for every bucket with room."""
    of = workflow_id()
    await start(db, of, step(of, 1), *(step(of, number, 1) for number in range(2, 6)))
    row = final(db.fence, (await fetched(db))[await job_of(db, of, 1)])
    finished = await db.master.outcomes.finish_steps(db.fence, [row], scope())
    assert [entry.id for entry in finished.entries] == [await job_of(db, of, 2)]
    assert finished.more
    held = await db.sql.fetchval("SELECT count(*) FROM job WHERE state = 'HELD'")
    assert held == 3
