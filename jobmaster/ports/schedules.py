"""Ports of the master for schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jobmaster.model.schedule import Fire, Schedule, ScheduleRow, ScheduleSource
from jobmaster.ports.master_answers import DueSchedule, FiredLine, NewFire, RunNowAnswer, ScheduleMove

NextUs = Callable[[Schedule, int], int | None]
"""The first nominal time of a schedule after a moment, microseconds since 1970: ``rules.recurrence.next_fire_us``."""


class FiringSchedules(Protocol):
    """For the leader, which decides fires."""

    async def due(self, limit: int) -> list[DueSchedule]:
        """Schedules whose next fire is to be decided, without their arguments, the most overdue first."""
        ...

    async def fire(
        self, moves: Sequence[ScheduleMove], fires: Sequence[NewFire], lead_seconds: float, leader_epoch: int | None
    ) -> list[FiredLine]:
        """Decide fires of schedules that are still as they were read, in one statement: a line for each, and a job for those
        that are due. Each schedule is looked at again ``lead_seconds`` before its next fire (negative: after it). The
        lines that count now; sent again, none."""
        ...

    async def retire_undeclared(self, grace_seconds: float) -> list[str]:
        """Retire schedules of code and configuration that no living agent has declared for this long; their names."""
        ...


class ClientSchedules(Protocol):
    """For people: definitions by the API, and what is done to schedules."""

    async def put(self, schedules: Sequence[Schedule], next_us: NextUs) -> list[str]:
        """Definitions by the API; the names that agents declare, of which nothing was put."""
        ...

    async def pause(self, names: Sequence[str] | None, tag: str | None, actor: str, reason: str) -> list[str]:
        """Nothing of these schedules fires until they are resumed. Their jobs that lie ahead are cancelled. The names of
        those that this call paused."""
        ...

    async def resume(self, rows: Sequence[ScheduleRow], next_us: NextUs, actor: str) -> list[str]:
        """Paused schedules fire again, from their next nominal time on; the names of those that this call resumed."""
        ...

    async def remove(self, names: Sequence[str] | None, tag: str | None, actor: str) -> list[str]:
        """Retire schedules and cancel their jobs that lie ahead; the names of those that this call retired."""
        ...

    async def run_now(
        self, row: ScheduleRow, job_id: bytes, now_us: int, headers: bytes, actor: str
    ) -> RunNowAnswer | None:
        """One fire now, beside the recurrence; ``None``: it has changed or fired since it was read, or is retired."""
        ...

    async def fires(self, name: str, limit: int) -> list[Fire]:
        """The newest lines of a schedule, the newest first."""
        ...

    async def list(
        self,
        names: Sequence[str] | None = None,
        *,
        tag: str | None = None,
        retired: bool = False,
        after: str = "",
        limit: int = 1000,
    ) -> list[ScheduleRow]:
        """Schedules in the order of their names."""
        ...


class PublishedSchedules(Protocol):
    """For agents: the definitions that they declare."""

    async def publish(
        self,
        agent_id: bytes,
        source: ScheduleSource,
        schedules: Sequence[Schedule],
        next_us: NextUs,
    ) -> list[str]:
        """Definitions that an agent declares, all of one source; the names that were not put, because the definition of
        another living agent, or of the API, stands."""
        ...

    async def to_republish(self, schedules: Sequence[Schedule]) -> list[str]:
        """Of definitions that an agent has published: names whose present definition is another one, which no living agent
        declares. So the agent publishes its own again."""
        ...


class Schedules(FiringSchedules, ClientSchedules, PublishedSchedules, Protocol):
    """Schedules, from their definition to their end."""
