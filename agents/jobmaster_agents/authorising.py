"""Starts that need an accepted write (``start="fenced"``): asked for in the slot, put off while the master does not answer.

The lease is read again just before the call, so that authorisation never comes after its end; the store's word is no
substitute for it. A job that is put off goes back to its queue's ``aside`` and keeps no slot from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from jobmaster_agents.holdings import Holdings
from jobmaster_agents.portions import LiveJob, Phase
from jobmaster_agents.slots import BucketQueue, Slot
from jobmaster_agents.verdicts import StopCause, Verdicts

Authorise = Callable[[LiveJob], Coroutine[object, object, bool | None]]


class FencedStarts:
    """The question of every fenced start, and what becomes of a job that may not start.

    Args:
        authorise: awaits an accepted PROCESSING write; False = do not run, None = not now.
        is_over: true when the process ends.
    """

    def __init__(
        self,
        holdings: Holdings,
        verdicts: Verdicts,
        authorise: Authorise,
        now: Callable[[], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._holdings = holdings
        self._verdicts = verdicts
        self._authorise = authorise
        self._now = now
        self._is_over = is_over

    async def ask(self, slot: Slot, queue: BucketQueue, job: LiveJob, give_up: Callable[[], None]) -> bool:
        """True: call it now. False: it has its verdict, is set aside, or is not ours to judge any more.

        Args:
            give_up: called before anything else when it does not start: the slot is free.
        """
        allowed: bool | None = None
        try:
            if not self._holdings.suspended:
                allowed = await self._authorise(job)
        except asyncio.CancelledError:
            if self._is_over():
                raise
            slot.soiled = (
                True  # with or without a cause: an earlier job of this task may have left a cancellation behind
            )
        cause, slot.cause = slot.cause, None
        now = self._now()
        if allowed and cause is None and _runs(job) and self._holdings.may_start(now):
            return True
        give_up()
        if not _runs(job):
            return False  # superseded, or its bucket was lost, while the write was under way
        if job.cancelled:
            self._verdicts.without_running(job, now)
        elif job.unwritable:
            job.phase = Phase.ENDED  # it cannot have its row, so it cannot be started, or given back
        elif cause is StopCause.RELEASE or _is_past(job) or (allowed and not self._holdings.suspended):
            self._verdicts.release(job)
        elif cause is None and allowed is not False:
            job.phase = Phase.QUEUED
            (queue.aside if self._holdings.suspended else queue.jobs).append(job)
        return False


def _is_past(job: LiveJob) -> bool:
    return job.portion.holding.successor is not None  # under an epoch that is over nothing is accepted any more


def _runs(job: LiveJob) -> bool:
    return job.phase is Phase.RUNNING  # a call, because it changes elsewhere while a write is awaited
