"""Buckets: made, moved through their life, taken over, forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.master.batches import columns
from jobmaster.master.connection import Calls, Row, to_us
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError
from jobmaster.rules.bucket_machine import EPOCH_BUMPS, TRANSITIONS


def bucket_of(row: Row) -> Bucket:
    """A row of ``bucket``."""
    return Bucket(
        id=row["id"],
        store=row["store"],
        lane=row["lane"],
        priority=row["priority"],
        state=BucketState(row["state"]),
        epoch=row["epoch"],
        owner=row["owner"],
        changed_us=to_us(row["changed_at"]),
    )


def sources_of(to: BucketState) -> list[str]:
    """States from which an owner may go there without a new epoch."""
    return sorted({state for (state, event), after in TRANSITIONS.items() if after is to and event not in EPOCH_BUMPS})


class Buckets:
    """The part of ``jobmaster.ports.Membership`` that is about buckets."""

    _data: Calls
    _control: Calls

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool:
        """New ACTIVE buckets of one living owner, all or none; False when the owner is not alive any more."""
        if not buckets:
            return True
        owner = buckets[0].owner
        if any(bucket.owner != owner for bucket in buckets):
            raise CodeError("buckets made in one call must have one owner")
        rows = [(bucket.id, bucket.store, bucket.lane, bucket.priority) for bucket in buckets]
        answer = await self._control.tell("buckets/create", owner, *columns(rows))
        return bool(answer[0]["owner_ok"])

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        """Compare-and-set of a bucket's state by its present owner and epoch; True also when it stood there already."""
        answer = await self._control.tell(
            "buckets/move", bucket_id, epoch, owner, sources_of(to), str(to), reason
        )
        return bool(answer[0]["moved"])
