"""Relation of a bucket to the holder of a fence, by the bucket's row."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.rules.ownership import OwnershipStatus, ownership_status

FENCE = Fence(BucketId(new_id()), 4, AgentId(new_id()))


def row(state: BucketState, epoch: int = 4, owner: bytes = FENCE.owner) -> Bucket:
    return Bucket(
        id=FENCE.bucket_id, store="default", lane="default", priority=3, state=state, epoch=epoch, owner=owner
    )


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [
        (BucketState.ACTIVE, 4, OwnershipStatus.OWNED),
        (BucketState.COMPLETING, 4, OwnershipStatus.OWNED),
        (BucketState.FROZEN, 4, OwnershipStatus.FROZEN),
        (BucketState.FROZEN, 5, OwnershipStatus.FROZEN),
        (BucketState.ACTIVE, 5, OwnershipStatus.UNFROZEN),
        (BucketState.ACTIVE, 3, OwnershipStatus.LOST),
        (BucketState.LOST, 4, OwnershipStatus.LOST),
        (BucketState.DRAINING, 5, OwnershipStatus.LOST),
        (BucketState.READY_TO_DELETE, 4, OwnershipStatus.RETIRED),
        (BucketState.READY_TO_DELETE, 5, OwnershipStatus.LOST),
    ],
)
def test_ownership_status(state: BucketState, epoch: int, expected: OwnershipStatus) -> None:
    assert ownership_status(row(state, epoch), FENCE) is expected


def test_a_bucket_of_another_owner_or_without_a_row_is_lost() -> None:
    assert ownership_status(row(BucketState.ACTIVE, owner=new_id()), FENCE) is OwnershipStatus.LOST
    assert ownership_status(row(BucketState.FROZEN, owner=new_id()), FENCE) is OwnershipStatus.LOST
    assert ownership_status(None, FENCE) is OwnershipStatus.LOST
