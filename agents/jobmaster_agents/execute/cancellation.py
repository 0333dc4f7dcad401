"""Applies cancel requests to jobs of this process: a running job is stopped, a job in memory ends, and a copy still in
a bucket never starts.

A request comes with a claim (a hint in the bucket) or with a renewal of the lease (a flag on the row). For a job that is not
in memory it has two effects. From then on every claimed copy is marked, so that it ends without a start. And its row, if it
is ASSIGNED here, becomes CANCELLED by a statement at once, after which the copy is removed from the bucket: the master first,
the store second.

A marked id is kept until no copy can come any more. Jobs of producers are claimed in order of arrival, so an id that came
with a claim is kept until as many jobs have been claimed as waited then. An id whose row this process has ended is kept until
its copy is found: a copy on its way into the bucket is claimed later. A bucket never outlives its owner, so memory is enough.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job import HoldRow, JobState
from jobmaster.ports import CancellationOutcomes, CancellationStore, ReplyStatus
from jobmaster.telemetry import Telemetry
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobPhase, JobTable
from jobmaster_agents.state.ownership import OwnedBucket
from jobmaster_agents.state.progress import Progress

BATCH_JOBS = 1000
"""Jobs of one statement, and copies of one call of the store."""


class _Bucket:
    """Cancel requests of one bucket."""

    __slots__ = ("claimed", "copies", "ended_rows", "owned", "requests", "waiting")

    def __init__(self, owned: OwnedBucket) -> None:
        self.owned = owned
        self.claimed = 0
        """Jobs of producers claimed so far."""
        self.waiting: deque[tuple[int, list[bytes]]] = deque()
        """(count, ids): ids that came with a claim, marked until so many jobs of producers have been claimed."""
        self.ended_rows: set[bytes] = set()
        """Jobs whose rows this process has ended, until their copies are found."""
        self.requests: dict[bytes, None] = {}
        """Requests to be removed from the bucket."""
        self.copies: dict[bytes, int] = {}
        """Copies to be removed from the bucket, and when they are due (microseconds)."""


class Cancellation:
    """Applies cancel requests.

    Args:
        stop: stops one job of this process.
        claim_again: claims from a bucket again, because it has more requests than came with the last claim.
    """

    def __init__(
        self,
        outcomes: CancellationOutcomes,
        store: CancellationStore,
        job_table: JobTable,
        outcome_writer: OutcomeWriter,
        stop: Callable[[ClaimedJob, StopCause], None],
        claim_again: Callable[[bytes], None],
        telemetry: Telemetry,
        progress: Progress,
    ) -> None:
        self._outcomes = outcomes
        self._store = store
        self._job_table = job_table
        self._until_answered = outcome_writer.until_answered
        self._acknowledger = outcome_writer.acknowledger
        self._bucket_enqueuer = outcome_writer.bucket_enqueuer
        self._on_forgotten = outcome_writer.forget
        self._stop = stop
        self._claim_again = claim_again
        self._telemetry = telemetry
        self._progress = progress
        self._buckets: dict[bytes, _Bucket] = {}
        self._marked: Counter[bytes] = Counter()
        """Ids of jobs that must not start, and the number of reasons."""
        self._absent_rows: dict[bytes, bool] = {}
        """Jobs not in memory whose rows are to be ended, and whether a copy has been claimed since."""
        self._work = asyncio.Event()

    def __len__(self) -> int:
        """Number of marked ids."""
        return len(self._marked)

    # ------------------------------------------------------------ signals

    def open(self, owned: OwnedBucket) -> None:
        """Serve a bucket."""
        self._buckets[owned.fence.bucket_id] = _Bucket(owned)

    def close(self, bucket_id: bytes) -> None:
        """The bucket is closed or lost: nothing is claimed from it any more."""
        bucket = self._buckets.pop(bucket_id, None)
        if bucket is not None:
            self._forget(bucket.ended_rows)
            for _, ids in bucket.waiting:
                self._forget(ids)

    def claimed(self, claimed_list: ClaimedList, of_producers: int) -> None:
        """Mark the copies of cancelled jobs in a new claimed list. Called before any of them can start.

        Args:
            of_producers: number of its jobs that producers had put into the bucket.
        """
        bucket = self._buckets.get(claimed_list.owned.fence.bucket_id)
        if self._marked:
            for job in claimed_list.jobs:
                job_id = job.entry.id
                if job_id in self._marked:
                    job.cancelled = True
                    if job_id in self._absent_rows:
                        self._absent_rows[job_id] = True
                    if bucket is not None and job_id in bucket.ended_rows:
                        bucket.ended_rows.discard(job_id)
                        self._forget((job_id,))
        if bucket is not None:
            bucket.claimed += of_producers
            while bucket.waiting and bucket.waiting[0][0] <= bucket.claimed:
                self._forget(bucket.waiting.popleft()[1])

    def hinted(self, bucket_id: bytes, job_ids: Collection[bytes], remaining: int) -> None:
        """Take requests that came with a claim, after the claimed jobs are in memory.

        Args:
            remaining: number of jobs of producers that the claim left in the bucket.
        """
        bucket = self._buckets.get(bucket_id)
        if bucket is None:
            return
        fresh = [job_id for job_id in job_ids if job_id not in bucket.requests]
        bucket.requests.update(dict.fromkeys(fresh))
        absent = self.requested(fresh)
        if absent and remaining:
            bucket.waiting.append((bucket.claimed + remaining, absent))
            self._marked.update(absent)
        if fresh:
            self._work.set()

    def requested(self, job_ids: Iterable[bytes]) -> list[bytes]:
        """Cancel jobs, at the request of a claim or a renewal. Returns the ids that are not in memory."""
        absent: list[bytes] = []
        for job_id in job_ids:
            job = self._present(job_id)
            if job is None:
                absent.append(job_id)
                if job_id not in self._absent_rows:
                    self._absent_rows[job_id] = False
                    self._marked[job_id] += 1
                continue
            for follower in job.followers or ():
                follower.cancelled = True  # a second copy would take over
            if not job.cancelled:
                self._stop(job, StopCause.CANCEL)
        if absent:
            self._work.set()
        return absent

    def _present(self, job_id: bytes) -> ClaimedJob | None:
        """The live copy, unless it is on its way back to the master or the bucket: then it will be another copy."""
        job = self._job_table.get(job_id)
        if job is not None and job.phase is JobPhase.ENDED and isinstance(job.row, HoldRow):
            job.cancelled = True
            return None
        return job

    def _forget(self, job_ids: Iterable[bytes]) -> None:
        for job_id in job_ids:
            self._marked[job_id] -= 1
            if self._marked[job_id] <= 0:
                del self._marked[job_id]

    # ------------------------------------------------------------ rows and copies

    async def run(self) -> None:
        """Work until cancelled."""
        backoff = Backoff("withdraw", self._until_answered.log)
        with self._progress.expect("the cancellation"):
            while True:
                self._work.clear()
                self._progress.note()
                if self._absent_rows:
                    await self._end_rows(list(islice(self._absent_rows, BATCH_JOBS)))
                try:
                    for bucket in list(self._buckets.values()):
                        if bucket.requests or bucket.copies:
                            self._progress.note()
                            await self._withdraw(bucket)
                    backoff.succeeded()
                except (Unavailable, Refused) as error:
                    await backoff.pause(error)
                    continue
                if not self._absent_rows:
                    with self._progress.waiting:
                        await self._work.wait()

    async def _end_rows(self, job_ids: Sequence[bytes]) -> None:
        """ASSIGNED rows of jobs that are not in memory become CANCELLED."""
        # A job that was claimed meanwhile is marked, and ends by its own outcome.
        absent = [job_id for job_id in job_ids if self._present(job_id) is None]
        fences = [bucket.owned.fence for bucket in self._buckets.values()]
        if absent and fences:
            rows = await self._until_answered("cancel_waiting", lambda: self._outcomes.cancel_waiting(fences, absent))
            self._telemetry.jobs_ended[JobState.CANCELLED] += sum(row.ended for row in rows)
            for row in rows:
                bucket = self._buckets.get(row.bucket_id)
                if bucket is None:
                    continue  # closed or lost meanwhile: its evacuation finds a final row
                bucket.copies[row.id] = row.due_us
                if not self._absent_rows[row.id] and row.id not in bucket.ended_rows:
                    bucket.ended_rows.add(row.id)
                    self._marked[row.id] += 1
                self._acknowledger.publish(bucket.owned, [row.id])
        for job_id in job_ids:
            del self._absent_rows[job_id]
        self._forget(job_ids)

    async def _withdraw(self, bucket: _Bucket) -> None:
        owned = bucket.owned
        requests, copies = list(islice(bucket.requests, BATCH_JOBS)), dict(islice(bucket.copies.items(), BATCH_JOBS))
        fence = owned.fence
        pairs = [(due_us, job_id) for job_id, due_us in copies.items()]
        reply, removed = await self._store.withdraw(fence, requests, pairs)
        if self._buckets.get(fence.bucket_id) is not bucket:
            return
        if reply is not ReplyStatus.OK:
            if fence != owned.fence:
                self._work.set()  # unfrozen under a new epoch while the call was on its way
                return
            bucket.requests.clear()
            bucket.copies.clear()
            if reply is not ReplyStatus.CLOSED:
                self._on_forgotten(fence.bucket_id, f"the store answered {reply} to a withdrawal", reply)
            return
        for job_id in requests:
            del bucket.requests[job_id]
        for job_id in copies:
            del bucket.copies[job_id]
        found = removed & bucket.ended_rows
        found -= self._bucket_enqueuer.may_come(found)
        bucket.ended_rows -= found
        self._forget(found)
        if len(requests) >= BATCH_JOBS or bucket.requests or bucket.copies:
            self._claim_again(fence.bucket_id)  # there may be more
            self._work.set()
