"""The owner compares its rows with the copies that it has in the store *and* in memory (rule G).

A row that names this bucket and has no copy anywhere (a crash between mark and put, a store that lost a key, a failover of
the master that lost later states of the job) is given back by compare-and-set on its identity, but only when the copy was
missing twice under the same identity, a grace period apart: a job that is being moved must not look lost. That period also
covers a try of a put that is done late; while a put is repeated because the store does not answer, it does not begin. Claimed
lists that memory does not know are adopted. One bucket per tick, so the master gets at most one query every few seconds from
an agent, however many buckets it owns.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import Identity
from jobmaster.model.job import JobState
from jobmaster.ports import FIND_IDS_MAX, AntiEntropyOnboarding, AntiEntropyStore, RowRef
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership

IDLE_FACTOR = 3.0
"""An empty bucket is compared less often than one with jobs, by this factor."""
GRACE_SHARE = 5.0 / 6.0
"""Share of the time between two comparisons for which the copy must be missing: the second one finds the row overdue."""
PACE_SECONDS = 2.0
"""At most one bucket per this time."""
_ROWS_MAX = 5000
_SAMPLE = 100
"""Rows looked up in one scan of the lists, which costs the same for one row."""
_SCAN_SLACK = 20_000


class CopyMemory(Protocol):
    """The copies in the memory of this process."""

    def tokens_of(self, bucket_id: bytes) -> Mapping[bytes, int]:
        """Job id -> newest token in memory."""
        ...

    def settled_of(self, bucket_id: bytes) -> AbstractSet[tuple[bytes, int]]:
        """(id, token) of finished copies in a claimed list that may not be deleted yet: they are not copies of a row."""
        ...


@dataclass(slots=True)
class _Watch:
    """The state of the comparisons of one bucket."""

    next_at: float
    suspects: dict[bytes, tuple[Identity, float]] = field(default_factory=dict)
    """Job id -> (identity, first missed at)."""
    after: bytes | None = None
    """The id after which the next comparison of a long bucket begins."""


class AntiEntropy:
    """The periodic task that compares.

    Args:
        memory: read after the store.
        every_seconds: how often a bucket with jobs is compared.
        adopt_lists: adopts claimed lists of the bucket that memory does not know.
        being_put: which of these jobs are being put into their bucket.
    """

    name = "anti-entropy"

    def __init__(
        self,
        ownership: Ownership,
        onboarding: AntiEntropyOnboarding,
        store: AntiEntropyStore,
        job_table: CopyMemory,
        adopt_lists: Callable[[bytes], Awaitable[None]],
        being_put: Callable[[Collection[bytes]], AbstractSet[bytes]],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
        *,
        every_seconds: float,
    ) -> None:
        self._every = every_seconds
        self._ownership = ownership
        self._onboarding = onboarding
        self._store = store
        self._job_table = job_table
        self._adopt_lists = adopt_lists
        self._being_put = being_put
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._watches: dict[bytes, _Watch] = {}

    async def tick(self) -> float:
        """Compare the bucket that is most overdue."""
        now = self._now()
        self._watches = {
            bucket_id: self._watches.get(bucket_id) or _Watch(now + self._every * random.random())
            for bucket_id in self._ownership.buckets
        }
        if self._watches:
            bucket_id = min(self._watches, key=lambda each: self._watches[each].next_at)
            watch = self._watches[bucket_id]
            owned = self._ownership.get(bucket_id)
            # An outcome that is kept in the store is a copy, too, and is not looked up: it is replayed first. (Outcomes that
            # the master refuses may stay there for long, and their jobs are known.)
            if watch.next_at <= now and owned is not None and not owned.applies and self._ownership.may_start(now):
                watch.next_at = now + self._every
                await self.compare(owned, watch)
                self._telemetry.anti_entropy_seconds.observe(self._now() - now)
        soonest = min((watch.next_at for watch in self._watches.values()), default=now + self._every)
        return max(soonest - self._now(), PACE_SECONDS)

    async def compare(self, owned: OwnedBucket, watch: _Watch) -> None:
        """One comparison of one bucket; gives back what was missing long enough."""
        bucket_id = owned.fence.bucket_id
        await self._adopt_lists(bucket_id)
        rows = await self._onboarding.bucket_rows(bucket_id, watch.after, _ROWS_MAX)
        watch.after = rows[-1].id if len(rows) == _ROWS_MAX else None
        depth = (await self._store.depths([bucket_id]))[0]
        if depth is None or owned.lost:
            return  # a store without the bucket: the answer to the next claim shows it, and the bucket is given up
        if not rows and not watch.suspects:
            watch.next_at = self._now() + self._every * (1.0 if depth.assigned or depth.claimed_lists else IDLE_FACTOR)
            return
        missing = await self._missing(owned, rows, watch, depth)
        now = self._now()
        # The grace of a row begins when its put is over: one that was done in this moment is seen by the second look.
        being_put = self._being_put([row.id for row in missing])
        missing = [row for row in missing if row.id not in being_put]
        watch.suspects = {row.id: (row.identity, self._first_missed(watch, row, now)) for row in missing}
        # Memory once more, after the store: a claim may have moved a copy meanwhile.
        overdue = [
            row
            for row in self._without_memory(owned, missing)
            if now - watch.suspects[row.id][1] >= self._every * GRACE_SHARE
        ]
        if owned.applies:
            return  # the master stopped to answer during the comparison
        await self._give_back(owned, overdue)

    def _without_memory(self, owned: OwnedBucket, rows: Iterable[RowRef]) -> list[RowRef]:
        """Rows whose job is not in memory, nor has an outcome that stays in the bucket because the master refuses it. A run
        that was given to another assignment of the same job is no copy of that one: it may go on for hours."""
        tokens, unwritable = self._job_table.tokens_of(owned.fence.bucket_id), owned.unwritable_ids
        return [row for row in rows if row.id not in unwritable and tokens.get(row.id, 0) < row.identity.token]

    @staticmethod
    def _first_missed(watch: _Watch, row: RowRef, now: float) -> float:
        known = watch.suspects.get(row.id)
        return known[1] if known is not None and known[0] == row.identity else now

    async def _missing(
        self, owned: OwnedBucket, rows: Sequence[RowRef], watch: _Watch, depth: BucketDepth
    ) -> list[RowRef]:
        """Rows without a copy in the store or in memory. The store has no copy of a row that is PROCESSING or has an epoch
        from before the bucket was frozen."""
        bucket_id = owned.fence.bucket_id
        absent = [row for row in self._without_memory(owned, rows) if row.identity.bucket_epoch <= owned.fence.epoch]
        queued = [row for row in absent if _may_lie_in_store(row, owned)]
        missing = [row for row in absent if not _may_lie_in_store(row, owned)]
        # No more rows than copies in the store: only old suspects and a sample are looked up.
        chosen = queued
        if len(queued) <= depth.assigned:
            sample = random.sample(queued, min(_SAMPLE, len(queued)))
            chosen = [row for row in queued if row.id in watch.suspects] + sample
        looked_for = {row.id: row for row in chosen[:FIND_IDS_MAX]}
        if looked_for:
            over = self._job_table.settled_of(bucket_id)
            (copies,) = await self._store.find([bucket_id], list(looked_for), depth.assigned + _SCAN_SLACK)
            for row in looked_for.values():
                copy = copies.get(row.id)
                # (A finished copy whose row is not final: a failover has lost the later state.)
                if copy is None or copy.token != row.identity.token or (row.id, copy.token) in over:
                    missing.append(row)
        return missing

    async def _give_back(self, owned: OwnedBucket, rows: Sequence[RowRef]) -> None:
        queued = [(row.id, row.identity.token) for row in rows if _may_lie_in_store(row, owned)]
        others = [row for row in rows if not _may_lie_in_store(row, owned)]
        if others and not owned.lost:
            # The row of a running job, and no such job: a failover has lost its later state, or this process has.
            self._telemetry.rows_without_memory += len(others)
            moved = await self._onboarding.give_back(owned.fence.bucket_id, others)
            self._telemetry.rows_released += moved
            self._log.error(
                Event.ROWS_WITHOUT_MEMORY,
                {"bucket": owned.fence.bucket_id, "jobs": len(others), "given_back": moved, "first": others[0].id},
            )
        if not queued or owned.lost:
            return
        written = await self._onboarding.release(owned.fence, queued)
        if not written.bucket_ok:
            self._ownership.write_refused(owned, "a release was refused by the bucket's lock")
            return
        if written.accepted:
            self._telemetry.rows_released += len(written.accepted)
            self._log.warning(Event.ROWS_RELEASED, {"bucket": owned.fence.bucket_id, "jobs": len(written.accepted)})


def _may_lie_in_store(row: RowRef, owned: OwnedBucket) -> bool:
    return row.state == JobState.ASSIGNED and row.identity.bucket_epoch == owned.fence.epoch
