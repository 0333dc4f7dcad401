"""Steps of tests of schedules: put one, fire it as a leader does, read its lines and its jobs."""

from __future__ import annotations

from typing import Any

from jobmaster.clock import new_id
from jobmaster.codec import encode_fire_headers
from jobmaster.model.schedule import Fire, FireOutcome, Overlap, Schedule, ScheduleRow
from jobmaster.ports import FiredLine, NewFire, ScheduleMove
from jobmaster.rules.recurrence import next_fire_us
from tests.integration.postgres.fixture import MasterFixture, final_row

SECOND = 1_000_000


def schedule(name: str = "nightly", expression: str = "3600s", **fields: Any) -> Schedule:
    return Schedule(name=name, handler="handler", expression=expression, **fields)


async def now_us(db: MasterFixture) -> int:
    return int(await db.sql.fetchval("SELECT to_us(clock_timestamp())"))


async def put(db: MasterFixture, *schedules: Schedule, next_us: int | None = None) -> None:
    assert await db.master.schedules.put(schedules, next_fire_us if next_us is None else lambda _, __: next_us) == []


async def row(db: MasterFixture, name: str = "nightly") -> ScheduleRow:
    (found,) = await db.master.schedules.list([name], retired=True)
    return found


async def fire(db: MasterFixture, nominal_us: int, next_us: int, *, name: str = "nightly") -> list[FiredLine]:
    """One fire, as a leader that has just read the schedule decides it."""
    read = await row(db, name)
    return await db.master.schedules.fire(
        [ScheduleMove(name, read.next_us or 0, read.revision, next_us)],
        [new_fire(read.schedule, nominal_us)], 30.0, 1,
    )  # fmt: skip


def new_fire(what: Schedule, nominal_us: int, outcome: str = "fired") -> NewFire:
    headers = encode_fire_headers(what, nominal_us, nominal_us)
    return NewFire(what.name, nominal_us, outcome, 0, new_id(), nominal_us, headers)


async def fires(db: MasterFixture, name: str = "nightly") -> list[Fire]:
    return sorted(await db.master.schedules.fires(name, 100), key=lambda line: line.nominal_us)


async def outcomes(db: MasterFixture, name: str = "nightly") -> list[str]:
    return [line.outcome.value for line in await fires(db, name)]


async def jobs(db: MasterFixture) -> int:
    return int(await db.sql.fetchval("SELECT count(*) FROM job"))


async def soon(db: MasterFixture, seconds: float = 20.0, **fields: Any) -> int:
    """A schedule whose next fire lies ahead; its nominal time."""
    at = await now_us(db) + int(seconds * SECOND)
    await put(db, schedule(**fields), next_us=at)
    return at


async def end(db: MasterFixture, job_id: bytes | None) -> None:
    """The job runs and succeeds."""
    assert job_id is not None
    answer = await db.master.onboarding.onboard(db.fence, "default", 3, 1e6, 100)
    token = next((entry.token for entry in answer.entries if entry.id == job_id), 2)
    assert (await db.master.outcomes.record_final([final_row(job_id, db.fence, token)])).accepted == {job_id}


async def second_fire(db: MasterFixture, overlap: Overlap, *, ahead: bool = False) -> tuple[Fire, int]:
    """The first fire has a job that has not ended, and the second is decided."""
    first = await soon(db, -5.0, overlap=overlap)
    second = await now_us(db) + (20 if ahead else -1) * SECOND
    await fire(db, first, second)
    (line,) = await fires(db)
    await fire(db, second, second + 60 * SECOND)
    return line, second


async def run_now(db: MasterFixture) -> FireOutcome | None:
    read, at = await row(db), await now_us(db)
    answer = await db.master.schedules.run_now(read, new_id(), at, encode_fire_headers(read.schedule, at, at), "me")
    return None if answer is None else answer.outcome
