"""The agent stores of a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from jobmaster.codec import decode_entry
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Recall, ReplyStatus, StoreHealth, Submitted
from jobmaster.testing.memory.rows import MemoryRows

_HEALTH = StoreHealth("9.1.0", "valkey", "noeviction", True, "everysec", None, None)
"""As the embedded server reports itself."""


class MemoryStore:
    """``ClientStore`` over rows in memory."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    async def submit(
        self, bucket_id: bytes, items: Sequence[bytes], *, high_water_jobs: int, high_water_bytes: int, skew_ms_max: int
    ) -> Submitted:
        """Put jobs into a bucket."""
        for item in items:
            self._rows.put(bucket_id, decode_entry(item))
        return Submitted(ReplyStatus.OK, 0)

    async def put(
        self,
        bucket_id: bytes,
        epoch: int,
        items: Sequence[tuple[int, bytes]],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
    ) -> Submitted:
        """Copies of jobs that have rows: nothing to keep."""
        return Submitted(ReplyStatus.OK, 0)

    async def health(self) -> StoreHealth:
        """Of the embedded server."""
        return _HEALTH

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        """The jobs that have no row yet."""
        found = {
            job_id: job
            for job_id in job_ids
            if (job := self._rows.jobs.get(job_id)) is not None and job.state is JobState.SAVE_PENDING
        }
        return [
            {job_id: job.entry for job_id, job in found.items() if job.bucket_id == bucket_id}
            for bucket_id in bucket_ids
        ]

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        """Nothing is ever too deep to be found."""
        return [BucketDepth(0, 0, 0, 0, 0) for _ in bucket_ids]

    async def is_claimed(self, bucket_id: bytes, job_id: bytes, scan_max: int) -> bool:
        """No job waits in an agent's memory."""
        return False

    async def request_cancel(self, bucket_id: bytes, job_id: bytes) -> ReplyStatus:
        """The row has the request."""
        return ReplyStatus.OK

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        """There is no bucket."""
        return ReplyStatus.NO_BUCKET

    async def recall(self, job_id: bytes, identity: Identity, due_us: int, scan_max: int) -> Recall:
        """Every job that waits can be changed where it is."""
        raise AssertionError("a job in memory needs no recall")

    async def hint(self, bucket_id: bytes) -> None:
        """Nothing waits for a hint."""

    async def finished(self) -> AsyncIterator[bytes]:
        """No news: waits look at the rows."""
        yield b""
        await asyncio.Event().wait()
