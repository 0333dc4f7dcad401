"""What a bucket's row says to who takes itself for its owner."""

from __future__ import annotations

import pytest

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.rules.ownership import Title, title

FENCE = Fence(BucketId(new_id()), 4, AgentId(new_id()))


def row(state: BucketState, epoch: int = 4, owner: bytes = FENCE.owner) -> Bucket:
    return Bucket(
        id=FENCE.bucket_id, store="default", lane="default", priority=3, state=state, epoch=epoch, owner=owner
    )


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [
        (BucketState.ACTIVE, 4, Title.HELD),
        (BucketState.COMPLETING, 4, Title.HELD),
        (BucketState.FROZEN, 4, Title.FROZEN),
        (BucketState.FROZEN, 5, Title.FROZEN),
        (BucketState.ACTIVE, 5, Title.THAWED),
        (BucketState.ACTIVE, 3, Title.LOST),
        (BucketState.LOST, 4, Title.LOST),
        (BucketState.DRAINING, 5, Title.LOST),
        (BucketState.READY_TO_DELETE, 4, Title.RETIRED),
        (BucketState.READY_TO_DELETE, 5, Title.LOST),
    ],
)
def test_titles(state: BucketState, epoch: int, expected: Title) -> None:
    assert title(row(state, epoch), FENCE) is expected


def test_of_another_or_of_nobody_it_is_lost() -> None:
    assert title(row(BucketState.ACTIVE, owner=new_id()), FENCE) is Title.LOST
    assert title(row(BucketState.FROZEN, owner=new_id()), FENCE) is Title.LOST
    assert title(None, FENCE) is Title.LOST
