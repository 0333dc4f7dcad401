"""Lanes and priorities that nobody serves, and in which this agent was asked to have a bucket.

A renewal says which. The bucket is one like every other; it completes when it is not asked for any more: a configured owner
has come, which the coordinator sees, or there has been nothing to do in it for long, which only this agent can see.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError
from jobmaster.model.job import Priority
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership

Group = tuple[str, int]
"""Lane and priority."""


class FallbackMaster(Protocol):
    """Where it is written who was asked."""

    async def stop_helping(self, agent_id: bytes, lane: str, priority: int) -> None: ...


class FallbackHost(Protocol):
    """What works on the buckets of this agent."""

    def activity(self, lane: str, priority: int) -> tuple[int, bool] | None: ...

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None: ...


class _FallbackGroup:
    """One lane and priority."""

    __slots__ = ("at", "claimed", "stopping")

    def __init__(self, at: float) -> None:
        self.at = at
        """When there was last something to do."""
        self.claimed = 0
        self.stopping = False
        """The master is being told, or knows, that there is nothing to do."""


class FallbackBuckets:
    """Follows what is asked, and tells where it is idle.

    Args:
        ask: where buckets are wanted besides the configuration; called when that has changed.
        idle_seconds: without a job for so long.
    """

    def __init__(
        self,
        ownership: Ownership,
        master: FallbackMaster,
        bucket_worker: FallbackHost,
        ask: Callable[[frozenset[Group]], None],
        idle_seconds: float,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._master = master
        self._bucket_worker = bucket_worker
        self._ask = ask
        self._idle_seconds = idle_seconds
        self._now = clock.boottime
        self._log = log
        self._groups: dict[Group, _FallbackGroup] = {}

    def renewed(self, asked: frozenset[Group]) -> None:
        """What a renewal says."""
        if asked != self._groups.keys():
            self._groups = {group: self._groups.get(group) or _FallbackGroup(self._now()) for group in asked}
            self._ask(asked)
        for group, each in self._groups.items():
            if self._is_idle(group, each):
                each.stopping = True
                self._bucket_worker.spawn(partial(self._stop, group, each))

    def _is_idle(self, group: Group, each: _FallbackGroup) -> bool:
        """Nothing claimed for long, and nothing there. What is due later waits in the master as well as here."""
        activity = self._bucket_worker.activity(*group)
        claimed, busy = activity or (0, True)
        if busy or claimed != each.claimed:
            each.claimed, each.at = claimed, self._now()
            return False
        return not each.stopping and self._now() - each.at >= self._idle_seconds

    async def _stop(self, group: Group, each: _FallbackGroup) -> None:
        try:
            await self._master.stop_helping(self._ownership.agent_id, *group)
        except JobMasterError:
            each.stopping = False  # it is still idle at the next renewal
            return
        self._log.info(Event.HELP_IDLE, {"lane": group[0], "priority": Priority(group[1]).label})
