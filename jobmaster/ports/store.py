"""An agent store, as producers and as owners see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.rules.batching import BATCH_BYTES


class ReplyStatus(StrEnum):
    """Status of the answer of a store function: its first element."""

    OK = "OK"
    CLOSED = "CLOSED"
    """The bucket takes no new jobs (COMPLETING or later)."""
    NO_BUCKET = "NOBUCKET"
    FULL = "FULL"
    FENCED = "FENCED"
    """Another epoch or owner."""
    GENERATION = "GEN"
    """The store is not the one this bucket was made in (emptied, swapped)."""
    ROLLBACK = "ROLLBACK"
    """The bucket's change counter is below one that was already seen."""
    SKEW = "SKEW"
    """The time in an id is too far from the store's clock."""
    NOT_EMPTY = "NOTEMPTY"
    VOUCHED = "VOUCHED"
    """The bucket is fenced, but the store has vouched for its former owner until a moment that has not come yet."""


class Submitted(NamedTuple):
    status: ReplyStatus
    depth: int
    """Jobs waiting in the bucket afterwards (pending, and what of assigned is due)."""
    skew_ms: int = 0
    """With SKEW: id time minus store time."""


class Claimed(NamedTuple):
    status: ReplyStatus
    entries: list[Entry]
    raw: list[bytes]
    """The same entries as stored."""
    now_us: int
    """The store's clock at the claim."""
    next_due_us: int
    """When the next onboarded job of the bucket is due; 0 = none waits."""
    hint: bool
    """HELD jobs of this lane and priority are due: onboard."""
    remaining: int
    """Jobs left in ``pending``."""
    cancelled: frozenset[bytes] = frozenset()
    """Ids somebody asked to cancel in this bucket (a hint; the row decides): some of them, until ``withdraw`` names them."""


class Page(NamedTuple):
    """One page of a drained bucket, still in the store."""

    status: ReplyStatus
    kind: str
    """``spilled``, ``claimed``, ``pending``, ``assigned`` or empty when nothing is left."""
    list_name: str
    entries: list[Entry]
    raw: list[bytes]


class Kept(NamedTuple):
    """The oldest outcomes that a bucket at work keeps for the master."""

    status: ReplyStatus
    left: int
    """How many lie there, these included."""
    raw: list[bytes]


class StoreHealth(NamedTuple):
    version: str
    flavour: str
    """``redis`` or ``valkey``."""
    eviction_policy: str
    append_only: bool
    append_fsync: str
    generation: bytes | None
    """Generation of this cluster's data in the store, ``None`` in an empty store."""
    cluster_uid: bytes | None


FIND_IDS_MAX = 500
"""Jobs that one ``find`` looks for; more are asked for in further calls."""


class StoreIntake(Protocol):
    """What a producer may do."""

    async def submit(
        self, bucket_id: bytes, items: Sequence[bytes], *, high_water_jobs: int, high_water_bytes: int, skew_ms_max: int
    ) -> Submitted:
        """Append encoded entries to ``pending`` and leave a wake token; all or none."""
        ...

    async def put(
        self,
        bucket_id: bytes,
        epoch: int,
        items: Sequence[tuple[int, bytes]],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
    ) -> Submitted:
        """``(due_us, encoded entry)`` into ``assigned`` of an ACTIVE bucket of this epoch (a master submit due now); all or
        none."""
        ...

    async def hint(self, bucket_id: bytes) -> None:
        """Tell the owner that HELD jobs of its lane and priority are due."""
        ...

    async def request_cancel(self, bucket_id: bytes, job_id: bytes) -> ReplyStatus: ...

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        """Which of these jobs (at most ``FIND_IDS_MAX``) lie among the first ``scan_max`` of each bucket, by id; one scan
        of a bucket's lists for all of them. Nothing for a bucket that the store does not have."""
        ...

    async def is_claimed(self, bucket_id: bytes, job_id: bytes, scan_max: int) -> bool:
        """True when the copy that ``find`` answers has been claimed: an agent has it in memory."""
        ...

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]: ...

    async def health(self) -> StoreHealth: ...

    def finished(self) -> AsyncIterator[bytes]:
        """Ids that just got a row or an outcome in the master, as published by agents on this store; the first item is
        empty and says that the subscription stands."""
        ...


class StoreOwner(Protocol):
    """What the owner of a bucket (or its rescuer, under its own fence) may do. The implementation keeps generation and
    change-counter floor per bucket and sends them with every call."""

    async def initialise(self, cluster_uid: bytes, generation: bytes) -> bytes:
        """Load and verify the functions, claim the store for the cluster; returns the generation that lies in the store
        (another one than sent when it was there before). ``StoreRefused`` for old versions, eviction, another cluster."""
        ...

    async def open_bucket(self, fence: Fence) -> ReplyStatus: ...

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        """An operator's stop, put where producers see it: the bucket of this epoch and owner takes and gives no jobs."""
        ...

    async def unfreeze(self, fence: Fence, list_name: str) -> ReplyStatus:
        """The owner takes its unfrozen bucket up again, under the new epoch of the fence. Copies in ``assigned``, whose rows
        bear the old one, are moved to ``claimed:<list_name>``, to be given back. Under the same epoch: a stop that the
        master does not know of is over, and nothing is moved."""
        ...

    async def claim(self, fence: Fence, list_name: str, limit: int, bytes_max: int = BATCH_BYTES) -> Claimed:
        """Move up to ``limit`` jobs (the oldest of ``pending`` and of the due part of ``assigned``), of together at most
        ``bytes_max`` bytes, to ``claimed:<list_name>`` and return them; one is always moved. Asked again with the same name:
        the same list."""
        ...

    async def withdraw(
        self, fence: Fence, noted: Sequence[bytes], copies: Sequence[tuple[int, bytes]]
    ) -> tuple[ReplyStatus, frozenset[bytes]]:
        """Take ``(due_us, job_id)`` of cancelled jobs out of ``assigned``, and cancel requests that the owner has noted;
        the ids of the copies that were there."""
        ...

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> ReplyStatus:
        """Delete claimed lists whose every entry is settled; publish the finished ids."""
        ...

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> ReplyStatus:
        """``(due_us, encoded entry)`` into ``assigned`` (onboarding, retry here)."""
        ...

    async def keep_outcomes(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> ReplyStatus:
        """Keep outcomes while the master is down, and delete the claimed lists they come from, atomically."""
        ...

    async def grant_term(self, fence: Fence, term_seconds: float) -> ReplyStatus:
        """The bucket is still the caller's, and no rescuer begins for so long; 0 takes that back."""
        ...

    async def read_kept(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Kept:
        """The oldest outcomes spilled into a bucket at work: ``limit`` of together ``bytes_max`` bytes at most, or one."""
        ...

    async def remove_kept(self, fence: Fence, page: Sequence[bytes], back: Sequence[bytes]) -> ReplyStatus:
        """Take out exactly one page that was read; ``back``, some of it, goes to the end again."""
        ...

    async def claimed_lists(self, fence: Fence) -> tuple[ReplyStatus, list[str]]: ...

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed: ...

    async def close_intake(self, fence: Fence) -> ReplyStatus: ...

    async def close_if_empty(self, fence: Fence) -> ReplyStatus:
        """No new job can come after OK; NOT_EMPTY otherwise."""
        ...

    async def fence(self, fence: Fence) -> tuple[ReplyStatus, int]:
        """Take the bucket in the store for a rescuer: accepted for a higher epoch, or the same epoch and owner; creates
        the meta of a lost store. FENCED returns the epoch found, VOUCHED the microseconds to wait before the first page."""
        ...

    async def read_page(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Page:
        """Next page of a bucket being drained, in the order spilled, claimed, pending, assigned; bounded as ``read_kept``."""
        ...

    async def remove_page(self, fence: Fence, page: Page) -> ReplyStatus: ...

    async def delete_bucket(self, bucket_id: bytes, lists: Sequence[str] = ()) -> ReplyStatus:
        """Remove the keys of a retired bucket; NOT_EMPTY (and nothing removed) when something lies there. ``lists`` are
        claimed lists whose keys were found: one that the bucket does not name is named again."""
        ...

    async def known_buckets(self) -> list[bytes]:
        """Every bucket that has keys in this store for this cluster (bounded scan; anti-entropy)."""
        ...

    async def known_lists(self, bucket_id: bytes) -> list[str]:
        """Claimed lists of a bucket whose keys are here, also such as the bucket does not name (bounded scan)."""
        ...

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None: ...

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """Block until one of the buckets has a wake token; its id, or ``None`` after the time-out."""
        ...
