"""Follows the pauses of the cluster: a renewal shows a new version, this task reads the pauses and applies them.

Then the agent publishes the version that it obeys. From that moment on it starts no job that a pause covers: the command that
has paused waits for it. An agent opens its buckets after its first reading, so a pause holds for those too.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.ports import PauseReader
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.pauses import NEVER_READ, Pauses

IDLE_SECONDS = 3600.0


class PauseHost(Protocol):
    """The bucket worker, as this module uses it."""

    pauses: Pauses

    def apply_pauses(self) -> None: ...


class PauseWatch:
    """Reads the pauses when they have changed, and ends those whose time is over."""

    name = "pause-watch"

    def __init__(self, agent_id: bytes, pauses: PauseReader, host: PauseHost, clock: Clock, log: EventLog) -> None:
        self._agent_id = agent_id
        self._reader = pauses
        self._host = host
        self._now = clock.boottime
        self._log = log
        self._wanted = NEVER_READ
        self._published = NEVER_READ
        self.kicked = asyncio.Event()
        self.read_once = asyncio.Event()
        """Set after the first reading."""

    def renewed(self, version: int | None, obeyed: int | None) -> None:
        """Take the versions of a renewal: that of the cluster, and what the master has of this agent. After a failover
        that has forgotten commits both may be lower than before."""
        if version is None:
            return
        if version != self._host.pauses.version:
            self._wanted = version
            self.kicked.set()
        published = NEVER_READ if obeyed is None else obeyed
        if self.read_once.is_set() and published != self._published:
            self._published = published
            self.kicked.set()

    async def tick(self) -> float:
        """Read and apply a new version, publish it; seconds until the next pause ends."""
        pauses = self._host.pauses
        if self._wanted != pauses.version or not self.read_once.is_set():
            answer = await self._reader.in_force()
            self._wanted = answer.version
            changed = pauses.in_force or answer.pauses or answer.cancelled_ranges
            pauses.take(answer, self._now())
            if changed:
                self._apply()
        elif pauses.end(self._now()):
            self._apply()
        self.read_once.set()
        if self._published != pauses.version:
            await self._reader.obey(self._agent_id, pauses.version)
            self._published = pauses.version
        ends_at = pauses.next_end
        return IDLE_SECONDS if ends_at is None else max(ends_at - self._now(), 0.0)

    def _apply(self) -> None:
        pauses = self._host.pauses
        self._host.apply_pauses()
        fields = {"version": pauses.version, "paused": ", ".join(pauses.subjects) or "nothing"}
        self._log.info(Event.PAUSES_CHANGED, fields)
