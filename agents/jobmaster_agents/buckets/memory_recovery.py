"""Writes the jobs of a lost bucket that are in the memory of its living owner to the master, where they run again.

A store that was emptied, or restored from an older copy, may have lost entries of which its owner has a copy in memory:
waiting for a slot, running, or ended and on the way to the master. Without a row they would be gone. The owner may still
write what it may always write: an outcome, or the job given back, under the copy's own identity. Neither needs the bucket
(rule A). If there is no row, the job has not ended (below the watermark nothing is written), and a row is created. If there
is a row, it has this identity or it refuses. So it does not matter whether a rescuer is at work, was first, or finds an
older copy in the store afterwards: the row refuses the second writer.

Therefore the owner of the bucket is not checked before the write. It may be a rescuer after a declaration of this agent: then
the copies are lost if they are not written. It may be a rescuer because this agent was certified dead: then its lease has
ended, and nothing is written any more. In every other case the store still has the entries, and the row refuses the second
writer.

For a copy whose row is known only an outcome is written (or a retry, which is the outcome of an attempt): the row then
records how the job ended, instead of being swept. Every other copy with a row is left to the sweep. So a job that must not
be started twice is not started a second time: an accepted row starts it, and of such a copy the row is known.

Owns these copies from the loss of their bucket on; must never touch a key of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jobmaster.codec import encode_entry
from jobmaster.model.errors import InputError, Refused, Unavailable, ValueRefused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import RecoveryOutcomes, UnstorableEntry, Written
from jobmaster.rules.batching import BatchSize
from jobmaster_agents.outcomes.batch_write import BatchWrite, RowRefusals
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.ownership import OwnedBucket

_BATCH_ROWS = 500
_KIND = "memory"


class RecoveryResult(NamedTuple):
    """How many copies of a bucket that may have had no row are safe."""

    written: int
    """Accepted by the master."""
    settled: int
    """Those, and copies that are safe in another way: the job has a row of another identity, or is in quarantine."""


class _Copy(NamedTuple):
    entry: Entry
    row: FinalRow | HoldRow
    alone: bool
    """It may have no row."""


class _Left:
    """The copies of one bucket that are not written yet, by job."""

    def __init__(self) -> None:
        self.copies: dict[Fence, dict[bytes, _Copy]] = {}
        self.written = self.settled = 0

    def settle(self, fence: Fence, some: Sequence[_Copy], taken: frozenset[bytes]) -> None:
        alone = [copy.entry.id for copy in some if copy.alone]
        self.settled += len(alone)
        self.written += sum(job_id in taken for job_id in alone)
        for copy in some:
            del self.copies[fence][copy.entry.id]


class MemoryRecovery:
    """Copies of lost buckets, until they are in the master or need not be.

    Args:
        may_commit: False once the lease forbids it; called before every write.
    """

    def __init__(self, outcomes: RecoveryOutcomes, may_commit: Callable[[], bool]) -> None:
        self._outcomes = outcomes
        self._may_commit = may_commit
        self._left: dict[OwnedBucket, _Left] = {}
        self._batches: BatchWrite[_Copy] = BatchWrite(BatchSize(_BATCH_ROWS), _id_of, _bytes_of)
        self.on_ended: Callable[[Sequence[FinalRow]], None] = lambda rows: None
        """Called with the outcomes that the master has now."""

    def keep(self, owned: OwnedBucket, dropped: Iterable[ClaimedJob]) -> int:
        """Take the live copies of a lost bucket; how many of them were only in its store and in this process."""
        left = _Left()
        alone = 0
        for job in dropped:
            rowless = job.entry.token == 1 and job.row_state is None
            if not rowless and (job.row is None or job.unwritable):
                continue
            alone += rowless
            mine = left.copies.setdefault(job.claimed_list.owned.fence, {})
            row = job.row or HoldRow.of(job.entry, job.claimed_list.owned.priority, job.claimed_list.owned.lane)
            mine[job.entry.id] = _Copy(job.entry, row, rowless)
        if left.copies:
            self._left[owned] = left
        return alone

    async def write(self, owned: OwnedBucket) -> RecoveryResult:
        """Write the copies of a bucket. A call after a failure goes on with the rest.

        Raises:
            Unavailable: the master does not answer, or may not be written to now.
            Refused, InputError: the last refusal that was not for a copy's values, after all other copies were written.
        """
        left = self._left.get(owned)
        if left is None:
            return RecoveryResult(0, 0)
        refusal: Refused | InputError | None = None
        for fence, copies in left.copies.items():
            for kind in (FinalRow, HoldRow):
                some = [copy for copy in copies.values() if isinstance(copy.row, kind)]
                refusal = await self._write(left, fence, some) or refusal
        if refusal is not None:
            raise refusal
        del self._left[owned]
        return RecoveryResult(left.written, left.settled)

    async def _write(self, left: _Left, fence: Fence, copies: Sequence[_Copy]) -> Refused | InputError | None:
        """Copies of one kind, in halves where the master refuses, so that no copy waits for an unfit neighbour. A single copy
        whose values are refused goes to the quarantine; the last other refusal is returned."""
        refusals = RowRefusals()

        def on_written(some: Sequence[_Copy], written: Written) -> None:
            left.settle(fence, some, written.accepted | written.cancelled)

        async def on_refused(copy: _Copy, error: Refused | InputError) -> bool:
            if isinstance(error, ValueRefused):
                await self._put_aside(left, fence, copy, error)
                return True
            return refusals.add(error)

        await self._batches.write(copies, lambda some: self._send(fence, some), on_written, on_refused)
        return refusals.last

    async def _send(self, fence: Fence, some: Sequence[_Copy]) -> Written:
        if not self._may_commit():
            raise Unavailable("the lease does not allow to commit")
        if finals := [copy.row for copy in some if isinstance(copy.row, FinalRow)]:
            written = await self._outcomes.record_final(finals)
            self.on_ended([row for row in finals if row.id in written.accepted])
            return written
        return await self._outcomes.hold(fence, [copy.row for copy in some if isinstance(copy.row, HoldRow)])

    async def _put_aside(self, left: _Left, fence: Fence, copy: _Copy, error: ValueRefused) -> None:
        if copy.alone:  # else the job has a row
            unfit = UnstorableEntry(copy.entry.id, _KIND, encode_entry(copy.entry), error.message)
            await self._outcomes.quarantine(fence.bucket_id, [unfit])
        left.settle(fence, [copy], frozenset())


def _id_of(copy: _Copy) -> bytes:
    return copy.entry.id


def _bytes_of(copy: _Copy) -> int:
    return copy.row.payload_bytes
