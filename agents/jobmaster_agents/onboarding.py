"""HELD jobs that are due soon move into this agent's buckets. Away from the master: mark first, put second.

Driven, never polling: the coordinator (or a producer after its commit) leaves a hint in a bucket, a claim brings it here,
and as long as the master says "more", the next batch is fetched when the bucket falls below its low-water mark. A crash
between the two steps leaves ASSIGNED rows without a copy, which anti-entropy or the rescue returns to HELD.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.job import Entry
from jobmaster.ports import Onboarding as OnboardingPort
from jobmaster.ports import StoreOwner, Word
from jobmaster.settings.model import Thresholds
from jobmaster_agents.holdings import Holding, Holdings

_FETCHERS = 2
_BACKOFF_SECONDS = 0.5


class _Due:
    """What is known about one bucket's held jobs."""

    __slots__ = ("ahead", "busy", "holding", "more")

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.ahead = 0
        """Jobs put into the bucket and not yet claimed from it."""
        self.more = False
        self.busy = False


class Onboarding:
    """Fetches for all buckets of one process.

    Args:
        on_forgotten: the bucket turned out to be another's.
    """

    name = "onboarding"

    def __init__(
        self,
        master: OnboardingPort,
        store: StoreOwner,
        holdings: Holdings,
        thresholds: Thresholds,
        clock: Clock,
        on_forgotten: Callable[[bytes, str], None],
    ) -> None:
        self._master = master
        self._store = store
        self._holdings = holdings
        self._thresholds = thresholds
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._due: dict[bytes, _Due] = {}
        self._kicked: dict[bytes, None] = {}
        self._work = asyncio.Event()
        self.onboarded = 0
        self.released = 0

    def open(self, holding: Holding) -> None:
        """Serve a bucket; asked once at once."""
        self._due[holding.fence.bucket_id] = _Due(holding)
        self.kick(holding.fence.bucket_id)

    def close(self, bucket_id: bytes) -> None:
        """Fetch no more for the bucket."""
        self._due.pop(bucket_id, None)
        self._kicked.pop(bucket_id, None)

    def kick(self, bucket_id: bytes) -> None:
        """HELD jobs of the bucket's lane and priority are due soon."""
        if bucket_id in self._due:
            self._kicked[bucket_id] = None
            self._work.set()

    def taken(self, bucket_id: bytes, jobs: int) -> None:
        """Onboarded jobs were claimed from the bucket."""
        due = self._due.get(bucket_id)
        if due is not None:
            due.ahead = max(due.ahead - jobs, 0)
            if due.more and due.ahead < self._thresholds.assigned_low_water:
                self.kick(bucket_id)

    async def run(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_FETCHERS):
                group.create_task(self._fetch_loop(), name="jobmaster-onboarding")

    async def _fetch_loop(self) -> None:
        while True:
            due = self._next()
            if due is None:
                self._work.clear()
                await self._work.wait()
                continue
            due.busy = True
            try:
                again = await self._fetch(due)
            except (OutcomeUnknown, Unavailable):
                # Rows may be ASSIGNED without a copy now: anti-entropy returns them after its grace period.
                await asyncio.sleep(_BACKOFF_SECONDS)
                again = True
            finally:
                due.busy = False
            if again:
                self.kick(due.holding.fence.bucket_id)

    def _next(self) -> _Due | None:
        for bucket_id in self._kicked:
            due = self._due.get(bucket_id)
            if due is not None and not due.busy:
                del self._kicked[bucket_id]
                return due
        return None

    async def _fetch(self, due: _Due) -> bool:
        """One batch; True when the next one should follow at once."""
        holding, limits = due.holding, self._thresholds
        if holding.closed or holding.lost or due.ahead >= 2 * limits.assigned_low_water:
            return False
        if not self._holdings.may_start(self._now()):
            await self._holdings.wait_trusted()
        answer = await self._master.onboard(
            holding.fence, holding.lane, holding.priority, limits.transient_threshold_seconds, limits.transfer_batch
        )
        if not answer.bucket_ok:
            if not holding.closed:
                self._on_forgotten(holding.fence.bucket_id, "onboarding was refused by the bucket's lock")
            return False
        due.more = answer.more
        if answer.entries:
            await self._put(due, answer.entries)
        return answer.more and due.ahead < limits.assigned_low_water

    async def _put(self, due: _Due, entries: list[Entry]) -> None:
        fence = due.holding.fence
        word = await self._store.assign(fence, [(entry.due_us, encode_entry(entry)) for entry in entries])
        if word is Word.OK:
            self.onboarded += len(entries)
            due.ahead += len(entries)
            return
        # The store refused the copies: the rows go back by their identity, so nothing waits for a grace period.
        self.released += len(entries)
        await self._master.release(fence, [(entry.id, entry.token) for entry in entries])
        if word in (Word.FENCED, Word.GENERATION, Word.ROLLBACK):
            self._on_forgotten(fence.bucket_id, f"the store answered {word} to an assignment")
