"""Jobs whose handler no owner of a matching bucket has: named, put off so that no onboarding reads them, put back."""

from __future__ import annotations

import time

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.agent import Agent, AgentState, HandlerSpec
from jobmaster.model.ids import text
from jobmaster.model.job import Headers, NewJob
from jobmaster.model.pause import PauseKind
from jobmaster.ports import DueGroup, RecordKind
from jobmaster.rules.unserved_cause import UnservedCause
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture

GROUP = DueGroup(LANE, PRIORITY)
LATE = 90.0
"""Seconds by which the jobs here are overdue."""


def due_us() -> int:
    return int((time.time() - LATE) * 1e6)


def jobs(count: int, handler: str, due: int, *, lane: str = LANE, tags: tuple[str, ...] = ()) -> list[NewJob]:
    headers = encode_headers(Headers(tags=tags)) if tags else b""
    return [NewJob(new_id(), PRIORITY, lane, handler, b"{}", headers, due + place) for place in range(count)]


async def agent_with(db: MasterFixture, *names: str, helps: tuple[str, ...] = ()) -> bytes:
    agent_id = new_id()
    specs = [HandlerSpec(name=name, digest="d", schema={}) for name in names]
    await db.master.members.register(
        Agent(
            id=agent_id, name="agent", host="host", pid=1, version="0", mode="full", store="store", weight=1,
            state=AgentState.ACTIVE, lease_us=0, lease_seconds=60.0, started_us=0, helps=helps,
        ),
        [LANE],
        specs,
    )  # fmt: skip
    return agent_id


@pytest.fixture
async def serving(db: MasterFixture) -> MasterFixture:
    """The lane and priority have a bucket whose owner has one handler."""
    await db.bucket(await agent_with(db, "served"))
    return db


async def test_jobs_that_no_agent_can_run_are_named_and_counted(serving: MasterFixture) -> None:
    due = due_us()
    await serving.master.intake.insert_held(
        [*jobs(3, "lost", due), *jobs(2, "served", due), *jobs(1, "soon", due_us() * 2)]
    )
    (found,) = await serving.master.unserved.find(60.0, 1000)
    assert (found.jobs, found.oldest_us) == (3, due)
    assert found.cause == UnservedCause(LANE, PRIORITY, "lost", known=False, active=True, frozen=False)
    assert found.cause.reason == "no living agent has the handler 'lost'"


async def test_a_handler_that_an_agent_has_without_a_bucket_there_is_another_lack(serving: MasterFixture) -> None:
    elsewhere = await agent_with(serving, "lost")
    held = [*jobs(1, "lost", due_us()), *jobs(1, "served", due_us(), lane="payroll")]
    await serving.master.intake.insert_held(held)
    found = {each.cause.handler: each.cause for each in await serving.master.unserved.find(60.0, 1000)}
    assert found["lost"].reason == f"no agent with a bucket of {LANE}/medium has the handler 'lost'"
    assert found["served"].reason == "no bucket serves payroll/medium"
    assert await serving.master.queries.unserved_causes([job.id for job in held]) == {
        held[0].id: found["lost"],
        held[1].id: found["served"],
    }
    await serving.bucket(elsewhere)
    frozen = await serving.bucket(elsewhere, lane="payroll")
    await serving.master.buckets.freeze([frozen.bucket_id], None, "test", "test")
    (cause,) = (await serving.master.queries.unserved_causes([job.id for job in held])).values()
    assert cause.reason == "every bucket of payroll/medium is frozen"


async def test_what_is_put_off_is_read_over_no_more_and_shows_its_own_due_time(serving: MasterFixture) -> None:
    lost = jobs(500, "lost", due := due_us())
    mine = jobs(1, "served", due + 1000)
    await serving.master.intake.insert_held([*lost, *mine])
    assert await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, 3600.0, 1000) == 500
    assert await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, 3600.0, 1000) == 0
    front = await serving.sql.fetchval(
        "SELECT count(*) FROM job WHERE state = 'HELD' AND lane = $1 AND priority = $2 AND due_at <= now()",
        LANE,
        PRIORITY,
    )
    assert front == 1, "what is due now is what some agent can run"
    assert (await serving.view(lost[7].id)).due_us == due + 7
    (found,) = await serving.master.unserved.find(60.0, 1000)
    assert (found.jobs, found.oldest_us, found.cause.handler) == (500, due, "lost")


async def test_what_is_put_off_comes_back_with_its_own_due_time_when_an_agent_can_run_it(
    serving: MasterFixture,
) -> None:
    lost = jobs(5, "lost", due := due_us())
    await serving.master.intake.insert_held(lost)
    assert await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, -70.0, 1000) == 5
    assert await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, 3600.0, 1000) == 5, (
        "due again, and still no agent"
    )
    assert await serving.master.unserved.put_back(1000) == 0
    fence = await serving.bucket(await agent_with(serving, "lost"))
    assert await serving.master.unserved.put_back(3) == 3
    assert await serving.master.unserved.put_back(3) == 2
    assert await serving.master.unserved.find(60.0, 1000) == []
    found = await serving.master.onboarding.onboard(fence, LANE, PRIORITY, 0.0, 10, ["lost"])
    assert [entry.due_us for entry in sorted(found.entries, key=lambda each: each.due_us)] == [
        due + n for n in range(5)
    ]


async def test_a_job_that_has_changed_meanwhile_only_loses_its_line(serving: MasterFixture) -> None:
    cancelled, moved = jobs(2, "lost", due_us())
    await serving.master.intake.insert_held([cancelled, moved])
    await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, 3600.0, 1000)
    await serving.master.requests.cancel(cancelled.id, tombstone=None, actor="test")
    await serving.sql.execute("UPDATE job SET due_at = now() + interval '1 day' WHERE state = 'HELD'")
    later = (await serving.view(moved.id)).due_us
    await serving.bucket(await agent_with(serving, "lost"))
    assert await serving.master.unserved.put_back(1000) == 2
    assert (await serving.view(moved.id)).due_us == later
    assert await serving.state(cancelled.id) == "CANCELLED"


async def test_lines_of_jobs_that_have_ended_are_forgotten_and_others_are_not(serving: MasterFixture) -> None:
    cancelled, waits = jobs(2, "lost", due_us())
    await serving.master.intake.insert_held([cancelled, waits])
    await serving.master.unserved.put_off(GROUP, ["lost"], 60.0, -61.0, 1000)
    await serving.master.requests.cancel(cancelled.id, tombstone=None, actor="test")
    await serving.sql.execute("UPDATE put_off SET due_at = due_at - interval '9 days'")
    assert await serving.master.maintenance.forget(RecordKind.PUT_OFF, 1.0, 100) == 0, "not old enough"
    assert await serving.master.maintenance.forget(RecordKind.PUT_OFF, 0.0001, 100) == 1
    assert [row["job_id"].bytes for row in await serving.sql.fetch("SELECT job_id FROM put_off")] == [waits.id]


class TestHelp:
    """The agent that is asked to open a bucket for unserved jobs, and the end of that request."""

    LACK = UnservedCause("payroll", PRIORITY, "lost", known=True, active=False, frozen=False)

    async def helper(self, db: MasterFixture, *handlers: str, lane: str = "payroll") -> bytes:
        return await agent_with(db, *handlers, helps=(lane,))

    async def test_an_agent_that_has_the_handler_and_helps_out_in_the_lane_is_asked_once(
        self, serving: MasterFixture
    ) -> None:
        await self.helper(serving, "other")
        await self.helper(serving, "lost", lane="elsewhere")
        assert await serving.master.unserved.request_help([self.LACK]) == []
        chosen = await self.helper(serving, "lost")
        assert await serving.master.unserved.request_help([self.LACK]) == [("payroll", PRIORITY, "lost", chosen)]
        assert await serving.master.unserved.request_help([self.LACK]) == []
        assert (await serving.master.members.renew(chosen, 60.0)).helps == {("payroll", PRIORITY)}
        await serving.bucket(chosen, lane="payroll")
        assert await serving.master.unserved.end_help() == [], "its own bucket is what was asked for"

    async def test_the_one_that_helps_there_already_is_asked_before_one_with_fewer_buckets(
        self, serving: MasterFixture
    ) -> None:
        busy, idle = await self.helper(serving, "lost", "too"), await self.helper(serving, "too")
        await serving.master.unserved.request_help([self.LACK])
        await serving.bucket(busy, lane="payroll")
        (asked,) = await serving.master.unserved.request_help([self.LACK._replace(handler="too")])
        assert asked.helper == busy
        (asked,) = await serving.master.unserved.request_help([self.LACK._replace(handler="too", priority=1)])
        assert asked.helper == idle

    async def test_it_ends_when_a_configured_owner_can_run_the_same_jobs(self, serving: MasterFixture) -> None:
        chosen = await self.helper(serving, "lost")
        await serving.master.unserved.request_help([self.LACK])
        other = await agent_with(serving, "other")
        await serving.bucket(other, lane="payroll")
        assert await serving.master.unserved.end_help() == [], "that one cannot run them"
        await serving.bucket(await agent_with(serving, "lost"), lane="payroll")
        assert [each.helper for each in await serving.master.unserved.end_help()] == [chosen]
        assert (await serving.master.members.renew(chosen, 60.0)).helps == frozenset()

    async def test_another_is_asked_when_the_helper_has_ended_or_has_nothing_to_do(
        self, serving: MasterFixture
    ) -> None:
        first = await self.helper(serving, "lost")
        await serving.master.unserved.request_help([self.LACK])
        await serving.master.members.end_agent(first, dead=True, reason="test")
        second = await self.helper(serving, "lost")
        (asked,) = await serving.master.unserved.request_help([self.LACK])
        assert asked.helper == second
        await serving.master.unserved.stop_helping(first, "payroll", PRIORITY)
        assert (await serving.master.members.renew(second, 60.0)).helps == {("payroll", PRIORITY)}
        await serving.master.unserved.stop_helping(second, "payroll", PRIORITY)
        assert (await serving.master.members.renew(second, 60.0)).helps == frozenset()


# ------------------------------------------------------------ paused handlers


async def _paused(db: MasterFixture, handler: str, seconds: float | None = None) -> None:
    assert await db.master.pauses.pause(PauseKind.HANDLER, handler, None, seconds, "ann", "") is not None


async def test_jobs_of_a_paused_handler_are_put_off_in_every_group_and_come_back_when_it_is_resumed(
    serving: MasterFixture,
) -> None:
    elsewhere = await agent_with(serving, "served")
    await serving.bucket(elsewhere, lane="other")
    mine, other = jobs(5, "served", due_us()), jobs(3, "served", due_us(), lane="other")
    young = jobs(2, "served", int(time.time() * 1e6))
    await serving.master.intake.insert_held([*mine, *other, *young, *jobs(4, "free", due_us())])
    unserved = serving.master.unserved
    assert await unserved.put_off_paused(60.0, 3600.0, 1000) == 0, "nothing is paused"
    await _paused(serving, "served")
    await serving.master.pauses.pause(PauseKind.TAG, "free", None, None, "ann", "")
    assert await unserved.put_off_paused(60.0, 3600.0, 6) == 6, "no more than the limit, over all groups"
    assert await unserved.put_off_paused(60.0, 3600.0, 6) == 2
    assert await unserved.put_off_paused(60.0, 3600.0, 6) == 0
    due = "SELECT count(*) FROM job WHERE due_at > clock_timestamp() + interval '59 minutes'"
    assert await serving.sql.fetchval(due) == 8
    for job in (mine[0], other[2]):
        assert (await serving.view(job.id)).due_us == job.due_us, "it shows its own due time"
    assert await unserved.put_back(1000) == 0, "not while it is paused"
    await serving.master.pauses.resume(PauseKind.HANDLER, "served", "ann", "")
    assert await unserved.put_back(1000) == 8
    rows = await serving.sql.fetch("SELECT id, to_us(due_at) AS due_us FROM job WHERE handler = 'served'")
    assert {row["id"].bytes: row["due_us"] for row in rows} == {job.id: job.due_us for job in (*mine, *other, *young)}


async def test_due_jobs_that_pauses_keep_from_starting_are_counted(serving: MasterFixture) -> None:
    pauses, unserved = serving.master.pauses, serving.master.unserved
    ahead = int(time.time() * 1e6) + 600_000_000
    await serving.master.intake.insert_held([
        *jobs(5, "served", due_us()), *jobs(3, "free", due_us()), *jobs(2, "free", due_us(), lane="other"),
        *jobs(4, "served", ahead),
    ])  # fmt: skip
    assert await unserved.count_paused(100) == 0, "nothing is paused"
    await _paused(serving, "served")
    assert await unserved.count_paused(100) == 5
    assert await unserved.count_paused(2) == 2, "no more is read"
    assert await unserved.put_off_paused(60.0, 3600.0, 2) == 2
    assert await unserved.count_paused(100) == 5, "those that are put off, too"
    assert await pauses.pause(PauseKind.LANE, "other", None, None, "ann", "") is not None
    assert await unserved.count_paused(100) == 7
    assert await pauses.pause(PauseKind.PRIORITY, "medium", None, None, "ann", "") is not None
    assert await unserved.count_paused(100) == 10, "each once"
    for kind, value in ((PauseKind.PRIORITY, "medium"), (PauseKind.LANE, "other"), (PauseKind.HANDLER, "served")):
        await pauses.resume(kind, value, "ann", "")
    assert await unserved.count_paused(100) == 0


async def test_jobs_of_a_pause_with_an_end_are_due_at_its_end(serving: MasterFixture) -> None:
    await serving.master.intake.insert_held(jobs(2, "served", due_us()))
    await _paused(serving, "served", 600.0)
    assert await serving.master.unserved.put_off_paused(60.0, 3600.0, 1000) == 2
    ends = "SELECT count(*) FROM job WHERE due_at = (SELECT until FROM pause)"
    assert await serving.sql.fetchval(ends) == 2
    await serving.sql.execute("UPDATE pause SET until = clock_timestamp() - interval '1 ms'")
    assert await serving.master.unserved.put_back(1000) == 2, "a pause that is over holds nothing back"


DUE = "SELECT count(*) FROM job WHERE state = 'HELD' AND due_at <= clock_timestamp()"


async def _tag_paused(db: MasterFixture, tag: str) -> None:
    assert await db.master.pauses.pause(PauseKind.TAG, tag, None, None, "ann", "") is not None


async def test_jobs_with_a_paused_tag_are_put_off_so_that_no_onboarding_reads_their_headers(
    serving: MasterFixture,
) -> None:
    """The front of the due jobs holds only jobs that an agent may take."""
    due = due_us()
    tagged = [*jobs(300, "served", due, tags=("night", "x")), *jobs(200, "served", due, lane="other", tags=("night",))]
    free = [*jobs(5, "served", due + 1000, tags=("day",)), *jobs(5, "served", due + 2000)]
    await serving.master.intake.insert_held([*tagged, *free])
    await serving.bucket(await agent_with(serving, "served"), lane="other")
    await _tag_paused(serving, "night")
    unserved = serving.master.unserved
    assert [await unserved.put_off_paused(60.0, 3600.0, 400) for _ in range(3)] == [400, 100, 0]
    assert await serving.sql.fetchval(DUE) == len(free)
    assert await unserved.put_back(1000) == 0, "not while it is paused"
    assert (await serving.view(tagged[0].id)).due_us == due, "it shows its own due time"
    await serving.master.pauses.resume(PauseKind.TAG, "night", "ann", "")
    assert await unserved.put_back(1000) == 500
    assert (await serving.sql.fetchval("SELECT to_us(due_at) FROM job WHERE id = $1", text(tagged[0].id))) == due


async def test_a_job_under_several_pauses_comes_back_after_the_last_of_them(serving: MasterFixture) -> None:
    await serving.master.intake.insert_held(jobs(1, "served", due_us(), tags=("day", "night")))
    await _tag_paused(serving, "day")
    await _tag_paused(serving, "night")
    await _paused(serving, "served")
    unserved, resume = serving.master.unserved, serving.master.pauses.resume
    assert await unserved.put_off_paused(60.0, 3600.0, 10) == 1, "once, though three pauses cover it"
    for kind, value, pauses_left in (
        (PauseKind.TAG, "day", 2),
        (PauseKind.HANDLER, "served", 1),
        (PauseKind.TAG, "night", 0),
    ):
        await resume(kind, value, "ann", "")
        await unserved.put_back(10)
        await unserved.put_off_paused(60.0, 3600.0, 10)
        assert await serving.sql.fetchval(DUE) == (0 if pauses_left else 1), f"{pauses_left} pauses are left"


async def test_a_look_for_paused_tags_reads_the_headers_of_the_oldest_jobs_only(serving: MasterFixture) -> None:
    """A backlog with other tags must not cost the statement its time limit."""
    due = due_us()
    hidden = jobs(1, "served", due + 1000, tags=("night",))
    await serving.master.intake.insert_held(
        [*jobs(40, "served", due, tags=("day",)), *jobs(40, "served", due), *hidden]
    )
    await _tag_paused(serving, "night")
    assert await serving.master.unserved.put_off_paused(60.0, 3600.0, 2) == 0, "40 jobs with tags are older"
    assert await serving.master.unserved.put_off_paused(60.0, 3600.0, 3) == 1, "jobs without tags do not count"


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "unserved"])
async def test_a_job_that_was_moved_and_put_off_again_comes_back_in_its_new_lane(
    serving: MasterFixture, paused: bool
) -> None:
    unserved = serving.master.unserved
    (job,) = jobs(1, "served" if paused else "lost", due_us())
    await serving.master.intake.insert_held([job])
    await serving.bucket(await agent_with(serving, "served"), lane="other")
    if paused:
        await _paused(serving, "served")

    async def put_off(lane: str) -> int:
        if paused:
            return await unserved.put_off_paused(60.0, 3600.0, 10)
        return await unserved.put_off(DueGroup(lane, PRIORITY), ["lost"], 60.0, 3600.0, 10)

    assert await put_off(LANE) == 1
    await serving.sql.execute("UPDATE job SET lane = 'other', due_at = from_us($1)", job.due_us)  # as a move does
    assert await put_off("other") == 1
    if paused:
        await serving.master.pauses.resume(PauseKind.HANDLER, "served", "ann", "")
    else:
        await serving.bucket(await agent_with(serving, "lost"), lane="other")
    assert await serving.sql.execute("UPDATE bucket SET state = 'COMPLETING' WHERE lane = $1", LANE)
    assert await unserved.put_back(10) == 1
    assert await serving.sql.fetchval(DUE) == 1
