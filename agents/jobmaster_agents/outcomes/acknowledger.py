"""Deletes claimed lists whose jobs are safe, and publishes the ids of finished jobs: the store's half of every write.

Everything that comes here is committed in the master, so a failure costs memory and nothing else: each call is repeated until
it succeeds. One call per bucket carries everything that has come together since the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.ports import AcknowledgerStore, ReplyStatus
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.job_table import ClaimedList, JobTable
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket
from jobmaster_agents.state.progress import Progress

_LISTS_MAX = 500
_FROZEN_SECONDS = 0.1
"""Pause before another call for a frozen bucket."""
_FINISHED_MAX = 20_000
"""Ids of finished jobs in one call; while a store is away the oldest beyond this are dropped."""

_LEAVING = (BucketState.COMPLETING, BucketState.READY_TO_DELETE)


class _Pending:
    """Claimed lists and finished ids that wait for a call to one bucket."""

    __slots__ = ("finished", "names", "owned")

    def __init__(self, owned: OwnedBucket) -> None:
        self.owned = owned
        self.names: list[str] = []
        self.finished: list[bytes] = []


class Acknowledger:
    """Deletes claimed lists and publishes finished ids.

    Args:
        on_forgotten: called when the store answers that a bucket has another owner.
    """

    def __init__(
        self,
        store: AcknowledgerStore,
        job_table: JobTable,
        on_forgotten: OnForgotten,
        log: EventLog,
        progress: Progress,
    ) -> None:
        self._store = store
        self._job_table = job_table
        self._on_forgotten = on_forgotten
        self._log = log
        self._progress = progress
        self._waiting: dict[bytes, _Pending] = {}
        self._work = asyncio.Event()
        self._busy = False
        self._idle = asyncio.Event()

    @property
    def idle(self) -> bool:
        """True when nothing waits and no call is under way."""
        return not self._waiting and not self._busy

    async def wait_idle(self) -> None:
        """Wait until nothing waits."""
        while not self.idle:
            self._idle.clear()
            await self._idle.wait()

    def delete(self, claimed_lists: Iterable[ClaimedList]) -> None:
        """Delete lists whose every entry is safe."""
        for claimed_list in claimed_lists:
            self._of(claimed_list.owned).names.append(claimed_list.name)
            self._work.set()

    def publish(self, owned: OwnedBucket, ids: Sequence[bytes]) -> None:
        """Publish jobs that have got a row or an outcome."""
        if ids:
            self._of(owned).finished += ids
            self._work.set()

    def _of(self, owned: OwnedBucket) -> _Pending:
        owned = owned.present
        bucket_id = owned.fence.bucket_id
        found = self._waiting.get(bucket_id)
        if found is None:
            found = self._waiting[bucket_id] = _Pending(owned)
        return found

    async def run(self) -> None:
        """Send until cancelled."""
        backoff = Backoff("settle", self._log)
        with self._progress.expect("the acknowledger"):
            while True:
                if not self._waiting:
                    self._idle.set()
                    self._work.clear()
                    with self._progress.waiting:
                        await self._work.wait()
                self._progress.note()
                bucket = self._waiting.pop(next(iter(self._waiting)))
                self._busy = True
                try:
                    await self._settle(bucket)
                    backoff.succeeded()
                except (Unavailable, Refused) as error:
                    self._put_back(bucket)
                    await backoff.pause(error)
                finally:
                    self._busy = False

    async def _settle(self, bucket: _Pending) -> None:
        owned = bucket.owned
        fence = owned.fence
        # No key of a lost bucket may be touched; the finished ids are published all the same.
        names = [] if owned.lost else bucket.names[:_LISTS_MAX]
        finished = bucket.finished[-_FINISHED_MAX:]
        if not names and not finished:
            return
        status = await self._store.settle(fence, names, finished)
        if status is ReplyStatus.OK:
            self._job_table.deleted(fence.bucket_id, names)
        elif fence != owned.fence:  # unfrozen under a new epoch while the call was on its way
            self._put_back(bucket)
            return
        elif owned.frozen:
            self._on_forgotten(fence.bucket_id, f"the store answered {status} to a settle", status)
            self._put_back(bucket)
            await asyncio.sleep(_FROZEN_SECONDS)
            return
        elif status is ReplyStatus.CLOSED and not names and owned.state in _LEAVING:
            pass  # closed by this agent on its way out; the finished ids were published all the same
        elif not owned.lost:
            self._on_forgotten(fence.bucket_id, f"the store answered {status} to a settle", status)
        if len(bucket.names) > _LISTS_MAX and not owned.lost:
            self._of(owned).names += bucket.names[_LISTS_MAX:]
            self._work.set()

    def _put_back(self, bucket: _Pending) -> None:
        """Queue it again: to delete a deleted list or to publish an id twice changes nothing."""
        waiting = self._of(bucket.owned)
        waiting.names += bucket.names
        waiting.finished[:0] = bucket.finished[-_FINISHED_MAX:]
        self._work.set()
