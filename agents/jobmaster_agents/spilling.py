"""Outcomes that cannot reach the master are kept in the agent store, and applied when it is back (``applying``).

Past half the lease each outcome that waits is also put into its bucket, under its own identity, and claimed lists whose
every entry is safe or kept there are deleted in the same step (rule E). If this process then has to stop, what has ended
does not run again: whoever gets the bucket next applies what lies there before anything else.

As long as the process may only be in doubt, the copy in the store is a will: memory keeps the outcome too, and writes it if
the master comes back in time; the copy is found to be our own success later. While the store stands for the bucket
(``suspension``) it is a transfer: outcomes that no writer has taken yet leave memory, so that memory stays small however
long the master is away; how much a bucket may keep is bounded where it claims.

A retry, or a job to be given back, is kept as what it is: it becomes HELD when it is applied. It cannot be tried again before
that, because an assignment is marked in the master first. Nothing is kept while the lease is in good order: a slow master
must not fill the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobmaster.clock import Clock
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow
from jobmaster.ports import StoreOwner, Word
from jobmaster.rules.batching import BATCH_BYTES, cut
from jobmaster_agents.events import Event, EventLog
from jobmaster_agents.holdings import Holding, Holdings, OnForgotten
from jobmaster_agents.insisting import Backoff
from jobmaster_agents.portions import LiveJob, Memory, Phase
from jobmaster_agents.reporting import Reporter
from jobmaster_agents.spilled import spill_final, spill_hold

_LOOK_SECONDS = 0.25
_BATCH_JOBS = 500


class Spilling:
    """Keeps outcomes in the store when the lease is in doubt.

    Args:
        on_forgotten: the store said that a bucket is another's.
    """

    def __init__(
        self,
        store: StoreOwner,
        holdings: Holdings,
        memory: Memory,
        reporter: Reporter,
        clock: Clock,
        on_forgotten: OnForgotten,
        log: EventLog | None = None,
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._memory = memory
        self._reporter = reporter
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._log = log or EventLog()
        self._backoff = Backoff("spill", self._log)
        self._kept_now = self._told_at = 0
        """Since the lease was last in good order, and how many of them when that was last said."""
        self._suspended = asyncio.Event()
        holdings.on_suspended.append(self._suspended.set)
        self.spilled = 0
        """Outcomes kept in the store since the start."""

    async def run(self) -> None:
        """Watch the lease until cancelled."""
        while True:
            in_doubt_in = self._holdings.soft_until - self._now()
            if in_doubt_in > 0.0:
                self._kept_now = self._told_at = 0
                await self._wait_for_doubt(in_doubt_in)
                continue
            if self._holdings.fenced.is_set():
                await self._holdings.wait_trusted()  # never: the process ends
            await self.spill()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _wait_for_doubt(self, at_most_seconds: float) -> None:
        self._suspended.clear()
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._suspended.wait()
        except TimeoutError:
            return

    async def spill(self) -> None:
        """Keep every outcome that waits and is not kept yet; let go of what is kept and nobody writes."""
        for holding, jobs in self._waiting().items():
            for some in cut(jobs, [job.weight for job in jobs], _BATCH_JOBS, BATCH_BYTES):
                await self._spill(holding, some)
        if self._holdings.suspended:
            self._let_go()

    def _waiting(self) -> dict[Holding, list[LiveJob]]:
        found: dict[Holding, list[LiveJob]] = {}
        for job in self._memory:
            # What the master refuses to take from us it would refuse to take from the next owner, who cannot go round it.
            if job.phase is Phase.ENDED and job.row is not None and not (job.spilled or job.unwritable):
                found.setdefault(job.portion.holding, []).append(job)
        return found

    async def _spill(self, holding: Holding, jobs: Sequence[LiveJob]) -> None:
        jobs = [job for job in jobs if job.phase is Phase.ENDED]  # settled meanwhile, or forgotten with its bucket
        present = holding.present
        if not jobs or not self._holdings.may_keep(present, self._now()):
            return
        outcomes, fence = [_encode(holding.fence, job) for job in jobs], present.fence
        for job in jobs:
            job.spilled = True
        names = {job.portion.name for job in jobs if _is_covered(job.portion.jobs)}
        present.kept += len(jobs)  # from here on they may lie there, whatever becomes of the answer
        present.kept_bytes += sum(map(len, outcomes))
        try:
            word = await self._store.spill(fence, outcomes, sorted(names))
        except (Unavailable, Refused) as error:
            for job in jobs:
                job.spilled = False
            await self._backoff.pause(error)
            return
        self._backoff.succeeded()
        if word is not Word.OK and fence != present.fence:
            for job in jobs:
                job.spilled = False  # unfrozen under a new epoch meanwhile: the next look asks again
        elif word is Word.OK:
            self.spilled += len(jobs)
            self._tell(fence.bucket_id, len(jobs))
        else:
            self._on_forgotten(fence.bucket_id, f"the store answered {word} to a spill", word)

    def _tell(self, bucket_id: bytes, jobs: int) -> None:
        """A line at the beginning, and whenever as many again have been kept: a line a call would be too much."""
        self._kept_now += jobs
        if self._kept_now >= self._told_at * 2:
            self._told_at = self._kept_now
            self._log.warning(Event.OUTCOMES_SPILLED, {"bucket": bucket_id, "jobs": jobs, "so_far": self._kept_now})

    def _let_go(self) -> None:
        done = self._memory.let_go(self._reporter.withdraw(_may_leave_memory))
        self._reporter.settling.delete(done)


def _may_leave_memory(job: LiveJob) -> bool:
    """Kept, and no second copy waits behind it for its end."""
    return job.spilled and job.phase is Phase.ENDED and job.followers is None


def _encode(fence: Fence, job: LiveJob) -> bytes:
    return spill_final(fence, job.row) if isinstance(job.row, FinalRow) else spill_hold(fence, _hold(job))


def _hold(job: LiveJob) -> HoldRow:
    assert isinstance(job.row, HoldRow)
    return job.row


def _is_covered(jobs: Iterable[LiveJob]) -> bool:
    """True when the claimed list of these jobs is not needed any more: each is in the master, or kept with this call."""
    return all(job.safe or (job.spilled and job.phase is Phase.ENDED) for job in jobs)
