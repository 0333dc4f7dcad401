"""Copies of jobs that the master has assigned to a bucket are put into it by its owner: mark first, put second.

The rows are ASSIGNED in the master first. Then the copies are put, in several tries; what the store does not take is
returned, and the caller gives the rows back. A crash in between leaves ASSIGNED rows without copies, which anti-entropy gives
back.

A put whose answer was lost may have been done. Its rows are not given back: a job that is HELD can be cancelled, and the copy
would start it all the same. So such a put is repeated until the store answers, first by the caller, then by
``BucketEnqueuer.run``, and until then ``may_come`` names its jobs. The copies may have been claimed, run and settled
meanwhile, and a second copy of a job that has ended or was cancelled would start it once more. So the rows are read before
every further try, and only jobs that still wait in the bucket, and are not in memory, are put again. When the bucket refuses
a put after a try without an answer, the rows are left to what compares rows with copies: anti-entropy, the exit of the
bucket, or its rescue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import OutcomeUnknown, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import AssignedOutcomes, AssignedStore, ReplyStatus
from jobmaster_agents.call_retry import Backoff, UntilAnswered
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.job_table import JobTable
from jobmaster_agents.state.ownership import OwnedBucket

_PUTS = 3
"""Tries to put copies into their bucket before their rows are given back, or before ``run`` goes on with them."""
UNSURE_SECONDS = 60.0
"""How long a put without an answer may still be done."""


class PutResult(NamedTuple):
    """Answer of a put."""

    reply: ReplyStatus | None
    """Of the store; ``None``: none came."""
    left: Sequence[Entry]
    """Unless the reply is OK: jobs that have no copy and get none; their rows are to be given back."""

    @property
    def done(self) -> bool:
        """True when every job that still wants a copy has one."""
        return self.reply is ReplyStatus.OK

    @property
    def repeated(self) -> bool:
        """True when the copies may lie in the bucket, and their put is repeated until the store answers."""
        return self.reply is None and not self.left

    def shows_loss(self, owned: OwnedBucket, fence: Fence) -> bool:
        """True when the store refused because the bucket, unfrozen under no new epoch meanwhile, has another owner."""
        return self.reply is not None and self.reply is not ReplyStatus.CLOSED and fence == owned.fence


class _Put:
    """One batch that is being put, or may still be done."""

    __slots__ = ("entries", "fence", "tries", "until")

    def __init__(self, fence: Fence, entries: Sequence[Entry]) -> None:
        self.fence = fence
        self.entries = entries
        self.tries = 0
        self.until: float | None = None
        """Of a batch with a try that was not answered: until when the try may still be done."""

    @property
    def left(self) -> Sequence[Entry]:
        """Jobs that certainly have no copy, when the batch is given up."""
        return self.entries if self.until is None else ()


class BucketEnqueuer:
    """Puts onboarded jobs and retries into the buckets of this process."""

    def __init__(
        self,
        outcomes: AssignedOutcomes,
        store: AssignedStore,
        job_table: JobTable,
        until_answered: UntilAnswered,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._outcomes = outcomes
        self._store = store
        self._job_table = job_table
        self._until_answered = until_answered
        self._now = clock.boottime
        self.log = log
        self._under_way: dict[_Put, None] = {}
        self._repeated: deque[_Put] = deque()
        self._unsure: deque[_Put] = deque()
        self._work = asyncio.Event()
        self.on_answered: Callable[[bytes], None] = lambda bucket_id: None
        """Called with the bucket of a repeated put when the store has answered."""

    async def put(self, fence: Fence, entries: Sequence[Entry]) -> PutResult:
        """Put the copies of jobs that are ASSIGNED under the fence."""
        backoff = Backoff("assign", self.log)
        put = _Put(fence, entries)
        self._under_way[put] = None
        after = self._unsure
        try:
            while put.tries < _PUTS:
                try:
                    return PutResult(await self._try(put), put.left)
                except (Unavailable, Refused) as error:
                    await backoff.pause(error)
            after = self._repeated
            return PutResult(None, put.left)
        finally:
            del self._under_way[put]
            if put.until is not None:
                after.append(put)
                self._work.set()

    def is_repeating(self, bucket_id: bytes) -> bool:
        """True while a put into the bucket is repeated because the store does not answer."""
        return bool(self._repeated) and any(put.fence.bucket_id == bucket_id for put in self._repeated)

    def may_come(self, job_ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of these jobs may still get a copy, although the store was read and has none."""
        now = self._now()
        while self._unsure and (self._unsure[0].until or 0.0) <= now:
            self._unsure.popleft()
        wanted = frozenset(job_ids)
        puts = (*self._under_way, *self._repeated, *self._unsure)
        return frozenset(e.id for put in puts for e in put.entries if e.id in wanted)

    async def run(self) -> None:
        """Repeat puts that were not answered, until cancelled."""
        backoff = Backoff("assign", self.log)
        while True:
            if not self._repeated:
                self._work.clear()
                await self._work.wait()
                continue
            put = self._repeated[0]
            try:
                await self._try(put)
            except (Unavailable, Refused) as error:
                self._repeated.rotate(-1)  # the next one may be for another store
                await backoff.pause(error)
                continue
            backoff.succeeded()
            self._repeated.popleft()
            self._unsure.append(put)
            self.on_answered(put.fence.bucket_id)

    async def _try(self, put: _Put) -> ReplyStatus:
        """Put what has no copy yet; OK when nothing is left.

        Raises:
            Unavailable, Refused: nothing was put.
            OutcomeUnknown: it may have been put, or may yet be.
        """
        put.tries += 1
        entries = put.entries
        if put.tries > 1:
            entries = await self._without_copy(put.fence, entries)
            if not entries:
                return ReplyStatus.OK
        try:
            return await self._store.assign(put.fence, [(entry.due_us, encode_entry(entry)) for entry in entries])
        except OutcomeUnknown:
            put.until = self._now() + UNSURE_SECONDS
            raise

    async def _without_copy(self, fence: Fence, entries: Sequence[Entry]) -> Sequence[Entry]:
        identities = [(entry.id, entry.token) for entry in entries]
        waiting = await self._until_answered("still_assigned", lambda: self._outcomes.still_assigned(fence, identities))
        return [entry for entry in entries if entry.id in waiting and self._job_table.get(entry.id) is None]
