"""Reads the rows of this agent's buckets whenever they may differ from what this process owns.

There are three reasons. The bucket lock refused a write: that is a loss or a freeze, and only the row shows which (to
declare a frozen bucket LOST would undo the freeze). A renewal names frozen buckets. Or the master counts other buckets of
this agent than it owns, or other epochs, twice in a row: a bucket was frozen and unfrozen between two renewals, or a
failover has lost that one was created, closed or declared LOST. A bucket that no agent serves is declared LOST until the
master shows it.

Frozen is not lost: nothing is claimed or started in the bucket, running jobs are recorded under their identity, and no job is
dropped. Unfrozen, the bucket goes on under its new epoch, in the store and in memory.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from jobmaster.model.bucket import WORKING_STATES, Bucket, BucketState
from jobmaster.ports import OwnershipBuckets, OwnershipStore, Renewal, ReplyStatus
from jobmaster.rules.ownership import OwnershipStatus, ownership_status
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership, unfrozen_list

IDLE_SECONDS = 3600.0
_DIFFERENT_TIMES = 2
"""Renewals in a row that must count differently: one may have crossed the creation or the end of a bucket."""
_NOT_OWNED = "the master names this agent as its owner, and it does not hold it"


class FreezeHandler(Protocol):
    """The bucket worker, as this module uses it."""

    def freeze(self, owned: OwnedBucket) -> None: ...

    def unfreeze(self, owned: OwnedBucket, epoch: int) -> None: ...

    def resume(self, owned: OwnedBucket) -> None: ...


class OwnershipCheck:
    """The periodic task that checks buckets against their rows."""

    name = "ownership-check"

    def __init__(
        self,
        ownership: Ownership,
        buckets: OwnershipBuckets,
        store: OwnershipStore,
        worker: FreezeHandler,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._buckets = buckets
        self._store = store
        self._worker = worker
        self._log = log
        self._to_check: dict[bytes, str] = {}
        self._mismatches = 0
        self.kicked = asyncio.Event()
        ownership.on_refused_write = self.request_check
        telemetry.read_from("buckets_frozen", lambda: sum(each.frozen for each in ownership.buckets.values()))

    # ------------------------------------------------------------ reasons for a check

    def request_check(self, owned: OwnedBucket, why: str) -> None:
        """The bucket lock refused a write, or the store refused a call."""
        self._to_check[owned.fence.bucket_id] = why
        self.kicked.set()

    def renewed(self, renewal: Renewal) -> None:
        """Compare the frozen buckets of a renewal, and its counts."""
        frozen = set(renewal.frozen)
        for bucket_id, owned in self._ownership.buckets.items():
            if owned.frozen is not (bucket_id in frozen):
                self.request_check(
                    owned, "a renewal names it as frozen" if bucket_id in frozen else "no renewal names it as frozen"
                )
        if renewal.at_work is None or self._ownership.opening or self._agrees(renewal):
            self._mismatches = 0
            return
        self._mismatches += 1
        if self._mismatches >= _DIFFERENT_TIMES:
            for owned in self._ownership.buckets.values():
                self.request_check(
                    owned, "the master counts other buckets of this agent than it holds, or other epochs"
                )
            self.kicked.set()

    def _agrees(self, renewal: Renewal) -> bool:
        held = self._ownership.buckets.values()
        return (renewal.at_work, renewal.epochs) == (len(held), sum(owned.fence.epoch for owned in held))

    # ------------------------------------------------------------ the check

    async def tick(self) -> float:
        """Read the rows once for all buckets to check. A bucket whose check fails is checked again."""
        if not self._to_check and self._mismatches < _DIFFERENT_TIMES:
            return IDLE_SECONDS
        # A request that comes from here on is a new one: the answer may be older than its reason.
        checks, self._to_check = self._to_check, {}
        try:
            rows = {bucket.id: bucket for bucket in await self._buckets.owned_buckets(self._ownership.agent_id)}
            for bucket_id, why in list(checks.items()):
                if (owned := self._ownership.get(bucket_id)) is not None:
                    await self._resolve(owned, rows.get(bucket_id), why)
                del checks[bucket_id]
        finally:
            self._to_check = checks | self._to_check
        if self._mismatches >= _DIFFERENT_TIMES:
            await self._declare_lost([bucket for bucket in rows.values() if bucket.state in WORKING_STATES])
            self._mismatches = 0
        return 0.0 if self._to_check else IDLE_SECONDS

    async def _resolve(self, owned: OwnedBucket, row: Bucket | None, why: str) -> None:
        what = ownership_status(row, owned.fence)
        if what is OwnershipStatus.RETIRED and owned.closed:
            return  # retired by this process, which has not got the answer yet
        if what in (OwnershipStatus.LOST, OwnershipStatus.RETIRED):
            self._ownership.lose(owned.fence.bucket_id, f"{why}; its row shows another owner")
        elif owned.closed and not owned.frozen:
            return  # it is being completed
        elif what is OwnershipStatus.FROZEN:
            await self._freeze(owned)
        elif what is OwnershipStatus.UNFROZEN and row is not None:
            await self._unfreeze(owned, row.epoch)
        else:
            await self._resume(owned)

    async def _resume(self, owned: OwnedBucket) -> None:
        """The row is as this process owns the bucket, under the same epoch.

        If the bucket is frozen here or in the store, and a failover of the master has lost that, only this call unfreezes it.
        If an operator freezes it at this moment, the next renewal names it, and the store is frozen again.
        """
        if owned.frozen:
            owned.unfreeze()
            self._log.info(Event.BUCKET_UNFROZEN, {"bucket": owned.fence.bucket_id, "epoch": owned.fence.epoch})
        self._worker.resume(owned)
        await self._store.unfreeze(owned.fence, unfrozen_list(owned.fence.epoch))

    async def _freeze(self, owned: OwnedBucket) -> None:
        if not owned.frozen:
            self._worker.freeze(owned)
            self._log.warning(Event.BUCKET_FROZEN, {"bucket": owned.fence.bucket_id, "epoch": owned.fence.epoch})
        # The operator's command may not have reached the store. A refusal shows again in the next call of the owner.
        await self._store.freeze(*owned.fence)

    async def _unfreeze(self, owned: OwnedBucket, epoch: int) -> None:
        bucket_id = owned.fence.bucket_id
        fence = owned.fence
        status = await self._store.unfreeze(fence._replace(epoch=epoch), unfrozen_list(fence.epoch))
        if status is not ReplyStatus.OK:
            # Ours under the new epoch, and its store has lost it: it is lost under that epoch, with the copies in memory.
            self._worker.unfreeze(owned, epoch)
            self._ownership.lose(bucket_id, f"the store answered {status} when it was unfrozen", status)
            return
        self._worker.unfreeze(owned, epoch)
        self._log.info(Event.BUCKET_UNFROZEN, {"bucket": bucket_id, "epoch": epoch})

    async def _declare_lost(self, at_work: list[Bucket]) -> None:
        for bucket in at_work:
            if bucket.id in self._ownership.buckets or bucket.id in self._ownership.opening:
                continue
            if await self._buckets.move_bucket(bucket.id, bucket.epoch, bucket.owner, BucketState.LOST, _NOT_OWNED):
                self._log.warning(Event.BUCKET_GIVEN_BACK, {"bucket": bucket.id, "reason": _NOT_OWNED})
