"""What this process holds in memory: claimed lists (portions) and the one live copy of each job.

Owns the answer to "may this claimed list be deleted?": only when every entry of it is *safe* - committed as finished,
held or in flight, or refused by its own row (rule E). Owns "one live copy per id" (rule F): a second copy of an id waits
behind the first; it is safe when the first was accepted, and takes over when the first was refused or forgotten.
Knows nothing of stores: whoever settles passes on what became deletable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from jobmaster.handlers import Handler
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster_agents.holdings import Holding


class Phase(Enum):
    """Where a live copy is."""

    QUEUED = 1
    RUNNING = 2
    ENDED = 3
    """Its outcome is on the way to the master."""
    GONE = 4
    """Settled or forgotten; whatever still refers to it must leave it alone."""
    FOLLOWING = 5
    """A second copy of an id that is live already."""


class LiveJob:
    """One claimed copy of a job."""

    __slots__ = ("cancelled", "entry", "followers", "handler", "has_row", "phase", "portion", "row", "safe")

    def __init__(self, entry: Entry, portion: Portion, handler: Handler | None) -> None:
        self.entry = entry
        self.portion = portion
        self.handler = handler
        self.phase = Phase.QUEUED
        # Onboarded copies (token > 1) have a row by definition; a SavePending copy gets one after persist_within.
        self.has_row = entry.token > 1
        self.safe = False
        self.cancelled = False
        self.row: FinalRow | HoldRow | None = None
        self.followers: list[LiveJob] | None = None


class Portion:
    """One claimed list: the unit that is deleted in the store."""

    __slots__ = ("claimed_at", "holding", "jobs", "name", "now_us", "unsafe")

    def __init__(self, holding: Holding, name: str, claimed_at: float, now_us: int) -> None:
        self.holding = holding
        self.name = name
        self.claimed_at = claimed_at
        """CLOCK_BOOTTIME seconds."""
        self.now_us = now_us
        """The store's clock at the claim."""
        self.jobs: list[LiveJob] = []
        self.unsafe = 0


class Memory:
    """Every live copy and every claimed list of this process."""

    def __init__(self) -> None:
        self._live: dict[bytes, LiveJob] = {}
        self._portions: dict[bytes, dict[str, Portion]] = {}
        self.duplicates = 0
        """Second copies seen since the start."""

    def __len__(self) -> int:
        return len(self._live)

    def get(self, job_id: bytes) -> LiveJob | None:
        """The live copy of an id."""
        return self._live.get(job_id)

    def knows(self, bucket_id: bytes, name: str) -> bool:
        """True when the claimed list is one of ours."""
        return name in self._portions.get(bucket_id, ())

    def adopt(self, portion: Portion, entries: Sequence[Entry], handlers: dict[str, Handler]) -> list[LiveJob]:
        """Take a claimed list into memory; returns the jobs to run (second copies of live ids are not among them)."""
        live = self._live
        fresh: list[LiveJob] = []
        jobs = portion.jobs
        for entry in entries:
            job = LiveJob(entry, portion, handlers.get(entry.handler))
            jobs.append(job)
            first = live.setdefault(entry.id, job)
            if first is job:
                fresh.append(job)
            else:
                self.duplicates += 1
                job.phase = Phase.FOLLOWING
                if first.followers is None:
                    first.followers = []
                first.followers.append(job)
        portion.unsafe = len(jobs)
        self._portions.setdefault(portion.holding.fence.bucket_id, {})[portion.name] = portion
        return fresh

    def make_safe(self, job: LiveJob) -> Portion | None:
        """The master knows this copy (in flight) or has settled it; the portion when its list may be deleted now."""
        if job.safe:
            return None
        job.safe = True
        portion = job.portion
        portion.unsafe -= 1
        if portion.unsafe:
            return None
        mine = self._portions.get(portion.holding.fence.bucket_id)
        if mine is None or mine.pop(portion.name, None) is None:
            return None  # the bucket was forgotten meanwhile: its lists are the rescuer's
        return portion

    def settle(self, job: LiveJob, *, accepted: bool) -> tuple[list[Portion], list[LiveJob]]:
        """This copy is over: accepted, or refused by its row.

        Returns: portions whose lists may be deleted, and copies that must run now (promoted followers).
        """
        job.phase = Phase.GONE
        done: list[Portion] = []
        promoted: list[LiveJob] = []
        if (portion := self.make_safe(job)) is not None:
            done.append(portion)
        if self._live.get(job.entry.id) is job:
            del self._live[job.entry.id]
        if job.followers is not None:
            self._settle_followers(job, accepted, done, promoted)
        return done, promoted

    def _settle_followers(
        self, job: LiveJob, accepted: bool, done: list[Portion], promoted: list[LiveJob]
    ) -> None:
        followers, job.followers = job.followers or [], None
        if not accepted:
            # The row may bear the identity of the second copy: it must have its turn (model: "duplicate promoted").
            promoted.extend(self._promote(followers))
            return
        for follower in followers:
            follower.phase = Phase.GONE
            if (portion := self.make_safe(follower)) is not None:
                done.append(portion)

    def _promote(self, followers: Iterable[LiveJob]) -> Iterator[LiveJob]:
        heirs = [f for f in followers if f.phase is Phase.FOLLOWING]
        if not heirs:
            return
        heir, rest = heirs[0], heirs[1:]
        heir.phase = Phase.QUEUED
        heir.followers = rest or None
        self._live[heir.entry.id] = heir
        yield heir

    def forget(self, bucket_id: bytes) -> tuple[list[LiveJob], list[LiveJob]]:
        """The bucket is not ours any more: nothing of it is settled, no key may be touched (rule D).

        Returns: the jobs that were live in it (their handlers are to be stopped), and promoted copies in other buckets.
        """
        # Through the live map, because copies in flight outlive their lists.
        dropped = self.of_bucket(bucket_id)
        promoted: list[LiveJob] = []
        for portion in self._portions.pop(bucket_id, {}).values():
            for job in portion.jobs:
                if job.phase is Phase.FOLLOWING:
                    job.phase = Phase.GONE
        for job in dropped:
            del self._live[job.entry.id]
        for job in dropped:
            others = [f for f in job.followers or () if f.portion.holding.fence.bucket_id != bucket_id]
            job.followers = None
            promoted.extend(self._promote(others))
        return dropped, promoted

    def of_bucket(self, bucket_id: bytes) -> list[LiveJob]:
        """Live copies of one bucket, in no order."""
        return [job for job in self._live.values() if job.portion.holding.fence.bucket_id == bucket_id]

    def ids_of(self, bucket_id: bytes) -> set[bytes]:
        """Ids in memory for one bucket (followers included): what anti-entropy must not touch."""
        ids = {job.entry.id for job in self.of_bucket(bucket_id)}
        for portion in self._portions.get(bucket_id, {}).values():
            ids.update(job.entry.id for job in portion.jobs if job.phase is not Phase.GONE)
        return ids

    def unpersisted(self, claimed_before: float) -> list[Portion]:
        """Portions claimed before a moment that still hold unsafe entries."""
        return [
            portion
            for mine in self._portions.values()
            for portion in mine.values()
            if portion.unsafe and portion.claimed_at <= claimed_before
        ]

    def empty(self, bucket_id: bytes) -> bool:
        """True when nothing of the bucket is in memory."""
        return not self._portions.get(bucket_id) and not self.of_bucket(bucket_id)
