"""What producers need of the master: first rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.ids import Fence
from jobmaster.model.job import NewJob
from jobmaster.ports.written import Written


class Intake(Protocol):
    """Producers and flushes: first rows."""

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        """HELD rows with token 1; an id that exists is *refused* (the caller compares with ``get`` when it matters)."""
        ...

    async def insert_assigned(self, bucket_id: bytes, epoch: int, jobs: Sequence[NewJob]) -> Written:
        """ASSIGNED rows with token 2, under the bucket lock (bucket ACTIVE, this epoch)."""
        ...

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD: its store has no room for the copies."""
        ...

    async def reserve_keys(
        self, scope: str, keys: Sequence[tuple[str, bytes, bytes]]
    ) -> list[tuple[str, bytes, bytes]]:
        """Idempotency: ``(key, job_id, digest)`` in, the *holding* ``(key, job_id, digest)`` of each key out."""
        ...
