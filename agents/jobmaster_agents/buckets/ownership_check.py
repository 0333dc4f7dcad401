"""What the master says of this agent's buckets, asked whenever it may differ from what this process believes.

Three things bring a question. A write was refused by a bucket's lock: that is either a loss or an operator's stop, and only
the row can tell (to declare a frozen bucket LOST would undo the stop). A renewal names frozen buckets. Or the master counts
other buckets of this agent than it holds, or their epochs, twice in a row: a bucket was stopped and went on between two
renewals, or a failover has forgotten that one was made, closed or declared LOST; a bucket that nobody serves is declared
LOST until the master shows it.

Frozen is not lost: nothing is claimed or started in the bucket, what runs is recorded under its identity, and nothing of it
is forgotten. Unfrozen, the bucket goes on under its new epoch, in the store and in memory.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import Fence
from jobmaster.ports import Renewal, Word
from jobmaster.rules.bucket_machine import WORKING_STATES
from jobmaster.rules.ownership import Title, title
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership, unfrozen_list

IDLE_SECONDS = 3600.0
_DIFFERENT_TIMES = 2
"""Renewals in a row that must count differently: one may have crossed a bucket that is being made or closed."""
_NOT_HELD = "the master names this agent as its owner, and it does not hold it"


class OwnershipMaster(Protocol):
    """Where it is written whose a bucket is."""

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]: ...

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool: ...


class StopStore(Protocol):
    """Where a stop is put, and taken away."""

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> Word: ...

    async def thaw(self, fence: Fence, list_name: str) -> Word: ...


class Worker(Protocol):
    """Who works on the buckets."""

    def freeze(self, owned: OwnedBucket) -> None: ...

    def unfreeze(self, owned: OwnedBucket, epoch: int) -> None: ...

    def resume(self, owned: OwnedBucket) -> None: ...


class OwnershipCheck:
    """The duty that settles doubts about buckets."""

    name = "ownership"

    def __init__(
        self,
        ownership: Ownership,
        master: OwnershipMaster,
        store: StopStore,
        worker: Worker,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._master = master
        self._store = store
        self._worker = worker
        self._log = log
        self._to_check: dict[bytes, str] = {}
        self._mismatches = 0
        self.kicked = asyncio.Event()
        ownership.on_refused_write = self.request_check
        telemetry.read_from("buckets_frozen", lambda: sum(each.frozen for each in ownership.buckets.values()))

    # ------------------------------------------------------------ what brings a question

    def request_check(self, owned: OwnedBucket, why: str) -> None:
        """A write to the bucket was refused by its lock, or its store takes nothing."""
        self._to_check[owned.fence.bucket_id] = why
        self.kicked.set()

    def renewed(self, renewal: Renewal) -> None:
        """What a renewal says of frozen buckets, and how many there are."""
        frozen = set(renewal.frozen)
        for bucket_id, owned in self._ownership.buckets.items():
            if owned.frozen is not (bucket_id in frozen):
                self.request_check(
                    owned, "a renewal says so" if bucket_id in frozen else "a renewal does not say so any more"
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

    # ------------------------------------------------------------ the question

    async def tick(self) -> float:
        """Ask once about everything in doubt. What fails stays in doubt."""
        if not self._to_check and self._mismatches < _DIFFERENT_TIMES:
            return IDLE_SECONDS
        # A doubt that comes from here on is a new one: the answer may be older than what it is about.
        doubts, self._to_check = self._to_check, {}
        try:
            said = {bucket.id: bucket for bucket in await self._master.owned_buckets(self._ownership.agent_id)}
            for bucket_id, why in list(doubts.items()):
                if (owned := self._ownership.get(bucket_id)) is not None:
                    await self._settle(owned, said.get(bucket_id), why)
                del doubts[bucket_id]
        finally:
            self._to_check = doubts | self._to_check
        if self._mismatches >= _DIFFERENT_TIMES:
            await self._declare_lost([bucket for bucket in said.values() if bucket.state in WORKING_STATES])
            self._mismatches = 0
        return 0.0 if self._to_check else IDLE_SECONDS

    async def _settle(self, owned: OwnedBucket, said: Bucket | None, why: str) -> None:
        what = title(said, owned.fence)
        if what is Title.RETIRED and owned.closed:
            return  # retired by this process, which has not read the answer yet
        if what in (Title.LOST, Title.RETIRED):
            self._ownership.lose(owned.fence.bucket_id, f"{why}; the master says it is another's")
        elif owned.closed and not owned.frozen:
            return  # it is being completed
        elif what is Title.FROZEN:
            await self._freeze(owned)
        elif what is Title.THAWED and said is not None:
            await self._unfreeze(owned, said.epoch)
        else:
            await self._go_on(owned)

    async def _go_on(self, owned: OwnedBucket) -> None:
        """Nothing stands against it under this very epoch.

        Were it stopped here or in the store, and had the master forgotten that in a failover, nobody else would let it go on.
        Should an operator stop it at this very moment, the next renewal says so, and the store is stopped again.
        """
        if owned.frozen:
            owned.unfreeze()
            self._log.info(Event.BUCKET_UNFROZEN, {"bucket": owned.fence.bucket_id, "epoch": owned.fence.epoch})
        self._worker.resume(owned)
        await self._store.thaw(owned.fence, unfrozen_list(owned.fence.epoch))

    async def _freeze(self, owned: OwnedBucket) -> None:
        if not owned.frozen:
            self._worker.freeze(owned)
            self._log.warning(Event.BUCKET_FROZEN, {"bucket": owned.fence.bucket_id, "epoch": owned.fence.epoch})
        # Whoever froze it may not have reached the store; what it answers is the next owner call's to judge.
        await self._store.freeze(*owned.fence)

    async def _unfreeze(self, owned: OwnedBucket, epoch: int) -> None:
        bucket_id = owned.fence.bucket_id
        fence = owned.fence
        word = await self._store.thaw(fence._replace(epoch=epoch), unfrozen_list(fence.epoch))
        if word is not Word.OK:
            # Ours under the new epoch, and its store has lost it: it is lost as what it is, with the copies that are here.
            self._worker.unfreeze(owned, epoch)
            self._ownership.lose(bucket_id, f"the store answered {word} when it was unfrozen", word)
            return
        self._worker.unfreeze(owned, epoch)
        self._log.info(Event.BUCKET_UNFROZEN, {"bucket": bucket_id, "epoch": epoch})

    async def _declare_lost(self, at_work: list[Bucket]) -> None:
        for bucket in at_work:
            if bucket.id in self._ownership.buckets or bucket.id in self._ownership.opening:
                continue
            if await self._master.move_bucket(bucket.id, bucket.epoch, bucket.owner, BucketState.LOST, _NOT_HELD):
                self._log.warning(Event.BUCKET_GIVEN_BACK, {"bucket": bucket.id, "reason": _NOT_HELD})
