"""Graceful exit of buckets: ACTIVE -> COMPLETING -> READY_TO_DELETE, with zero rescues and no attempt burnt.

Block intake (master first, then the store: producers get CLOSED and go elsewhere, onboarding stops) -> flush what waits
in the store to the master -> finish what is running and queued, within the grace -> give the rest back -> retire. Every
step is idempotent; a crash in the middle is an ordinary rescue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobmaster.clock import Clock
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.ports import Membership, StoreOwner, Word
from jobmaster_agents.claiming import Pump
from jobmaster_agents.execution import Execution
from jobmaster_agents.portions import Memory
from jobmaster_agents.reporting import Reporter
from jobmaster_agents.verdicts import StopCause, Verdicts

_LOOK_SECONDS = 0.02
_RETRY_SECONDS = 0.2


class Completing:
    """Brings buckets to their graceful end."""

    def __init__(
        self,
        master: Membership,
        store: StoreOwner,
        memory: Memory,
        execution: Execution,
        reporter: Reporter,
        verdicts: Verdicts,
        clock: Clock,
    ) -> None:
        self._master = master
        self._store = store
        self._memory = memory
        self._execution = execution
        self._reporter = reporter
        self._verdicts = verdicts
        self._now = clock.boottime
        self.hurry = asyncio.Event()
        """Set by a second signal: stop running handlers and give everything back now."""

    async def complete(self, pumps: Sequence[Pump], grace_seconds: float, reason: str) -> list[bytes]:
        """Bring the buckets of these pumps to READY_TO_DELETE; returns those that could not be retired (they are left
        to the rescue)."""
        deadline = self._now() + grace_seconds
        await asyncio.gather(*(self._close_intake(pump, reason) for pump in pumps))
        await self._finish_or_release(pumps, deadline)
        retired = await asyncio.gather(*(self._retire(pump, deadline + grace_seconds) for pump in pumps))
        return [pump.holding.fence.bucket_id for pump, done in zip(pumps, retired, strict=True) if not done]

    async def _close_intake(self, pump: Pump, reason: str) -> None:
        holding = pump.holding
        if holding.lost:
            return
        holding.closed = True
        fence = holding.fence
        while not holding.lost:
            try:
                moved = holding.state is BucketState.COMPLETING or await self._master.move_bucket(
                    fence.bucket_id, fence.epoch, fence.owner, BucketState.COMPLETING, reason
                )
                if not moved:
                    return  # not ours any more: its rescuer takes care
                holding.state = BucketState.COMPLETING
                await self._store.close_intake(fence)
                break
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(_RETRY_SECONDS)
        pump.flushing = True
        pump.ask()

    async def _finish_or_release(self, pumps: Sequence[Pump], deadline: float) -> None:
        """Queued and running jobs end by themselves; at the deadline (or at a second signal) they are given back."""
        buckets = [pump.holding.fence.bucket_id for pump in pumps]
        while any(self._execution.backlog(bucket_id) for bucket_id in buckets):
            if self._now() >= deadline or self.hurry.is_set():
                for bucket_id in buckets:
                    for job in self._execution.take_queued(bucket_id):
                        self._verdicts.release(job)
                    for job in self._memory.of_bucket(bucket_id):
                        self._execution.stop_job(job, StopCause.RELEASE)
                deadline = self._now() + 1.0  # handlers that ignore it are asked again
            await asyncio.sleep(_LOOK_SECONDS)

    async def _retire(self, pump: Pump, deadline: float) -> bool:
        holding = pump.holding
        fence = holding.fence
        while not holding.lost and self._now() < deadline:
            pump.ask()  # whatever still lies there is flushed
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._memory.empty(fence.bucket_id):
                continue
            await self._reporter.wait_settled()
            try:
                word = await self._store.close_if_empty(fence)
                if word is Word.NOT_EMPTY:
                    continue
                if word is not Word.OK:
                    return False
                if await self._master.move_bucket(
                    fence.bucket_id, fence.epoch, fence.owner, BucketState.READY_TO_DELETE, "emptied by its owner"
                ):
                    holding.state = BucketState.READY_TO_DELETE
                    return True
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(_RETRY_SECONDS)
        return False
