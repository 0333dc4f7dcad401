"""Buckets in lanes and priorities that no agent is configured to serve, on request of the leader.

A renewal names them. Such a bucket is like every other one. It completes when it is not requested any more: the leader sees
that a configured owner has come, or this agent reports that the bucket has been idle for long.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError
from jobmaster.model.job import Priority
from jobmaster.ports import FallbackUnserved
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership

Group = tuple[str, int]
"""Lane and priority."""


class FallbackHost(Protocol):
    """The bucket worker, as this module uses it."""

    def activity(self, lane: str, priority: int) -> tuple[int, bool] | None: ...

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None: ...


class _FallbackGroup:
    """One lane and priority."""

    __slots__ = ("at", "claimed", "stopping")

    def __init__(self, at: float) -> None:
        self.at = at
        """When there was last a job (CLOCK_BOOTTIME seconds)."""
        self.claimed = 0
        self.stopping = False
        """The report that it is idle is on its way, or the master has it."""


class HelperBuckets:
    """Follows the requests, and reports idle buckets.

    Args:
        request: called with all requested lanes and priorities when they have changed.
        idle_seconds: how long a bucket must be without a job.
    """

    def __init__(
        self,
        ownership: Ownership,
        unserved: FallbackUnserved,
        bucket_worker: FallbackHost,
        request: Callable[[frozenset[Group]], None],
        idle_seconds: float,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._unserved = unserved
        self._bucket_worker = bucket_worker
        self._request = request
        self._idle_seconds = idle_seconds
        self._now = clock.boottime
        self._log = log
        self._groups: dict[Group, _FallbackGroup] = {}

    def renewed(self, requested: frozenset[Group]) -> None:
        """Take the requests of a renewal."""
        if requested != self._groups.keys():
            self._groups = {group: self._groups.get(group) or _FallbackGroup(self._now()) for group in requested}
            self._request(requested)
        for group, each in self._groups.items():
            if self._is_idle(group, each):
                each.stopping = True
                self._bucket_worker.spawn(partial(self._stop, group, each))

    def _is_idle(self, group: Group, each: _FallbackGroup) -> bool:
        """Nothing claimed for long, and no job present. A job that is due later may wait in the master as well as here."""
        activity = self._bucket_worker.activity(*group)
        claimed, busy = activity or (0, True)
        if busy or claimed != each.claimed:
            each.claimed, each.at = claimed, self._now()
            return False
        return not each.stopping and self._now() - each.at >= self._idle_seconds

    async def _stop(self, group: Group, each: _FallbackGroup) -> None:
        try:
            await self._unserved.stop_helping(self._ownership.agent_id, *group)
        except JobMasterError:
            each.stopping = False  # it is still idle at the next renewal
            return
        self._log.info(Event.HELP_IDLE, {"lane": group[0], "priority": Priority(group[1]).label})
