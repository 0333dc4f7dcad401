"""A bucket that a store or a write says is another's, while the master may still name this agent: it is declared LOST.

Without this a bucket whose store was emptied or rolled back, or that was fenced by a rescuer whose mark in the master was
forgotten by a failover, would stay ACTIVE for ever in the hands of a living agent that does not serve it. The declaration is
a compare-and-set on (epoch, owner): when the bucket really is another's, nothing happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import BucketState
from jobmaster.telemetry import Telemetry
from jobmaster_agents.events import Event, EventLog
from jobmaster_agents.holdings import Holding, Holdings

IDLE_SECONDS = 3600.0


class BucketLedger(Protocol):
    """Where a bucket's state is moved."""

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool: ...


class Disowning:
    """The duty that declares what ``Holdings`` lost.

    Args:
        on_disowned: told of each holding afterwards (whoever owns it now), so that a new bucket can take its place.
    """

    name = "disowning"

    def __init__(
        self,
        holdings: Holdings,
        ledger: BucketLedger,
        on_disowned: Callable[[Holding], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._on_disowned = on_disowned
        self._log = log
        self._waiting: deque[tuple[Holding, str]] = deque()
        self.kicked = asyncio.Event()
        holdings.on_lost.append(self._lost)

    def _lost(self, holding: Holding, why: str) -> None:
        self._waiting.append((holding, why))
        self.kicked.set()

    async def tick(self) -> float:
        """Declare one after the other; a failure leaves the rest for the next tick."""
        while self._waiting:
            holding, why = self._waiting[0]
            was_ours = await self._ledger.move_bucket(*holding.fence, BucketState.LOST, why)
            self._waiting.popleft()
            if was_ours:
                # Nobody has taken it from us, so its store has lost it, or fell back: what has no row may be gone with it.
                self._telemetry.jobs_at_risk += holding.at_risk
                fields = {"bucket": holding.fence.bucket_id, "reason": why, "at_risk": holding.at_risk}
                self._log.warning(Event.BUCKET_GIVEN_BACK, fields)
            self._on_disowned(holding)
        return IDLE_SECONDS
