"""A batch: jobs in ranges of ids of their own, and what follows when all of them have ended."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.ids import ID_BYTES
from jobmaster.model.job_view import moment

RANGE_BYTES = 12
"""First bytes that the ids of one range have in common; the others are an index, from 1 on."""
INDEX_MAX = (1 << (8 * (ID_BYTES - RANGE_BYTES))) - 1


class BatchState(StrEnum):
    """State of a batch."""

    OPEN = "OPEN"
    """Its producer adds jobs."""
    CLOSED = "CLOSED"
    """Its jobs are complete; some have not ended."""
    SUCCEEDED = "SUCCEEDED"
    """All of its jobs, and of the batches inside it, have succeeded."""
    FAILED = "FAILED"
    """At least one has not; or the batch has ended before its jobs (``BatchView.reason``)."""
    CANCELLED = "CANCELLED"
    """It was cancelled, and all of its jobs have ended."""

    @property
    def final(self) -> bool:
        """True for the states that a batch does not leave."""
        return self not in (BatchState.OPEN, BatchState.CLOSED)


class Occasion(StrEnum):
    """When a callback of a batch becomes a job."""

    COMPLETE = "complete"
    """At every end."""
    SUCCESS = "success"
    """When the batch has SUCCEEDED."""
    FAILURE = "failure"
    """When it has FAILED."""


class EndReason(StrEnum):
    """Why a batch has ended before its jobs."""

    EXPIRED = "expired"
    """Its ``timeout`` was over."""
    ABANDONED = "abandoned"
    """Its producer has given no sign for ``abandon_after``, and had not closed it."""
    LOST = "lost"
    """A store has lost jobs, and nothing of the batch has ended since for an hour."""


class Callback(NamedTuple):
    """A job that is made when a batch ends."""

    occasion: Occasion
    priority: int
    lane: str
    handler: str
    args: bytes
    headers: bytes


class NewBatch(NamedTuple):
    """A batch on its way into the master."""

    id: bytes
    parent: bytes | None
    retry_of: bytes | None
    name: str
    description: str
    timeout_seconds: float | None
    abandon_seconds: float
    callbacks: tuple[Callback, ...]
    key: str | None = None
    producer: bytes | None = None
    """Of a batch with a key: id of the program run that fills it."""


class FoundBatch(NamedTuple):
    """A batch with a key, as the next run of its producer finds it."""

    id: bytes
    state: BatchState
    cancel_requested: bool
    taken: bool
    """This run fills it from now on. False: it is not OPEN, or another run has given a sign a moment ago."""
    settled: int
    """All jobs before this number are stored, or certainly not."""
    stored: int
    """... so many of them are."""
    reserved: int
    """No job from this number on was stored."""
    ranges: tuple[tuple[bytes, int], ...]
    """Lowest id of each range, and the number of its first job."""


class Position(NamedTuple):
    """How far a run has come; see ``FoundBatch``. ``None``: as before."""

    settled: int | None = None
    stored: int | None = None
    reserved: int | None = None


AS_BEFORE = Position()


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a batch by what has become of them. Jobs without a row (in a bucket, or claimed a moment ago) are in none but
    ``missing``."""

    succeeded: int = 0
    failed: int = 0
    """With those that no table of jobs accepts (quarantined)."""
    cancelled: int = 0
    expired: int = 0
    held: int = 0
    """They wait in the master."""
    in_flight: int = 0
    """They have been assigned to an agent."""
    unfinished: int = 0
    """``held`` and ``in_flight`` together."""
    missing: int = 0
    """Jobs of a closed batch without a row: in a bucket, or lost with their store."""

    @property
    def ended(self) -> int:
        """Jobs that have ended, however."""
        return self.succeeded + self.failed + self.cancelled + self.expired


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it is now. Times are microseconds since 1970 by the master's clock; the properties with ``_at`` are the same
    times as aware ``datetime`` in UTC."""

    id_bytes: bytes
    name: str
    state: BatchState
    description: str = ""
    size: int = 0
    """Number of its jobs; 0 while it is OPEN. A job that was stored although its producer got no answer counts, too, when the
    batch ends."""
    nested: int = 0
    """Batches inside it."""
    reason: str = ""
    """Why it has ended before its jobs (``EndReason``); empty: it has not."""
    cancel_requested: bool = False
    key: str | None = None
    """There is one batch of a key."""
    parent_bytes: bytes | None = None
    retry_of_bytes: bytes | None = None
    created_us: int = 0
    closed_us: int | None = None
    ended_us: int | None = None
    expires_us: int | None = None
    counts: BatchCounts | None = None
    """Counted at its end; before that only by ``progress``."""
    tallied: int = 0
    """Jobs that agents have ended, as they have noted it: an estimate without a count."""
    ranges: tuple[bytes, ...] = ()
    """Lowest ids of its ranges."""
    callbacks: dict[str, str | None] = msgspec.field(default_factory=dict)
    """Occasions that have a callback, each with the id of its job once it was fired."""

    @property
    def id(self) -> UUID:
        """Id of the batch; no job has it."""
        return UUID(bytes=self.id_bytes)

    @property
    def parent(self) -> UUID | None:
        """The batch that it is nested in."""
        return None if self.parent_bytes is None else UUID(bytes=self.parent_bytes)

    @property
    def retry_of(self) -> UUID | None:
        """The batch whose unsuccessful jobs it runs again."""
        return None if self.retry_of_bytes is None else UUID(bytes=self.retry_of_bytes)

    @property
    def created_at(self) -> datetime | None:
        """When it was opened."""
        return moment(self.created_us)

    @property
    def ended_at(self) -> datetime | None:
        """When its last job had ended."""
        return moment(self.ended_us)

    @property
    def done(self) -> float:
        """Share of its jobs that have ended, 0 to 1: by the count if there is one, otherwise by the tallies. 0 while it is
        OPEN, for its size is not known."""
        if self.state.final and not self.reason:
            return 1.0
        ended = self.tallied if self.counts is None else self.counts.ended
        return min(ended / self.size, 1.0) if self.size else 0.0


class ConcludedBatch(NamedTuple):
    """A batch that a call has ended."""

    id: bytes
    state: BatchState
    name: str
    parent: bytes | None
    groups: frozenset[tuple[str, int]]
    """Lanes and priorities of its callbacks."""


class DueBatch(NamedTuple):
    """A batch at which the leader looks."""

    id: bytes
    state: BatchState
    cancel_requested: bool
    abandoned: bool
    expired: bool
    quiet_seconds: float
    """None of its jobs has ended for so long, by the notes of the agents."""
    lost: bool
    """A store has lost jobs since it was opened, and none of its jobs has ended for long."""
    inner_left: bool
    """It is cancelled, and a batch inside it is not."""


def range_of(job_id: bytes) -> bytes:
    """Lowest id of the range that a job of a batch is in."""
    return job_id[:RANGE_BYTES] + bytes(ID_BYTES - RANGE_BYTES)


def range_end(lowest: bytes) -> bytes:
    """Highest id of a range."""
    return lowest[:RANGE_BYTES] + b"\xff" * (ID_BYTES - RANGE_BYTES)
