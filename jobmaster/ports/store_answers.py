"""Answers of an agent store."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from jobmaster.model.job import Entry


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
    LEASED = "LEASED"
    """The bucket is fenced, but the store lease of its former owner has not ended yet."""


class Recall(StrEnum):
    """Answer to the recall of a copy."""

    RECALLED = "recalled"
    """It was taken out of the bucket, by this call or by an earlier one of the same client."""
    CLAIMED = "claimed"
    """An agent has it in memory."""
    ABSENT = "absent"
    """It does not lie there: it may be on its way into the bucket, or the bucket has another owner."""


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
    cancelled: tuple[bytes, ...] = ()
    """Ids with a cancel request in this bucket (a hint; the row decides): some of them, until ``withdraw`` names them."""
    oldest_us: int = 0
    """When asked: when the first job that is left in ``pending`` was made; 0 = none is left, or it was not asked."""


class Page(NamedTuple):
    """One page of a drained bucket, still in the store."""

    status: ReplyStatus
    kind: str
    """``kept``, ``claimed``, ``pending``, ``assigned`` or empty when nothing is left."""
    list_name: str
    entries: list[Entry]
    raw: list[bytes]


class KeptPage(NamedTuple):
    """The oldest outcomes that a working bucket keeps for the master."""

    status: ReplyStatus
    left: int
    """Number of kept outcomes, these included."""
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
    fails_over: bool = False
    """A replica takes its place when it fails, without what it had not received yet."""
    awaits_replica: bool = False
    """It takes writes only while a replica is near (``min-replicas-to-write``)."""


class StoreNode(NamedTuple):
    """One primary of a server cluster."""

    name: str
    """``host:port``."""
    server: str
    """Flavour and version."""
    replicas: int
    """Those that are connected to it."""
    append_only: bool
    append_fsync: str
    eviction_policy: str
    functions: int | None
    """Build of the functions in it; ``None``: it has none."""


FIND_IDS_MAX = 500
"""Jobs that one ``find`` looks for; more need further calls."""
