"""Copies of jobs that the master has assigned to a bucket are put into it by its owner: mark first, put second.

The rows are ASSIGNED in the master first. Then the copies are put, in several tries; what the store does not take is
returned, and the caller gives the rows back. A crash in between leaves ASSIGNED rows without copies, which anti-entropy gives
back.

A put whose answer was lost may have been done. Its rows are not given back: a job that is HELD can be cancelled, and the copy
would start it all the same. So such a put is repeated, first by the caller, then by ``BucketEnqueuer.run``, until the store
answers, or until a try fails a minute after the last one without an answer. Until then ``being_put`` names its jobs.
The copies may have been claimed, run and settled meanwhile, and a second copy of a job that has ended or was cancelled would
start it once more. So the rows and the bucket are read before every further try, and only jobs that still wait, and are
neither in memory nor in the bucket, are put again. When the bucket refuses a put after a try without an answer, the rows are
left to anti-entropy, to the exit of the bucket, which gives back what names a closed bucket, or to its rescue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import OutcomeUnknown, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import FIND_IDS_MAX, AssignedOutcomes, AssignedStore, ReplyStatus
from jobmaster_agents.call_retry import Backoff, UntilAnswered
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.job_table import JobTable
from jobmaster_agents.state.ownership import OwnedBucket

_PUTS = 3
"""Tries to put copies into their bucket before their rows are given back, or before ``run`` goes on with them."""
UNSURE_SECONDS = 60.0
"""How long a put without an answer may still be done."""
_SCAN_MAX = 20_000
"""Entries of a bucket that are looked through for copies: 4.5 ms of the store. A copy behind them is put a second time."""


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
        self._progress = until_answered.progress
        self._under_way: dict[_Put, None] = {}
        self._repeated: deque[_Put] = deque()
        self._unsure: deque[_Put] = deque()
        self._work = asyncio.Event()
        self.on_repetition_end: Callable[[bytes], None] = lambda bucket_id: None
        """Called with the bucket of a put that is not repeated any more. The next claim shows whether it has a new owner."""

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

    def being_put(self, job_ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of these jobs are being put now, or are put again until the store answers."""
        return _among((*self._under_way, *self._repeated), job_ids)

    def may_come(self, job_ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of these jobs may still get a copy, although the store was read and has none: also by an earlier try of a put
        that was answered in the end."""
        now = self._now()
        while self._unsure and (self._unsure[0].until or 0.0) <= now:
            self._unsure.popleft()
        return _among((*self._under_way, *self._repeated, *self._unsure), job_ids)

    async def run(self) -> None:
        """Repeat puts that were not answered, until cancelled."""
        backoff = Backoff("assign", self.log)
        with self._progress.expect("the bucket enqueuer"):
            while True:
                if not self._repeated:
                    self._work.clear()
                    with self._progress.waiting:
                        await self._work.wait()
                    continue
                self._progress.note()
                put = self._repeated[0]
                try:
                    await self._try(put)
                    backoff.succeeded()
                except (Unavailable, Refused) as error:
                    if put.until is None or put.until > self._now():
                        self._repeated.rotate(-1)  # the next bucket may lie on another node of a server cluster
                        await backoff.pause(error)
                        continue
                self._repeated.popleft()
                self._unsure.append(put)
                self.on_repetition_end(put.fence.bucket_id)

    async def _try(self, put: _Put) -> ReplyStatus:
        """Put what has no copy yet; OK when nothing is left.

        Raises:
            Unavailable, Refused: nothing was put by this try.
            OutcomeUnknown: it may have been put, or may yet be.
        """
        put.tries += 1
        entries = put.entries
        if put.tries > 1:
            entries = await self._still_assigned(put.fence, entries)
        if put.until is not None:
            entries = await self._without_copy(put.fence.bucket_id, entries)
        if not entries:
            return ReplyStatus.OK
        try:
            return await self._store.assign(put.fence, [(entry.due_us, encode_entry(entry)) for entry in entries])
        except OutcomeUnknown:
            put.until = self._now() + UNSURE_SECONDS
            raise

    async def _still_assigned(self, fence: Fence, entries: Sequence[Entry]) -> list[Entry]:
        identities = [(entry.id, entry.token) for entry in entries]
        waiting = await self._until_answered("still_assigned", lambda: self._outcomes.still_assigned(fence, identities))
        return [entry for entry in entries if entry.id in waiting and self._job_table.get(entry.id) is None]

    async def _without_copy(self, bucket_id: bytes, entries: Sequence[Entry]) -> list[Entry]:
        """Those of which no copy lies in the bucket, nor came into memory meanwhile. A copy may lie in a claimed list that
        memory does not know: the answer to its claim was lost, too."""
        found: dict[bytes, Entry] = {}
        for at in range(0, len(entries), FIND_IDS_MAX):
            job_ids = [entry.id for entry in entries[at : at + FIND_IDS_MAX]]
            (copies,) = await self._store.find([bucket_id], job_ids, _SCAN_MAX)
            found |= copies
        return [
            entry for entry in entries
            if self._job_table.get(entry.id) is None
            and ((copy := found.get(entry.id)) is None or copy.token != entry.token)
        ]  # fmt: skip


def _among(puts: Iterable[_Put], job_ids: Collection[bytes]) -> frozenset[bytes]:
    wanted = frozenset(job_ids)
    return frozenset(entry.id for put in puts for entry in put.entries if entry.id in wanted)
