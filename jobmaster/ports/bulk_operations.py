"""Ports of the master for bulk operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.flow.bulk_operation import (
    BulkEnd,
    BulkKind,
    BulkPage,
    BulkRetry,
    BulkState,
    BulkStep,
    BulkView,
    BulkWork,
    NewBulk,
)
from jobmaster.model.job import JobState
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter


class BulkSearch(Protocol):
    """For the preview and the leader."""

    async def find(
        self,
        kind: BulkKind,
        chosen: JobFilter,
        change: NewValues,
        lowest: bytes,
        highest: bytes,
        *,
        reads: int,
        limit: int,
        payload: bool,
    ) -> BulkStep:
        """The oldest jobs of a range of ids that fit: one step, which reads at most ``reads`` rows.

        Args:
            payload: with what a retry needs.
        """
        ...


class ClientBulk(BulkSearch, Protocol):
    """For programs and people."""

    async def start(self, new: NewBulk) -> None:
        """A new operation, with a line in the operator's log. Sent again, it is the same one."""
        ...

    async def list(
        self,
        operation: bytes | None = None,
        *,
        states: Sequence[BulkState] = (),
        before: bytes | None = None,
        limit: int = 100,
    ) -> list[BulkView]:
        """Operations, the newest first."""
        ...

    async def cancel(self, operation: bytes, actor: str) -> bool:
        """End an operation; False: it has ended, or there is none."""
        ...


class LeaderBulk(BulkSearch, Protocol):
    """For the leader. Each page is one transaction that also moves the cursor; ``None``: the page was written before, or the
    operation has ended, and nothing was written. Answers are numbers of jobs."""

    async def next(self) -> BulkWork | None:
        """The oldest operation that has not ended."""
        ...

    async def cancel_page(self, page: BulkPage, job_ids: Sequence[bytes], states: Sequence[JobState]) -> int | None:
        """Cancel jobs, or request it, while they are in these states."""
        ...

    async def reschedule_page(self, page: BulkPage, job_ids: Sequence[bytes], change: NewValues) -> int | None:
        """Give HELD jobs new values."""
        ...

    async def delete_page(self, page: BulkPage, job_ids: Sequence[bytes], states: Sequence[JobState]) -> int | None:
        """Delete the contents of jobs in these states."""
        ...

    async def retry_page(self, page: BulkPage, jobs: Sequence[BulkRetry], states: Sequence[JobState]) -> int | None:
        """Make new jobs of those in these states."""
        ...

    async def finish(self, page: BulkPage, error: str = "") -> BulkEnd | None:
        """The range is at its end, or the operation cannot go on; ``None``: another leader has written a page since."""
        ...


class BulkOperations(ClientBulk, LeaderBulk, Protocol):
    """Bulk operations, from their start to their end."""
