"""The statements of schedules: one job per nominal time, whatever the callers do, and a line for every fire."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_fire_headers
from jobmaster.model.schedule import LEAD_SECONDS, Fire, FireOutcome, Overlap
from jobmaster.ports import RecordKind, ScheduleMove
from tests.integration.postgres.fixture import MasterFixture
from tests.integration.postgres.jobs.schedule_steps import (
    SECOND,
    end,
    fire,
    fires,
    jobs,
    new_fire,
    now_us,
    outcomes,
    put,
    row,
    run_now,
    schedule,
    second_fire,
    soon,
)

# ------------------------------------------------------------ fires


async def test_a_fire_is_a_held_job_with_its_line(db: MasterFixture) -> None:
    at = await soon(db, args=b'{"day":1}', priority=4, lane="reports", overlap=Overlap.PARALLEL)
    (line,) = await fire(db, at, at + 60 * SECOND)
    assert (line.outcome, line.lane, line.priority, line.due_us) == ("fired", "reports", 4, at)
    (recorded,) = await fires(db)
    assert (recorded.nominal_us, recorded.outcome, recorded.manual) == (at, FireOutcome.FIRED, False)
    assert recorded.job_id is not None
    view = await db.view(recorded.job_id)
    assert (view.state.value, view.lane, view.priority, view.handler) == ("HELD", "reports", 4, "handler")
    assert await db.sql.fetchval("SELECT args FROM job") == b'{"day":1}'
    headers = decode_headers(await db.sql.fetchval("SELECT headers FROM job"))
    assert (headers.schedule, headers.nominal_us) == ("nightly", at)
    assert (await row(db)).next_us == at + 60 * SECOND


async def test_a_fire_is_decided_once_by_whoever_asks(db: MasterFixture) -> None:
    at = await soon(db)
    read = await row(db)
    move = ScheduleMove("nightly", at, read.revision, at + SECOND)
    assert len(await db.master.schedules.fire([move], [new_fire(read.schedule, at)], 30.0, 1)) == 1
    assert await db.master.schedules.fire([move], [new_fire(read.schedule, at)], 30.0, 1) == []
    assert await jobs(db) == 1


async def test_two_leaders_that_race_make_one_job(db: MasterFixture) -> None:
    """The second waits for the first one's lock, reads the row again, and finds its fire decided."""
    at = await soon(db)
    read = await row(db)
    other = await db.connect()
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT 1 FROM schedule FOR UPDATE")
        move = ScheduleMove("nightly", at, read.revision, at + SECOND)
        calls = [
            asyncio.create_task(db.master.schedules.fire([move], [new_fire(read.schedule, at)], 30.0, n))
            for n in (1, 2)
        ]
        await db.waiting("schedules/fire", 2)
        await transaction.commit()
    finally:
        await other.close()
    decided = await asyncio.gather(*calls)
    assert sorted(map(len, decided)) == [0, 1]
    assert (await jobs(db), await outcomes(db)) == (1, ["fired"])


async def test_a_fire_whose_line_stands_makes_no_second_job(db: MasterFixture) -> None:
    """The second guard: the row was set back, as by a failover or a hand."""
    at = await soon(db)
    await fire(db, at, at + SECOND)
    await db.sql.execute("UPDATE schedule SET next_fire = from_us($1)", at)
    (line,) = await fire(db, at, at + SECOND)
    assert line.outcome == "known"
    assert await jobs(db) == 1


async def test_a_changed_schedule_does_not_fire_as_it_was_read(db: MasterFixture) -> None:
    at = await soon(db)
    read = await row(db)
    await put(db, schedule(args=b'{"n":2}'), next_us=at)
    move = ScheduleMove("nightly", at, read.revision, at + SECOND)
    assert await db.master.schedules.fire([move], [new_fire(read.schedule, at)], 30.0, 1) == []
    assert await jobs(db) == 0


async def test_missed_fires_have_lines_and_no_jobs(db: MasterFixture) -> None:
    at = await now_us(db) - 100 * SECOND
    await put(db, schedule(), next_us=at)
    read = await row(db)
    lines = [new_fire(read.schedule, at + n * SECOND, o) for n, o in enumerate(["missed", "missed", "fired"])]
    await db.master.schedules.fire([ScheduleMove("nightly", at, read.revision, at + 9 * SECOND)], lines, 30.0, 1)
    assert await outcomes(db) == ["missed", "missed", "fired"]
    assert await jobs(db) == 1
    previous = await db.sql.fetch("SELECT to_us(previous) FROM schedule_fire ORDER BY nominal")
    assert [each[0] for each in previous] == [None, at, at + SECOND]


async def test_a_move_without_lines_puts_off_the_next_look_and_keeps_the_next_fire(db: MasterFixture) -> None:
    at = await now_us(db) - 20 * SECOND
    await put(db, schedule(overlap=Overlap.PARALLEL), next_us=at)
    assert [due.schedule.name for due in await db.master.schedules.due(10)] == ["nightly"]
    move = ScheduleMove("nightly", at, (await row(db)).revision, at)
    assert await db.master.schedules.fire([move], [], -80.0, 1) == []
    assert await db.master.schedules.due(10) == []
    assert (await row(db)).next_us == at
    decide_us = await db.sql.fetchval("SELECT to_us(decide_at) FROM schedule")
    assert decide_us == at + 80 * SECOND


async def test_an_ended_schedule_is_not_looked_at(db: MasterFixture) -> None:
    at = await soon(db, 0.0)
    assert len(await db.master.schedules.due(10)) == 1
    await fire(db, at, 0)
    assert (await row(db)).next_us is None
    assert await db.master.schedules.due(10) == []


# ------------------------------------------------------------ overlap


async def test_overlap_skip_leaves_a_line_and_no_job(db: MasterFixture) -> None:
    _, second = await second_fire(db, Overlap.SKIP)
    assert await outcomes(db) == ["fired", "skipped"]
    assert (await jobs(db), (await row(db)).next_us) == (1, second + 60 * SECOND)


async def test_overlap_counts_at_the_nominal_time_and_not_in_the_lead(db: MasterFixture) -> None:
    """The job of the earlier fire may end before it."""
    first, second = await second_fire(db, Overlap.SKIP, ahead=True)
    assert (await outcomes(db), (await row(db)).next_us) == (["fired"], second)
    assert await db.master.schedules.due(10) == [], "it is looked at again at its nominal time"
    await end(db, first.job_id)
    (line,) = await fire(db, second, second + 60 * SECOND)
    assert line.outcome == "fired"


async def test_overlap_queue_waits_for_the_end_of_the_earlier_job(db: MasterFixture) -> None:
    first, second = await second_fire(db, Overlap.QUEUE)
    assert (await outcomes(db), (await row(db)).next_us) == (["fired"], second)
    await end(db, first.job_id)
    await fire(db, second, second + 60 * SECOND)
    assert await outcomes(db) == ["fired", "fired"]


async def test_a_fire_that_waits_is_looked_at_less_often_the_longer_it_waits(db: MasterFixture) -> None:
    """From one second to fifteen, counted from the last change of the job that it waits for."""
    _, second = await second_fire(db, Overlap.QUEUE)
    pauses = []
    for seconds in (0, 4, 3600):
        await db.sql.execute("UPDATE job SET changed_at = clock_timestamp() - make_interval(secs => $1)", seconds)
        await db.sql.execute(
            "UPDATE schedule SET next_fire = from_us($1)", second := await now_us(db) - (3600 * SECOND + seconds)
        )
        before = await now_us(db)
        await fire(db, second, second + 60 * SECOND)
        pauses.append((int(await db.sql.fetchval("SELECT to_us(decide_at) FROM schedule")) - before) / SECOND)
    assert await jobs(db) == 1
    assert 1.0 <= pauses[0] < 3.0 < 4.0 <= pauses[1] < 14.0 < 15.0 <= pauses[2] < 17.0


async def test_overlap_parallel_asks_nothing(db: MasterFixture) -> None:
    await second_fire(db, Overlap.PARALLEL)
    assert await outcomes(db) == ["fired", "fired"]


async def test_overlap_cancel_previous_cancels_a_held_job_and_flags_one_in_flight(db: MasterFixture) -> None:
    first, second = await second_fire(db, Overlap.CANCEL_PREVIOUS)
    assert first.job_id is not None
    assert (await db.state(first.job_id), await outcomes(db)) == ("CANCELLED", ["fired", "fired"])
    running = (await fires(db))[1].job_id
    assert running is not None
    await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)
    await fire(db, second + 60 * SECOND, 0)
    assert (await outcomes(db))[2:] == [], "the job that is cancelled has not ended, and its successor lies ahead"
    await db.sql.execute("UPDATE schedule SET next_fire = next_fire - interval '1 hour'")
    await fire(db, second - 3540 * SECOND, 0)
    assert (await db.state(running), (await db.view(running)).cancel_requested) == ("ASSIGNED", True)


# ------------------------------------------------------------ run now


async def test_run_now_is_one_fire_beside_the_recurrence(db: MasterFixture) -> None:
    at = await soon(db)
    assert await run_now(db) is FireOutcome.FIRED
    (line,) = await fires(db)
    assert line.manual
    assert line.job_id is not None
    assert (await db.state(line.job_id), (await row(db)).next_us) == ("HELD", at)


async def test_run_now_obeys_the_overlap_rule_and_is_an_earlier_job_to_the_next_fire(db: MasterFixture) -> None:
    at = await soon(db, -1.0, overlap=Overlap.SKIP)
    assert await run_now(db) is FireOutcome.FIRED
    assert await run_now(db) is FireOutcome.SKIPPED
    await fire(db, at, at + 60 * SECOND)
    assert sorted(await outcomes(db)) == ["fired", "skipped", "skipped"]
    assert await jobs(db) == 1


async def ahead_and_run(db: MasterFixture, overlap: Overlap, *, onboarded: bool = False) -> tuple[int, Fire]:
    """The job of the next fire is made ahead, and then the schedule is run; its nominal time, and its line before."""
    at = await soon(db, overlap=overlap)
    await fire(db, at, at + 60 * SECOND)
    (line,) = await fires(db)
    if onboarded:
        await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)
    assert await run_now(db) is FireOutcome.FIRED
    return at, line


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL_PREVIOUS])
async def test_run_now_withdraws_the_job_made_ahead_and_its_fire_is_decided_at_its_time(
    db: MasterFixture, overlap: Overlap
) -> None:
    """The two would run at once, and nothing looks at that job again."""
    at, line = await ahead_and_run(db, overlap)
    assert line.job_id is not None
    assert await db.state(line.job_id) == "CANCELLED"
    assert await outcomes(db) == ["fired", "withdrawn"]
    assert (await row(db)).next_us == at
    assert await db.sql.fetchval("SELECT decide_at = next_fire FROM schedule")
    await fire(db, at, at + 60 * SECOND)
    assert (await outcomes(db), (await row(db)).next_us) == (["fired", "withdrawn"], at), "the manual job has not ended"
    await end(db, (await fires(db))[0].job_id)
    (again,) = await fire(db, at, at + 60 * SECOND)
    assert (again.outcome, (await row(db)).next_us) == ("fired", at + 60 * SECOND)
    assert await db.sql.fetchval("SELECT previous IS NULL FROM schedule_fire WHERE NOT manual")


async def test_run_now_flags_a_job_made_ahead_that_is_in_a_bucket(db: MasterFixture) -> None:
    at, line = await ahead_and_run(db, Overlap.SKIP, onboarded=True)
    assert line.job_id is not None
    assert (await db.view(line.job_id)).cancel_requested
    assert (await row(db)).next_us == at


async def test_run_now_leaves_the_job_made_ahead_beside_it_under_parallel(db: MasterFixture) -> None:
    at, line = await ahead_and_run(db, Overlap.PARALLEL)
    assert line.job_id is not None
    assert (await db.state(line.job_id), (await row(db)).next_us) == ("HELD", at + 60 * SECOND)


@pytest.mark.parametrize("nominal", [-5.0, 20.0])
async def test_a_job_that_waits_for_its_retry_is_a_hindrance_to_run_now(db: MasterFixture, nominal: float) -> None:
    """It has begun, though it is due later."""
    at = await soon(db, nominal, overlap=Overlap.SKIP)
    await fire(db, at, at + 60 * SECOND)
    await db.sql.execute("UPDATE job SET attempt = 1, due_at = clock_timestamp() + interval '10 minutes'")
    assert await run_now(db) is FireOutcome.SKIPPED


async def test_a_job_whose_jitter_has_not_passed_is_a_hindrance_to_run_now(db: MasterFixture) -> None:
    """The nominal time has passed: its fire is not decided again."""
    at = await soon(db, -5.0, overlap=Overlap.SKIP)
    await fire(db, at, at + 60 * SECOND)
    await db.sql.execute("UPDATE job SET due_at = clock_timestamp() + interval '10 minutes'")
    assert await run_now(db) is FireOutcome.SKIPPED


@pytest.mark.parametrize("first", ["run_now", "fire"])
async def test_run_now_and_a_fire_that_race_see_each_others_job(db: MasterFixture, first: str) -> None:
    """The second waits for the row, and would look for the first one's job in a snapshot without it."""
    at = await soon(db, -1.0, overlap=Overlap.SKIP)
    read, us, job_id = await row(db), await now_us(db), new_id()
    headers = encode_fire_headers(read.schedule, us, us)
    move, new = ScheduleMove("nightly", at, read.revision, at + 60 * SECOND), new_fire(read.schedule, at)

    async def run() -> Any:
        return await db.master.schedules.run_now(read, job_id, us, headers, "me")

    async def decide() -> Any:
        return await db.master.schedules.fire([move], [new], 30.0, 1)

    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT 1 FROM schedule FOR UPDATE")
    calls = []
    for number, name in enumerate(("run_now", "fire") if first == "run_now" else ("fire", "run_now")):
        calls.append(asyncio.create_task(run() if name == "run_now" else decide()))
        await db.waiting("schedules/", number + 1)
    await transaction.commit()
    await other.close()
    _, later = await asyncio.gather(*calls)
    assert not later, "it is refused, and asked again by what it read anew"
    assert await jobs(db) == 1


async def test_a_retired_schedule_cannot_be_run(db: MasterFixture) -> None:
    await soon(db)
    await db.master.schedules.remove(None, None, "me")
    assert await run_now(db) is None


# ------------------------------------------------------------ the leader's look, and retention


async def test_the_leaders_tick_returns_when_the_first_fire_is_to_be_decided(db: MasterFixture) -> None:
    await db.master.leadership.acquire(db.owner, 1, 10.0)
    assert (await db.master.leadership.tick(db.owner, 1, 10.0, 60.0)).fires_in_seconds is None
    await soon(db, 100.0)
    await soon(db, 50.0, name="first")
    seconds = (await db.master.leadership.tick(db.owner, 1, 10.0, 60.0)).fires_in_seconds
    assert seconds is not None
    assert 50.0 - LEAD_SECONDS - 5.0 < seconds <= 50.0 - LEAD_SECONDS


async def test_after_an_outage_what_is_due_now_is_decided_before_what_was_missed(db: MasterFixture) -> None:
    for name, seconds in (("missed", -7200.0), ("missed longer", -86_400.0), ("now", 1.0), ("before now", -20.0)):
        await soon(db, seconds, name=name)
    due = [each.schedule.name for each in await db.master.schedules.due(10)]
    assert due == ["before now", "now", "missed longer", "missed"]
    assert [each.schedule.name for each in await db.master.schedules.due(2)] == ["before now", "now"]


async def test_lines_of_fires_are_forgotten_but_for_the_newest_of_each_schedule(db: MasterFixture) -> None:
    at = await soon(db, -10.0, overlap=Overlap.PARALLEL)
    for n in range(3):
        await fire(db, at + n * SECOND, at + (n + 1) * SECOND)
    await db.sql.execute("UPDATE schedule_fire SET at = at - interval '2 days'")
    assert await db.master.maintenance.forget(RecordKind.SCHEDULE_FIRES, 3.0, 100) == 0
    assert await db.master.maintenance.forget(RecordKind.SCHEDULE_FIRES, 1.0, 100) == 2
    assert [line.nominal_us for line in await fires(db)] == [at + 2 * SECOND]
    await db.master.schedules.remove(None, None, "me")
    await db.sql.execute("UPDATE schedule SET retired_at = retired_at - interval '2 days'")
    assert await db.master.maintenance.forget(RecordKind.SCHEDULE_FIRES, 1.0, 100) == 1
    assert await db.master.maintenance.forget(RecordKind.SCHEDULE_FIRES, 1.0, 100) == 1
    assert await db.master.schedules.list(retired=True) == []


@pytest.mark.parametrize("later", ["manual", "withdrawn"])
async def test_the_newest_line_that_the_recurrence_decided_is_not_forgotten(db: MasterFixture, later: str) -> None:
    """The audit and the key of the table need it; a line of a person, or of a job that was cancelled, is no substitute."""
    at = await soon(db, -10.0, overlap=Overlap.PARALLEL)
    ahead = at + 30 * SECOND
    await fire(db, at, ahead)
    if later == "manual":
        assert await run_now(db) is FireOutcome.FIRED
    else:
        await fire(db, ahead, ahead + 60 * SECOND)
    assert await db.master.schedules.pause(None, None, "me", "") == ["nightly"]
    await db.sql.execute("UPDATE schedule_fire SET at = at - interval '2 days'")
    assert await db.master.maintenance.forget(RecordKind.SCHEDULE_FIRES, 1.0, 100) == (1 if later == "manual" else 0)
    assert at in [line.nominal_us for line in await fires(db)]


async def test_the_views_for_people_show_schedules_and_fires(db: MasterFixture) -> None:
    at = await soon(db, overlap=Overlap.PARALLEL)
    await fire(db, at, at + SECOND)
    assert await db.sql.fetchval("SELECT expression FROM schedules WHERE name = 'nightly'") == "3600s"
    (shown,) = await db.sql.fetch("SELECT outcome, job_state, job_id FROM schedule_fires")
    assert (shown["outcome"], shown["job_state"]) == ("fired", "HELD")
    assert isinstance(shown["job_id"], UUID)
