"""The leader's look at batches that agents have not ended: cancelled ones, late ones, and those whose last note was lost.

Jobs that no agent has ended were noted in the master by the statement that ended them. They are added to the tallies
of this agent, which counts their batches (``outcomes.batch_tally``).

A batch is looked at ten seconds after its last change. One whose jobs still end is not counted. The longer none of its jobs
has ended, the longer is the time until the next look. That time comes from rows, so a change of the leader changes nothing.
Looked at by two agents, or twice, a batch ends once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from jobmaster.clock import Clock
from jobmaster.model.flow.batch import DueBatch, EndReason
from jobmaster.ports import LeaderBatches
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.maintenance_runner import BATCHES as TASK
from jobmaster_agents.leader.maintenance_runner import IDLE_SECONDS, MORE, MaintenanceTask
from jobmaster_agents.outcomes.batch_tally import note_end

LOOK_SECONDS = 5.0
"""Of a batch that is cancelled."""
QUIET_SECONDS = 10.0
"""A batch none of whose jobs has ended for so long is counted."""
LOST_SECONDS = 3600.0
"""Without the end of a job for so long, a batch whose jobs a store may have lost is given up."""
AGAIN_SECONDS_MAX = 600.0
_REST = 20.0
"""Times the duration of a count until the next one of the same batch."""
_QUIET_SHARE = 0.1
"""Time until the next look at a quiet batch, as a share of the time since a job of it has ended."""
BATCHES = 50
NOTES = 10_000
"""Ended jobs that one call takes."""
PAGE_JOBS = 1000
PAGES = 50
ACTOR = "leader"
"""In the operator's log, of a batch inside a cancelled one."""

Notify = Callable[[Iterable[tuple[str, int]]], Awaitable[object]]


class BatchWatch:
    """Looks at batches that have not ended.

    Args:
        noted: called with ranges of batches of which jobs have ended by no agent; their batches are counted by it.
    """

    def __init__(
        self,
        agent_id: bytes,
        batches: LeaderBatches,
        noted: Callable[[Iterable[bytes]], None],
        notify: Notify,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._agent_id = agent_id
        self._batches = batches
        self._noted = noted
        self._notify = notify
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log

    def tasks(self) -> list[MaintenanceTask]:
        """The task of this class."""
        return [MaintenanceTask(TASK, IDLE_SECONDS, self.look)]

    async def look(self) -> bool | None:
        """Take what was noted, and look at those that are due; ``MORE`` when there is more."""
        due = await self._batches.due(BATCHES, LOST_SECONDS)  # first: it does not depend on the notes
        for batch in due:
            await self._look_at(batch)
        ranges, jobs = await self._batches.take_notes(self._agent_id, NOTES)
        self._noted(ranges)
        return MORE if len(due) == BATCHES or jobs == NOTES else None

    async def _look_at(self, batch: DueBatch) -> None:
        began = self._now()
        quiet = batch.quiet_seconds > QUIET_SECONDS
        if batch.inner_left:  # opened while the cancel was written
            await self._batches.request_cancel(batch.id, ACTOR)
        if batch.cancel_requested:
            await self._cancel(batch.id)
        if (quiet or batch.cancel_requested or batch.expired) and await self._end(batch.id, None):
            return
        reason = _reason(batch)
        if reason is not None and await self._end(batch.id, reason):
            return
        again = LOOK_SECONDS if batch.cancel_requested else max(QUIET_SECONDS, batch.quiet_seconds * _QUIET_SHARE)
        await self._batches.postpone(batch.id, min(max(again, (self._now() - began) * _REST), AGAIN_SECONDS_MAX))

    async def _cancel(self, batch_id: bytes) -> None:
        after: bytes | None = None
        for _ in range(PAGES):
            after, _ = await self._batches.cancel_page(batch_id, after, PAGE_JOBS)
            if after is None:
                break

    async def _end(self, batch_id: bytes, reason: EndReason | None) -> bool:
        concluded = await self._batches.conclude(batch_id, reason)
        if concluded is None:
            return False
        self._telemetry.batches_found += 1
        note_end(self._telemetry, self._log, batch_id, concluded.name, concluded.state, reason or "")
        await self._notify(concluded.groups)
        if concluded.parent is not None:
            await self._end(concluded.parent, None)
        return True


def _reason(batch: DueBatch) -> EndReason | None:
    if batch.expired:
        return EndReason.EXPIRED
    if batch.abandoned:
        return EndReason.ABANDONED
    return EndReason.LOST if batch.lost else None
