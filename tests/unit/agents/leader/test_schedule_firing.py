"""The leader decides fires: when it looks, what it proposes, and what it does when it does not lead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobmaster.codec import decode_headers
from jobmaster.model.errors import Unavailable
from jobmaster.model.schedule import LEAD_SECONDS, FireOutcome, Overlap, Schedule
from jobmaster.model.trace_context import TraceContext
from jobmaster.ports import DueSchedule, FiredLine, NewFire, ScheduleMove
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.due_notifier import Group
from jobmaster_agents.leader.schedule_firing import (
    IDLE_SECONDS,
    PAGE_SCHEDULES,
    STATEMENT_FIRES,
    UNREADABLE_SECONDS,
    ScheduleFiring,
)
from tests.support.hand_clock import HandClock

NOW = 1_900_000_800_000_000
SECOND = 1_000_000


class Schedules:
    """A master that decides as it is asked to, each schedule once."""

    def __init__(self) -> None:
        self.rows: dict[str, DueSchedule] = {}
        self.looks = 0
        self.statements: list[tuple[list[ScheduleMove], list[NewFire], float, int | None]] = []
        self.failure: Exception | None = None
        self.undeclared: list[str] = []
        self.skipped: set[str] = set()

    def add(self, name: str, next_us: int, **fields: object) -> None:
        what = Schedule(name=name, handler="h", **({"expression": "3600s", "overlap": Overlap.PARALLEL} | fields))  # type: ignore[arg-type]
        self.rows[name] = DueSchedule(what, next_us, next_us - int(LEAD_SECONDS * SECOND), 1, NOW)

    async def due(self, limit: int) -> list[DueSchedule]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return list(self.rows.values())[:limit]

    async def fire(
        self, moves: Sequence[ScheduleMove], fires: Sequence[NewFire], lead_seconds: float, leader_epoch: int | None
    ) -> list[FiredLine]:
        self.statements.append((list(moves), list(fires), lead_seconds, leader_epoch))
        for move in moves:
            row = self.rows.pop(move.name)
            decide_us = move.next_us - int(lead_seconds * SECOND)
            if move.next_us and decide_us <= NOW:
                self.rows[move.name] = row._replace(next_us=move.next_us, decide_us=decide_us)
        lines = [FiredLine(f.schedule, f.nominal_us, f.outcome, "default", 3, f.due_us) for f in fires]
        return [line._replace(outcome="skipped") if line.schedule in self.skipped else line for line in lines]

    async def retire_undeclared(self, grace_seconds: float) -> list[str]:
        gone, self.undeclared = self.undeclared, []
        return gone


class Notifier:
    def __init__(self) -> None:
        self.groups: set[Group] = set()

    async def notify(self, groups: Iterable[Group], *, afresh: bool = False) -> set[Group]:
        self.groups |= set(groups)
        return set()


class Harness:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.master = Schedules()
        self.notifier = Notifier()
        self.epoch: int | None = 7
        self.telemetry = Telemetry()
        self.firing = ScheduleFiring(
            self.master, self.notifier, lambda: self.epoch, self.clock, self.telemetry, EventLog()  # type: ignore[arg-type]
        )  # fmt: skip


async def test_no_statement_is_sent_before_a_fire_is_to_be_decided() -> None:
    harness = Harness()
    harness.master.add("a", NOW)
    assert await harness.firing.tick() == IDLE_SECONDS, "the leader has not looked yet"
    harness.firing.on_next_fire(5.0)
    assert harness.firing.kicked.is_set()
    assert await harness.firing.tick() == 5.0
    assert harness.master.looks == 0
    harness.clock.now += 5.0
    await harness.firing.tick()
    ((moves, fires, lead, epoch),) = harness.master.statements
    assert (moves[0].name, fires[0].outcome, lead, epoch) == ("a", "fired", LEAD_SECONDS, 7)
    assert harness.notifier.groups == {("default", 3)}


async def test_the_job_of_a_fire_says_which_it_is_and_when_it_expires() -> None:
    harness = Harness()
    harness.master.add("a", NOW, expires_seconds=60.0, headers=b'{"tags":["t"]}')
    harness.firing.on_next_fire(0.0)
    await harness.firing.tick()
    headers = decode_headers(harness.master.statements[0][1][0].headers)
    assert (headers.schedule, headers.nominal_us, headers.expires_us, headers.tags) == (
        "a", NOW, NOW + 60 * SECOND, ("t",))  # fmt: skip


async def test_the_span_of_a_fire_is_ended_when_the_master_has_made_its_job_and_not_otherwise() -> None:
    class Span:
        context = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")

        def __init__(self) -> None:
            self.ended = False

        def end(self) -> None:
            self.ended = True

    harness, spans = Harness(), dict[str, Span]()
    harness.firing.span_of_fire = lambda _handler, schedule, _nominal_us: spans.setdefault(schedule, Span())
    for name in ("fires", "skipped"):
        harness.master.add(name, NOW)
    harness.master.skipped.add("skipped")
    harness.firing.on_next_fire(0.0)
    await harness.firing.tick()
    assert {name: span.ended for name, span in spans.items()} == {"fires": True, "skipped": False}
    headers = [decode_headers(fire.headers) for fire in harness.master.statements[0][1]]
    assert {each.traceparent for each in headers} == {Span.context.traceparent}


async def test_many_schedules_are_decided_page_by_page_in_one_tick() -> None:
    harness = Harness()
    for number in range(2 * PAGE_SCHEDULES + 5):
        harness.master.add(f"s{number}", NOW)
    harness.firing.on_next_fire(-1.0)
    await harness.firing.tick()
    assert [len(moves) for moves, *_ in harness.master.statements] == [STATEMENT_FIRES] * 10 + [5]
    assert harness.master.looks == 3
    assert harness.telemetry.fires["fired"] == 2 * PAGE_SCHEDULES + 5


async def test_an_agent_that_does_not_lead_decides_nothing_and_looks_again_when_it_leads() -> None:
    harness = Harness()
    harness.master.add("a", NOW)
    harness.firing.on_next_fire(0.0)
    harness.epoch = None
    assert await harness.firing.tick() == IDLE_SECONDS
    assert harness.master.looks == 0
    harness.firing.kicked.clear()
    harness.epoch = 9
    harness.firing.on_next_fire(3.0)
    assert harness.firing.kicked.is_set(), "what it knew as an earlier leader must not keep it asleep"
    harness.clock.now += 3.0
    await harness.firing.tick()
    assert harness.master.statements[0][3] == 9


async def test_a_failure_is_repaired_by_the_next_tick_of_the_leader() -> None:
    harness = Harness()
    harness.master.add("a", NOW)
    harness.master.failure = Unavailable("gone")
    harness.firing.on_next_fire(0.0)
    for _ in range(2):
        try:
            await harness.firing.tick()
        except Unavailable:
            harness.master.failure = None
            harness.firing.on_next_fire(-1.0)
    assert len(harness.master.statements) == 1


async def test_what_cannot_be_computed_here_delays_no_other_schedule() -> None:
    harness = Harness()
    harness.master.add("bad", NOW, expression="every blue moon")
    harness.master.add("good", NOW)
    harness.firing.on_next_fire(0.0)
    async with asyncio.timeout(10):
        await harness.firing.tick()
    assert [fire.schedule for _, fires, *_ in harness.master.statements for fire in fires] == ["good"]


async def test_many_schedules_that_cannot_be_computed_here_hide_no_other_schedule() -> None:
    harness = Harness()
    for number in range(PAGE_SCHEDULES):
        harness.master.add(f"bad{number}", NOW - number * SECOND, expression="every blue moon")
    harness.master.add("good", NOW)
    harness.firing.on_next_fire(0.0)
    async with asyncio.timeout(10):
        await harness.firing.tick()
    assert [fire.schedule for _, fires, *_ in harness.master.statements for fire in fires] == ["good"]
    (move,), _, lead, epoch = harness.master.statements[7]
    assert (move, epoch) == (ScheduleMove("bad7", NOW - 7 * SECOND, 1, NOW - 7 * SECOND), 7), "its next fire stays"
    assert move.next_us - lead * SECOND == NOW + UNREADABLE_SECONDS * SECOND


async def test_a_schedule_that_is_behind_gets_its_fires_in_one_tick() -> None:
    harness = Harness()
    harness.master.add("a", NOW - 40 * SECOND, expression="10s", overlap=Overlap.CANCEL_PREVIOUS)
    harness.firing.on_next_fire(0.0)
    async with asyncio.timeout(10):
        await harness.firing.tick()
    nominals = [fire.nominal_us for _, fires, *_ in harness.master.statements for fire in fires]
    assert nominals == [NOW + seconds * SECOND for seconds in range(-40, 31, 10)]


async def test_missed_fires_are_counted() -> None:
    harness = Harness()
    harness.master.add("a", NOW - 3 * 3600 * SECOND)
    harness.firing.on_next_fire(0.0)
    await harness.firing.tick()
    assert harness.telemetry.fires == {"missed": 3, "fired": 1, "skipped": 0, "withdrawn": 0}
    assert harness.master.statements[0][1][-1].outcome == FireOutcome.FIRED


async def test_undeclared_schedules_are_retired_by_a_maintenance_task() -> None:
    harness = Harness()
    harness.master.undeclared = ["old"]
    (task,) = harness.firing.tasks()
    await task.run()
    assert harness.master.undeclared == []
