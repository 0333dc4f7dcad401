"""The lease of this process and the buckets that it owns.

The master's row is the truth about ownership; this is the agent's view, which always ends before the lease does. Only the
heartbeat writes the term. ``BucketWorker`` adds and retires buckets. ``lose`` is called for every answer of a store or of the
master which shows that a bucket has another owner. A lost bucket stays lost: an agent never uses it again under an old fence.

While the master does not answer, the store may grant a term for each bucket (``store_lease``). Jobs then start by the term of
their bucket, and nothing is committed until a renewal has been accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import LeaseStatus, Term, lease_status

FENCED_EXIT_CODE = 75
"""Exit code of a process that fenced itself: its supervisor starts a new agent in its place (EX_TEMPFAIL)."""


_STORE_LOST = frozenset((ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.NO_BUCKET))
"""Replies of a store that was emptied, replaced or restored from an older copy, and of no other store."""
_UNFROZEN_LIST_PREFIX = "unfrozen-"


def unfrozen_list(epoch: int) -> str:
    """Name of the claimed list with the jobs that had been onboarded under ``epoch`` when the bucket was unfrozen."""
    return f"{_UNFROZEN_LIST_PREFIX}{epoch}"


def unfrozen_epoch(list_name: str) -> int | None:
    """The epoch of such a list; ``None`` for every other claimed list."""
    return int(list_name.removeprefix(_UNFROZEN_LIST_PREFIX)) if list_name.startswith(_UNFROZEN_LIST_PREFIX) else None


class OwnedBucket:
    """One bucket of this process."""

    __slots__ = (
        "at_risk",
        "closed",
        "fence",
        "full",
        "kept",
        "kept_bytes",
        "lane",
        "lost",
        "paused",
        "priority",
        "state",
        "store",
        "store_lost",
        "store_term",
        "successor",
        "unwritable",
        "unwritable_ids",
    )

    def __init__(self, fence: Fence, lane: str, priority: int, store: str) -> None:
        self.fence = fence
        self.lane = lane
        self.priority = priority
        self.store = store
        self.state = BucketState.ACTIVE
        self.closed = False
        """True while it takes no new jobs (COMPLETING, FROZEN)."""
        self.paused = False
        """True while a pause covers all of its jobs: it is open for new ones, and nothing of it starts."""
        self.lost = False
        """True once it has another owner: its jobs are dropped, and none of its keys is touched."""
        self.at_risk = 0
        """Of a lost bucket: jobs that were last seen in it and may have been in memory alone, waiting or ended."""
        self.store_lost = False
        """True once a reply showed that its store has lost it with all its jobs; not when it only has another owner."""
        self.successor: OwnedBucket | None = None
        """Of a predecessor (``advance_epoch``): the same bucket under its present epoch."""
        self.store_term: Term | None = None
        """The term that its store has granted; only while the agent is suspended."""
        self.kept = 0
        """Outcomes that are kept in the bucket for the master; after a lost answer they count, too."""
        self.kept_bytes = 0
        self.unwritable = 0
        """How many of them the master refused when they were last sent."""
        self.unwritable_ids: frozenset[bytes] = frozenset()
        """The jobs of these outcomes: such an outcome is a copy of its job, and may be the only one."""
        self.full = False
        """True once it was logged that it keeps no more."""

    @classmethod
    def of(cls, bucket: Bucket) -> OwnedBucket:
        """A bucket that this process has just created."""
        fence = Fence(BucketId(bucket.id), bucket.epoch, AgentId(bucket.owner))
        return cls(fence, bucket.lane, bucket.priority, bucket.store)

    def note_reply(self, reply: ReplyStatus | None) -> None:
        """A reply of its store, when that was a refusal."""
        self.store_lost = self.store_lost or reply in _STORE_LOST

    @property
    def applies(self) -> bool:
        """True while it keeps outcomes that the master may accept: their jobs are not known here."""
        return self.kept > self.unwritable

    @property
    def frozen(self) -> bool:
        """True while an operator has frozen it: nothing is claimed, started or onboarded."""
        return self.state is BucketState.FROZEN

    @property
    def present(self) -> OwnedBucket:
        """The bucket under the fence that the store knows: this one, or its successor."""
        return self.successor or self

    def freeze(self) -> None:
        """An operator has frozen it."""
        self.state = BucketState.FROZEN
        self.closed = True

    def unfreeze(self) -> None:
        """It is not frozen any more, and its epoch is unchanged."""
        self.state = BucketState.ACTIVE
        self.closed = False

    def predecessor(self, epoch: int) -> OwnedBucket:
        """This bucket under an older epoch, for copies that have a row under it; it takes no new jobs."""
        predecessor = OwnedBucket(self.fence._replace(epoch=epoch), self.lane, self.priority, self.store)
        predecessor.closed, predecessor.successor = True, self
        return predecessor

    def advance_epoch(self, epoch: int) -> OwnedBucket:
        """Go on under a new epoch, in place, so that every reference stays valid; the predecessor under the old one."""
        predecessor = self.predecessor(self.fence.epoch)
        self.fence = self.fence._replace(epoch=epoch)
        self.unfreeze()
        return predecessor


OnLost = Callable[[OwnedBucket, str], None]


class OnForgotten(Protocol):
    """Called when an answer of a store, or of the master, shows that a bucket has another owner."""

    def __call__(self, bucket_id: bytes, why: str, reply: ReplyStatus | None = None) -> None:
        """``reply``: that of its store; ``None``: the answer came from elsewhere."""


class Ownership:
    """The buckets of one agent and the term of its lease. Lives on one event loop."""

    def __init__(self, agent_id: bytes) -> None:
        self.agent_id = agent_id
        self.buckets: dict[bytes, OwnedBucket] = {}
        self.on_lost: list[OnLost] = []
        """Called once per lost bucket, synchronously, in order of subscription."""
        self.on_refused_write: OnLost | None = None
        """Called when the bucket lock refused a write, to read the bucket's row; ``None``: the refusal counts as a loss."""
        self.opening: set[bytes] = set()
        """Buckets that are being created: the master may count them already."""
        self.fenced = asyncio.Event()
        """Set once, never cleared: the whole process must stop committing and exit."""
        self.fenced_why = ""
        self.trusted_until = 0.0
        """CLOCK_BOOTTIME seconds; written by the heartbeat alone."""
        self.stretch = 1.0
        """Present length of the lease over its configured one (a large cluster renews less often), by the heartbeat."""
        self.soft_until = 0.0
        self.hard_until = 0.0
        self.store_term: Term | None = None
        """The latest term that the store has granted to any bucket; ``None``: the process is not suspended."""
        self.on_suspended: list[Callable[[], None]] = []
        """Called synchronously when the first store term begins."""
        self.on_resumed: list[Callable[[], None]] = []
        """Called synchronously when a renewal was accepted after that."""
        self.on_replay_due: list[Callable[[], None]] = []
        """Called synchronously with every renewal while a bucket keeps outcomes for the master."""
        self._term: Term | None = None
        self._trusted_again = asyncio.Event()

    # ------------------------------------------------------------ the lease

    @property
    def term(self) -> Term | None:
        """Present term; ``None`` before the first lease."""
        return self._term

    def trust(self, term: Term) -> None:
        """A renewed term (the heartbeat's call). A fenced process stays fenced."""
        if self.fenced.is_set():
            return
        self._term = term
        self.soft_until, self.hard_until, self.trusted_until = term
        resumed, self.store_term = self.store_term is not None, None
        for owned in self.buckets.values():
            owned.store_term = None
        self._wake()
        if resumed:
            for call in self.on_resumed:
                call()
        if any(owned.applies for owned in self.buckets.values()):
            for call in self.on_replay_due:
                call()

    def trust_store(self, term: Term, owned: OwnedBucket | None = None) -> None:
        """The store has granted a term to this process, and to one of its buckets (called by ``StoreLease``)."""
        if self.fenced.is_set():
            return
        if owned is not None and not owned.lost:
            owned.store_term = term
        began = self.store_term is None
        if self.store_term is None or term.trusted_until > self.store_term.trusted_until:
            self.store_term = term
        self._wake()
        if began:
            for call in self.on_suspended:
                call()

    def _wake(self) -> None:
        waiting, self._trusted_again = self._trusted_again, asyncio.Event()
        waiting.set()

    @property
    def suspended(self) -> bool:
        """True from the first store term to the next accepted renewal."""
        return self.store_term is not None

    @property
    def fence_at(self) -> float:
        """When this process must stop everything: the hard end of its lease, or of the store term if that is later."""
        return self.hard_until if self.store_term is None else max(self.hard_until, self.store_term.hard_until)

    @property
    def kill_at(self) -> float:
        """When others may end this process: the end of its lease, or of the store term if that is later."""
        return self.trusted_until if self.store_term is None else max(self.trusted_until, self.store_term.trusted_until)

    def lease_status(self, now: float) -> LeaseStatus:
        """What may be done at ``now`` (CLOCK_BOOTTIME seconds)."""
        return LeaseStatus.ENDED if self.fenced.is_set() else lease_status(now, self._term, self.store_term)

    def may_start(self, now: float) -> bool:
        """True in the first half of the lease."""
        return now < self.soft_until and not self.fenced.is_set()

    def may_start_in(self, owned: OwnedBucket, now: float) -> bool:
        """True in the first half of the lease, or of the store term of this bucket. A job that needs an accepted write before
        it starts goes by ``may_start``."""
        if now < self.soft_until:
            return not self.fenced.is_set()
        store_term = owned.store_term
        return store_term is not None and now < store_term.soft_until and not self.fenced.is_set()

    def may_start_until(self, owned: OwnedBucket) -> float:
        """When ``may_start_in`` ends, unless the lease or the store term is renewed."""
        store_term = owned.store_term
        return self.soft_until if store_term is None else max(self.soft_until, store_term.soft_until)

    def may_keep(self, owned: OwnedBucket, now: float) -> bool:
        """True when outcomes may be kept in this bucket; its store would refuse them from a fenced owner."""
        store_term = owned.store_term
        return self.may_commit(now) or (
            store_term is not None and now < store_term.hard_until and not self.fenced.is_set()
        )

    def may_commit(self, now: float) -> bool:
        """True until the margin before the lease ends."""
        return now < self.hard_until and not self.fenced.is_set()

    async def wait_trusted(self) -> None:
        """Wait for the next renewal or store term. Never returns once the process is fenced: the exit cancels the waiting
        task."""
        await self._trusted_again.wait()

    def fence(self, why: str) -> None:
        """Stop everything: the master holds a death certificate, or the lease is about to end. The first reason is kept."""
        if not self.fenced.is_set():
            self.fenced_why = why
            self.soft_until = self.hard_until = 0.0
            self.fenced.set()

    # ------------------------------------------------------------ buckets

    def add(self, owned: OwnedBucket) -> None:
        """A bucket this process has created."""
        self.buckets[owned.fence.bucket_id] = owned

    def get(self, bucket_id: bytes) -> OwnedBucket | None:
        """A bucket of this process; ``None``: it does not own it (any more)."""
        return self.buckets.get(bucket_id)

    def lose(self, bucket_id: bytes, why: str, reply: ReplyStatus | None = None) -> bool:
        """The bucket has another owner, or its store has lost it. False when it was not owned (any more): two reports are one
        loss. ``reply``: that of its store, if the report came from there."""
        owned = self.buckets.pop(bucket_id, None)
        if owned is None:
            return False
        owned.note_reply(reply)
        owned.lost = owned.closed = True
        owned.store_term = None
        owned.state = BucketState.LOST
        for call in self.on_lost:
            call(owned, why)
        return True

    def write_refused(self, owned: OwnedBucket, why: str) -> None:
        """The bucket lock refused a write: nothing of it is settled. The bucket's row shows whether it is lost or frozen.

        Only for a write under the present fence: the refusal of an older one shows nothing.
        """
        if self.on_refused_write is not None:
            self.on_refused_write(owned, why)
        else:
            self.lose(owned.fence.bucket_id, why)

    def retire(self, bucket_id: bytes) -> None:
        """The bucket was emptied and closed by its owner; no loss."""
        owned = self.buckets.pop(bucket_id, None)
        if owned is not None:
            owned.closed = True
            owned.state = BucketState.READY_TO_DELETE
