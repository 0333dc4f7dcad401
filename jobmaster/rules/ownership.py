"""What the master's row of a bucket says to the agent that takes itself for its owner.

A write refused by the bucket's lock does not say why. An operator's stop is no loss: the owner keeps what it holds, and
takes the bucket up again under the next epoch. Everything else that is not "yours, as you know it" is a loss.
"""

from __future__ import annotations

from enum import Enum

from jobmaster.model.bucket import WORKING_STATES, Bucket, BucketState
from jobmaster.model.ids import Fence

AT_WORK = WORKING_STATES | {BucketState.FROZEN}
"""States in which a bucket is in the hands of its owner."""


class Title(Enum):
    """How a bucket stands to the holder of a fence."""

    HELD = 1
    """Its own, under this very fence."""
    FROZEN = 2
    """Its own, stopped by an operator (perhaps unfrozen and stopped again)."""
    THAWED = 3
    """Its own, unfrozen under a higher epoch."""
    RETIRED = 4
    """Its own to the end: emptied and closed by itself."""
    LOST = 5
    """Another's, or given up."""


def title(bucket: Bucket | None, fence: Fence) -> Title:
    """Title of the fence's holder to a bucket; ``None``: the master has no row of it."""
    if bucket is None or bucket.owner != fence.owner or bucket.epoch < fence.epoch:
        return Title.LOST
    if bucket.state is BucketState.READY_TO_DELETE and bucket.epoch == fence.epoch:
        return Title.RETIRED
    if bucket.state not in AT_WORK:
        return Title.LOST
    if bucket.state is BucketState.FROZEN:
        return Title.FROZEN
    return Title.HELD if bucket.epoch == fence.epoch else Title.THAWED
