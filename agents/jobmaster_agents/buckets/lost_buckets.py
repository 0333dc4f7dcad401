"""Declares a bucket LOST after an answer which shows that this agent cannot own it any more.

The master may still name this agent. A bucket whose store was emptied or restored from an older copy, or whose rescuer's mark
in the master was lost in a failover, would otherwise stay ACTIVE for ever, owned by an agent that does not serve it. The
declaration is a compare-and-set on (epoch, owner): when the bucket has another owner, nothing happens.

First the copies of its jobs in memory are written to the master (``memory_recovery``), so that outcomes are there before a
rescuer sweeps the rows. That does not depend on the present owner: it may own the bucket because this agent has declared it
LOST (``ownership_check``), or because the answer to a declaration was lost. When one step fails, the other steps and the
other buckets are tried all the same.

A loss is recorded only for a bucket that its store has lost by its own reply: jobs in a bucket that has another owner, or
whose store was slow, are still there for the rescuer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import CodeError, JobMasterError, Refused, Unavailable
from jobmaster.ports import LossBuckets
from jobmaster.telemetry import Telemetry
from jobmaster_agents.buckets.memory_recovery import RecoveryResult
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership

IDLE_SECONDS = 3600.0


class CopyRecovery(Protocol):
    """``MemoryRecovery``: the copies of the bucket's jobs in memory."""

    async def write(self, owned: OwnedBucket) -> RecoveryResult: ...


class _LostBucket:
    """A bucket to be declared LOST."""

    __slots__ = ("declared", "owned", "saved", "why")

    def __init__(self, owned: OwnedBucket, why: str) -> None:
        self.owned = owned
        self.why = why
        self.declared: bool | None = None
        """The answer to the declaration: True if the master named this agent until then."""
        self.saved: RecoveryResult | None = None


class LostBuckets:
    """The periodic task that declares the buckets that ``Ownership`` has lost.

    Args:
        on_declared: called with each bucket after its declaration, whatever the answer, so that a new bucket can take its
        place.
    """

    name = "lost-buckets"

    def __init__(
        self,
        ownership: Ownership,
        buckets: LossBuckets,
        recovery: CopyRecovery,
        on_declared: Callable[[OwnedBucket], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._buckets = buckets
        self._recovery = recovery
        self._telemetry = telemetry
        self._on_declared = on_declared
        self._log = log
        self._waiting: deque[_LostBucket] = deque()
        self._at_work = asyncio.Lock()
        self.kicked = asyncio.Event()
        ownership.on_lost.append(self._lost)

    def _lost(self, owned: OwnedBucket, why: str) -> None:
        self._waiting.append(_LostBucket(owned, why))
        self.kicked.set()

    async def tick(self) -> float:
        """One bucket after the other; what fails waits for the next tick. (The agent also calls this when it leaves.)

        Raises:
            JobMasterError: a failure, after all buckets were tried; an ``Unavailable`` rather than another.
        """
        async with self._at_work:
            failed: list[_LostBucket] = []
            failure: JobMasterError | None = None
            try:
                while self._waiting:
                    error = await self._process(self._waiting[0])
                    lost = self._waiting.popleft()
                    if error is not None:
                        failed.append(lost)
                        failure = error if failure is None or isinstance(error, Unavailable) else failure
            finally:
                self._waiting.extend(failed)
            if failure is not None:
                raise failure
        return IDLE_SECONDS

    async def _process(self, lost: _LostBucket) -> JobMasterError | None:
        """Try all steps of one bucket; a failure, if there was one."""
        failure: JobMasterError | None = None
        for step in (self._save, self._declare, self._note):
            try:
                await step(lost)
            except CodeError:
                raise
            except JobMasterError as error:
                failure = error if failure is None or isinstance(error, Unavailable) else failure
        return failure

    async def _save(self, lost: _LostBucket) -> None:
        if lost.saved is not None:
            return
        owned = lost.owned
        lost.saved = saved = await self._recovery.write(owned)
        self._telemetry.jobs_salvaged += saved.written
        owned.at_risk = max(owned.at_risk - saved.settled, 0) if owned.store_lost else 0
        self._telemetry.jobs_at_risk += owned.at_risk

    async def _declare(self, lost: _LostBucket) -> None:
        if lost.declared is None:
            lost.declared = await self._buckets.move_bucket(*lost.owned.fence, BucketState.LOST, lost.why)
            self._on_declared(lost.owned)

    async def _note(self, lost: _LostBucket) -> None:
        """Record the loss for operators, after the other steps."""
        owned, saved = lost.owned, lost.saved
        if saved is None or lost.declared is None:
            return
        if owned.store_lost and (owned.at_risk or saved.written):
            try:
                await self._buckets.note_loss(owned.fence, owned.store, owned.at_risk, saved.written, lost.why)
            except Refused as error:  # the log has the counts; nothing waits for a right on a table for operators
                self._log.error(Event.CALL_FAILED, {"what": "note_loss", "failures": 1, "reason": str(error)})
        if lost.declared or owned.at_risk or saved.written:
            fields = {"bucket": owned.fence.bucket_id, "reason": lost.why}
            self._log.warning(Event.BUCKET_GIVEN_BACK, {**fields, "at_risk": owned.at_risk, "salvaged": saved.written})
