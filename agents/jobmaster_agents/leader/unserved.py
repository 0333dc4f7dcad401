"""The coordinator's chore about jobs that wait in the master for a handler nobody brings.

They are named (event ``handler_unserved``), and put off where they would cost others something: an onboarding reads over
every job that its agent cannot run, so such jobs at the front of what is due would be read by all owners of their lane and
priority with every hint. Put off, a job is looked at once an hour; it has its own due time again as soon as an owner of a
matching bucket has its handler.

After ``thresholds.fallback_after`` an agent that has the handler and helps out in their lane is asked to open a bucket for
them; it reads that with its next renewal. It is asked no more when a configured owner can run the same jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.job import Priority
from jobmaster.ports import DueGroup, Help, Unserved
from jobmaster.rules.serving import Lack
from jobmaster.settings.model import Thresholds
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.leader import AGAIN, MaintenanceTask

EVERY_SECONDS = 60.0
OVERDUE_SECONDS = 60.0
"""A job that is overdue for less may only have met a restart."""
LOOK_JOBS = 1000
"""Jobs of each lane and priority that are looked at, the oldest first."""
AWAY_SECONDS = 3600.0
"""For how long a job is put off."""
NAME_AGAIN_SECONDS = 3600.0
"""What is still so is logged again after this time."""


_LOOKS = 3
"""How often is looked at least before help is asked for."""

_Kind = tuple[str, int, str]
"""Lane, priority and handler."""


class UnservedMaster(Protocol):
    """What the chore needs of the master."""

    async def unserved(self, overdue_seconds: float, look: int) -> list[Unserved]: ...

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int: ...

    async def put_back(self, limit: int) -> int: ...

    async def ask_help(self, lacks: Sequence[Lack]) -> list[Help]: ...

    async def end_help(self) -> list[Help]: ...


class UnservedJobs:
    """Names them, puts them off, and puts them back."""

    def __init__(
        self, master: UnservedMaster, thresholds: Thresholds, clock: Clock, telemetry: Telemetry, log: EventLog
    ) -> None:
        self._master = master
        self._now = clock.boottime
        self._fallback_after = after = thresholds.fallback_after_seconds
        self._every = min(EVERY_SECONDS, after / _LOOKS) if after else EVERY_SECONDS
        self._overdue = min(OVERDUE_SECONDS, self._every)
        self._telemetry = telemetry
        self._log = log
        self._limit = thresholds.transfer_batch
        """Jobs that one statement moves."""
        self._named: dict[Lack, float] = {}
        self._since: dict[_Kind, float] = {}

    def chores(self) -> list[MaintenanceTask]:
        """Due at once."""
        return [MaintenanceTask("unserved", self._every, self.look)]

    async def look(self) -> bool | None:
        """One round. ``AGAIN``: there was more than one statement of each kind moves."""
        back = await self._master.put_back(self._limit)
        found = await self._master.unserved(self._overdue, LOOK_JOBS)
        self._name(found)
        await self._find_help([each.lack for each in found])
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

    async def _find_help(self, lacks: Sequence[Lack]) -> None:
        """Somebody who has the handler, once nobody has served it for long. An operator's stop is no lack."""
        now = self._now()
        since = {kind: self._since.get(kind, now - self._overdue) for kind in map(_kind, lacks)}
        self._since = since
        for ended in await self._master.end_help():
            self._log.info(Event.HELP_ENDED, _fields(ended))
        if not self._fallback_after:
            return
        wanted = [
            lack
            for lack in lacks
            if lack.known and not lack.frozen and now - since[_kind(lack)] >= self._fallback_after
        ]
        if wanted:
            for asked in await self._master.ask_help(wanted):
                self._log.info(Event.HELP_ASKED, _fields(asked))

    async def _put_off(self, lacks: Iterable[Lack]) -> int:
        """The most that one group had. Where no bucket takes jobs nobody reads over them, and they stay as they are."""
        groups: dict[DueGroup, list[str]] = {}
        for lack in lacks:
            if lack.active:
                groups.setdefault(DueGroup(lack.lane, lack.priority), []).append(lack.handler)
        most = 0
        for group, handlers in groups.items():
            moved = await self._master.put_off(group, handlers, self._overdue, AWAY_SECONDS, self._limit)
            most = max(most, moved)
        return most


def _kind(lack: Lack) -> _Kind:
    return lack.lane, lack.priority, lack.handler


def _fields(each: Help) -> dict[str, object]:
    return {
        "handler": each.handler,
        "lane": each.lane,
        "priority": Priority(each.priority).label,
        "helper": each.helper,
    }
