"""A bucket that a store or a write says is another's, while the master may still name this agent: it is declared LOST.

Without this a bucket whose store was emptied or rolled back, or that was fenced by a rescuer whose mark in the master was
forgotten by a failover, would stay ACTIVE for ever in the hands of a living agent that does not serve it. The declaration is
a compare-and-set on (epoch, owner): when the bucket really is another's, nothing happens.

Before that, what this process still holds of it is written to the master (``memory_recovery``), whoever has the bucket by
now: it may have it because this very agent has declared it LOST (``ownership_check``), or because a declaration was not
answered. First, so that outcomes stand before a rescuer sweeps the rows. A failure of one does not keep the other, nor the
next bucket, from being tried.

Only a bucket of which the store itself said that it has lost it is noted as a loss: what lies in one that is another's, or
whose store was slow, is there for the rescuer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import CodeError, JobMasterError, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.telemetry import Telemetry
from jobmaster_agents.buckets.memory_recovery import Saved
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership

IDLE_SECONDS = 3600.0


class Salvage(Protocol):
    """Where the copies are that this process held of it."""

    async def write(self, owned: OwnedBucket) -> Saved: ...


class _Lost:
    """A bucket to be declared."""

    __slots__ = ("declared", "owned", "saved", "why")

    def __init__(self, owned: OwnedBucket, why: str) -> None:
        self.owned = owned
        self.why = why
        self.declared: bool | None = None
        """The answer to the declaration: whether the master named this agent."""
        self.saved: Saved | None = None


class BucketLedger(Protocol):
    """Where a bucket's state is moved."""

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool: ...

    async def note_loss(self, fence: Fence, store: str, at_risk: int, salvaged: int, reason: str) -> None: ...


class BucketLoss:
    """The duty that declares what ``Ownership`` lost.

    Args:
        on_disowned: told of each holding when it was declared (whoever owns it now), so that a new bucket can take its place.
    """

    name = "disowning"

    def __init__(
        self,
        ownership: Ownership,
        ledger: BucketLedger,
        salvage: Salvage,
        on_declared: Callable[[OwnedBucket], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ledger = ledger
        self._salvage = salvage
        self._telemetry = telemetry
        self._on_declared = on_declared
        self._log = log
        self._waiting: deque[_Lost] = deque()
        self._at_work = asyncio.Lock()
        self.kicked = asyncio.Event()
        ownership.on_lost.append(self._lost)

    def _lost(self, owned: OwnedBucket, why: str) -> None:
        self._waiting.append(_Lost(owned, why))
        self.kicked.set()

    async def tick(self) -> float:
        """One after the other; what fails waits for the next tick. (Also called by who leaves.)

        Raises:
            JobMasterError: a failure, when all others have had their turn; one that may be over soon before one that is not.
        """
        async with self._at_work:
            failed: list[_Lost] = []
            failure: JobMasterError | None = None
            try:
                while self._waiting:
                    error = await self._tried(self._waiting[0])
                    lost = self._waiting.popleft()
                    if error is not None:
                        failed.append(lost)
                        failure = error if failure is None or isinstance(error, Unavailable) else failure
            finally:
                self._waiting.extend(failed)
            if failure is not None:
                raise failure
        return IDLE_SECONDS

    async def _tried(self, lost: _Lost) -> JobMasterError | None:
        """All that can be done about one; what stood in the way of the rest."""
        failure: JobMasterError | None = None
        for step in (self._save, self._declare, self._note):
            try:
                await step(lost)
            except CodeError:
                raise
            except JobMasterError as error:
                failure = error if failure is None or isinstance(error, Unavailable) else failure
        return failure

    async def _save(self, lost: _Lost) -> None:
        if lost.saved is not None:
            return
        owned = lost.owned
        lost.saved = saved = await self._salvage.write(owned)
        self._telemetry.jobs_salvaged += saved.written
        owned.at_risk = max(owned.at_risk - saved.settled, 0) if owned.store_lost else 0
        self._telemetry.jobs_at_risk += owned.at_risk

    async def _declare(self, lost: _Lost) -> None:
        if lost.declared is None:
            lost.declared = await self._ledger.move_bucket(*lost.owned.fence, BucketState.LOST, lost.why)
            self._on_declared(lost.owned)

    async def _note(self, lost: _Lost) -> None:
        """For people, when all is done."""
        owned, saved = lost.owned, lost.saved
        if saved is None or lost.declared is None:
            return
        if owned.store_lost and (owned.at_risk or saved.written):
            try:
                await self._ledger.note_loss(owned.fence, owned.store, owned.at_risk, saved.written, lost.why)
            except Refused as error:  # the counts stand in the log; nothing waits for a right on a table for people
                self._log.error(Event.CALL_FAILED, {"what": "note_loss", "failures": 1, "reason": str(error)})
        if lost.declared or owned.at_risk or saved.written:
            fields = {"bucket": owned.fence.bucket_id, "reason": lost.why}
            self._log.warning(Event.BUCKET_GIVEN_BACK, {**fields, "at_risk": owned.at_risk, "salvaged": saved.written})
