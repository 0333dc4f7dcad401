"""Ports of the master for the rows of jobs: what becomes of claimed jobs, and the way between HELD and a bucket.

They have one Protocol for each consumer, as those of ``jobmaster.ports.master`` have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.ids import Fence
from jobmaster.model.job import FinalRow, HoldRow, InFlightRow
from jobmaster.ports.master_answers import (
    ANY_JOB,
    CancelledRow,
    FetchScope,
    Onboarded,
    ProgressLine,
    RowRef,
    UnstorableEntry,
    Written,
)
from jobmaster.ports.workflows import StepOutcomes

# ------------------------------------------------------------ outcomes


class GuardedOutcomes(Protocol):
    """Outcomes of jobs that may have a row. The implementation sorts every batch by id."""

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        """Guarded upsert of outcomes (rule A); no bucket lock."""
        ...

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> HELD (retry later, release, flush) by identity; writes ``attempt`` rows where ``error`` is set.
        No bucket lock: the identity on the row is enough."""
        ...


class Quarantine(Protocol):
    """Entries that no table of jobs accepts."""

    async def quarantine(self, bucket_id: bytes, entries: Sequence[UnstorableEntry]) -> None:
        """Keep entries byte for byte for an operator; they are committed when the call returns. No bucket lock. Sent again,
        nothing is added."""
        ...


class RecoveryOutcomes(GuardedOutcomes, Quarantine, Protocol):
    """For the recovery of a lost bucket, from the memory of its owner or from its store."""


class CopyOutcomes(Protocol):
    """For the fastest write of outcomes."""

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        """COPY of outcomes that expect no row. False: nothing was written (a duplicate, a cancelled row, a bad id); use
        ``record_final``. ``OutcomeUnknown`` when the commit is uncertain."""
        ...


class ReplayOutcomes(GuardedOutcomes, CopyOutcomes, Protocol):
    """For outcomes that were kept in the store."""


class AssignedOutcomes(Protocol):
    """For the check before copies of assigned jobs are put into the store."""

    async def still_assigned(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> frozenset[bytes]:
        """Ids of those ``(id, token)`` that are ASSIGNED to this bucket under its epoch without a cancel request."""
        ...


class WriterOutcomes(ReplayOutcomes, AssignedOutcomes, StepOutcomes, Protocol):
    """For the outcome writer."""

    async def retry_here(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        """Rows -> ASSIGNED in the same bucket with token + 1, under the bucket lock; writes ``attempt`` rows."""
        ...


class InFlightOutcomes(Protocol):
    """For rows of jobs that have not ended."""

    async def persist(self, fence: Fence, rows: Sequence[InFlightRow]) -> Written:
        """Guarded upsert of in-flight rows under the bucket lock (rule C). ``cancelled`` ids have a cancel request:
        their row was *not* turned into PROCESSING."""
        ...


class ReportedProgress(Protocol):
    """For the reports of handlers."""

    async def report_progress(self, lines: Sequence[ProgressLine]) -> None:
        """Store the last reports of some runs, each job once; those of superseded runs are left out."""
        ...


class CancellationOutcomes(Protocol):
    """For cancel requests of jobs that the owner has not claimed."""

    async def cancel_waiting(self, fences: Sequence[Fence], job_ids: Sequence[bytes]) -> list[CancelledRow]:
        """ASSIGNED rows of these jobs that name one of these buckets and have a cancel request -> CANCELLED. The caller has
        none of the jobs in memory. Returns the rows that are CANCELLED now, by this call or before."""
        ...


class AttemptOutcomes(Protocol):
    """For transactional and confirmed attempts."""

    async def is_recorded(self, row: FinalRow) -> bool:
        """Whether the job's row has this outcome under this identity: the answer to a commit that was lost."""
        ...

    async def mark_refused(self, rows: Sequence[FinalRow]) -> None:
        """Note outcomes that their rows refused on the ``attempt`` rows of their identities."""
        ...

    async def await_confirmation(
        self, row: FinalRow, within_seconds: float, pause_seconds: float, error: bytes | None
    ) -> bool:
        """PROCESSING -> WAITING for a confirmation from outside.

        Args:
            within_seconds: time for the confirmation.
            pause_seconds: after that, until the next attempt.
            error: error of the job when no confirmation comes; ``None`` when it has another attempt.

        Returns: False when the row refuses: superseded, also by a confirmation that came first.
        """
        ...


class Outcomes(
    WriterOutcomes,
    RecoveryOutcomes,
    InFlightOutcomes,
    CancellationOutcomes,
    AttemptOutcomes,
    ReportedProgress,
    Protocol,
):
    """Writes of an owner about jobs that it claimed."""


# ------------------------------------------------------------ rows of buckets


class Release(Protocol):
    """The way back from a bucket."""

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD: the store has no copy, or no room for one."""
        ...


class ShutdownOnboarding(Release, Protocol):
    """For the graceful shutdown of a bucket."""

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        """In-flight rows that name a bucket, in the order of their ids, after ``after``."""
        ...


class AntiEntropyOnboarding(ShutdownOnboarding, Protocol):
    """For the comparison of rows with copies."""

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        """In-flight rows of which the bucket's owner has no copy -> HELD with token + 1, by identity; number of them."""
        ...


class FetcherOnboarding(Release, Protocol):
    """For the due fetcher."""

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
        without_tags: Sequence[str] = (),
        scope: FetchScope = ANY_JOB,
    ) -> Onboarded:
        """HELD rows due within the horizon -> ASSIGNED to a bucket, under its lock, SKIP LOCKED, oldest due first: at most
        ``limit`` rows and ``rules.batching.BATCH_BYTES``; only of the named handlers (``None``: any), none with one of
        these tags, and only what ``scope`` admits."""
        ...


class Onboarding(FetcherOnboarding, AntiEntropyOnboarding, Protocol):
    """Rows between HELD and a bucket, both ways."""
