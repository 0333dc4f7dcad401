"""Starts that need an accepted write (``start="fenced"``): asked for in the slot, put off while the master does not answer.

The lease is read again just before the call, so that authorisation never comes after its end; the store's word is no
substitute for it. A job that is put off goes back to its queue's ``deferred`` and keeps no slot from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from jobmaster_agents.execute.run_queue import BucketQueue, Slot
from jobmaster_agents.outcomes.outcome import OutcomeBuilder, StopCause
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.ownership import Ownership

Authorise = Callable[[ClaimedJob], Coroutine[object, object, bool | None]]


class FencedStarts:
    """The question of every fenced start, and what becomes of a job that may not start.

    Args:
        authorise: awaits an accepted PROCESSING write; False = do not run, None = not now.
        is_over: true when the process ends.
    """

    def __init__(
        self,
        ownership: Ownership,
        outcome_builder: OutcomeBuilder,
        authorise: Authorise,
        now: Callable[[], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._ownership = ownership
        self._outcome_builder = outcome_builder
        self._authorise = authorise
        self._now = now
        self._is_over = is_over

    async def ask(self, slot: Slot, queue: BucketQueue, job: ClaimedJob, detach: Callable[[], None]) -> bool:
        """True: call it now. False: it has its verdict, is set aside, or is not ours to judge any more.

        Args:
            give_up: called before anything else when it does not start: the slot is free.
        """
        allowed: bool | None = None
        try:
            if not self._ownership.suspended:
                allowed = await self._authorise(job)
        except asyncio.CancelledError:
            if self._is_over():
                raise
            slot.tainted = (
                True  # with or without a cause: an earlier job of this task may have left a cancellation behind
            )
        cause, slot.cause = slot.cause, None
        now = self._now()
        if allowed and cause is None and _runs(job) and self._ownership.may_start(now):
            return True
        detach()
        if not _runs(job):
            return False  # superseded, or its bucket was lost, while the write was under way
        if job.cancelled:
            self._outcome_builder.end_unstarted(job, now)
        elif job.unwritable:
            job.phase = JobPhase.ENDED  # it cannot have its row, so it cannot be started, or given back
        elif cause is StopCause.RELEASE or _is_past(job) or (allowed and not self._ownership.suspended):
            self._outcome_builder.release(job)
        elif cause is None and allowed is not False:
            job.phase = JobPhase.QUEUED
            (queue.deferred if self._ownership.suspended else queue.jobs).append(job)
        return False


def _is_past(job: ClaimedJob) -> bool:
    return job.claimed_list.owned.successor is not None  # under an epoch that is over nothing is accepted any more


def _runs(job: ClaimedJob) -> bool:
    return job.phase is JobPhase.RUNNING  # a call, because it changes elsewhere while a write is awaited
