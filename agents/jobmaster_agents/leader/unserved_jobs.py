"""Maintenance task for jobs that wait in the master because no agent has their handler, or because it or a tag is paused.

The task logs them (event ``handler_unserved``) and puts them off where they would cost other jobs something: an onboarding
reads past every job that its agent cannot run, so such jobs at the front of the due ones would be read by all owners of
their lane and priority with every hint. A job that is put off is read once an hour. It gets its own due time back as soon as
an owner of a matching bucket has its handler.

Jobs of a paused handler, or with a paused tag, are put off as well: they wait in the master, too, where onboarding would read
over them.

After ``thresholds.fallback_after`` the task requests help: an agent that has the handler and helps in that lane opens a
bucket for these jobs; the agent reads the request with its next renewal. The request ends when a configured owner can run
the same jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from jobmaster.clock import Clock
from jobmaster.model.job import Priority
from jobmaster.ports import DueGroup, HelpRequest, LeaderUnserved, UnservedHandler
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.settings.model import Thresholds
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.maintenance_runner import MORE, MaintenanceTask

TASK = "unserved"
EVERY_SECONDS = 60.0
OVERDUE_SECONDS = 60.0
"""A job that is overdue for less may only wait for a restart."""
LOOK_JOBS = 1000
"""Jobs of each lane and priority that are read, the oldest first."""
PAUSED_JOBS = 10_000
"""Jobs of each lane and priority that are counted while something is paused."""
AWAY_SECONDS = 3600.0
"""Time for which a job is put off."""
NAME_AGAIN_SECONDS = 3600.0
"""An unserved handler is logged again after this time."""


_ROUNDS_MAX = 20
_LOOKS = 3
"""Least number of looks before help is requested."""

_Kind = tuple[str, int, str]
"""Lane, priority and handler."""


class UnservedJobsMonitor:
    """Logs jobs that no agent can run, puts them off, and gives them their due time back."""

    def __init__(
        self, unserved: LeaderUnserved, thresholds: Thresholds, clock: Clock, telemetry: Telemetry, log: EventLog
    ) -> None:
        self._unserved = unserved
        self._now = clock.boottime
        self._fallback_after = after = thresholds.fallback_after_seconds
        self._every = min(EVERY_SECONDS, after / _LOOKS) if after else EVERY_SECONDS
        self._overdue = min(OVERDUE_SECONDS, self._every)
        self._telemetry = telemetry
        self._log = log
        self._limit = thresholds.transfer_batch
        """Jobs that one statement moves."""
        self._named: dict[UnservedCause, float] = {}
        self._since: dict[_Kind, float] = {}

    def tasks(self) -> list[MaintenanceTask]:
        """The task, due at once."""
        return [MaintenanceTask(TASK, self._every, self.look)]

    async def look(self) -> bool | None:
        """One round. ``MORE``: a statement reached its limit, and there may be more jobs."""
        back = await self._rounds(self._unserved.put_back)
        found = await self._unserved.find(self._overdue, LOOK_JOBS)
        self._name(found)
        await self._find_help([each.cause for each in found])
        off = await self._put_off(each.cause for each in found)
        paused = await self._rounds(partial(self._unserved.put_off_paused, self._overdue, AWAY_SECONDS))
        await self._count_paused()
        return MORE if self._limit in (back, off, paused) else None

    async def _count_paused(self) -> None:
        self._telemetry.jobs_paused = await self._unserved.count_paused(PAUSED_JOBS)

    async def _rounds(self, move: Callable[[int], Awaitable[int]]) -> int:
        """Move jobs until none is left, for some time; the number that was moved last. After a pause of many jobs this is how
        fast they become due."""
        moved, rounds = self._limit, 0
        while moved == self._limit and rounds < _ROUNDS_MAX:
            moved = await move(self._limit)
            rounds += 1
        return moved

    def _name(self, found: Sequence[UnservedHandler]) -> None:
        now = self._now()
        named = {each.cause: self._named.get(each.cause) for each in found}
        for each in found:
            at = named[each.cause]
            if at is None or now - at >= NAME_AGAIN_SECONDS:
                named[each.cause] = now
                fields = {"handler": each.cause.handler, "group": each.cause.group, "jobs": each.jobs}
                self._log.warning(Event.HANDLER_UNSERVED, {**fields, "reason": each.cause.reason})
        self._named = {cause: at for cause, at in named.items() if at is not None}
        self._telemetry.handlers_unserved = len({each.cause.handler for each in found})

    async def _find_help(self, causes: Sequence[UnservedCause]) -> None:
        """Request help for handlers that no agent has served for long. An operator's freeze is no reason for it."""
        now = self._now()
        since = {kind: self._since.get(kind, now - self._overdue) for kind in map(_kind, causes)}
        self._since = since
        for ended in await self._unserved.end_help():
            self._log.info(Event.HELP_ENDED, _fields(ended))
        if not self._fallback_after:
            return
        wanted = [
            cause
            for cause in causes
            if cause.known
            and not cause.frozen
            and not cause.requires
            and now - since[_kind(cause)] >= self._fallback_after
        ]
        if wanted:
            for asked in await self._unserved.request_help(wanted):
                self._log.info(Event.HELP_ASKED, _fields(asked))

    async def _put_off(self, causes: Iterable[UnservedCause]) -> int:
        """Put jobs off; the largest number in one group. A group without an open bucket is left alone: no agent reads it.
        So are jobs that require a capability: other jobs of their handler run."""
        groups: dict[DueGroup, list[str]] = {}
        for cause in causes:
            if cause.active and not cause.requires:
                groups.setdefault(DueGroup(cause.lane, cause.priority), []).append(cause.handler)
        most = 0
        for group, handlers in groups.items():
            moved = await self._unserved.put_off(group, handlers, self._overdue, AWAY_SECONDS, self._limit)
            most = max(most, moved)
        return most


def _kind(cause: UnservedCause) -> _Kind:
    return cause.lane, cause.priority, cause.handler


def _fields(each: HelpRequest) -> dict[str, object]:
    return {
        "handler": each.handler,
        "lane": each.lane,
        "priority": Priority(each.priority).label,
        "helper": each.helper,
    }
