"""The views that people and the pipeline rely on."""

from __future__ import annotations

import json
from datetime import timedelta

from jobmaster.clock import new_id
from jobmaster.model.ids import created_ms
from tests.integration.postgres.fixture import ERROR, TIMEOUT, MasterFixture, final_row, hold_row, new_job, uuids


async def test_jobs_shows_words_and_json(db: MasterFixture) -> None:
    done, held = new_id(), new_id()
    row = final_row(done, db.fence)._replace(
        priority=5, args=b'{"path":"\\u0000"}', headers=b'{"tags":["a"]}', result=b"[1,2]", ran_us=2_000_000
    )
    await db.master.outcomes.record_final([row])
    await db.master.intake.insert_held([new_job(held)])
    rows = {row["id"]: row for row in await db.sql.fetch("SELECT * FROM jobs")}
    final = rows[uuids([done])[0]]
    assert (final["state"], final["priority"], final["handler"]) == ("SUCCEEDED", "critical", "handler")
    assert int(final["created_at"].timestamp() * 1000) == created_ms(done)
    assert final["ended_at"] - final["started_at"] == timedelta(seconds=2)
    assert json.loads(final["headers"]) == {"tags": ["a"]}
    assert json.loads(final["result"]) == [1, 2]
    assert final["args"] == '{"path":"\\u0000"}'
    waiting = rows[uuids([held])[0]]
    assert (waiting["state"], waiting["priority"], waiting["headers"]) == ("HELD", "medium", "{}")
    assert (waiting["ended_at"], waiting["started_at"], waiting["result"]) == (None, None, None)


async def test_the_ledger_has_one_line_an_identity_and_one_that_concludes(db: MasterFixture) -> None:
    """Failed, retried here, timed out, held, assigned again, finished: four identities, four lines."""
    (job_id,) = await db.assigned()
    master, fence = db.master, db.fence
    await master.outcomes.retry_here(fence, [hold_row(job_id, 2, error=ERROR, attempt=1, due_us=1)])
    await master.outcomes.hold(fence, [hold_row(job_id, 3, error=TIMEOUT, attempt=2)])
    await master.onboarding.onboard(fence, "default", 3, 60.0, 10)
    assert (await master.outcomes.record_final([final_row(job_id, fence, 4)])).accepted == {job_id}
    assert (await master.outcomes.record_final([final_row(job_id, fence, 2)])).refused == {job_id}, (
        "a zombie of the first try"
    )
    lines = await db.sql.fetch("SELECT token, outcome, concluding, refused_count FROM ledger ORDER BY token")
    assert [tuple(line) for line in lines] == [
        (2, "failed", False, 1), (3, "timed_out", False, 0), (4, "succeeded", True, 0),
    ]  # fmt: skip


async def test_buckets_and_agents_are_shown_with_what_they_hold(db: MasterFixture) -> None:
    await db.assigned(3)
    await db.master.leadership.acquire(db.owner, 1, 60.0)
    bucket = (await db.sql.fetch("SELECT * FROM bucket_status"))[0]
    assert (bucket["state"], bucket["priority"], bucket["owner_name"], bucket["owner_state"], bucket["in_flight"]) == (
        "ACTIVE", "medium", "agent", "ACTIVE", 3,
    )  # fmt: skip
    agent = (await db.sql.fetch("SELECT * FROM agent_status"))[0]
    assert (agent["healthy"], agent["leader"], agent["buckets"]) == (True, True, 1)
    await db.lost()
    agent = (await db.sql.fetch("SELECT * FROM agent_status"))[0]
    assert (agent["healthy"], agent["state"], agent["ended_reason"]) == (False, "DEAD", "test")
