"""What the runtime and the client need of the two stores, as narrow Protocols by need.

Every method is one statement or one function call (a bounded number for the paged ones), each bounded in time by the
implementation. Errors of drivers are mapped once, at the border: ``Unavailable`` when nothing can have happened,
``OutcomeUnknown`` when the effect may have happened (sending the same again is always safe), ``Refused`` otherwise.

Two refusals must never be confused (they are different fields of every answer):
*by the row* (another identity, or final) settles the entry; *by the bucket lock* settles nothing.

Ids are 16 bytes, times are microseconds since 1970 by the answering server's clock, durations say their unit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketDepth, BucketState
from jobmaster.model.ids import Fence, Identity
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow, JobState, JobView, NewJob

# ---------------------------------------------------------------- answers of the master


class Written(NamedTuple):
    """Answer of a write under the bucket lock or without it."""

    bucket_ok: bool
    """False: refused by the bucket lock, nothing was written, nothing is settled. Always True for writes without it."""
    accepted: frozenset[bytes]
    """Ids whose row now says what was sent (also when it said so before: our own earlier success)."""
    cancelled: frozenset[bytes] = frozenset()
    """Accepted ids that became CANCELLED instead, because a cancel was requested."""
    refused: frozenset[bytes] = frozenset()
    """Ids refused by their row: another identity, or final. Settled."""
    quarantined: frozenset[bytes] = frozenset()
    """Ids refused because of the id itself (below the watermark, outside every partition); kept in quarantine. Settled."""


class Onboarded(NamedTuple):
    """Answer of one onboarding statement."""

    bucket_ok: bool
    entries: list[Entry]
    """Rows that are now ASSIGNED to the bucket, token already increased."""
    more: bool
    """True when the batch was full: ask again."""


class Renewal(NamedTuple):
    """Answer of one heartbeat at the master."""

    alive: bool
    """False: the agent has a death certificate (or its row is gone). It must stop at once."""
    drain_requested: bool
    coordinator: bytes | None
    """AgentId of the present coordinator, ``None`` when nobody holds an unexpired lease."""
    lost_buckets: bool
    """Some bucket is LOST: any healthy agent should try to rescue."""
    cancel_requested: list[bytes]
    """Ids of this agent's in-flight jobs with a cancel request."""
    frozen: Sequence[bytes] = ()
    """This agent's buckets that an operator has frozen."""
    at_work: int | None = None
    """How many ACTIVE, COMPLETING or FROZEN buckets the master ascribes to this agent; ``None``: not said."""
    agents: int = 1
    """Living agents of the cluster: with many of them each renews less often."""


class Leftover(StrEnum):
    """What is written beside jobs, and kept for a time."""

    AGENTS = "agents"
    KEYS = "keys"
    QUARANTINE = "quarantine"
    OPERATOR_LOG = "operator_log"
    BUCKET_EVENTS = "bucket_events"


class DueGroup(NamedTuple):
    """HELD jobs of one lane and priority are within the horizon."""

    lane: str
    priority: int


class Tended(NamedTuple):
    """Answer of the coordinator's one statement per second."""

    epoch: int | None
    """Epoch of the office, now renewed; ``None`` when another agent holds it."""
    due: list[DueGroup]
    """As ``due_groups`` would answer; empty without the office."""
    overdue: bool
    """Some agent's lease is over and it has no certificate yet: somebody should judge."""


class Swept(NamedTuple):
    """Answer of one sweep of a bucket's rows."""

    moved: int
    """Rows that named the bucket and do not any more; 0 also when the bucket is another's."""
    rescued: int
    """Of these: they were PROCESSING, and each counts one rescue."""


class RowRef(NamedTuple):
    """One in-flight row, for anti-entropy."""

    id: bytes
    identity: Identity
    state: str
    changed_us: int


# ---------------------------------------------------------------- the master, by need


class Intake(Protocol):
    """Producers and flushes: first rows."""

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        """HELD rows with token 1; an id that exists is *refused* (the caller compares with ``get`` when it matters)."""
        ...

    async def insert_assigned(self, bucket_id: bytes, epoch: int, jobs: Sequence[NewJob]) -> Written:
        """ASSIGNED rows with token 2, under the bucket lock (bucket ACTIVE, this epoch)."""
        ...

    async def reserve_keys(
        self, scope: str, keys: Sequence[tuple[str, bytes, bytes]]
    ) -> list[tuple[str, bytes, bytes]]:
        """Idempotency: ``(key, job_id, digest)`` in, the *holding* ``(key, job_id, digest)`` of each key out."""
        ...


class Outcomes(Protocol):
    """The owner's writes about jobs it claimed. Every batch is sorted by id by the implementation."""

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        """COPY of outcomes that expect no row. False: nothing was written (a duplicate, a cancelled row, a bad id); use
        ``record_final``. ``OutcomeUnknown`` when the commit is uncertain."""
        ...

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        """Guarded upsert of outcomes (rule A); no bucket lock."""
        ...

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        """Guarded upsert of in-flight rows under the bucket lock (rule C). ``cancelled`` ids have a cancel request:
        their row was *not* turned into PROCESSING."""
        ...

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> HELD (retry later, release, flush) by identity; writes ``attempt`` rows where ``error`` is set.
        No bucket lock: the identity on the row is enough."""
        ...

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> ASSIGNED in the same bucket with token + 1, under the bucket lock; writes ``attempt`` rows."""
        ...


class Onboarding(Protocol):
    """From HELD into a bucket."""

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
    ) -> Onboarded:
        """Claim due-soon HELD rows for a bucket under its lock, SKIP LOCKED, oldest due first; only jobs of the named
        handlers (``None``: any)."""
        ...

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD: the store refused the put, or anti-entropy found no copy."""
        ...


class Membership(Protocol):
    """Agents, buckets, leases, certificates."""

    async def register(self, agent: Agent, lanes: Sequence[str], handlers: Sequence[HandlerSpec]) -> None:
        """Agent row with a fresh lease; publishes handler specs."""
        ...

    async def renew(self, agent_id: bytes, lease_seconds: float) -> Renewal:
        """Heartbeat; on the heartbeat's own connection, touches no job lock."""
        ...

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool:
        """New ACTIVE buckets of a living owner, in one transaction; False when the owner is not alive any more."""
        ...

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        """Compare-and-set of a bucket's state by its present owner and epoch, with a ``bucket_event``."""
        ...

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """Operator's emergency stop: ACTIVE -> FROZEN (``None``: all of them), with a line in the operator's log."""
        ...

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """FROZEN -> ACTIVE with epoch + 1; their owners take them up again with the next renewal."""
        ...

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        """Every bucket that names the agent as its owner, but for retired ones."""
        ...

    async def end_agent(self, agent_id: bytes, *, dead: bool, reason: str) -> bool:
        """``dead``: death certificate without waiting for the lease (only who has *proof*, e.g. waitpid, or the agent
        itself may ask): agent DEAD and its buckets LOST in one transaction. Otherwise RETIRED, refused while it still
        owns a bucket that is neither READY_TO_DELETE nor LOST."""
        ...

    async def certify_dead(self, judge: bytes, limit: int) -> list[bytes]:
        """Death certificates for agents whose lease ran out, each one compare-and-set on the agent row; their buckets
        become LOST in the same transaction. Nobody is judged until the judge has held its lease for one full term and
        the server has been up as long."""
        ...

    async def take_lost(
        self, agent_id: bytes, stores: Sequence[str], floor_epochs: Mapping[bytes, int]
    ) -> Bucket | None:
        """One LOST bucket of the given stores -> DRAINING with epoch max(master, floor) + 1, owned by the agent; also
        terminates the dead owner's database backends. ``None``: nothing to do."""
        ...

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool:
        """DRAINING -> READY_TO_DELETE when no in-flight row names the bucket; False: sweep again."""
        ...

    async def lead(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None:
        """Try to hold or keep the coordinator lease; the epoch when held, ``None`` when another holds it. A heavier
        candidate takes over at the expiry of a lighter one."""
        ...

    async def resign(self, agent_id: bytes, epoch: int) -> None:
        """Give the coordinator lease back at once."""
        ...


class Rescue(Protocol):
    """A rescuer's writes, each page under *its* epoch (rule C)."""

    async def rescue_page(
        self, fence: Fence, entries: Sequence[Entry], lane: str, priority: int, *, claimed: bool, max_rescues: int
    ) -> Written:
        """Entries found in the store -> HELD with token + 1 (no row: token 2). ``claimed`` entries never rescued before and
        rows that are PROCESSING count one rescue, and one that reaches ``max_rescues`` becomes FAILED with reason
        ``agent_lost``; rows that are final or name another bucket are left alone (*refused*)."""
        ...

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows that still name this bucket with an older epoch -> HELD (PROCESSING counts a rescue).
        Repeat until none was moved."""
        ...


class Upkeep(Protocol):
    """The coordinator's house-keeping."""

    async def due_groups(self, horizon_seconds: float) -> list[DueGroup]:
        """Lanes and priorities that have HELD rows within the horizon (index probes only)."""
        ...

    async def tend(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> Tended:
        """``lead`` for who leads already, ``due_groups``, and a look at overdue leases, in one statement: the coordinator
        asks every second and has a budget of two queries."""
        ...

    async def return_orphans(self, grace_seconds: float, limit: int) -> int:
        """In-flight rows whose (bucket, epoch) is no live bucket -> HELD, by compare-and-set, after a grace period."""
        ...

    async def forget_buckets(self, tombstone_seconds: float) -> list[Bucket]:
        """Buckets READY_TO_DELETE for longer than the tombstone time (the caller deletes their keys, then ``drop``)."""
        ...

    async def drop_bucket(self, bucket_id: bytes) -> None:
        """Delete the tombstone of a bucket whose keys are gone."""
        ...

    async def forget(self, what: Leftover, days: float, limit: int) -> int:
        """Remove what is older and not needed any more, at most ``limit`` rows; how many."""
        ...

    async def expire_held(self, limit: int) -> int:
        """HELD rows past their ``expires`` -> EXPIRED."""
        ...

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        """Partitions from the watermark to ``ahead_days`` ahead exist; the names of the new ones."""
        ...

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        """In-flight rows of which the bucket's owner has no copy -> HELD with token + 1, by identity; how many."""
        ...

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        """In-flight rows that name a bucket, keyset-paged by id."""
        ...


class Queries(Protocol):
    """What people and clients read."""

    async def get(self, job_id: bytes) -> JobView | None: ...

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]: ...

    async def buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]: ...

    async def agents(self, *, all_: bool = False) -> list[Agent]: ...

    async def handlers(self) -> dict[str, HandlerSpec]: ...

    async def cancel(self, job_id: bytes, *, tombstone: NewJob | None, actor: str) -> JobState | None:
        """Cancel by the table of ``rules.job_machine``: HELD -> CANCELLED; in flight -> flag; no row and a tombstone ->
        CANCELLED row; no row and no tombstone -> ``None``. Returns the state after the call."""
        ...


# ---------------------------------------------------------------- answers of an agent store


class Word(StrEnum):
    """First word of every answer of a store function."""

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
    word: Word
    depth: int
    """Jobs waiting in the bucket afterwards (pending)."""
    skew_ms: int = 0
    """With SKEW: id time minus store time."""


class Claimed(NamedTuple):
    word: Word
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
    """Ids somebody asked to cancel in this bucket (a hint; the row decides)."""


class Page(NamedTuple):
    """One page of a drained bucket, still in the store."""

    word: Word
    kind: str
    """``spilled``, ``claimed``, ``pending``, ``assigned`` or empty when nothing is left."""
    list_name: str
    entries: list[Entry]
    raw: list[bytes]


class Kept(NamedTuple):
    """The oldest outcomes that a bucket at work keeps for the master."""

    word: Word
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


class StoreIntake(Protocol):
    """What a producer may do."""

    async def submit(
        self, bucket_id: bytes, items: Sequence[bytes], *, high_water_jobs: int, high_water_bytes: int, skew_ms_max: int
    ) -> Submitted:
        """Append encoded entries to ``pending`` and leave a wake token; all or none."""
        ...

    async def put(self, bucket_id: bytes, epoch: int, items: Sequence[tuple[int, bytes]]) -> Word:
        """``(due_us, encoded entry)`` into ``assigned`` of an ACTIVE bucket of this epoch (a master submit due now)."""
        ...

    async def hint(self, bucket_id: bytes) -> None:
        """Tell the owner that HELD jobs of its lane and priority are due."""
        ...

    async def request_cancel(self, bucket_id: bytes, job_id: bytes) -> Word: ...

    async def find(self, bucket_id: bytes, job_id: bytes, scan_max: int) -> Entry | None:
        """Look for a job in one bucket's lists, bounded."""
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

    async def open_bucket(self, fence: Fence) -> Word: ...

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> Word:
        """An operator's stop, put where producers see it: the bucket of this epoch and owner takes and gives no jobs."""
        ...

    async def thaw(self, fence: Fence, list_name: str) -> Word:
        """The owner takes its unfrozen bucket up again, under the new epoch of the fence. Copies in ``assigned``, whose rows
        bear the old one, are moved to ``claimed:<list_name>``, to be given back."""
        ...

    async def claim(self, fence: Fence, list_name: str, limit: int) -> Claimed:
        """Move up to ``limit`` jobs (due ``assigned`` first, then ``pending``) to ``claimed:<list_name>`` and return
        them; asked again with the same name: the same list."""
        ...

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> Word:
        """Delete claimed lists whose every entry is settled; publish the finished ids."""
        ...

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> Word:
        """``(due_us, encoded entry)`` into ``assigned`` (onboarding, retry here)."""
        ...

    async def spill(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> Word:
        """Keep outcomes while the master is down, and delete the claimed lists they come from, atomically."""
        ...

    async def vouch(self, fence: Fence, term_seconds: float) -> Word:
        """The bucket is still the caller's, and no rescuer begins for so long; 0 takes that back."""
        ...

    async def read_kept(self, fence: Fence, limit: int) -> Kept:
        """The oldest outcomes spilled into a bucket at work."""
        ...

    async def remove_kept(self, fence: Fence, page: Sequence[bytes], back: Sequence[bytes]) -> Word:
        """Take out exactly one page that was read; ``back``, some of it, goes to the end again."""
        ...

    async def claimed_lists(self, fence: Fence) -> tuple[Word, list[str]]: ...

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed: ...

    async def close_intake(self, fence: Fence) -> Word: ...

    async def close_if_empty(self, fence: Fence) -> Word:
        """No new job can come after OK; NOT_EMPTY otherwise."""
        ...

    async def fence(self, fence: Fence) -> tuple[Word, int]:
        """Take the bucket in the store for a rescuer: accepted for a higher epoch, or the same epoch and owner; creates
        the meta of a lost store. FENCED returns the epoch found, VOUCHED the microseconds to wait before the first page."""
        ...

    async def read_page(self, fence: Fence, limit: int) -> Page:
        """Next page of a bucket being drained, in the order spilled, claimed, pending, assigned."""
        ...

    async def remove_page(self, fence: Fence, page: Page) -> Word: ...

    async def delete_bucket(self, bucket_id: bytes) -> Word:
        """Remove the keys of a retired bucket; NOT_EMPTY (and nothing removed) when something lies there."""
        ...

    async def known_buckets(self) -> list[bytes]:
        """Every bucket that has keys in this store for this cluster (bounded scan; anti-entropy)."""
        ...

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None: ...

    async def beating(self, agent_ids: Sequence[bytes]) -> list[bool]: ...

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """Block until one of the buckets has a wake token; its id, or ``None`` after the time-out."""
        ...
