"""Changes of schedules: of a definition, pauses, removal, and what agents declare: no fire is made twice, none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.model.schedule import FireOutcome, Overlap, Schedule, ScheduleSource
from jobmaster.rules.recurrence import next_fire_us
from tests.integration.postgres.fixture import MasterFixture, final_row
from tests.integration.postgres.jobs.schedule_steps import (
    SECOND,
    fire,
    fires,
    jobs,
    now_us,
    outcomes,
    put,
    row,
    run_now,
    schedule,
    second_fire,
    soon,
)

# ------------------------------------------------------------ changes, pauses, removal


@pytest.mark.parametrize("how", ["pause", "remove", "put"])
async def test_a_change_cancels_the_jobs_of_fires_that_lie_ahead(db: MasterFixture, how: str) -> None:
    past = await soon(db, -2.0, overlap=Overlap.PARALLEL)
    ahead = await now_us(db) + 20 * SECOND
    await fire(db, past, ahead)
    await fire(db, ahead, ahead + 60 * SECOND)
    if how == "pause":
        assert await db.master.schedules.pause(["nightly"], None, "me", "audit") == ["nightly"]
    elif how == "remove":
        assert await db.master.schedules.remove(None, None, "me") == ["nightly"]
    else:
        await put(db, schedule(overlap=Overlap.PARALLEL, args=b'{"n":2}'))
    assert await outcomes(db) == ["fired", "withdrawn"]
    states = [await db.state(line.job_id) for line in await fires(db) if line.job_id]
    assert states == ["HELD", "CANCELLED"]


@pytest.mark.parametrize("onboarded", [False, True])
@pytest.mark.parametrize("how", ["pause", "remove", "put", "retire"])
async def test_a_change_cancels_a_job_whose_jitter_has_not_passed(db: MasterFixture, how: str, onboarded: bool) -> None:
    """Its nominal time has passed, so its fire is not decided again."""
    at = await now_us(db) - 5 * SECOND
    if how == "retire":
        await db.master.schedules.publish(
            db.owner, ScheduleSource.CODE, [schedule(jitter_seconds=600.0)], lambda *_: at
        )
    else:
        await put(db, schedule(jitter_seconds=600.0), next_us=at)
    await fire(db, at, at + 3600 * SECOND)
    await db.sql.execute("UPDATE job SET due_at = clock_timestamp() + interval '5 minutes'")
    if onboarded:
        await db.master.onboarding.onboard(db.fence, "default", 3, 1e6, 10)
    if how == "pause":
        await db.master.schedules.pause(["nightly"], None, "me", "audit")
    elif how == "remove":
        await db.master.schedules.remove(None, None, "me")
    elif how == "put":
        await put(db, schedule(args=b'{"n":2}'))
        assert ((await row(db)).next_us or 0) > await now_us(db)
    else:
        await db.lost()
        assert [await db.master.schedules.retire_undeclared(0.0) for _ in range(2)] == [[], ["nightly"]]
    (line,) = await fires(db)
    assert line.job_id is not None
    assert line.outcome is FireOutcome.WITHDRAWN
    assert onboarded or await db.state(line.job_id) == "CANCELLED"
    assert (await db.view(line.job_id)).cancel_requested


async def test_a_change_leaves_jobs_that_have_begun_or_were_made_by_a_person(db: MasterFixture) -> None:
    at = await now_us(db) - 5 * SECOND
    await put(db, schedule(jitter_seconds=600.0, overlap=Overlap.PARALLEL), next_us=at)
    await fire(db, at, at + 3600 * SECOND)
    await db.sql.execute("UPDATE job SET attempt = 1")
    assert await run_now(db) is FireOutcome.FIRED
    await db.sql.execute("UPDATE job SET due_at = clock_timestamp() + interval '5 minutes'")
    await db.master.schedules.remove(None, None, "me")
    assert await outcomes(db) == ["fired", "fired"]


async def test_a_withdrawn_fire_is_fired_again_when_its_job_is_cancelled(db: MasterFixture) -> None:
    """Else a change of the arguments in the lead of the nightly report would cost that report."""
    at = await soon(db, overlap=Overlap.PARALLEL)
    await fire(db, at, at + 60 * SECOND)
    await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)
    await put(db, schedule(overlap=Overlap.PARALLEL, args=b'{"n":2}'), next_us=at)
    (line,) = await fires(db)
    assert line.job_id is not None
    assert (await db.view(line.job_id)).cancel_requested
    await fire(db, at, at + 60 * SECOND)
    assert (await outcomes(db), (await row(db)).next_us) == (["withdrawn"], at), "its owner has not obeyed yet"
    await db.master.outcomes.cancel_waiting([db.fence], [line.job_id])
    await fire(db, at, at + 60 * SECOND)
    (again,) = await fires(db)
    assert again.outcome is FireOutcome.FIRED
    assert again.job_id is not None
    assert again.job_id != line.job_id
    assert await db.sql.fetchval("SELECT args FROM job WHERE state = 'HELD'") == b'{"n":2}'


async def test_a_withdrawn_fire_that_ran_all_the_same_is_not_fired_again(db: MasterFixture) -> None:
    at = await soon(db, overlap=Overlap.PARALLEL)
    await fire(db, at, at + 60 * SECOND)
    (line,) = await fires(db)
    await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)
    await put(db, schedule(overlap=Overlap.PARALLEL, args=b'{"n":2}'), next_us=at)
    assert line.job_id is not None
    await db.master.outcomes.record_final([final_row(line.job_id, db.fence, 2)])
    (decided,) = await fire(db, at, at + 60 * SECOND)
    assert decided.outcome == "ran"
    assert (await fires(db), await jobs(db)) == ([line], 1)


async def test_a_withdrawn_fire_whose_job_was_retired_is_not_fired_again(db: MasterFixture) -> None:
    """Whether the job ran is not known any more."""
    at = await soon(db, overlap=Overlap.PARALLEL)
    await fire(db, at, at + 60 * SECOND)
    await put(db, schedule(overlap=Overlap.PARALLEL, args=b'{"n":2}'), next_us=at)
    await db.sql.execute("DELETE FROM job")
    (decided,) = await fire(db, at, at + 60 * SECOND)
    assert (decided.outcome, await outcomes(db), await jobs(db)) == ("known", ["withdrawn"], 0)


async def test_a_paused_schedule_does_not_fire_until_it_is_resumed(db: MasterFixture) -> None:
    at = await soon(db, 0.0)
    await db.master.schedules.pause(["nightly"], None, "me", "audit")
    paused = await row(db)
    assert (paused.paused_by, paused.paused_reason, await db.master.schedules.due(10)) == ("me", "audit", [])
    assert await fire(db, at, at + SECOND) == []
    assert await db.master.schedules.pause(["nightly"], None, "you", "") == [], "it is paused already"
    assert await db.master.schedules.resume([paused], next_fire_us, "me") == ["nightly"]
    resumed = await row(db)
    assert resumed.next_us == next_fire_us(resumed.schedule, await now_us(db))
    assert await db.master.schedules.resume([paused], next_fire_us, "me") == [], "it was read before its last change"
    log = await db.sql.fetch("SELECT actor, action, subject FROM operator_log ORDER BY seq")
    assert [tuple(each) for each in log] == [("me", "schedule pause", "nightly"), ("me", "schedule resume", "nightly")]


async def overdue(db: MasterFixture, **fields: Any) -> int:
    """A schedule with one fire behind it, and one that nothing has decided in time; the time of the latter."""
    first = await now_us(db) - 7200 * SECOND
    await put(db, schedule(**fields), next_us=first)
    await fire(db, first, first + 3600 * SECOND)
    return first + 3600 * SECOND


async def test_a_change_keeps_a_fire_that_is_overdue(db: MasterFixture) -> None:
    """The misfire rule decides it, as without the change."""
    at = await overdue(db)
    await put(db, schedule(args=b'{"n":2}'))
    assert (await row(db)).next_us == at
    assert [each.next_us for each in await db.master.schedules.due(10)] == [at]
    await fire(db, at, at + 3600 * SECOND)
    assert await db.sql.fetchval("SELECT to_us(max(previous)) FROM schedule_fire") == at - 3600 * SECOND


async def test_a_change_keeps_a_fire_that_waits_for_the_end_of_an_earlier_job(db: MasterFixture) -> None:
    _, second = await second_fire(db, Overlap.QUEUE)
    waits_until = await db.sql.fetchval("SELECT decide_at FROM schedule")
    await put(db, schedule(args=b'{"n":2}', overlap=Overlap.QUEUE))
    assert (await row(db)).next_us == second
    assert await db.sql.fetchval("SELECT decide_at FROM schedule") == waits_until, "else it would be a misfire"


@pytest.mark.parametrize("days", [0, 2])
async def test_a_definition_that_comes_back_within_a_day_keeps_its_overdue_fire(db: MasterFixture, days: int) -> None:
    """Agents may only have been down. After a day it is a new beginning."""
    at = await now_us(db) - 60 * SECOND
    await db.master.schedules.publish(db.owner, ScheduleSource.CODE, [schedule()], lambda *_: at)
    await db.lost()
    assert [await db.master.schedules.retire_undeclared(0.0) for _ in range(2)] == [[], ["nightly"]]
    await db.sql.execute("UPDATE schedule SET retired_at = retired_at - $1 * interval '1 day'", days)
    assert await declare(db, await db.agent(new_id()), schedule()) == []
    assert ((await row(db)).next_us == at) is (days == 0)
    assert len(await db.master.schedules.due(10)) == (days == 0)


async def test_an_overdue_fire_of_a_removed_schedule_is_not_made_up_for(db: MasterFixture) -> None:
    at = await overdue(db)
    await db.master.schedules.remove(None, None, "me")
    await put(db, schedule())
    assert ((await row(db)).next_us or 0) > at + 3600 * SECOND


async def test_an_overdue_fire_of_a_removed_schedule_is_not_made_up_for_when_agents_declare_it_again(
    db: MasterFixture,
) -> None:
    at = await now_us(db) - 60 * SECOND
    await db.master.schedules.publish(db.owner, ScheduleSource.CODE, [schedule()], lambda *_: at)
    await db.master.schedules.remove(None, None, "me")
    assert await declare(db, await db.agent(new_id()), schedule()) == []
    assert ((await row(db)).next_us or 0) > await now_us(db)


@pytest.mark.parametrize("changed", [False, True])
async def test_a_fire_that_was_overdue_when_a_pause_began_gets_a_line(db: MasterFixture, changed: bool) -> None:
    at = await overdue(db)
    await db.master.schedules.pause(["nightly"], None, "me", "")
    if changed:
        await put(db, schedule(args=b'{"n":2}'))
        assert await db.master.schedules.due(10) == []
    paused = await row(db)
    assert await db.master.schedules.resume([paused], next_fire_us, "me") == ["nightly"]
    line = (await fires(db))[-1]
    assert (line.nominal_us, line.outcome, line.through_us) == (at, FireOutcome.MISSED, paused.paused_us)
    assert ((await row(db)).next_us or 0) > await now_us(db)


async def test_what_falls_into_a_pause_gets_no_line(db: MasterFixture) -> None:
    at = await soon(db)
    await db.master.schedules.pause(["nightly"], None, "me", "")
    await db.sql.execute("UPDATE schedule SET next_fire = from_us($1), paused_at = from_us($1) - interval '1s'", at)
    await db.master.schedules.resume([await row(db)], next_fire_us, "me")
    assert await outcomes(db) == []


async def test_schedules_are_named_by_a_tag(db: MasterFixture) -> None:
    await put(db, schedule("a", tags=("x",)), schedule("b", tags=("x", "y")), schedule("c"))
    assert [each.schedule.name for each in await db.master.schedules.list(tag="x")] == ["a", "b"]
    assert await db.master.schedules.pause(None, "y", "me", "") == ["b"]
    assert await db.master.schedules.remove(None, "x", "me") == ["a", "b"]
    assert [each.schedule.name for each in await db.master.schedules.list()] == ["c"]
    assert [each.schedule.name for each in await db.master.schedules.list(after="a", limit=1)] == ["c"]


async def test_a_put_keeps_the_pause_and_unretires(db: MasterFixture) -> None:
    await put(db, schedule())
    await db.master.schedules.pause(None, None, "me", "")
    await put(db, schedule(expression="60s"))
    assert ((await row(db)).paused_us, (await row(db)).schedule.expression) != (None, "3600s")
    await db.master.schedules.remove(None, None, "me")
    await put(db, schedule(expression="60s"))
    assert (await row(db)).retired_us is None


# ------------------------------------------------------------ agents declare


async def declare(db: MasterFixture, agent: bytes, *schedules: Schedule) -> list[str]:
    return await db.master.schedules.publish(agent, ScheduleSource.CODE, schedules, next_fire_us)


async def test_an_agent_replaces_the_definition_of_one_that_started_earlier_and_never_the_other_way(
    db: MasterFixture,
) -> None:
    old, new = db.owner, await db.agent(new_id())
    assert await declare(db, new, schedule(expression="60s")) == []
    assert await declare(db, old, schedule(expression="3600s")) == ["nightly"]
    assert (await row(db)).schedule.expression == "60s"
    newest = await db.agent(new_id())
    assert await declare(db, newest, schedule(expression="3600s")) == []
    assert (await row(db)).schedule.expression == "3600s"


async def test_a_restarted_agent_of_the_old_version_brings_its_definition_not_back(db: MasterFixture) -> None:
    """Else it would stand for ever, once the old agents are stopped."""
    old, new = schedule(expression="3600s"), schedule(expression="60s")
    green = await db.agent(new_id())
    await declare(db, db.owner, old)
    assert await declare(db, green, new) == []
    restarted = await db.agent(new_id())
    assert await declare(db, restarted, old) == ["nightly"]
    assert (await row(db)).schedule.expression == "60s"
    assert await db.master.schedules.to_republish([old]) == [], "a living agent declares the present one"
    newer = await db.agent(new_id())
    assert await declare(db, newer, schedule(expression="7s")) == []
    assert await declare(db, await db.agent(new_id()), new) == ["nightly"]
    assert (await row(db)).schedule.expression == "7s"


async def test_a_deploy_that_is_taken_back_ends_with_the_definition_of_the_agents_that_are_left(
    db: MasterFixture,
) -> None:
    old, new = schedule(expression="3600s"), schedule(expression="60s")
    blue, green = await db.agent(new_id()), await db.agent(new_id())
    await declare(db, blue, old)
    await declare(db, green, new)
    assert await declare(db, blue, old) == ["nightly"]
    await db.master.members.end_agent(green, dead=True, reason="test")
    assert await db.master.schedules.to_republish([old, schedule("unknown")]) == ["nightly"]
    assert await declare(db, blue, old) == []
    assert (await row(db)).schedule.expression == "3600s"
    assert await db.master.schedules.to_republish([old]) == []
    assert await declare(db, await db.agent(new_id()), new) == [], "the deploy is repeated"
    assert (await row(db)).schedule.expression == "60s"


async def test_a_program_may_put_an_earlier_definition_again(db: MasterFixture) -> None:
    for expression in ("3600s", "60s", "3600s"):
        await put(db, schedule(expression=expression))
        assert (await row(db)).schedule.expression == expression
    assert await db.master.schedules.to_republish([schedule(expression="60s")]) == []


async def test_the_same_definition_again_changes_nothing_but_its_start(db: MasterFixture) -> None:
    await declare(db, db.owner, schedule())
    before = await row(db)
    await fire(db, before.next_us or 0, (before.next_us or 0) + 7 * SECOND)
    again = await db.agent(new_id())
    await declare(db, again, schedule())
    after = await row(db)
    assert (after.revision, after.next_us) == (before.revision, (before.next_us or 0) + 7 * SECOND)
    assert after.declared_us > before.declared_us
    assert await outcomes(db) == ["fired"]


async def test_code_and_the_api_do_not_take_each_others_schedules(db: MasterFixture) -> None:
    await put(db, schedule("mine"))
    assert await declare(db, db.owner, schedule("mine"), schedule("theirs")) == ["mine"]
    assert await db.master.schedules.put([schedule("theirs", expression="60s")], next_fire_us) == ["theirs"]
    await db.master.schedules.remove(["theirs"], None, "me")
    assert await db.master.schedules.put([schedule("theirs", expression="60s")], next_fire_us) == []


async def test_what_no_living_agent_declares_is_retired_once_after_the_grace(db: MasterFixture) -> None:
    await put(db, schedule("api"))
    await declare(db, db.owner, schedule(overlap=Overlap.PARALLEL))
    assert await db.master.schedules.retire_undeclared(0.0) == []
    await fire(db, (await row(db)).next_us or 0, 0)
    await db.lost()
    assert await db.master.schedules.retire_undeclared(0.0) == [], "the grace begins now"
    assert await db.master.schedules.retire_undeclared(60.0) == []
    assert await db.master.schedules.retire_undeclared(0.0) == ["nightly"]
    assert await db.master.schedules.retire_undeclared(0.0) == []
    assert await outcomes(db) == ["withdrawn"], "a job that lies ahead is cancelled with it"
    assert ((await row(db)).retired_us, (await row(db, "api")).retired_us) != (None, 0)
    back = await db.agent(new_id())
    assert await declare(db, back, schedule(overlap=Overlap.PARALLEL)) == []
    assert (await row(db)).retired_us is None


async def test_one_living_agent_that_declares_it_keeps_it(db: MasterFixture) -> None:
    other = await db.agent(new_id())
    await declare(db, db.owner, schedule())
    await declare(db, other, schedule())
    await db.lost()
    for _ in range(2):
        assert await db.master.schedules.retire_undeclared(0.0) == []
