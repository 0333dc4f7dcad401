"""Buckets: created, moved between states, frozen, declared lost, dropped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.master.driver.batches import columns
from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError
from jobmaster.model.ids import Fence
from jobmaster.specification.bucket_transitions import EPOCH_BUMPS, TRANSITIONS, BucketEvent

_BY_STATEMENT = EPOCH_BUMPS | {BucketEvent.DRAINED, BucketEvent.FREEZE, BucketEvent.RESURRECT}
"""Moves that have a statement of their own, because they check or change more than the state."""

_COUNT_MAX = 2**31 - 1


def bucket_of(row: Row) -> Bucket:
    """A row of ``bucket``."""
    return msgspec.structs.replace(mapped_bucket_of(row), changed_us=to_us(row["changed_at"]))


def mapped_bucket_of(row: Row) -> Bucket:
    """What the map of buckets has of a row of ``bucket``."""
    return Bucket(
        id=row["id"],
        store=row["store"],
        lane=row["lane"],
        priority=row["priority"],
        state=BucketState(row["state"]),
        epoch=row["epoch"],
        owner=row["owner"],
    )


def sources_of(to: BucketState) -> list[str]:
    """States from which an owner may go there by ``move_bucket``."""
    return sorted(
        {state for (state, event), after in TRANSITIONS.items() if after is to and event not in _BY_STATEMENT}
    )


class Buckets:
    """Buckets of agents: created, moved, declared lost, frozen, dropped."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool:
        """New ACTIVE buckets of one living owner, all or none; False when the owner is not alive any more."""
        if not buckets:
            return True
        owner = buckets[0].owner
        if any(bucket.owner != owner for bucket in buckets):
            raise CodeError("buckets made in one call must have one owner")
        rows = [(bucket.id, bucket.store, bucket.lane, bucket.priority) for bucket in buckets]
        answer = await self._control.write("buckets/create", owner, *columns(rows))
        return bool(answer[0]["owner_ok"])

    async def resurrect_bucket(self, bucket: Bucket, reason: str) -> bool:
        """A bucket that has no row any more -> LOST, above every epoch it ever had (that of ``bucket`` does not count).
        False: it has a row, or the owner has ended."""
        args = (bucket.owner, bucket.id, bucket.store, bucket.lane, bucket.priority, reason)
        return bool((await self._control.write("buckets/resurrect", *args))[0]["resurrected"])

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        """Compare-and-set of a bucket's state by its present owner and epoch; True also when it stood there already."""
        answer = await self._control.write("buckets/move", bucket_id, epoch, owner, sources_of(to), str(to), reason)
        return bool(answer[0]["moved"])

    async def resurrect_retired(self, bucket: Bucket, reason: str) -> bool:
        """READY_TO_DELETE -> LOST: the keys of a retired bucket hold jobs again. False: its row has changed, or is gone."""
        return bool(
            (await self._control.write("buckets/resurrect_retired", bucket.id, bucket.epoch, reason))[0]["resurrected"]
        )

    async def note_loss(self, fence: Fence, store: str, at_risk: int, salvaged: int, reason: str) -> None:
        """Record a bucket that its store has lost, for operators. Sent again, nothing is added.

        Args:
            at_risk: jobs without a row, and outcomes kept for the master, that its owner last saw in it and had no copy of.
            salvaged: jobs without a row of which it had one, and wrote it to the master.
        """
        counts = (min(at_risk, _COUNT_MAX), min(salvaged, _COUNT_MAX))
        await self._control.write("buckets/note_loss", fence.bucket_id, fence.epoch, store, *counts, reason)

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """ACTIVE -> FROZEN: the buckets that were frozen by this call, each with a line in the operator's log.

        Args:
            bucket_ids: ``None``: all of them (of the lane).
            lane: ``None``: every lane.
        """
        ids = None if bucket_ids is None else list(bucket_ids)
        return [bucket_of(row) for row in await self._control.write("buckets/freeze", ids, lane, actor, reason)]

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """FROZEN -> ACTIVE with epoch + 1: the buckets that were unfrozen by this call. Arguments as of ``freeze``."""
        ids = None if bucket_ids is None else list(bucket_ids)
        return [bucket_of(row) for row in await self._control.write("buckets/unfreeze", ids, lane, actor, reason)]

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        """Every bucket that names the agent as its owner; retired ones while their tombstone exists."""
        return [bucket_of(row) for row in await self._control.read("buckets/owned", agent_id)]

    async def forget_buckets(
        self, tombstone_seconds: float, stores: Sequence[str], *, others: bool = False
    ) -> list[Bucket]:
        """Buckets of these stores (``others``: of every other store) READY_TO_DELETE for longer than the tombstone time."""
        rows = await self._control.read("buckets/forget", tombstone_seconds, list(stores), not others)
        return [bucket_of(row) for row in rows]

    async def drop_bucket(self, bucket_id: bytes) -> None:
        """Delete the tombstone of a bucket whose keys are gone."""
        await self._control.write("buckets/drop", bucket_id)
