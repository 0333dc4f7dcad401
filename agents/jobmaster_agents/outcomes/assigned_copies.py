"""Copies of jobs that the master has assigned to a bucket, put there by its owner; once, as far as anybody can tell.

A put whose answer was lost may have been done, and its copies may have been claimed, run and settled since. Put again, a copy
of a finished or cancelled job would be started once more. So before a second try the rows are read, and only jobs that still
wait in the bucket, and are not in memory, are put again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import StoreOwner, Word
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.retrying import Backoff, UntilAnswered
from jobmaster_agents.state.job_table import JobTable

_PUTS = 3
"""Tries to put copies into their bucket before the rows go back."""
UNSURE_SECONDS = 60.0
"""So long a put that nobody has answered may still be done."""


class RowMaster(Protocol):
    """Where it stands which jobs still wait in the bucket."""

    async def still_assigned(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> frozenset[bytes]: ...


class _Put:
    """One batch on its way."""

    __slots__ = ("entries", "until")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.until: float | None = None
        """Of one with a try that was not answered: when it is given up for good."""


class AssignedCopies:
    """Puts onboarded jobs and retries into the buckets of this process."""

    def __init__(
        self,
        master: RowMaster,
        store: StoreOwner,
        job_table: JobTable,
        until_answered: UntilAnswered,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._master = master
        self._store = store
        self._job_table = job_table
        self._until_answered = until_answered
        self._now = clock.boottime
        self.log = log
        self._under_way: dict[_Put, None] = {}
        self._unsure: deque[_Put] = deque()

    async def put(self, fence: Fence, entries: Sequence[Entry]) -> tuple[Word | None, Sequence[Entry]]:
        """Put the copies of jobs that are ASSIGNED under the fence.

        Returns: the store's word, ``None`` when it gave no answer; and, unless it is OK, the jobs that still want a copy.
        """
        backoff = Backoff("assign", self.log)
        put = _Put(entries)
        self._under_way[put] = None
        try:
            for attempt in range(_PUTS):
                if attempt:
                    entries = await self._wanting(fence, entries)
                    if not entries:
                        return Word.OK, entries
                try:
                    items = [(entry.due_us, encode_entry(entry)) for entry in entries]
                    return await self._store.assign(fence, items), entries
                except (Unavailable, Refused) as error:
                    put.until = self._now() + UNSURE_SECONDS
                    await backoff.pause(error)
            return None, await self._wanting(fence, entries)
        finally:
            del self._under_way[put]
            if put.until is not None:
                self._unsure.append(put)

    def may_come(self, job_ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of these jobs may get a copy yet, though the store has been looked into."""
        now = self._now()
        while self._unsure and (self._unsure[0].until or 0.0) <= now:
            self._unsure.popleft()
        wanted = frozenset(job_ids)
        return frozenset(e.id for put in (*self._under_way, *self._unsure) for e in put.entries if e.id in wanted)

    async def _wanting(self, fence: Fence, entries: Sequence[Entry]) -> Sequence[Entry]:
        identities = [(entry.id, entry.token) for entry in entries]
        waiting = await self._until_answered("peek", lambda: self._master.still_assigned(fence, identities))
        return [entry for entry in entries if entry.id in waiting and self._job_table.get(entry.id) is None]
