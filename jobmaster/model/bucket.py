"""A bucket: one priority, one lane, one owner, one epoch, in one store."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class BucketState(StrEnum):
    """Life of a bucket. ``jobmaster.specification.bucket_transitions`` lists the moves."""

    ACTIVE = "ACTIVE"
    COMPLETING = "COMPLETING"
    LOST = "LOST"
    DRAINING = "DRAINING"
    READY_TO_DELETE = "READY_TO_DELETE"
    FROZEN = "FROZEN"


WORKING_STATES = frozenset({BucketState.ACTIVE, BucketState.COMPLETING})
"""States in which the owner claims and runs."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket by its row in the master."""

    id: bytes
    store: str
    lane: str
    priority: int
    state: BucketState
    epoch: int
    owner: bytes
    """AgentId of the owner (of the rescuer while DRAINING)."""
    changed_us: int = 0


class BucketDepth(msgspec.Struct, frozen=True):
    """Content of a bucket in a store, in jobs (``claimed`` in lists)."""

    pending: int
    assigned: int
    claimed_lists: int
    kept: int
    pending_bytes: int


class BucketBacklog(msgspec.Struct, frozen=True):
    """Jobs of a bucket in its store that wait to be run."""

    pending: int
    due: int
    """Of ``assigned``: those whose due time has come."""
    oldest_seconds: float
    """For how long the oldest of both has been due; 0: there is none."""
    taken: int
    """Jobs that claims have taken out of the bucket since it was opened."""


class StoreOnlyJobs(msgspec.Struct, frozen=True):
    """Jobs and outcomes of one bucket that may be in its store only."""

    pending: bytes | None
    """Id of the first waiting job."""
    claimed: tuple[bytes, ...]
    """Ids in claimed lists; some of them have a row in the master."""
    kept: int
    """Outcomes that wait for the master."""
