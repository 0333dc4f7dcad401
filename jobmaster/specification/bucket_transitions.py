"""The life of a bucket as one table.

Two lives: ``ACTIVE -> COMPLETING -> READY_TO_DELETE`` (graceful exit) and ``ACTIVE|COMPLETING|FROZEN -> LOST ->
DRAINING -> READY_TO_DELETE`` (rescue). ``FROZEN`` is the operator's emergency stop. The statements are in
``jobmaster/master/sql/buckets``; ``jobmaster.master.buckets`` reads from this table the guard of ``buckets/move``.
"""

from __future__ import annotations

from enum import StrEnum

from jobmaster.model.bucket import BucketState

S = BucketState


class BucketEvent(StrEnum):
    """What can happen to a bucket."""

    CLOSE_INTAKE = "close_intake"
    """Its owner exits, or needs fewer buckets."""
    RETIRE = "retire"
    """Its owner has emptied it."""
    LOSE = "lose"
    """Death certificate of the owner, or the owner's own declaration."""
    TAKE = "take"
    """A healthy agent takes it to evacuate it; epoch + 1."""
    DRAINED = "drained"
    """The rescuer has emptied it."""
    RESURRECT = "resurrect"
    """Keys of a retired bucket were found in a store."""
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"
    """Epoch + 1."""


TRANSITIONS: dict[tuple[BucketState, BucketEvent], BucketState] = {
    (S.ACTIVE, BucketEvent.CLOSE_INTAKE): S.COMPLETING,
    (S.COMPLETING, BucketEvent.RETIRE): S.READY_TO_DELETE,
    (S.ACTIVE, BucketEvent.LOSE): S.LOST,
    (S.COMPLETING, BucketEvent.LOSE): S.LOST,
    (S.FROZEN, BucketEvent.LOSE): S.LOST,
    (S.DRAINING, BucketEvent.LOSE): S.LOST,
    (S.LOST, BucketEvent.TAKE): S.DRAINING,
    (S.DRAINING, BucketEvent.DRAINED): S.READY_TO_DELETE,
    (S.READY_TO_DELETE, BucketEvent.RESURRECT): S.LOST,
    (S.ACTIVE, BucketEvent.FREEZE): S.FROZEN,
    (S.FROZEN, BucketEvent.UNFREEZE): S.ACTIVE,
}

EPOCH_BUMPS = frozenset({BucketEvent.TAKE, BucketEvent.UNFREEZE})
"""Events that need a new fencing number."""
