"""Sends hints to agents in which jobs wait for permits that a job of this agent has freed.

An agent that waits asks the master now and then, so a hint that is lost costs time and no start. It goes through the store to
the bucket in which a job was denied last, as a hint of due jobs does. Jobs that wait in this process come first: only
limits for which none waits here lead to a hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.model.flow.limit import LimitKey
from jobmaster.ports import HintStore, WaitingForPermits
from jobmaster.telemetry import Telemetry
from jobmaster_agents.state.store_reachability import StoreReachability

GATHER_SECONDS = 0.02
"""Limits freed in this time after a hint share the next look."""
IDLE_SECONDS = 3600.0
HINT_SECONDS = 1.0
"""Time limit of one hint."""
_LIMITS_MAX = 1000


class PermitHints:
    """Periodic task that looks for waiting agents, a moment after permits were freed.

    Args:
        alone: True when the last renewal named no other living agent.
    """

    name = "permit-hints"

    def __init__(
        self,
        agent_id: bytes,
        limits: WaitingForPermits,
        stores: Mapping[str, HintStore],
        reachability: StoreReachability,
        alone: Callable[[], bool],
        telemetry: Telemetry,
    ) -> None:
        self._agent_id = agent_id
        self._limits = limits
        self._stores = stores
        self._reachability = reachability
        self._alone = alone
        self._telemetry = telemetry
        self._freed: set[LimitKey] = set()
        self.kicked = asyncio.Event()

    def freed(self, limits: Iterable[LimitKey]) -> None:
        """These limits have free permits, and no job waits for them here."""
        if not self._alone() and len(self._freed) < _LIMITS_MAX:
            self._freed.update(limits)
            self.kicked.set()

    async def tick(self) -> float:
        """Send hints for what has gathered; seconds until the next look."""
        if not self._freed:
            return IDLE_SECONDS
        freed, self._freed = self._freed, set()
        for bucket_id, store in await self._limits.waiting_elsewhere(self._agent_id, sorted(freed)):
            if store in self._stores and self._reachability.answers(store):
                await self._hint(bucket_id, store)
        await asyncio.sleep(GATHER_SECONDS)
        return 0.0 if self._freed else IDLE_SECONDS

    async def _hint(self, bucket_id: bytes, store: str) -> None:
        try:
            async with asyncio.timeout(HINT_SECONDS):
                await self._stores[store].hint(bucket_id)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reachability.failed(store, error)
        else:
            self._telemetry.hints += 1
