"""The agent's in-memory table of jobs: the claimed lists and the one live copy of each job.

It decides when a claimed list may be deleted: only when every entry of it is *safe* - committed as finished, held or in
flight, or refused by its own row (rule E). A list stays known until the store has confirmed its deletion, so that the search
for unknown lists never takes it for a lost one. It keeps one live copy per id (rule F): a second copy of an id waits behind
the first, and its list with it; when the first has ended, the copies that its end has made void are dropped, and the newest
of the others takes over. It makes no call to a store: the caller deletes the lists that a method returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from jobmaster.handlers import Handler
from jobmaster.model.job import Entry, FinalRow, Headers, HoldRow, JobState
from jobmaster_agents.state.limited_job import LimitedJob
from jobmaster_agents.state.ownership import OwnedBucket


class JobPhase(Enum):
    """Phase of a copy in this process."""

    QUEUED = 1
    RUNNING = 2
    ENDED = 3
    """Its outcome is on the way to the master."""
    GONE = 4
    """Settled or forgotten; code that still refers to it must not touch it."""
    FOLLOWING = 5
    """A second copy, behind the live copy of the same id."""


class ClaimedJob:
    """One claimed copy of a job."""

    __slots__ = (
        "cancelled",
        "claimed_list",
        "entry",
        "followers",
        "handler",
        "has_row",
        "headers",
        "kept",
        "limited",
        "phase",
        "row",
        "row_state",
        "safe",
        "unwritable",
        "weight",
    )

    def __init__(self, entry: Entry, claimed_list: ClaimedList, handler: Handler | None) -> None:
        self.entry = entry
        self.claimed_list = claimed_list
        self.handler = handler
        self.phase = _QUEUED
        # Onboarded copies (token > 1) have a row by definition; a SavePending copy gets one after persist_within.
        self.has_row = entry.token > 1
        self.safe = False
        self.row_state: JobState | None = None
        """ASSIGNED or PROCESSING once an in-flight row of this copy was accepted."""
        self.cancelled = False
        self.kept = False
        """Its outcome is also kept in the store."""
        self.unwritable = False
        """The master refuses its values: kept here and in its list until an operator acts."""
        self.headers: Headers | None = None
        """Decoded once, when first needed."""
        self.row: FinalRow | HoldRow | None = None
        self.weight = 0
        """Payload bytes of ``row``, counted once when it is queued."""
        self.followers: list[ClaimedJob] | None = None
        self.limited: LimitedJob | None = None
        """Of a job with limits, from its first question for permits on."""


class ClaimedList:
    """One claimed list: the unit that is deleted in the store.

    Args:
        claimed_at: CLOCK_BOOTTIME seconds of the first call for it; ``persist_within`` counts from here.
        now_us: the store's clock in the answer.
        asked_at: when the call that was answered was sent (it is repeated after a lost reply); default ``claimed_at``.
        size: bytes of the list.
    """

    __slots__ = ("claimed_at", "clock_us", "has_options", "jobs", "name", "owned", "parent", "size", "unsafe")

    def __init__(
        self,
        owned: OwnedBucket,
        name: str,
        claimed_at: float,
        now_us: int,
        asked_at: float | None = None,
        *,
        size: int = 0,
    ) -> None:
        self.owned = owned
        self.name = name
        self.size = size
        self.claimed_at = claimed_at
        self.clock_us = now_us - int((claimed_at if asked_at is None else asked_at) * 1e6)
        """Store time minus boot time, in microseconds."""
        self.jobs: list[ClaimedJob] = []
        self.has_options = False
        """One of its jobs was submitted with options: it has headers."""
        self.unsafe = 0
        self.parent: ClaimedList | None = None
        """Of a part with an old identity (``JobTable.keep_old_identity``): the claimed list that it is a part of."""

    def split_off(self, past: OwnedBucket, jobs: Sequence[ClaimedJob]) -> None:
        """These jobs keep the old identity of the bucket; the list is deletable when they and the others are safe."""
        if not self.jobs:
            self.owned = past  # its list is gone: nothing is to be deleted
            return
        part = ClaimedList(past, self.name, self.claimed_at, 0)
        part.clock_us, part.jobs, part.parent = self.clock_us, self.jobs, self
        for job in jobs:
            job.claimed_list = part
        part.unsafe = sum(not job.safe for job in jobs)
        if part.unsafe:
            self.unsafe -= part.unsafe - 1


class SettledBatch(NamedTuple):
    """What follows from outcomes that the master has accepted."""

    lists: list[ClaimedList]
    """May be deleted."""
    promoted: list[ClaimedJob]
    """Copies that must run now."""
    ended: dict[OwnedBucket, list[bytes]]
    """Ids by bucket (by each identity of a bucket)."""


_token = attrgetter("entry.token")
# On CPython 3.11 access to an enum member goes through the metaclass: 50 ns, and the hot path needs several.
_QUEUED, _GONE = JobPhase.QUEUED, JobPhase.GONE


class JobTable:
    """Every live copy and every claimed list of this process."""

    def __init__(self) -> None:
        self._live: dict[bytes, ClaimedJob] = {}
        self._claimed_lists: dict[bytes, dict[str, ClaimedList]] = {}
        self._sizes: dict[bytes, int] = {}
        self.conflicts: list[tuple[bytes, str, str]] = []
        """Second copies with another payload: (id, first handler, second handler). The claimer logs and removes them."""
        self.duplicates = 0
        """Second copies seen since the start."""

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[ClaimedJob]:
        """Every live copy, in no order."""
        return iter(self._live.values())

    def get(self, job_id: bytes) -> ClaimedJob | None:
        """The live copy of an id."""
        return self._live.get(job_id)

    def knows(self, bucket_id: bytes, name: str) -> bool:
        """True when this process has the claimed list, also while it is being deleted."""
        return name in self._claimed_lists.get(bucket_id, ())

    def bytes_of(self, bucket_id: bytes) -> int:
        """Bytes of the claimed lists of a bucket in memory, including jobs that have ended and are not settled."""
        return self._sizes.get(bucket_id, 0)

    def adopt(
        self, claimed_list: ClaimedList, entries: Sequence[Entry], handlers: dict[str, Handler]
    ) -> list[ClaimedJob]:
        """Take a claimed list into memory; returns the jobs to run (second copies of live ids are not among them)."""
        live = self._live
        fresh: list[ClaimedJob] = []
        jobs = claimed_list.jobs
        for entry in entries:
            job = ClaimedJob(entry, claimed_list, handlers.get(entry.handler))
            jobs.append(job)
            if entry.headers:
                claimed_list.has_options = True
            first = live.setdefault(entry.id, job)
            if first is job:
                fresh.append(job)
            else:
                self.duplicates += 1
                if (entry.handler, entry.args) != (first.entry.handler, first.entry.args):
                    self.conflicts.append((entry.id, first.entry.handler, entry.handler))
                job.phase = JobPhase.FOLLOWING
                if first.followers is None:
                    first.followers = []
                first.followers.append(job)
        claimed_list.unsafe = len(jobs)
        bucket_id = claimed_list.owned.fence.bucket_id
        self._claimed_lists.setdefault(bucket_id, {})[claimed_list.name] = claimed_list
        self._sizes[bucket_id] = self._sizes.get(bucket_id, 0) + claimed_list.size
        return fresh

    # ------------------------------------------------------------ the end of a copy, and of a list

    def make_safe(self, job: ClaimedJob) -> ClaimedList | None:
        """The master has a row of this copy (in flight) or has settled it. Returns the claimed list if deletable now."""
        if job.safe:
            return None
        job.safe = True
        claimed_list = job.claimed_list
        claimed_list.unsafe -= 1
        if not claimed_list.unsafe and claimed_list.parent is not None:
            claimed_list = claimed_list.parent
            claimed_list.unsafe -= 1
        if claimed_list.unsafe:
            return None
        mine = self._claimed_lists.get(claimed_list.owned.fence.bucket_id)
        if mine is None or mine.get(claimed_list.name) is not claimed_list:
            return None  # the bucket was forgotten meanwhile: its lists belong to the rescuer
        return claimed_list

    def deleted(self, bucket_id: bytes, names: Iterable[str]) -> None:
        """The store has deleted these lists."""
        mine = self._claimed_lists.get(bucket_id)
        if mine is None:
            return
        for name in names:
            claimed_list = mine.pop(name, None)
            if claimed_list is not None:
                claimed_list.jobs.clear()  # one long job would otherwise keep all its former neighbours in memory
                self._sizes[bucket_id] -= claimed_list.size
        if not mine:
            del self._claimed_lists[bucket_id], self._sizes[bucket_id]

    def settle(self, job: ClaimedJob, *, accepted: bool) -> tuple[list[ClaimedList], list[ClaimedJob]]:
        """This copy has ended: accepted, or refused by its row.

        Returns: claimed lists that may be deleted, and copies that must run now (promoted followers).
        """
        done: list[ClaimedList] = []
        if (claimed_list := self._end(job)) is not None:
            done.append(claimed_list)
        return done, self._after(job, accepted, done) if job.followers is not None else []

    def settle_accepted(self, jobs: Iterable[ClaimedJob]) -> SettledBatch:
        """``settle`` of a whole batch that was accepted."""
        done: list[ClaimedList] = []
        promoted: list[ClaimedJob] = []
        ended: dict[OwnedBucket, list[bytes]] = {}
        last: ClaimedList | None = None
        mine: list[bytes] = []
        live = self._live
        for job in jobs:  # ``_end`` and ``make_safe`` inlined: two calls less per job
            job.phase = _GONE
            job_id, claimed_list = job.entry.id, job.claimed_list
            if claimed_list is not last:  # adjacent jobs mostly come from one claimed list
                last = claimed_list
                mine = ended.setdefault(claimed_list.owned, [])
            mine.append(job_id)
            if live.get(job_id) is job:
                del live[job_id]
            if not job.safe:
                if claimed_list.unsafe > 1:
                    claimed_list.unsafe -= 1
                    job.safe = True
                elif (deletable := self.make_safe(job)) is not None:
                    done.append(deletable)
            if job.followers is not None:
                promoted += self._after(job, True, done)
        return SettledBatch(done, promoted, ended)

    def release_kept(self, jobs: Iterable[ClaimedJob]) -> list[ClaimedList]:
        """The outcomes of these copies are kept in their buckets: remove them from memory. They have no followers.

        Returns: claimed lists that may be deleted.
        """
        done: list[ClaimedList] = []
        touched: set[ClaimedList] = set()
        for job in jobs:
            touched.add(job.claimed_list)
            if (claimed_list := self._end(job)) is not None:
                done.append(claimed_list)
        for claimed_list in touched:
            # One running job keeps the list in memory; the other jobs of the list need not stay.
            claimed_list.jobs[:] = [job for job in claimed_list.jobs if job.phase is not JobPhase.GONE]
        return done

    def _end(self, job: ClaimedJob) -> ClaimedList | None:
        job.phase = JobPhase.GONE
        live, job_id = self._live, job.entry.id
        if live.get(job_id) is job:
            del live[job_id]
        return None if job.safe else self.make_safe(job)

    def _after(self, job: ClaimedJob, accepted: bool, done: list[ClaimedList]) -> list[ClaimedJob]:
        """Decide on the copies behind a copy that has ended. Returns the promoted copy, if any."""
        followers, job.followers = job.followers or [], None
        alive: list[ClaimedJob] = []
        for follower in followers:
            if follower.phase is not JobPhase.FOLLOWING:
                continue
            if not _is_void(follower, job, accepted):
                alive.append(follower)
                continue
            follower.phase = JobPhase.GONE
            if (claimed_list := self.make_safe(follower)) is not None:
                done.append(claimed_list)
        return list(self._promote(alive))

    def _promote(self, followers: Sequence[ClaimedJob]) -> Iterator[ClaimedJob]:
        """The copy with the highest token takes over; the others wait behind it."""
        heirs = sorted((f for f in followers if f.phase is JobPhase.FOLLOWING), key=_token, reverse=True)
        if not heirs:
            return
        heir = heirs[0]
        heir.phase = JobPhase.QUEUED
        heir.followers = heirs[1:] or None
        self._live[heir.entry.id] = heir
        yield heir

    def forget(self, bucket_id: bytes) -> tuple[list[ClaimedJob], list[ClaimedJob]]:
        """Remove a bucket that is not ours any more: nothing of it is settled, no key may be touched (rule D).

        Returns: the jobs that were live in it (the caller stops their handlers), and promoted copies in other buckets.
        """
        # By the live map, because copies in flight outlive their lists.
        dropped = self.of_bucket(bucket_id)
        promoted: list[ClaimedJob] = []
        self._sizes.pop(bucket_id, None)
        for claimed_list in self._claimed_lists.pop(bucket_id, {}).values():
            for job in claimed_list.jobs:
                if job.phase is JobPhase.FOLLOWING:
                    job.phase = JobPhase.GONE
        for job in dropped:
            del self._live[job.entry.id]
        for job in dropped:
            followers, job.followers = job.followers or [], None
            promoted.extend(self._promote(followers))
        return dropped, promoted

    def keep_old_identity(self, owned: OwnedBucket, past: OwnedBucket) -> list[ClaimedJob]:
        """The bucket has a new epoch: copies that may have a row under the old epoch keep the old identity.

        Returns: the copies among them that have not started.
        """
        bucket_id = owned.fence.bucket_id
        mine: dict[ClaimedJob, None] = dict.fromkeys(self.of_bucket(bucket_id))
        for claimed_list in self._claimed_lists.get(bucket_id, {}).values():
            mine.update((job, None) for job in claimed_list.jobs if job.phase is not JobPhase.GONE)
        parts: dict[ClaimedList, list[ClaimedJob]] = {}
        for job in mine:
            if job.has_row and job.claimed_list.owned is owned:
                parts.setdefault(job.claimed_list, []).append(job)
        for claimed_list, jobs in parts.items():
            claimed_list.split_off(past, jobs)
        return [job for jobs in parts.values() for job in jobs if job.phase is JobPhase.QUEUED]

    def of_bucket(self, bucket_id: bytes) -> list[ClaimedJob]:
        """Live copies of one bucket, in no order."""
        return [job for job in self._live.values() if job.claimed_list.owned.fence.bucket_id == bucket_id]

    def tokens_of(self, bucket_id: bytes) -> dict[bytes, int]:
        """Ids in memory for one bucket, followers included, each with its newest token: anti-entropy must not touch rows of
        these tokens."""
        tokens: dict[bytes, int] = {}
        lists = self._claimed_lists.get(bucket_id, {}).values()
        waiting = (job for one in lists for job in one.jobs if job.phase is not JobPhase.GONE)
        for job in (*self.of_bucket(bucket_id), *waiting):
            tokens[job.entry.id] = max(job.entry.token, tokens.get(job.entry.id, 0))
        return tokens

    def settled_of(self, bucket_id: bytes) -> set[tuple[bytes, int]]:
        """(id, token) of copies that have ended; they are in the store for as long as their claimed lists."""
        claimed_lists = self._claimed_lists.get(bucket_id, {}).values()
        return {
            (job.entry.id, job.entry.token)
            for claimed_list in claimed_lists
            for job in claimed_list.jobs
            if job.phase is _GONE
        }

    def unpersisted(self, claimed_before: float) -> list[ClaimedList]:
        """Claimed lists from before a moment (CLOCK_BOOTTIME seconds) that still have unsafe entries."""
        return [
            claimed_list
            for mine in self._claimed_lists.values()
            for claimed_list in mine.values()
            if claimed_list.unsafe and claimed_list.claimed_at <= claimed_before
        ]

    def empty(self, bucket_id: bytes) -> bool:
        """True when no job or list of the bucket is in memory."""
        return not self._claimed_lists.get(bucket_id) and not self.of_bucket(bucket_id)


def _is_void(follower: ClaimedJob, first: ClaimedJob, accepted: bool) -> bool:
    """True when the end of the first copy means that the row refuses the second one for ever.

    Tokens only grow. An accepted write had the newest token of the row, so a copy with a higher token is a later assignment
    (given back and onboarded again before the answer came) and must run. After a refusal only a copy with the very same
    identity is known to be refused, too.
    """
    if accepted:
        return follower.entry.token <= first.entry.token
    mine, others = follower.claimed_list.owned.fence, first.claimed_list.owned.fence
    same_bucket = (mine.bucket_id, mine.epoch) == (others.bucket_id, others.epoch)
    return same_bucket and follower.entry.token == first.entry.token


def by_bucket(jobs: Sequence[ClaimedJob]) -> list[tuple[OwnedBucket, list[ClaimedJob]]]:
    """Group copies by bucket (by each identity of a bucket)."""
    groups: dict[OwnedBucket, list[ClaimedJob]] = {}
    last: ClaimedList | None = None
    mine: list[ClaimedJob] = []
    for job in jobs:
        claimed_list = job.claimed_list
        if claimed_list is not last:  # adjacent jobs mostly come from one claimed list
            last = claimed_list
            mine = groups.setdefault(claimed_list.owned, [])
        mine.append(job)
    return list(groups.items())
