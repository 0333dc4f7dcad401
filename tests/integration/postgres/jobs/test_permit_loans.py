"""Permits that the master lends to agents: shares, what is counted, and questions that come twice or late."""

from __future__ import annotations

import asyncio
from uuid import UUID

from jobmaster.clock import new_id
from jobmaster.model.flow.limit import LimitUse, LimitValues, LoanQuestion
from jobmaster.model.ids import AgentId, Fence
from tests.integration.postgres.fixture import MasterFixture, final_row, in_flight_row


async def declare(db: MasterFixture, running: int, rate: float | None = None) -> None:
    burst = None if rate is None else 1.0
    await db.master.limits.declare(db.owner, [LimitValues("api", running, rate, burst)])


async def ask(
    db: MasterFixture, wanted: int, *, keeps: int = 0, agent: bytes | None = None, number: int = 1
) -> tuple[int, int]:
    """Permits and share in the answer."""
    (loan,) = await db.master.limits.lend(agent or db.owner, [LoanQuestion("api", "", keeps, wanted, number)])
    return loan.permits, loan.share


async def admitted(db: MasterFixture, count: int, fence: Fence | None = None) -> list[bytes]:
    ids = [new_id() for _ in range(count)]
    uses = {each: (LimitUse("api", "", 1),) for each in ids}
    answer = await db.master.limits.admit(fence or db.fence, [in_flight_row(each) for each in ids], uses)
    return [each for each in ids if each in answer.written.accepted]


async def test_what_is_lent_is_taken(db: MasterFixture) -> None:
    await declare(db, 5)
    assert await ask(db, 3) == (3, 3)
    assert len(await admitted(db, 4)) == 2
    (view,) = await db.master.limits.list("api")
    assert (view.taken, view.keys) == (5, 1)


async def test_what_runs_is_not_lent(db: MasterFixture) -> None:
    await declare(db, 5)
    running = await admitted(db, 4)
    assert await ask(db, 5) == (1, 3), "the rest of its share is free when jobs have ended"
    await db.master.outcomes.record_final([final_row(each, db.fence) for each in running])
    assert await ask(db, 5, number=2) == (5, 5)


async def test_agents_share_by_max_min_fairness(db: MasterFixture) -> None:
    await declare(db, 10)
    second, third = await db.agent(new_id()), await db.agent(new_id())
    assert await ask(db, 20) == (10, 10)
    assert await ask(db, 20, agent=second) == (0, 5)
    assert await ask(db, 2, agent=third) == (0, 2)
    assert await ask(db, 20, keeps=4, number=2) == (4, 4)
    assert await ask(db, 2, agent=third, number=2) == (2, 2)
    assert await ask(db, 20, agent=second, number=2) == (4, 4)
    rows = await db.sql.fetch("SELECT sum(permits) FROM permit_loan")
    assert rows[0][0] == 10


async def test_with_more_agents_than_permits_nothing_is_lent(db: MasterFixture) -> None:
    """Those without one would wait for as long as the others want theirs."""
    await declare(db, 2)
    second, third = await db.agent(new_id()), await db.agent(new_id())
    await ask(db, 5, agent=second)
    await ask(db, 5, agent=third)
    assert await ask(db, 5) == (0, 0)


async def test_jobs_that_are_denied_by_admissions_have_a_share(db: MasterFixture) -> None:
    await declare(db, 4)
    assert await ask(db, 9) == (4, 4)
    assert not await admitted(db, 1)
    assert await ask(db, 9, keeps=2, number=2) == (2, 2)
    assert len(await admitted(db, 3)) == 2


async def test_a_question_that_comes_again_or_late_changes_nothing(db: MasterFixture) -> None:
    await declare(db, 4)
    assert await ask(db, 4, number=7) == (4, 4)
    question = LoanQuestion("api", "", 0, 1, 7)
    assert await db.master.limits.lend(db.owner, [question]) == []
    assert await db.master.limits.lend(db.owner, [question._replace(sequence=3)]) == []
    assert not await admitted(db, 1)


async def test_what_an_agent_keeps_it_has_also_when_the_limit_was_lowered(db: MasterFixture) -> None:
    await declare(db, 4)
    await ask(db, 4)
    await db.master.limits.set(LimitValues("api", 2, None, None), "ann", "")
    assert await ask(db, 4, keeps=3, number=2) == (3, 2)
    assert not await admitted(db, 1)
    assert await ask(db, 4, keeps=1, number=3) == (1, 1), "the job that was denied has a share"


async def test_loans_end_with_their_agent(db: MasterFixture) -> None:
    await declare(db, 2)
    other = await db.agent(new_id())
    assert await ask(db, 2, agent=other) == (2, 2)
    assert not await admitted(db, 1)
    await db.master.members.end_agent(other, dead=True, reason="test")
    assert await ask(db, 2, agent=other, number=2) == (0, 0)
    assert len(await admitted(db, 2)) == 2


async def test_loans_of_a_dead_agent_are_taken_until_the_last_of_its_buckets_is_rescued(db: MasterFixture) -> None:
    """Its lease has run out, and it may be suspended: it works on until the store has its bucket fenced."""
    await declare(db, 2)
    suspended, rescuer = await db.agent(new_id()), await db.agent(new_id())
    for _ in range(2):
        await db.bucket(suspended)
    assert await ask(db, 2, agent=suspended) == (2, 2)
    await db.master.members.end_agent(suspended, dead=True, reason="test")
    assert not await admitted(db, 1)
    assert await ask(db, 2) == (0, 0), "nor is it lent"
    (view,) = await db.master.limits.list("api")
    assert view.taken == 2
    first = await db.take(rescuer)
    assert not await admitted(db, 1), "it is not fenced yet"
    await db.master.members.end_agent(rescuer, dead=True, reason="test")
    other, again = await db.take(db.owner), await db.take(db.owner)
    assert again == first._replace(epoch=3, owner=AgentId(db.owner))
    await db.master.rescue.sweep(other, 10, max_rescues=3)
    assert not await admitted(db, 1), "the second rescuer has to fence the other one, too"
    await db.master.rescue.sweep(again, 10, max_rescues=3)
    assert len(await admitted(db, 2)) == 2


async def test_loans_of_an_agent_whose_process_was_seen_to_end_are_free_at_once(db: MasterFixture) -> None:
    await declare(db, 2)
    other = await db.agent(new_id())
    await db.bucket(other)
    assert await ask(db, 2, agent=other) == (2, 2)
    await db.master.members.end_agent(other, dead=True, reason="test", process_ended=True)
    assert len(await admitted(db, 2)) == 2


async def test_a_certificate_for_a_lease_that_ran_out_is_no_proof(db: MasterFixture) -> None:
    await declare(db, 2)
    other = await db.agent(new_id())
    await db.bucket(other)
    assert await ask(db, 2, agent=other) == (2, 2)
    await db.sql.execute("UPDATE agent SET lease_until = now() - interval '1 s' WHERE id = $1", UUID(bytes=other))
    await db.sql.execute("UPDATE agent SET held_since = '-infinity' WHERE id = $1", UUID(bytes=db.owner))
    await db.sql.execute("UPDATE agent SET lease_seconds = 0.001")
    assert await db.master.members.certify_dead(db.owner, 10) == [other]
    assert not await admitted(db, 1)


async def test_what_ended_agents_had_is_removed(db: MasterFixture) -> None:
    await declare(db, 9)
    gone, dead = await db.agent(new_id()), await db.agent(new_id())
    await db.bucket(dead)
    for agent in (gone, dead):
        await ask(db, 1, agent=agent)
        await db.master.members.end_agent(agent, dead=agent is dead, reason="test")
    await ask(db, 1)
    assert {row[0].bytes for row in await db.sql.fetch("SELECT agent_id FROM permit_loan")} == {dead, db.owner}


async def test_what_an_agent_does_not_borrow_any_more_is_removed_after_an_hour(db: MasterFixture) -> None:
    """Also when it wanted more, and had no share."""
    await declare(db, 1)
    second = await db.agent(new_id())
    await ask(db, 5, agent=second)
    assert await ask(db, 5) == (0, 0)
    await db.sql.execute("UPDATE permit_loan SET asked_at = asked_at - interval '2 hours', name = 'other'")
    await ask(db, 5, number=2)
    assert {row["name"] for row in await db.sql.fetch("SELECT name FROM permit_loan")} == {"other", "api"}
    kept = await db.sql.fetch("SELECT agent_id FROM permit_loan WHERE name = 'other'")
    assert [row[0].bytes for row in kept] == [second], "it has a permit"


async def test_a_heavy_job_that_was_denied_has_the_permits_that_it_needs(db: MasterFixture) -> None:
    """Shares alone would leave the admissions one of three for as long as the agent has light jobs."""
    await declare(db, 3)
    assert await ask(db, 9) == (3, 3)
    heavy = new_id()
    uses = {heavy: (LimitUse("api", "", 3),)}

    async def start() -> bool:
        answer = await db.master.limits.admit(db.fence, [in_flight_row(heavy)], uses)
        return heavy in answer.written.accepted

    assert not await start()
    assert not await admitted(db, 1), "a lighter one beside it"
    assert await ask(db, 9, keeps=3, number=2) == (3, 0)
    assert await ask(db, 9, number=3) == (0, 0)
    assert await start()
    await db.master.outcomes.record_final([final_row(heavy, db.fence)])
    await db.sql.execute("UPDATE limit_state SET waiting_at = now() - interval '1 min', weighed_at = waiting_at")
    assert await ask(db, 9, number=4) == (3, 3)


async def test_of_a_limit_that_was_raised_a_heavier_job_takes_more_than_before(db: MasterFixture) -> None:
    await declare(db, 2)
    heavy = new_id()
    await db.master.limits.admit(db.fence, [in_flight_row(heavy)], {heavy: (LimitUse("api", "", 4),)})
    await db.master.limits.set(LimitValues("api", 5, None, None), "ann", "")
    assert (await ask(db, 9))[0] == 1


async def test_an_unknown_agent_has_no_loan(db: MasterFixture) -> None:
    await declare(db, 2)
    assert await ask(db, 2, agent=new_id()) == (0, 0)
    assert await db.sql.fetchval("SELECT count(*) FROM permit_loan") == 0


async def test_a_rate_and_an_unknown_limit_are_not_lent(db: MasterFixture) -> None:
    assert await ask(db, 2) == (0, 0)
    await declare(db, 2, rate=5.0)
    assert await ask(db, 2, number=2) == (0, 0)


async def test_two_agents_that_ask_at_once_never_have_more_than_the_limit(db: MasterFixture) -> None:
    await declare(db, 3)
    second = await db.agent(new_id())
    for number in range(1, 30):
        await db.sql.execute("DELETE FROM permit_loan")
        found = await asyncio.gather(
            ask(db, 9, number=number), ask(db, 9, agent=second, number=number), admitted(db, 2)
        )
        (one, _), (two, _), jobs = found
        assert one + two + len(jobs) <= 3
        await db.master.outcomes.record_final([final_row(each, db.fence) for each in jobs])
