"""Ports of the master for batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from jobmaster.model.flow.batch import (
    AS_BEFORE,
    BatchCounts,
    BatchState,
    BatchView,
    Callback,
    ConcludedBatch,
    DueBatch,
    EndReason,
    FoundBatch,
    NewBatch,
    Position,
)


class AgentBatches(Protocol):
    """For agents, which end jobs of batches."""

    async def tally(self, agent_id: bytes, ended: Mapping[bytes, int]) -> None:
        """Add numbers of ended jobs by range; a hint, so it may be sent twice."""
        ...

    async def full(self, ids: Sequence[bytes]) -> list[bytes]:
        """Of the batches of these ranges: those whose jobs have all ended, by the tallies."""
        ...

    async def conclude(self, batch_id: bytes, reason: EndReason | None = None) -> ConcludedBatch | None:
        """Count the jobs of a batch. If all have ended it gets its final state, and its callbacks become jobs, in one
        statement; ``None``: some have not, or it had ended before.

        Args:
            reason: end it whatever its jobs do.
        """
        ...


class CancelBatches(Protocol):
    """For the cancellation of batches."""

    async def request_cancel(self, batch_id: bytes, actor: str) -> list[bytes]:
        """Request the cancellation of a batch and those inside it; the batches, none when it has ended."""
        ...

    async def cancel_page(self, batch_id: bytes, after: bytes | None, limit: int) -> tuple[bytes | None, int]:
        """Cancel jobs of a batch with a cancel request: those after ``after``, in the order of their ids, at most ``limit``.
        The last one that was looked at (``None``: there was none), and the number of them."""
        ...


class LeaderBatches(AgentBatches, CancelBatches, Protocol):
    """For the leader, which finds what agents have missed."""

    async def due(self, limit: int, lost_seconds: float) -> list[DueBatch]:
        """Batches that are to be looked at."""
        ...

    async def take_notes(self, agent_id: bytes, limit: int) -> tuple[list[bytes], int]:
        """Add ended jobs that no agent has told of to the tallies of this one: their ranges, and the number of jobs.

        Args:
            limit: most jobs of one call.
        """
        ...

    async def postpone(self, batch_id: bytes, seconds: float) -> None:
        """Look at a batch again after this time; sooner when it expires, or counts as abandoned, before that."""
        ...


class ListedBatches(Protocol):
    """For readers."""

    async def list(
        self,
        batch_id: bytes | None = None,
        *,
        states: Sequence[BatchState] = (),
        name: str | None = None,
        before: bytes | None = None,
        limit: int = 100,
        retry_of: bytes | None = None,
        key: str | None = None,
    ) -> list[BatchView]:
        """Batches, the newest first; of ``batch_id`` any range will do."""
        ...


class ClientBatches(AgentBatches, CancelBatches, ListedBatches, Protocol):
    """For producers and people."""

    async def open(self, batch: NewBatch) -> bool:
        """A new batch with one range; False: it or its key exists, or its parent has ended or was cancelled."""
        ...

    async def take_over(
        self, key: str, producer: bytes, silent_seconds: float, abandon_seconds: float
    ) -> FoundBatch | None:
        """The batch of a key; ``None``: there is none. If it is OPEN, and its producer has given no sign for
        ``silent_seconds``, this one fills it from now on."""
        ...

    async def add_range(self, batch_id: bytes, lowest: bytes, first: int = 0, producer: bytes | None = None) -> bool:
        """Another range for an OPEN batch; False: it is not OPEN, another producer fills it, or the range is taken.

        Args:
            first: number of its first job.
        """
        ...

    async def touch(
        self, batch_id: bytes, abandon_seconds: float, producer: bytes | None = None, position: Position = AS_BEFORE
    ) -> bool | None:
        """The producer is alive: whether the batch has a cancel request, ``None``: it is not OPEN, or another producer
        fills it."""
        ...

    async def close(self, batch_id: bytes, size: int, producer: bytes | None = None, given: int = 0) -> bool:
        """OPEN -> CLOSED; False: it was not OPEN, or another producer fills it.

        Args:
            given: numbers that the producer has given to jobs.
        """
        ...

    async def progress(self, batch_id: bytes) -> BatchCounts:
        """Count the jobs of a batch (``missing`` and ``unfinished`` are not set)."""
        ...

    async def callbacks(self, batch_id: bytes) -> tuple[Callback, ...]:
        """The callbacks of a batch."""
        ...


class Batches(LeaderBatches, ClientBatches, Protocol):
    """Batches, from their opening to their end."""
