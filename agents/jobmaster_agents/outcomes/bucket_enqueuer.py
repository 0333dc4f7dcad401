"""Copies of jobs that the master has assigned to a bucket are put into it by its owner: mark first, put second.

The rows are ASSIGNED in the master first. Then the copies are put, in several tries; what the store does not take is
returned, and the caller gives the rows back. A crash in between leaves ASSIGNED rows without copies, which anti-entropy gives
back.

A put whose answer was lost may have been done, and its copies may have been claimed, run and settled since. A second copy of
a job that has ended or was cancelled would start it once more. So the rows are read before every further try, and only jobs
that still wait in the bucket, and are not in memory, are put again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import AssignedOutcomes, AssignedStore, ReplyStatus
from jobmaster_agents.call_retry import Backoff, UntilAnswered
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.job_table import JobTable
from jobmaster_agents.state.ownership import OwnedBucket

_PUTS = 3
"""Tries to put copies into their bucket before their rows are given back."""
UNSURE_SECONDS = 60.0
"""How long a put without an answer may still be done."""


class PutResult(NamedTuple):
    """Answer of a put."""

    reply: ReplyStatus | None
    """Of the store; ``None``: none came."""
    left: Sequence[Entry]
    """Unless the reply is OK: jobs that still lack a copy; their rows are to be given back."""

    @property
    def done(self) -> bool:
        """True when every job that still wants a copy has one."""
        return self.reply is ReplyStatus.OK or not self.left

    def shows_loss(self, owned: OwnedBucket, fence: Fence) -> bool:
        """True when the store refused because the bucket, unfrozen under no new epoch meanwhile, has another owner."""
        return self.reply is not None and self.reply is not ReplyStatus.CLOSED and fence == owned.fence


class _Put:
    """One batch that is being put, or may still be done."""

    __slots__ = ("entries", "until")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.until: float | None = None
        """Of a batch with a try that was not answered: until when the try may still be done."""


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
        self._unsure: deque[_Put] = deque()

    async def put(self, fence: Fence, entries: Sequence[Entry]) -> PutResult:
        """Put the copies of jobs that are ASSIGNED under the fence."""
        backoff = Backoff("assign", self.log)
        put = _Put(entries)
        self._under_way[put] = None
        try:
            for attempt in range(_PUTS):
                if attempt:
                    entries = await self._without_copy(fence, entries)
                    if not entries:
                        return PutResult(ReplyStatus.OK, entries)
                try:
                    items = [(entry.due_us, encode_entry(entry)) for entry in entries]
                    return PutResult(await self._store.assign(fence, items), entries)
                except (Unavailable, Refused) as error:
                    put.until = self._now() + UNSURE_SECONDS
                    await backoff.pause(error)
            return PutResult(None, await self._without_copy(fence, entries))
        finally:
            del self._under_way[put]
            if put.until is not None:
                self._unsure.append(put)

    def may_come(self, job_ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of these jobs may still get a copy, although the store was read and has none."""
        now = self._now()
        while self._unsure and (self._unsure[0].until or 0.0) <= now:
            self._unsure.popleft()
        wanted = frozenset(job_ids)
        return frozenset(e.id for put in (*self._under_way, *self._unsure) for e in put.entries if e.id in wanted)

    async def _without_copy(self, fence: Fence, entries: Sequence[Entry]) -> Sequence[Entry]:
        identities = [(entry.id, entry.token) for entry in entries]
        waiting = await self._until_answered("still_assigned", lambda: self._outcomes.still_assigned(fence, identities))
        return [entry for entry in entries if entry.id in waiting and self._job_table.get(entry.id) is None]
