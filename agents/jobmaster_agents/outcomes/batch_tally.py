"""Notes in the master how many jobs of batches this agent has ended, and ends a batch when its last job has.

The note is a hint. It shows when a count of the jobs is worth its time, and the count decides (``batches/conclude``). So a
note that is lost, or sent twice, costs time and no more: the leader finds the batch (``leader.batch_watch``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter

from jobmaster.clock import Clock
from jobmaster.model.flow.batch import range_of
from jobmaster.model.job import FinalRow
from jobmaster.ports import AgentBatches
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

GATHER_SECONDS = 0.1
"""Ended jobs of this time share one note."""
IDLE_SECONDS = 3600.0
RECOUNT_SECONDS = 2.0
"""Least time between two counts of one batch that had not ended at the first."""
_REST = 10.0
"""... as a multiple of the duration of a count."""
_RANGES_MAX = 1000
_MARK = b'"batch":true'
_headers = itemgetter(FinalRow._fields.index("headers"))  # by position: of all ways to take a column the cheapest

Notify = Callable[[Iterable[tuple[str, int]]], Awaitable[object]]
"""Tell owners of these lanes and priorities that jobs are due."""


class BatchTally:
    """Periodic task that sends the notes, a moment after jobs of a batch have ended."""

    name = "batch-tally"

    def __init__(
        self,
        agent_id: bytes,
        batches: AgentBatches,
        notify: Notify,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._agent_id = agent_id
        self._batches = batches
        self._notify = notify
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._ended: dict[bytes, int] = {}
        self._to_count: dict[bytes, float] = {}
        """Ranges and batches whose batch may have ended, and when it may be counted (CLOCK_BOOTTIME seconds)."""
        self._resting: dict[bytes, float] = {}
        """Batches that were counted in vain, and until when they are not counted again."""
        self.kicked = asyncio.Event()

    def ended(self, rows: Sequence[FinalRow]) -> None:
        """The master has these outcomes."""
        if not any(map(_headers, rows)):  # jobs without options, on the path of every outcome
            return
        for row in filter(_headers, rows):
            if row.headers.find(_MARK) >= 0:
                lowest = range_of(row.id)
                self._ended[lowest] = self._ended.get(lowest, 0) + 1
        if self._ended:
            self.kicked.set()

    def noted(self, ranges: Iterable[bytes]) -> None:
        """The leader has added other jobs of these ranges to its tallies: their batches may have ended."""
        for lowest in ranges:
            self._to_count[lowest] = self._now()  # later than a count under way, whose snapshot may lack the tallies
            self.kicked.set()

    async def tick(self) -> float:
        """Send what has gathered, and end batches that are full."""
        if self._ended:
            await asyncio.sleep(GATHER_SECONDS)
            ended = dict(list(self._ended.items())[:_RANGES_MAX])
            await self._batches.tally(self._agent_id, ended)
            now = self._now()
            for lowest, count in ended.items():
                self._ended[lowest] -= count
                if not self._ended[lowest]:
                    del self._ended[lowest]
                self._to_count.setdefault(lowest, now)
        await self._conclude()
        if self._ended:
            return 0.0
        return max(min(self._to_count.values()) - self._now(), 0.0) if self._to_count else IDLE_SECONDS

    async def _conclude(self) -> None:
        now = self._now()
        due = [each for each, at in self._to_count.items() if at <= now]
        self._resting = {batch_id: until for batch_id, until in self._resting.items() if until > now}
        while due:
            outer = []
            for batch_id in await self._batches.full(due):
                if (until := self._resting.get(batch_id)) is not None:
                    self._to_count[batch_id] = until
                    continue
                began = self._now()
                concluded = await self._batches.conclude(batch_id)
                if concluded is None:  # tallies are ahead of the jobs: counted again, but not at once
                    rest = max(RECOUNT_SECONDS, (self._now() - began) * _REST)
                    self._to_count[batch_id] = self._resting[batch_id] = self._now() + rest
                    continue
                note_end(self._telemetry, self._log, concluded.id, concluded.name, concluded.state)
                await self._notify(concluded.groups)
                if concluded.parent is not None:
                    outer.append(concluded.parent)
            for each in due:
                if self._to_count.get(each, 0.0) <= now:
                    self._to_count.pop(each, None)
            due = outer


def note_end(telemetry: Telemetry, log: EventLog, batch_id: bytes, name: str, state: str, reason: str = "") -> None:
    """Count and log the end of a batch."""
    telemetry.batches_ended[state] += 1
    fields = {"batch": batch_id, "name": name, "state": state}
    log.info(Event.BATCH_ENDED, {**fields, "reason": reason} if reason else fields)
