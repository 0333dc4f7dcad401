"""Retention of jobs as a duty of the leader: ranges that are older than ``retention.jobs.after`` leave the master.

It does what ``jobmaster db retire`` does, by the same functions, on connections of its own that are open only meanwhile; so
neither the leader's renewal nor a maintenance task waits for it. One range at a time, each in transactions of some tens of
milliseconds. An advisory lock keeps a second agent out, also the former leader while it ends. A death in the middle
leaves a range that the next look continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from jobmaster.master.history.archive import Archive
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.retention.retire import Retiring
from jobmaster.settings.model import ClusterSettings, RetiredJobs
from jobmaster.wiring import open_archive
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.maintenance_runner import IDLE_SECONDS

LOOK_SECONDS = 600.0
"""Between two looks. A range is a day at least, so a range leaves at most this much too late."""


class JobRetention:
    """Periodic task that retires ranges while this agent leads.

    Args:
        leads: returns True while this agent leads; it is asked again before each range.
    """

    name = "job-retention"

    def __init__(self, agent_id: bytes, settings: ClusterSettings, leads: Callable[[], bool], log: EventLog) -> None:
        self._agent_id = agent_id
        self._settings = settings
        self._leads = leads
        self._log = log
        self._blocked: str | None = None
        self.kicked = asyncio.Event()

    async def tick(self) -> float:
        """Retire what is old enough, and note the look in the master.

        Raises:
            Unavailable: the master does not answer.
        """
        rule = self._settings.retention.jobs
        if rule.after_seconds is None or not self._leads():
            return IDLE_SECONDS
        archive = await open_archive(self._settings)
        try:
            blocked: str | None = None
            try:
                await self._retire(archive, rule.after_seconds)
            except CodeError:
                raise
            except JobMasterError as error:  # a store that does not answer, or holds a job alone: the range stays
                blocked = str(error)
            await archive.note_run(
                self._agent_id, rule.after_seconds, discards=rule.then is RetiredJobs.DISCARD, blocked=blocked
            )
        finally:
            await archive.close()
        if blocked is not None and blocked != self._blocked:
            self._log.warning(Event.RETENTION_BLOCKED, {"reason": blocked})
        self._blocked = blocked
        return LOOK_SECONDS

    async def _retire(self, archive: Archive, after_seconds: float) -> None:
        async with Retiring.opened(self._settings, archive, after_seconds, ()) as retiring:
            async with aclosing(retiring.all(self._progress)) as retired:
                async for name in retired:
                    self._log.info(Event.RANGE_RETIRED, {"range": name})
                    if not self._leads():
                        return
            if self._settings.retention.jobs.then is RetiredJobs.DISCARD:
                async with aclosing(retiring.discarded(self._progress)) as discarded:
                    async for name in discarded:
                        self._log.info(Event.RANGE_DISCARDED, {"range": name})
                        if not self._leads():
                            return

    def _progress(self, message: str) -> None:
        self._log.debug(Event.RETENTION_PROGRESS, {"step": message})
