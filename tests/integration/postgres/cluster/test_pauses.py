"""Pauses: their lines, their version, and the agents that obey."""

from __future__ import annotations

import time

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.job import Headers
from jobmaster.model.pause import PauseKind
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, new_job, uuids

HANDLER, TAG = PauseKind.HANDLER, PauseKind.TAG


async def _pause(db: MasterFixture, value: str, seconds: float | None = None, reason: str = "why") -> int:
    written = await db.master.pauses.pause(HANDLER, value, None, seconds, "ann@host", reason)
    assert written is not None
    return written.version


async def _paused(db: MasterFixture) -> list[str]:
    return [each.value for each in (await db.master.pauses.in_force()).pauses]


async def test_a_pause_and_its_end_are_lines_with_versions_and_in_the_operators_log(db: MasterFixture) -> None:
    before = await db.master.pauses.in_force()
    assert before.pauses == ()
    version = await _pause(db, "a", 60.0, "charges twice")
    assert version > before.version
    found = await db.master.pauses.in_force()
    (pause,) = found.pauses
    assert found.version == version
    assert (pause.kind, pause.value, pause.actor, pause.reason) == (HANDLER, "a", "ann@host", "charges twice")
    assert pause.until_us is not None
    assert 59e6 < pause.until_us - pause.since_us <= 60.1e6
    assert pause.left_seconds is not None
    assert 55.0 < pause.left_seconds <= 60.0
    resumed = await db.master.pauses.resume(HANDLER, "a", "ann@host", "fixed")
    assert resumed is not None
    assert resumed > version
    assert (await db.master.pauses.in_force())[:2] == (resumed, ())
    lines = await db.sql.fetch("SELECT actor, action, subject, detail ->> 'reason' FROM operator_log ORDER BY seq")
    assert [tuple(line) for line in lines] == [
        ("ann@host", "pause", "handler a", "charges twice"),
        ("ann@host", "resume", "handler a", "fixed"),
    ]


async def test_nothing_to_resume_changes_nothing(db: MasterFixture) -> None:
    version = await _pause(db, "a")
    assert await db.master.pauses.resume(HANDLER, "b", "ann", "") is None
    assert await db.master.pauses.resume(TAG, "a", "ann", "") is None
    assert (await db.master.pauses.in_force())[:2] == (version, (await db.master.pauses.in_force()).pauses)
    assert await db.sql.fetchval("SELECT count(*) FROM operator_log") == 1


async def test_an_end_in_the_past_is_refused_by_the_masters_clock(db: MasterFixture) -> None:
    now_us = time.time_ns() // 1000
    assert await db.master.pauses.pause(HANDLER, "a", now_us - 1_000_000, None, "ann", "") is None
    assert (await db.master.pauses.in_force())[:2] == (0, ())
    assert await db.sql.fetchval("SELECT count(*) FROM operator_log") == 0
    written = await db.master.pauses.pause(HANDLER, "a", now_us + 60_000_000, None, "ann", "")
    assert written is not None
    assert written.until_us == now_us + 60_000_000


async def test_a_pause_that_is_over_is_none_and_its_line_goes_with_the_next_one(db: MasterFixture) -> None:
    await _pause(db, "a", 60.0)
    await db.sql.execute("UPDATE pause SET until = clock_timestamp() - interval '1 ms', at = at - interval '1 day'")
    assert await _paused(db) == []
    assert await db.master.pauses.resume(HANDLER, "a", "ann", "") is None
    await _pause(db, "a", 60.0)
    await db.sql.execute("UPDATE pause SET until = clock_timestamp() - interval '1 ms'")
    await _pause(db, "b")
    assert [row["value"] for row in await db.sql.fetch("SELECT value FROM pause")] == ["b"]


async def test_a_second_pause_of_the_same_thing_replaces_its_end_and_keeps_its_beginning(db: MasterFixture) -> None:
    first = await _pause(db, "a", 60.0)
    (before,) = (await db.master.pauses.in_force()).pauses
    assert await _pause(db, "a", None, "for good") > first
    (after,) = (await db.master.pauses.in_force()).pauses
    assert (after.since_us, after.until_us, after.left_seconds, after.reason) == (
        before.since_us,
        None,
        None,
        "for good",
    )
    await db.sql.execute("UPDATE pause SET until = clock_timestamp() - interval '1 ms'")
    await _pause(db, "a")
    (anew,) = (await db.master.pauses.in_force()).pauses
    assert anew.since_us > before.since_us, "one that is over begins anew"


@pytest.mark.parametrize("resumes", [False, True])
async def test_changes_wait_for_each_other_so_a_version_has_all_lines_up_to_it(
    db: MasterFixture, resumes: bool
) -> None:
    await _pause(db, "b")
    values = (str(HANDLER), "a", None, None, "ann", "")
    async with db.open_transaction("pauses/pause", *values) as commit:
        change = db.master.pauses.resume(HANDLER, "b", "bob", "") if resumes else _pause(db, "c")
        version = await db.after_lock("pauses/resume" if resumes else "pauses/pause", change, commit)
    assert (await db.master.pauses.in_force())[:2] == (version, (await db.master.pauses.in_force()).pauses)
    assert await _paused(db) == (["a"] if resumes else ["a", "b", "c"])


async def test_a_version_is_never_given_twice_even_if_a_failover_forgets_it(db: MasterFixture) -> None:
    """An agent that obeys a forgotten version must see that the next change is another one."""
    version = await _pause(db, "a")
    await db.sql.execute("DELETE FROM pause")
    await db.sql.execute("UPDATE pause_version SET version = 0")
    assert await _pause(db, "b") > version


async def test_a_renewal_returns_the_version(db: MasterFixture) -> None:
    assert (await db.master.members.renew(db.owner, 10.0)).pauses == 0
    version = await _pause(db, "a")
    assert (await db.master.members.renew(db.owner, 10.0)).pauses == version


async def test_a_renewal_waits_for_no_pause(db: MasterFixture) -> None:
    async with db.open_transaction("pauses/pause", str(HANDLER), "a", None, None, "ann", ""):
        assert (await db.master.members.renew(db.owner, 10.0)).pauses == 0


async def test_followers_are_the_living_agents_that_run_jobs(db: MasterFixture, rescuer: bytes) -> None:
    leader = new_id()
    await db.agent(leader)
    await db.sql.execute("UPDATE agent SET mode = 'leader' WHERE id = $1", *uuids([leader]))
    version = await _pause(db, "a")
    followers = await db.master.pauses.followers(version)
    assert {each.id: each.obeys for each in followers} == {db.owner: False, rescuer: False}
    assert await db.master.pauses.obey(db.owner, version)
    assert await db.master.pauses.obey(rescuer, version - 1)
    followers = await db.master.pauses.followers(version)
    assert {each.id: each.obeys for each in followers} == {db.owner: True, rescuer: False}
    await db.lost()
    assert [each.id for each in await db.master.pauses.followers(version)] == [rescuer]
    assert not await db.master.pauses.obey(db.owner, version), "a dead agent confirms nothing"


# ------------------------------------------------------------ onboarding without paused tags


async def test_jobs_with_a_paused_tag_stay_in_the_master(db: MasterFixture) -> None:
    fence = await db.bucket()
    tagged = {
        "none": b"",
        "other": encode_headers(Headers(tags=("b", "c"))),
        "one": encode_headers(Headers(tags=("b", "a"))),
        "quoted": encode_headers(Headers(tags=('a"', "\\a"))),
        "value": encode_headers(Headers(metadata={"a": "a", "tags": "a"})),
        "nul": encode_headers(Headers(tags=("a",), metadata={"k": "x\0y"})),
        "unreadable": b'{"tags":["a"',
        "not text": b'{"tags":["a"],"k":"\xff"}',
        "no list": b'{"tags":5}',
    }
    jobs = {name: new_job(new_id(), headers=headers) for name, headers in tagged.items()}
    await db.master.intake.insert_held(list(jobs.values()))

    async def taken(*tags: str) -> set[str]:
        answer = await db.master.onboarding.onboard(fence, LANE, PRIORITY, 300.0, 100, None, tags)
        names = {job.id: name for name, job in jobs.items()}
        return {names[entry.id] for entry in answer.entries}

    assert await taken("a", "z") == tagged.keys() - {"one", "nul"}
    assert await taken() == {"one", "nul"}
