"""The coordinator's chore about jobs that wait in the master for a handler nobody brings.

They are named (event ``handler_unserved``), and put off where they would cost others something: an onboarding reads over
every job that its agent cannot run, so such jobs at the front of what is due would be read by all owners of their lane and
priority with every hint. Put off, a job is looked at once an hour; it has its own due time again as soon as an owner of a
matching bucket has its handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.ports import DueGroup, Unserved
from jobmaster.rules.serving import Lack
from jobmaster.telemetry import Telemetry
from jobmaster_agents.coordination import AGAIN, Chore
from jobmaster_agents.events import Event, EventLog

EVERY_SECONDS = 60.0
OVERDUE_SECONDS = 60.0
"""A job that is overdue for less may only have met a restart."""
LOOK_JOBS = 1000
"""Jobs of each lane and priority that are looked at, the oldest first."""
AWAY_SECONDS = 3600.0
"""For how long a job is put off."""
NAME_AGAIN_SECONDS = 3600.0
"""What is still so is logged again after this time."""


class UnservedMaster(Protocol):
    """What the chore needs of the master."""

    async def unserved(self, overdue_seconds: float, look: int) -> list[Unserved]: ...

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int: ...

    async def put_back(self, limit: int) -> int: ...


class UnservedJobs:
    """Names them, puts them off, and puts them back.

    Args:
        limit: jobs that one statement moves.
    """

    def __init__(self, master: UnservedMaster, clock: Clock, telemetry: Telemetry, log: EventLog, limit: int) -> None:
        self._master = master
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._limit = limit
        self._named: dict[Lack, float] = {}

    def chores(self) -> list[Chore]:
        """Due at once."""
        return [Chore("unserved", EVERY_SECONDS, self.look)]

    async def look(self) -> bool | None:
        """One round. ``AGAIN``: there was more than one statement of each kind moves."""
        back = await self._master.put_back(self._limit)
        found = await self._master.unserved(OVERDUE_SECONDS, LOOK_JOBS)
        self._name(found)
        off = await self._put_off(each.lack for each in found)
        return AGAIN if self._limit in (back, off) else None

    def _name(self, found: Sequence[Unserved]) -> None:
        now = self._now()
        named = {each.lack: self._named.get(each.lack) for each in found}
        for each in found:
            at = named[each.lack]
            if at is None or now - at >= NAME_AGAIN_SECONDS:
                named[each.lack] = now
                fields = {"handler": each.lack.handler, "group": each.lack.group, "jobs": each.jobs}
                self._log.warning(Event.HANDLER_UNSERVED, {**fields, "reason": each.lack.reason})
        self._named = {lack: at for lack, at in named.items() if at is not None}
        self._telemetry.handlers_unserved = len({each.lack.handler for each in found})

    async def _put_off(self, lacks: Iterable[Lack]) -> int:
        """The most that one group had. Where no bucket takes jobs nobody reads over them, and they stay as they are."""
        groups: dict[DueGroup, list[str]] = {}
        for lack in lacks:
            if lack.active:
                groups.setdefault(DueGroup(lack.lane, lack.priority), []).append(lack.handler)
        most = 0
        for group, handlers in groups.items():
            moved = await self._master.put_off(group, handlers, OVERDUE_SECONDS, AWAY_SECONDS, self._limit)
            most = max(most, moved)
        return most
