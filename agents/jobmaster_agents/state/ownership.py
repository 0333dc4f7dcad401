"""What this process owns now, and until when it may believe so.

The master's row is the truth about ownership; this is the trust in it, always shorter than the lease. The term is
written by the heartbeat alone, buckets are added and closed by whoever opens them, and ``lose`` may be called by anyone
who was told by a store or the master that the bucket is another's. What is lost stays lost: an agent never re-enters a
bucket under an old fence.

While the master does not answer, the store may stand for each bucket (``store_lease``): then jobs start by the bucket's own
term, and nothing is committed until a renewal has been accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.ports import Word
from jobmaster.rules.lease import Standing, Term, standing

FENCED_EXIT_CODE = 75
"""Exit code of a process that fenced itself: its supervisor starts a new agent in its place (EX_TEMPFAIL)."""


_STORE_LOST = frozenset((Word.GENERATION, Word.ROLLBACK, Word.NO_BUCKET))
"""What a store says that was emptied, swapped or put back, and by no other reason."""
_UNFROZEN_LIST_PREFIX = "thawed-"


def unfrozen_list(epoch: int) -> str:
    """Name of the claimed list that holds what had been onboarded under an epoch when the bucket was unfrozen."""
    return f"{_UNFROZEN_LIST_PREFIX}{epoch}"


def unfrozen_epoch(list_name: str) -> int | None:
    """The epoch of such a list; ``None``: it is a claimed list like any other."""
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
        self.lost = False
        """True once it is another's: forget its jobs, touch no key."""
        self.at_risk = 0
        """Of a lost one: jobs that were last seen in it and may have been nowhere else but in memory, waiting or ended."""
        self.store_lost = False
        """True once its store said that it has lost it, with all that lay in it; not when it merely is another's."""
        self.successor: OwnedBucket | None = None
        """Of an identity of the past (``step``): the holding of the same bucket that goes on."""
        self.store_term: Term | None = None
        """The term for which the store stands for it; only while the agent is suspended."""
        self.kept = 0
        """Outcomes that lie in the bucket and wait for the master, those of a lost answer included."""
        self.kept_bytes = 0
        self.unwritable = 0
        """How many of them the master would not take when they were last tried."""
        self.unwritable_ids: frozenset[bytes] = frozenset()
        """Of which jobs: such an outcome is a copy of its job, and the only one there may be."""
        self.full = False
        """True once it was said that it keeps no more."""

    @classmethod
    def of(cls, bucket: Bucket) -> OwnedBucket:
        """Holding of a bucket this process has just created or taken."""
        fence = Fence(BucketId(bucket.id), bucket.epoch, AgentId(bucket.owner))
        return cls(fence, bucket.lane, bucket.priority, bucket.store)

    def note_reply(self, reply: Word | None) -> None:
        """What its store answered, when that was a refusal."""
        self.store_lost = self.store_lost or reply in _STORE_LOST

    @property
    def applies(self) -> bool:
        """True while it keeps outcomes that the master may take: not all that lies in the bucket is known."""
        return self.kept > self.unwritable

    @property
    def frozen(self) -> bool:
        """True while an operator's stop is in force: nothing is claimed, started or bound."""
        return self.state is BucketState.FROZEN

    @property
    def present(self) -> OwnedBucket:
        """The holding whose fence the store knows: this one, or its successor."""
        return self.successor or self

    def freeze(self) -> None:
        """An operator's stop."""
        self.state = BucketState.FROZEN
        self.closed = True

    def unfreeze(self) -> None:
        """There is no stop any more, and the epoch is as it was."""
        self.state = BucketState.ACTIVE
        self.closed = False

    def predecessor(self, epoch: int) -> OwnedBucket:
        """What stands for this bucket under an older epoch, for copies that have a row under that; it takes no new jobs."""
        past = OwnedBucket(self.fence._replace(epoch=epoch), self.lane, self.priority, self.store)
        past.closed, past.successor = True, self
        return past

    def advance_epoch(self, epoch: int) -> OwnedBucket:
        """Go on under a new epoch (in place: whoever refers to this bucket goes on with it); the holding of the old one."""
        past = self.predecessor(self.fence.epoch)
        self.fence = self.fence._replace(epoch=epoch)
        self.unfreeze()
        return past


OnLost = Callable[[OwnedBucket, str], None]


class OnForgotten(Protocol):
    """Who is told that a store, or the master, says that a bucket is another's."""

    def __call__(self, bucket_id: bytes, why: str, reply: Word | None = None) -> None:
        """``reply``: the word of its store, if it was the store that said so."""


class Ownership:
    """The buckets of one agent and the term of its lease. Lives on one event loop."""

    def __init__(self, agent_id: bytes) -> None:
        self.agent_id = agent_id
        self.buckets: dict[bytes, OwnedBucket] = {}
        self.on_lost: list[OnLost] = []
        """Called once per lost bucket, synchronously, in order of subscription."""
        self.on_refused_write: OnLost | None = None
        """Who asks the master when a write was refused by a bucket's lock; nobody: that is a loss."""
        self.opening: set[bytes] = set()
        """Buckets that are being made: the master may count them already."""
        self.fenced = asyncio.Event()
        """Set once and for ever: the whole process must stop committing and exit."""
        self.fenced_why = ""
        self.trusted_until = 0.0
        """CLOCK_BOOTTIME seconds; written by the heartbeat alone."""
        self.stretch = 1.0
        """How many times its configured length the lease has now (a large cluster renews less often); the heartbeat's."""
        self.soft_until = 0.0
        self.hard_until = 0.0
        self.store_term: Term | None = None
        """The latest term for which the store stands for this process; ``None``: it is not suspended."""
        self.on_suspended: list[Callable[[], None]] = []
        """Called synchronously when the store begins to stand for this process."""
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
            for tell in self.on_resumed:
                tell()
        if any(owned.applies for owned in self.buckets.values()):
            for tell in self.on_replay_due:
                tell()

    def trust_store(self, term: Term, owned: OwnedBucket | None = None) -> None:
        """The store stands for this process, and for one of its buckets, until the end of a term (the suspension's call)."""
        if self.fenced.is_set():
            return
        if owned is not None and not owned.lost:
            owned.store_term = term
        began = self.store_term is None
        if self.store_term is None or term.trusted_until > self.store_term.trusted_until:
            self.store_term = term
        self._wake()
        if began:
            for tell in self.on_suspended:
                tell()

    def _wake(self) -> None:
        waiting, self._trusted_again = self._trusted_again, asyncio.Event()
        waiting.set()

    @property
    def suspended(self) -> bool:
        """True from the store's first word to the next accepted renewal."""
        return self.store_term is not None

    @property
    def fence_at(self) -> float:
        """When this process must stop everything: the deadline of its lease, or of the store's word where that is later."""
        return self.hard_until if self.store_term is None else max(self.hard_until, self.store_term.hard_until)

    @property
    def kill_at(self) -> float:
        """When others may end this process: the end of its lease, or of the store's word."""
        return self.trusted_until if self.store_term is None else max(self.trusted_until, self.store_term.trusted_until)

    def standing(self, now: float) -> Standing:
        """What may be done at ``now`` (CLOCK_BOOTTIME seconds)."""
        return Standing.ENDED if self.fenced.is_set() else standing(now, self._term, self.store_term)

    def may_start(self, now: float) -> bool:
        """True in the first half of the lease."""
        return now < self.soft_until and not self.fenced.is_set()

    def may_start_in(self, owned: OwnedBucket, now: float) -> bool:
        """True in the first half of the lease, or of the store's word for this bucket. Not for what needs an accepted
        write before it starts: that is ``may_start``."""
        if now < self.soft_until:
            return not self.fenced.is_set()
        store_term = owned.store_term
        return store_term is not None and now < store_term.soft_until and not self.fenced.is_set()

    def may_keep(self, owned: OwnedBucket, now: float) -> bool:
        """True when outcomes may be put into this bucket, whose store would refuse them of a fenced owner."""
        store_term = owned.store_term
        return self.may_commit(now) or (
            store_term is not None and now < store_term.hard_until and not self.fenced.is_set()
        )

    def may_commit(self, now: float) -> bool:
        """True until the margin before the lease ends."""
        return now < self.hard_until and not self.fenced.is_set()

    async def wait_trusted(self) -> None:
        """Wait for the next renewal, or word of the store. Never returns once the process is fenced: whoever waits is
        cancelled by the exit."""
        await self._trusted_again.wait()

    def fence(self, why: str) -> None:
        """Stop everything: a death certificate was seen, or the lease is about to end. Only the first reason is kept."""
        if not self.fenced.is_set():
            self.fenced_why = why
            self.soft_until = self.hard_until = 0.0
            self.fenced.set()

    # ------------------------------------------------------------ buckets

    def add(self, owned: OwnedBucket) -> None:
        """A bucket this process has created."""
        self.buckets[owned.fence.bucket_id] = owned

    def get(self, bucket_id: bytes) -> OwnedBucket | None:
        """Holding of a bucket, unless it is not ours (any more)."""
        return self.buckets.get(bucket_id)

    def lose(self, bucket_id: bytes, why: str, reply: Word | None = None) -> bool:
        """The bucket is another's, or its store has lost it. False when it was not held (any more): losing twice is one
        loss. ``reply``: the word of its store, if that said so."""
        owned = self.buckets.pop(bucket_id, None)
        if owned is None:
            return False
        owned.note_reply(reply)
        owned.lost = owned.closed = True
        owned.store_term = None
        owned.state = BucketState.LOST
        for tell in self.on_lost:
            tell(owned, why)
        return True

    def write_refused(self, owned: OwnedBucket, why: str) -> None:
        """A write was refused by the bucket's lock: nothing of it is settled. Lost, or stopped by an operator: the row says.

        Whoever calls this has used the present fence: of an older one a refusal says nothing.
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
