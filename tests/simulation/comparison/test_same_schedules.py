"""The simulated schedules answer as the real ones and hold the same rows after every call: Hypothesis chooses what leaders,
agents and people do."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import encode_fire_headers
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.job import FinalRow
from jobmaster.model.schedule import Overlap, Schedule, ScheduleSource
from jobmaster.ports import NewFire, ScheduleMove
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

SECOND = 1_000_000
NAMES = ("a", "b")
names = st.sampled_from(NAMES)
overlaps = st.sampled_from(Overlap)
moments = st.sampled_from([-3600, -1800, 1800, 3600])
"""Seconds from the beginning: fires lie well before or after the time at which two clocks are read."""
outcomes = st.sampled_from(["fired", "fired", "missed", "skipped"])


class Schedulers(TwoMasters):
    """The rules."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(self.sql.execute("DELETE FROM schedule; DELETE FROM schedule_fire"))
        self.began_us = time.time_ns() // 1000

    def at(self, seconds: int) -> int:
        return self.began_us + seconds * SECOND

    # ------------------------------------------------------------ definitions

    def _schedule(self, name: str, overlap: Overlap, version: int) -> Schedule:
        return Schedule(
            name=name, handler="handler", expression="60s", overlap=overlap, args=b'{"v":%d}' % version, tags=("t",)
        )

    @rule(name=names, overlap=overlaps, version=st.integers(0, 1), seconds=moments)
    def put(self, name: str, overlap: Overlap, version: int, seconds: int) -> None:
        what = self._schedule(name, overlap, version)
        self.both(lambda master: master.schedules.put([what], lambda _, __: self.at(seconds)))

    @rule(name=names, agent=st.integers(0, 2), version=st.integers(0, 1), seconds=moments)
    def publish(self, name: str, agent: int, version: int, seconds: int) -> None:
        what = self._schedule(name, Overlap.SKIP, version)
        self.both(
            lambda master: master.schedules.publish(
                self.agents[agent], ScheduleSource.CODE, [what], lambda _, __: self.at(seconds)
            )
        )

    @rule(name=names, version=st.integers(0, 1))
    def to_republish(self, name: str, version: int) -> None:
        what = self._schedule(name, Overlap.SKIP, version)
        self.both(lambda master: master.schedules.to_republish([what]))

    @rule(agent=st.integers(0, 2))
    def agent_dies(self, agent: int) -> None:
        self.both(lambda master: master.members.end_agent(self.agents[agent], dead=True, reason="test"))

    @rule()
    def retire(self) -> None:
        for _ in range(2):
            time.sleep(0.002)
            self.both(lambda master: master.schedules.retire_undeclared(0.0))

    # ------------------------------------------------------------ the leader

    @rule(
        name=names,
        first=outcomes,
        count=st.integers(0, 2),
        stale=st.integers(0, 5),
        ends=st.booleans(),
        range_=st.booleans(),
    )
    def fire(self, name: str, first: str, count: int, stale: int, ends: bool, range_: bool) -> None:
        """A decision about the next fires; a stale one is about fires that were decided before."""
        row = self.server.statements.tables.schedules.get(name)
        if row is None:
            return
        at_us = row.next_us or self.at(1800)
        move = ScheduleMove(
            name, at_us - (stale == 1), row.revision + (stale == 2), 0 if ends else at_us + (count + 1) * 60 * SECOND
        )
        what = self._schedule(name, Overlap.SKIP, 0)
        shared = range_ and first != "fired"
        fires = [
            NewFire(
                name, nominal_us, "fired" if number else first, nominal_us + 7 if shared and not number else 0,
                new_id(), nominal_us, encode_fire_headers(what, nominal_us, nominal_us),
            )
            for number, nominal_us in enumerate(at_us + each * 60 * SECOND for each in range(count + 1))
        ]  # fmt: skip

        async def decide(master: Any) -> list[Any]:
            return sorted(await master.schedules.fire([move], fires, 30.0, 1))

        for _ in range(2):
            self.both(decide)

    @rule()
    def look(self) -> None:
        async def due(master: Any) -> list[Any]:
            return sorted((each.schedule.name, each.next_us, each.revision) for each in await master.schedules.due(10))

        self.both(due)

    # ------------------------------------------------------------ people

    @rule(name=st.sampled_from([*NAMES, None]), tag=st.sampled_from(["t", "u", None]))
    def pause(self, name: str | None, tag: str | None) -> None:
        self.both(lambda master: master.schedules.pause(None if name is None else [name], tag, "me", "why"))

    @rule(seconds=moments, changed=st.booleans())
    def resume(self, seconds: int, changed: bool) -> None:
        async def resume(master: Any) -> Any:
            rows = await master.schedules.list(retired=True)
            rows = [row._replace(revision=row.revision - 1) for row in rows] if changed else rows
            return await master.schedules.resume(rows, lambda _, __: self.at(seconds), "me")

        self.both(resume)

    @rule(name=names)
    def remove(self, name: str) -> None:
        self.both(lambda master: master.schedules.remove([name], None, "me"))

    @rule(name=names)
    def run_now(self, name: str) -> None:
        job_id, now_us = new_id(), time.time_ns() // 1000 - SECOND

        async def run(master: Any) -> Any:
            rows = await master.schedules.list([name], retired=True)
            headers = b"" if not rows else encode_fire_headers(rows[0].schedule, now_us, now_us)
            return await master.schedules.run_now(rows[0], job_id, now_us, headers, "me") if rows else None

        self.both(run)

    # ------------------------------------------------------------ jobs

    @rule(succeeds=st.booleans())
    def jobs_end(self, succeeds: bool) -> None:
        """Every job that waits is onboarded; those in flight end, or are cancelled when that was asked for."""
        self.create()
        fence = self.fence(0, None, 0)
        for master in (self.real, self.simulated):
            master.onboarding._positions.clear()
        flying = [row for row in self.server.statements.tables.jobs.values() if row.state == "ASSIGNED"]
        if flying and succeeds:
            rows = [
                FinalRow(row.id, "SUCCEEDED", 3, "default", "handler", row.token, fence.bucket_id, fence.epoch, 0, 0, 0, 5, 7,
                         b"{}", b"", b"1", None)
                for row in flying
            ]  # fmt: skip
            self.both(lambda master: master.outcomes.record_final(rows))
        elif flying:
            self.both(lambda master: master.outcomes.cancel_waiting([fence], sorted(row.id for row in flying)))

        async def onboard(master: Any) -> int:
            return len((await master.onboarding.onboard(fence, "default", 3, 1e9, 100)).entries)

        self.both(onboard)

    def create(self) -> None:
        row = Bucket(
            id=self.buckets[0], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))

    # ------------------------------------------------------------ the same rows

    @invariant()
    def both_hold_the_same_schedules(self) -> None:
        tables = self.server.statements.tables
        assert self.wait(self._real_schedules()) == {
            "schedule": {
                row.name: (row.source, row.digest, row.args, row.revision, row.next_us, row.last_us, set(row.last_jobs),
                           row.paused, row.retired, row.decide_us is None, row.undeclared_us is None,
                           list(row.superseded))
                for row in tables.schedules.values()
            },
            "fires": {
                key: (line.outcome, line.job_id, _through(key[1], line.through_us), line.previous_us, line.manual)
                for key, line in tables.fires.items()
            },
        }  # fmt: skip

    async def _real_schedules(self) -> dict[str, Any]:
        rows = await self.sql.fetch(
            "SELECT name, source, digest, args, revision, to_us(next_fire), to_us(last_fire), last_jobs,"
            " paused_at IS NOT NULL, retired_at IS NOT NULL, decide_at IS NULL, undeclared_since IS NULL, superseded"
            " FROM schedule"
        )
        lines = await self.sql.fetch(
            "SELECT schedule, to_us(nominal), outcome, job_id, to_us(through), to_us(previous), manual FROM schedule_fire"
        )
        return {
            "schedule": {row[0]: (*row[1:7], {each.bytes for each in row[7]}, *row[8:]) for row in rows},
            "fires": {
                (line[0], line[1]): (
                    line[2],
                    line[3].bytes if isinstance(line[3], UUID) else None,
                    _through(line[1], line[4]),
                    *line[5:],
                )
                for line in lines
            },
        }


def _through(nominal_us: int, through_us: int | None) -> int | str | None:
    """The beginning of a pause is read from two clocks."""
    return "pause" if through_us is not None and through_us > nominal_us + 60 * SECOND else through_us


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_schedules_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(Schedulers, migrated, examples=15, share=share)


pytestmark = pytest.mark.slow
