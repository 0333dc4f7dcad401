"""Schedules in a history: put by a client, paused, resumed and run by a person, and decided by whichever agent leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from jobmaster.codec import encode_fire_headers
from jobmaster.model.errors import JobMasterError
from jobmaster.model.schedule import Misfire, Overlap, Schedule
from jobmaster.rules.recurrence import next_fire_us, recurrence_of
from tests.simulation.master.tables import FireRow
from tests.simulation.runtime.hosts import EPOCH_US

if TYPE_CHECKING:
    from tests.simulation.history import History

_TRIES = 12
_CHANGES_MAX = 5
_Answer = TypeVar("_Answer")


class Recurring:
    """One process that puts schedules and changes its mind about some of them.

    Args:
        chance: the stream of the workload.
    """

    def __init__(self, history: History, chance: Random, new_id: Callable[[], bytes]) -> None:
        self._history = history
        self._schedules = history.open_master().schedules
        self._chance = chance
        self._new_id = new_id
        self.untouched: list[Schedule] = []
        """Those that were put with an answer, and that no person has touched."""

    async def run(self, seconds: float) -> None:
        """Schedules that fire each second, until the end of the history's active part."""
        now_us = self._now_us()
        for number in range(3):
            chance = self._chance
            schedule = Schedule(
                name=f"schedule-{number}", handler="plain", expression=f"{chance.choice((1, 1, 1.5))}s".replace(".0s", "s"),
                start_us=now_us + int(chance.random() * 1e6), end_us=now_us + int(seconds * 1.4e6),
                misfire=chance.choice(list(Misfire)), misfire_max=2, overlap=chance.choice(list(Overlap)),
                jitter_seconds=chance.choice((0.0, 0.2)),
            )  # fmt: skip
            put = await self._until_answered(lambda schedule=schedule: self._schedules.put([schedule], next_fire_us))  # type: ignore[misc]
            if put is not None and number:
                self.untouched.append(schedule)
        await asyncio.sleep(seconds * self._chance.random() / 2)
        await self._change_mind()

    async def _change_mind(self) -> None:
        """The first schedule is paused, resumed and run."""
        name = "schedule-0"
        await self._until_answered(lambda: self._schedules.pause([name], None, "person", "simulation"))
        await asyncio.sleep(0.5 * self._chance.random())
        while True:  # as long as a failover forgets it
            rows = await self._until_answered(lambda: self._schedules.list([name]))
            if rows is None or not rows or rows[0].paused_us is None:
                break
            await self._until_answered(lambda rows=rows: self._schedules.resume(rows, next_fire_us, "person"))  # type: ignore[misc]
        job_id = self._new_id()
        for _ in range(_CHANGES_MAX):
            rows = await self._until_answered(lambda: self._schedules.list([name]))
            if not rows:
                break
            row, at_us = rows[0], self._now_us()
            headers = encode_fire_headers(row.schedule, at_us, at_us)
            # As clients do: the caller gets the error of a lost answer, and the key of the job refuses a second call.
            with contextlib.suppress(JobMasterError):
                if await self._schedules.run_now(row, job_id, at_us, headers, "person") is None:  # it fired meanwhile
                    continue
            break

    async def _until_answered(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        for _ in range(_TRIES):
            try:
                return await call()
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * self._chance.random())
        return None

    def _now_us(self) -> int:
        return EPOCH_US + int(self._history.loop.now * 1e6)


def undecided(history: History) -> bool:
    """Some schedule of a client still fires. (Those that agents declare never end.)"""
    rows = history.master.statements.tables.schedules.values()
    return any(row.decide_us is not None for row in rows if row.source == "api")


def left_behind(history: History) -> list[str]:
    """Definitions of agents that no living agent declares, although one declares another definition of the schedule."""
    tables = history.master.statements.tables
    living = [each.process.agent_id for each in history.hosts if each.process is not None and each.process.alive]
    digests = set().union(*(tables.digests.get(each, set()) for each in living))
    names = {name for each in living for name in tables.declared.get(each, ())}
    return [
        f"the definition of {row.name} is that of agents that have ended" for row in tables.schedules.values()
        if row.source != "api" and row.name in names and row.digest not in digests
    ]  # fmt: skip


def gaps(history: History, untouched: list[Schedule]) -> list[str]:
    """Nominal times without a line, of schedules without a change; and lines that do not follow each other."""
    tables = history.master.statements.tables
    wrong = []
    for schedule in untouched:
        lines = {nominal: line for (name, nominal), line in tables.fires.items() if name == schedule.name}
        if schedule.name not in tables.schedules or not lines:
            continue  # a failover has forgotten it, or it was put after its end
        first, last = min(lines), schedule.end_us or 0
        recurrence = recurrence_of(schedule.expression, schedule.zone, schedule.start_us, schedule.end_us)
        expected = recurrence.between_us(first - 1, last, 100)
        wrong += [f"{schedule.name} has no line for {us}" for us in expected if not _covered(lines, us)]
    return wrong


def _covered(lines: dict[int, FireRow], us: int) -> bool:
    return us in lines or any(nominal < us < (line.through_us or 0) for nominal, line in lines.items())
