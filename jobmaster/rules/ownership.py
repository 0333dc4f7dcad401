"""What the master's row of a bucket means for the agent that holds a fence of the bucket.

A write that the bucket lock refuses carries no reason. A freeze by an operator is no loss: the owner keeps its jobs and
continues under the next epoch. Every other difference between the row and the fence is a loss.
"""

from __future__ import annotations

from enum import Enum

from jobmaster.model.bucket import WORKING_STATES, Bucket, BucketState
from jobmaster.model.ids import Fence

OWNED_STATES = WORKING_STATES | {BucketState.FROZEN}
"""States in which a bucket belongs to its owner."""


class OwnershipStatus(Enum):
    """Relation of a bucket to the holder of a fence."""

    OWNED = 1
    """Owned, under this very fence."""
    FROZEN = 2
    """Owned, and frozen by an operator (perhaps unfrozen and frozen again)."""
    UNFROZEN = 3
    """Owned, and unfrozen under a higher epoch."""
    RETIRED = 4
    """Emptied and closed by the holder itself."""
    LOST = 5
    """Owned by another agent, or given up."""


def ownership_status(bucket: Bucket | None, fence: Fence) -> OwnershipStatus:
    """Relation of a bucket to the holder of ``fence``. ``bucket`` is ``None`` when the master has no row of it."""
    if bucket is None or bucket.owner != fence.owner or bucket.epoch < fence.epoch:
        return OwnershipStatus.LOST
    if bucket.state is BucketState.READY_TO_DELETE and bucket.epoch == fence.epoch:
        return OwnershipStatus.RETIRED
    if bucket.state not in OWNED_STATES:
        return OwnershipStatus.LOST
    if bucket.state is BucketState.FROZEN:
        return OwnershipStatus.FROZEN
    return OwnershipStatus.OWNED if bucket.epoch == fence.epoch else OwnershipStatus.UNFROZEN
