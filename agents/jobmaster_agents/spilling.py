"""Outcomes that cannot reach the master are kept in the agent store before the lease ends, and applied by whoever comes next.

While the master is away outcomes wait in memory and are sent again; jobs are claimed and started for half the lease, and
those that run may end. If the lease cannot be renewed this process must stop before it ends, and what has ended but was
not recorded would run again. So past half the lease each such outcome is also put into its bucket, under its own identity,
and claimed lists whose every entry is safe or kept there are deleted in the same step (rule E).

The copy in the store is a will, not a transfer: if the master comes back in time the outcome is written from memory as
usual, and the copy is found to be our own success later. The next owner applies what lies there before anything else: the
rescuer of the bucket, or this agent when it completes it. Nothing is kept there while the lease is in good order, because a
bucket at work has no way to take entries out of it again: a slow master must not fill the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from jobmaster.clock import Clock
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow
from jobmaster.ports import Outcomes, StoreOwner, Word, Written
from jobmaster_agents.events import Event, EventLog
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.insisting import Backoff, Insisting
from jobmaster_agents.portions import LiveJob, Memory, Phase
from jobmaster_agents.spilled import SpilledOutcome, decode_spilled, spill_final, spill_hold

_LOOK_SECONDS = 0.25
_BATCH_JOBS = 500


class Spilling:
    """Keeps outcomes in the store when the lease is in doubt.

    Args:
        on_forgotten: the store said that a bucket is another's.
    """

    def __init__(
        self,
        master: Outcomes,
        store: StoreOwner,
        holdings: Holdings,
        memory: Memory,
        insist: Insisting,
        clock: Clock,
        on_forgotten: Callable[[bytes, str], None],
        log: EventLog | None = None,
    ) -> None:
        self._master = master
        self._store = store
        self._holdings = holdings
        self._memory = memory
        self._insist = insist
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._log = log or EventLog()
        self._backoff = Backoff("spill", self._log)
        self.spilled = 0
        """Outcomes kept in the store since the start."""

    async def run(self) -> None:
        """Watch the lease until cancelled."""
        while True:
            in_doubt_in = self._holdings.soft_until - self._now()
            if in_doubt_in > 0.0:
                await asyncio.sleep(in_doubt_in)
                continue
            if self._holdings.fenced.is_set():
                await self._holdings.wait_trusted()  # never: the process ends
            await self.spill()
            await asyncio.sleep(_LOOK_SECONDS)

    async def spill(self) -> None:
        """Keep every outcome that waits and is not kept yet."""
        for holding, jobs in self._waiting().items():
            for first in range(0, len(jobs), _BATCH_JOBS):
                await self._spill(holding, jobs[first : first + _BATCH_JOBS])

    def _waiting(self) -> dict[Holding, list[LiveJob]]:
        found: dict[Holding, list[LiveJob]] = {}
        for job in self._memory:
            # What the master refuses to take from us it would refuse to take from the next owner, who cannot go round it.
            if job.phase is Phase.ENDED and job.row is not None and not (job.spilled or job.unwritable):
                found.setdefault(job.portion.holding, []).append(job)
        return found

    async def _spill(self, holding: Holding, jobs: Sequence[LiveJob]) -> None:
        jobs = [job for job in jobs if job.phase is Phase.ENDED]  # settled meanwhile, or forgotten with its bucket
        if not jobs or not self._holdings.may_commit(self._now()):
            return
        outcomes, fence = [_encode(holding.fence, job) for job in jobs], holding.present.fence
        for job in jobs:
            job.spilled = True
        names = {job.portion.name for job in jobs if _is_covered(job.portion.jobs)}
        try:
            word = await self._store.spill(fence, outcomes, sorted(names))
        except (Unavailable, Refused) as error:
            for job in jobs:
                job.spilled = False
            await self._backoff.pause(error)
            return
        self._backoff.succeeded()
        if word is not Word.OK and fence != holding.present.fence:
            for job in jobs:
                job.spilled = False  # unfrozen under a new epoch meanwhile: the next look asks again
        elif word is Word.OK:
            self.spilled += len(jobs)
            self._log.warning(
                Event.OUTCOMES_SPILLED, {"bucket": fence.bucket_id, "jobs": len(jobs), "lists": len(names)}
            )
        else:
            self._on_forgotten(fence.bucket_id, f"the store answered {word} to a spill")

    # ------------------------------------------------------------ afterwards

    async def apply(self, raw: Sequence[bytes]) -> bool:
        """Write kept outcomes, each under its own identity; True when the master has settled every one of them."""
        try:
            outcomes = [decode_spilled(each) for each in raw]
        except msgspec.DecodeError:
            return False
        finals = [outcome.final for outcome in outcomes if outcome.final is not None]
        if finals and not await self._apply(finals, "record_final", lambda: self._master.record_final(finals)):
            return False
        for fence, rows in _holds(outcomes).items():
            if not await self._apply(rows, "hold", lambda f=fence, r=rows: self._master.hold(f, r)):  # type: ignore[misc]
                return False
        return True

    async def _apply(self, rows: Sequence[FinalRow | HoldRow], what: str, call: Callable[[], object]) -> bool:
        written: Written = await self._insist(what, call)  # type: ignore[arg-type]
        over = written.accepted | written.cancelled | written.refused | written.quarantined
        return written.bucket_ok and all(row.id in over for row in rows)


def _encode(fence: Fence, job: LiveJob) -> bytes:
    return spill_final(fence, job.row) if isinstance(job.row, FinalRow) else spill_hold(fence, _hold(job))


def _hold(job: LiveJob) -> HoldRow:
    assert isinstance(job.row, HoldRow)
    return job.row


def _is_covered(jobs: Iterable[LiveJob]) -> bool:
    """True when the claimed list of these jobs is not needed any more: each is in the master, or kept with this call."""
    return all(job.safe or (job.spilled and job.phase is Phase.ENDED) for job in jobs)


def _holds(outcomes: Iterable[SpilledOutcome]) -> dict[Fence, list[HoldRow]]:
    found: dict[Fence, list[HoldRow]] = {}
    for outcome in outcomes:
        if outcome.hold is not None:
            found.setdefault(outcome.fence, []).append(outcome.hold)
    return found
