"""A bucket that a store or a write says is another's, while the master may still name this agent: it is declared LOST.

Without this a bucket whose store was emptied or rolled back, or that was fenced by a rescuer whose mark in the master was
forgotten by a failover, would stay ACTIVE for ever in the hands of a living agent that does not serve it. The declaration is
a compare-and-set on (epoch, owner): when the bucket really is another's, nothing happens. When it was ours, its store has
lost it, and what this process still holds of it is written to the master (``salvaging``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError
from jobmaster.model.ids import Fence
from jobmaster.rules.bucket_machine import WORKING_STATES
from jobmaster.telemetry import Telemetry
from jobmaster_agents.events import Event, EventLog
from jobmaster_agents.holdings import Holding, Holdings

IDLE_SECONDS = 3600.0
_OURS = WORKING_STATES | {BucketState.FROZEN}


class Salvage(Protocol):
    """Where the copies are that this process held of it."""

    def drop(self, holding: Holding) -> None: ...

    async def write(self, holding: Holding) -> int: ...


class _Lost:
    """A bucket to be declared."""

    __slots__ = ("asked", "holding", "salvaged", "was_ours", "why")

    def __init__(self, holding: Holding, why: str) -> None:
        self.holding = holding
        self.why = why
        self.asked = False
        """It was declared before, or waited while the master did not answer: whoever has it by now may have it from us."""
        self.was_ours: bool | None = None
        self.salvaged: int | None = None


class BucketLedger(Protocol):
    """Where a bucket's state is moved."""

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool: ...

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]: ...

    async def note_loss(self, fence: Fence, store: str, at_risk: int, salvaged: int, reason: str) -> None: ...


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
        salvage: Salvage,
        on_disowned: Callable[[Holding], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ledger = ledger
        self._salvage = salvage
        self._telemetry = telemetry
        self._on_disowned = on_disowned
        self._log = log
        self._waiting: deque[_Lost] = deque()
        self._at_work = asyncio.Lock()
        self.kicked = asyncio.Event()
        holdings.on_lost.append(self._lost)

    def _lost(self, holding: Holding, why: str) -> None:
        self._waiting.append(_Lost(holding, why))
        self.kicked.set()

    async def tick(self) -> float:
        """Declare one after the other; a failure leaves the rest for the next tick. (Also called by who leaves.)"""
        async with self._at_work:
            while self._waiting:
                try:
                    await self._declare(self._waiting[0])
                except JobMasterError:
                    for lost in self._waiting:
                        lost.asked = True
                    raise
                self._on_disowned(self._waiting.popleft().holding)
        return IDLE_SECONDS

    async def _is_ours(self, holding: Holding) -> bool:
        """True when the master names this agent under another epoch: an operator's stop, of which it has never heard. That
        bucket is declared LOST by who compares what is held (``ownership``)."""
        owned = await self._ledger.owned_buckets(holding.fence.owner)
        return any(each.id == holding.fence.bucket_id and each.state in _OURS for each in owned)

    async def _declare(self, lost: _Lost) -> None:
        holding = lost.holding
        if lost.was_ours is None:
            moved = await self._ledger.move_bucket(*holding.fence, BucketState.LOST, lost.why)
            lost.was_ours = moved or lost.asked or await self._is_ours(holding)
        if not lost.was_ours:
            self._salvage.drop(holding)
            return
        # Nobody has taken it from us, so its store has lost it, or fell back: what has no row may be gone with it.
        if lost.salvaged is None:
            lost.salvaged = saved = await self._salvage.write(holding)
            holding.at_risk = max(holding.at_risk - saved, 0)
            self._telemetry.jobs_at_risk += holding.at_risk
            self._telemetry.jobs_salvaged += saved
        if holding.at_risk or lost.salvaged:
            await self._ledger.note_loss(holding.fence, holding.store, holding.at_risk, lost.salvaged, lost.why)
        fields = {"bucket": holding.fence.bucket_id, "reason": lost.why}
        counts = {"at_risk": holding.at_risk, "salvaged": lost.salvaged}
        self._log.warning(Event.BUCKET_GIVEN_BACK, {**fields, **counts})
