"""Publishes the schedules that this agent's code and configuration declare: at its start, and again when that is needed.

A definition of an agent that started later stands while a living agent declares it. When the last of those has ended, as
after a deploy that is taken back, the agents that are left publish theirs again.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.model.schedule import Schedule, ScheduleSource
from jobmaster.ports import PublishedSchedules
from jobmaster.rules.recurrence import next_fire_us
from jobmaster.settings.schedules import Declared
from jobmaster_agents.event_log import Event, EventLog

CHECK_SECONDS = 60.0


class SchedulePublisher:
    """Periodic task of an agent that declares schedules.

    Args:
        declared: what the agent declares.
    """

    name = "schedule-publisher"

    def __init__(
        self, agent_id: bytes, master: PublishedSchedules, declared: Sequence[Declared], log: EventLog
    ) -> None:
        self._agent_id = agent_id
        self._master = master
        self._declared = declared
        self._log = log
        self._published = False

    async def publish(self) -> None:
        """Publish all. The definition of another living agent may stand."""
        await self._publish([one.schedule.name for one in self._declared])
        self._published = True

    async def tick(self) -> float:
        """Publish again what no other living agent declares otherwise."""
        if self._published:
            names = await self._master.to_republish([one.schedule for one in self._declared])
            if names:
                await self._publish(names)
        return CHECK_SECONDS

    async def _publish(self, names: Sequence[str]) -> None:
        chosen = set(names)
        for source in (ScheduleSource.CODE, ScheduleSource.YAML):
            schedules: list[Schedule] = [
                one.schedule for one in self._declared if one.source is source and one.schedule.name in chosen
            ]
            if not schedules:
                continue
            for name in await self._master.publish(self._agent_id, source, schedules, next_fire_us):
                self._log.info(Event.SCHEDULE_NOT_PUT, {"schedule": name, "source": source.value})
