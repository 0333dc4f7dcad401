"""What the owner of jobs writes about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow, InFlightRow
from jobmaster.ports.written import Written


class CancelledRow(NamedTuple):
    """A job that waited in a bucket and is CANCELLED now; its copy may still lie there."""

    id: bytes
    bucket_id: bytes
    due_us: int
    """Where the copy lies among the bucket's assigned jobs."""
    ended: bool
    """By this call; otherwise it had been CANCELLED before."""


class Outcomes(Protocol):
    """The owner's writes about jobs it claimed. Every batch is sorted by id by the implementation."""

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        """COPY of outcomes that expect no row. False: nothing was written (a duplicate, a cancelled row, a bad id); use
        ``record_final``. ``OutcomeUnknown`` when the commit is uncertain."""
        ...

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        """Guarded upsert of outcomes (rule A); no bucket lock."""
        ...

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        """Guarded upsert of in-flight rows under the bucket lock (rule C). ``cancelled`` ids have a cancel request:
        their row was *not* turned into PROCESSING."""
        ...

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> HELD (retry later, release, flush) by identity; writes ``attempt`` rows where ``error`` is set.
        No bucket lock: the identity on the row is enough."""
        ...

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> ASSIGNED in the same bucket with token + 1, under the bucket lock; writes ``attempt`` rows."""
        ...

    async def still_assigned(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> frozenset[bytes]:
        """Which of ``(id, token)`` are ASSIGNED to this bucket under its epoch and nobody has asked to cancel."""
        ...

    async def cancel_waiting(self, fences: Sequence[Fence], job_ids: Sequence[bytes]) -> list[CancelledRow]:
        """ASSIGNED rows of these jobs that name one of these buckets and have a cancel request -> CANCELLED; the caller has
        none of the jobs in memory. Answers those of them that are CANCELLED now, by this call or before."""
        ...
