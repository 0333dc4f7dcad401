"""Graceful exit of buckets: ACTIVE -> COMPLETING -> READY_TO_DELETE, with zero rescues and no attempt burnt.

Close the intake (master first, then the store: producers get CLOSED and choose another bucket, onboarding stops) -> flush
jobs that wait in the store to the master -> finish running and queued jobs, within the grace -> give the rest back, also
onboarded jobs that are not due yet -> retire. Every step is idempotent and every wait is bounded. A bucket that cannot be
retired in time (a handler does not stop, a server is down) is left to the rescue, like after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobmaster.clock import Clock
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import JobState
from jobmaster.ports import ReplyStatus, ShutdownMaster, ShutdownStore
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.outcomes.kept_replay import KeptReplay
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, StopCause
from jobmaster_agents.outcomes.writer import OutcomeWriter
from jobmaster_agents.state.job_table import JobPhase, JobTable

_LOOK_SECONDS = 0.02
_RETRY_SECONDS = 0.2
_STOP_SECONDS = 5.0
"""How long after the grace a handler may take to stop."""
_RETIRE_SECONDS = 10.0
"""Shortest time for the last steps, however short the grace was."""
_PAGE_JOBS = 1000
_COMPLETING_STATES = (BucketState.COMPLETING, BucketState.READY_TO_DELETE)


class GracefulShutdown:
    """Brings buckets to their graceful end."""

    def __init__(
        self,
        master: ShutdownMaster,
        store: ShutdownStore,
        job_table: JobTable,
        executor: Executor,
        outcome_writer: OutcomeWriter,
        kept_replay: KeptReplay,
        outcome_builder: OutcomeBuilder,
        clock: Clock,
    ) -> None:
        self._master = master
        self._store = store
        self._job_table = job_table
        self._executor = executor
        self._outcome_writer = outcome_writer
        self._kept_replay = kept_replay
        self._outcome_builder = outcome_builder
        self._now = clock.boottime
        self.hurry = asyncio.Event()
        """Set by a second signal: running handlers are stopped and all jobs given back now."""

    async def complete(
        self, claimers: Sequence[Claimer], grace_seconds: float, reason: str, on_retired: Callable[[Claimer], None]
    ) -> list[bytes]:
        """Bring the buckets of these claimers to READY_TO_DELETE. Returns those that could not be retired; they are left to
        the rescue. Takes at most twice the grace and some seconds.

        Args:
            on_retired: called for each bucket as soon as its own end is committed: the master does not count it among this
                agent's buckets any more, and neither may the agent.
        """
        deadline = self._now() + grace_seconds
        last = deadline + max(grace_seconds, _RETIRE_SECONDS)

        async def one(claimer: Claimer) -> bool:
            retired = await self._complete(claimer, deadline, last, reason)
            if retired:
                on_retired(claimer)
            return retired

        done = await asyncio.gather(*map(one, claimers))
        return [claimer.owned.fence.bucket_id for claimer, retired in zip(claimers, done, strict=True) if not retired]

    async def _complete(self, claimer: Claimer, deadline: float, last: float, reason: str) -> bool:
        try:
            # Bounded from outside, too: a step may wait for the master for as long as it is away.
            async with asyncio.timeout(max(last - self._now(), 0.0) + _STOP_SECONDS):
                if claimer.owned.frozen:
                    return await self._leave_frozen(claimer, deadline, last, reason)
                if not await self._close_intake(claimer, last, reason):
                    return False
                if not await self._finish_or_release(claimer, deadline):
                    return False
                return await self._retire(claimer, last)
        except TimeoutError:
            return False

    # ------------------------------------------------------------ a frozen bucket

    async def _leave_frozen(self, claimer: Claimer, deadline: float, last: float, reason: str) -> bool:
        """A frozen bucket cannot complete. Its jobs in this process end or go back, so that no rescue is counted for them.
        Then the bucket is LOST, and its rescuer brings the jobs that wait in it back to the master."""
        fence = claimer.owned.fence
        self._release_queued(fence.bucket_id)
        if not await self._finish_or_release(claimer, deadline):
            return False
        while not self._job_table.empty(fence.bucket_id) and self._now() < last:
            self._give_back(fence.bucket_id)
            await asyncio.sleep(_LOOK_SECONDS)
        while self._job_table.empty(fence.bucket_id) and self._now() < last:
            try:
                why = f"frozen, and its owner leaves: {reason}"
                return await self._master.buckets.move_bucket(*fence, BucketState.LOST, why)
            except (Unavailable, Refused):
                await asyncio.sleep(_RETRY_SECONDS)
        return False

    def _release_queued(self, bucket_id: bytes) -> None:
        self._executor.take_queued(bucket_id)
        for job in self._job_table.of_bucket(bucket_id):
            if job.phase is JobPhase.QUEUED:
                self._outcome_builder.release(job)

    # ------------------------------------------------------------ no more intake

    async def _close_intake(self, claimer: Claimer, last: float, reason: str) -> bool:
        """False: this process does not own the bucket any more; it is left to its rescuer."""
        owned = claimer.owned
        owned.closed = True
        fence = owned.fence
        completing = owned.state in _COMPLETING_STATES  # already, for another reason; and now the agent leaves
        while not owned.lost and self._now() < last:
            try:
                moved = owned.state in _COMPLETING_STATES or await self._master.buckets.move_bucket(
                    fence.bucket_id, fence.epoch, fence.owner, BucketState.COMPLETING, reason
                )
                if not moved:
                    # Frozen, or under a later epoch because it was: the check of its row finds that, unless it is closed.
                    owned.closed = owned.lost
                    return False
                if owned.state not in _COMPLETING_STATES:
                    owned.state = BucketState.COMPLETING
                status = await self._store.close_intake(fence)
                if status is not ReplyStatus.OK and not (completing and status is ReplyStatus.CLOSED):
                    return False
            except (Unavailable, Refused):
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            claimer.flushing = True
            claimer.wake()
            return True
        return False

    # ------------------------------------------------------------ jobs in memory

    async def _finish_or_release(self, claimer: Claimer, deadline: float) -> bool:
        """Queued and running jobs end by themselves; at the deadline (or at a second signal) they are given back.

        False: a handler did not stop in time.
        """
        bucket_id = claimer.owned.fence.bucket_id
        stopped_at: float | None = None
        while self._executor.backlog(bucket_id):
            now = self._now()
            if now >= deadline or self.hurry.is_set():
                stopped_at = now if stopped_at is None else stopped_at
                if now - stopped_at > _STOP_SECONDS:
                    return False
                self._give_back(bucket_id)
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _give_back(self, bucket_id: bytes) -> None:
        self._release_queued(bucket_id)
        for job in self._job_table.of_bucket(bucket_id):
            if job.phase is JobPhase.RUNNING:
                self._executor.stop_job(job, StopCause.RELEASE)

    # ------------------------------------------------------------ jobs in the store

    async def _retire(self, claimer: Claimer, last: float) -> bool:
        owned = claimer.owned
        fence = owned.fence
        while not owned.lost and self._now() < last:
            if not self._job_table.empty(fence.bucket_id):
                self._give_back(fence.bucket_id)  # a second copy, which was promoted late
                claimer.wake()
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            try:
                status = await self._store.close_if_empty(fence)
                if status is ReplyStatus.NOT_EMPTY:
                    if not await self._flush_page(claimer):
                        return False
                    continue
                if status is not ReplyStatus.OK or not await self._release_rows(fence):
                    return False
                if await self._master.buckets.move_bucket(
                    fence.bucket_id, fence.epoch, fence.owner, BucketState.READY_TO_DELETE, "emptied by its owner"
                ):
                    owned.state = BucketState.READY_TO_DELETE
                    return True
                return False
            except (Unavailable, Refused):
                await asyncio.sleep(_RETRY_SECONDS)
        return False

    async def _release_rows(self, fence: Fence) -> bool:
        """Release rows that name the bucket and have no copy in it (marked, and the answer or the put was lost).

        False: one of them is not ASSIGNED under this fence.
        """
        while rows := await self._master.onboarding.bucket_rows(fence.bucket_id, None, _PAGE_JOBS):
            mine = [row for row in rows if row.identity.bucket_epoch == fence.epoch and row.state == JobState.ASSIGNED]
            if not mine:
                return False
            await self._master.onboarding.release(fence, [(row.id, row.identity.token) for row in mine])
        return True

    async def _flush_page(self, claimer: Claimer) -> bool:
        """Entries that no claim takes: kept outcomes, and onboarded jobs that are not due yet. Written first, removed second.

        False: an entry cannot be written, or the bucket has another owner.
        """
        owned = claimer.owned
        page = await self._store.read_page(owned.fence, _PAGE_JOBS)
        if page.status is not ReplyStatus.OK:
            return False
        if page.kind == "kept" and await self._kept_replay.apply(owned, page.raw):
            return False
        if page.kind == "claimed" and page.entries:  # of a claim whose reply was lost
            await claimer.adopt_unknown_lists()
            await asyncio.sleep(_LOOK_SECONDS)
            return True
        if page.entries and not await self._outcome_writer.give_back(owned, page.entries):
            return False
        return not page.kind or await self._store.remove_page(owned.fence, page) is ReplyStatus.OK
