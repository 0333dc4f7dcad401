"""Keeps outcomes in the agent store while they cannot reach the master; ``kept_replay`` writes them when it is back.

Past half the lease each outcome that waits is also put into its bucket, under its own identity. Claimed lists whose every
entry is safe or kept are deleted in the same step (rule E). If this process then has to stop, jobs that have ended do not run
again: the next owner of the bucket writes the kept outcomes before anything else.

While the lease is only in doubt, memory keeps the outcome too, and writes it if the master comes back in time; the copy in
the store is later recognised as our own success. Under a store lease (``store_lease``) the copy in the store is the only one:
outcomes that no writer has taken leave memory, so that memory stays small however long the master is away. How much a bucket
may keep is bounded where it claims. A job whose start was written stays in memory, too.

A retry, or a job to be given back, is kept as what it is: it becomes HELD when it is written. It cannot be tried again
before that, because an assignment is marked in the master first. Nothing is kept while the lease is in good order: a slow
master must not fill the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobmaster.clock import Clock
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow, JobState
from jobmaster.ports import KeptStore, ReplyStatus
from jobmaster.rules.batching import BATCH_BYTES, split_batches
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.outcomes.kept_codec import keep_final, keep_hold
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, JobTable
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership
from jobmaster_agents.state.progress import Progress

_LOOK_SECONDS = 0.25
_BATCH_JOBS = 500


class KeptOutcomes:
    """Keeps outcomes in the store when the lease is in doubt.

    Args:
        on_forgotten: called when the store answers that a bucket has another owner.
    """

    def __init__(
        self,
        store: KeptStore,
        ownership: Ownership,
        job_table: JobTable,
        outcome_writer: OutcomeWriter,
        clock: Clock,
        on_forgotten: OnForgotten,
        log: EventLog,
        progress: Progress,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._job_table = job_table
        self._outcome_writer = outcome_writer
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._log = log
        self._progress = progress
        self._backoff = Backoff("keep_outcomes", self._log)
        self._kept_now = self._logged_at = 0
        """Outcomes kept since the lease was last in good order; how many they were when that was last logged."""
        self._suspended = asyncio.Event()
        ownership.on_suspended.append(self._suspended.set)
        self.kept = 0
        """Outcomes kept in the store since the start."""

    async def run(self) -> None:
        """Watch the lease until cancelled."""
        with self._progress.expect("the writer of kept outcomes"):
            while True:
                self._progress.note()
                in_doubt_in = self._ownership.soft_until - self._now()
                if in_doubt_in > 0.0:
                    self._kept_now = self._logged_at = 0
                    with self._progress.waiting:
                        await self._wait_for_doubt(in_doubt_in)
                    continue
                if self._ownership.fenced.is_set():
                    with self._progress.waiting:
                        await self._ownership.wait_trusted()  # never: the process ends
                await self.keep()
                await asyncio.sleep(_LOOK_SECONDS)

    async def _wait_for_doubt(self, at_most_seconds: float) -> None:
        self._suspended.clear()
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._suspended.wait()
        except TimeoutError:
            return

    async def keep(self) -> None:
        """Keep every outcome that waits and is not kept yet; drop from memory what is kept and no writer has taken."""
        for owned, jobs in self._waiting().items():
            for some in split_batches(jobs, [job.weight for job in jobs], _BATCH_JOBS, BATCH_BYTES):
                await self._keep(owned, some)
        if self._ownership.suspended:
            self._release_kept()

    def _waiting(self) -> dict[OwnedBucket, list[ClaimedJob]]:
        found: dict[OwnedBucket, list[ClaimedJob]] = {}
        for job in self._job_table:
            # The master would also refuse it from the next owner, which cannot work around it.
            if job.phase is JobPhase.ENDED and job.row is not None and not (job.kept or job.unwritable):
                found.setdefault(job.claimed_list.owned, []).append(job)
        return found

    async def _keep(self, owned: OwnedBucket, jobs: Sequence[ClaimedJob]) -> None:
        jobs = [job for job in jobs if job.phase is JobPhase.ENDED]  # settled meanwhile, or dropped with its bucket
        present = owned.present
        if not jobs or not self._ownership.may_keep(present, self._now()):
            return
        outcomes, fence = [_encode(owned.fence, job) for job in jobs], present.fence
        for job in jobs:
            job.kept = True
        names = {job.claimed_list.name for job in jobs if _is_covered(job.claimed_list.jobs)}
        present.kept += len(jobs)  # from here on they may be there, whatever the answer is
        present.kept_bytes += sum(map(len, outcomes))
        self._progress.note()
        try:
            status = await self._store.keep_outcomes(fence, outcomes, sorted(names))
        except (Unavailable, Refused) as error:
            for job in jobs:
                job.kept = False
            await self._backoff.pause(error)
            return
        self._backoff.succeeded()
        if status is not ReplyStatus.OK and fence != present.fence:
            for job in jobs:
                job.kept = False  # unfrozen under a new epoch meanwhile: the next look asks again
        elif status is ReplyStatus.OK:
            self.kept += len(jobs)
            self._log_kept(fence.bucket_id, len(jobs))
        else:
            self._on_forgotten(fence.bucket_id, f"the store answered {status} to the keeping of outcomes", status)

    def _log_kept(self, bucket_id: bytes, jobs: int) -> None:
        """Log at the beginning, and whenever the number has doubled: a line a call would be too much."""
        self._kept_now += jobs
        if self._kept_now >= self._logged_at * 2:
            self._logged_at = self._kept_now
            self._log.warning(Event.OUTCOMES_KEPT, {"bucket": bucket_id, "jobs": jobs, "so_far": self._kept_now})

    def _release_kept(self) -> None:
        done = self._job_table.release_kept(self._outcome_writer.withdraw(_may_leave_memory))
        self._outcome_writer.acknowledger.delete(done)


def _may_leave_memory(job: ClaimedJob) -> bool:
    """True when it is kept, no second copy waits behind it for its end, and none that comes later has to wait.

    The master takes the start of a second copy for a repetition of this one's, as long as the row is PROCESSING under the
    same identity. So a copy whose start is written stays, and a second one waits behind it. No start is written while the
    master is away: such copies are never more than ran when it went.
    """
    return (
        job.kept and job.phase is JobPhase.ENDED and job.followers is None and job.row_state is not JobState.PROCESSING
    )


def _encode(fence: Fence, job: ClaimedJob) -> bytes:
    return keep_final(fence, job.row) if isinstance(job.row, FinalRow) else keep_hold(fence, _hold(job))


def _hold(job: ClaimedJob) -> HoldRow:
    assert isinstance(job.row, HoldRow)
    return job.row


def _is_covered(jobs: Iterable[ClaimedJob]) -> bool:
    """True when the claimed list of these jobs is no longer needed: each is in the master, or kept with this call."""
    return all(job.safe or (job.kept and job.phase is JobPhase.ENDED) for job in jobs)
