"""From HELD into a bucket, and back when the bucket has no copy."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.master import verdicts
from jobmaster.master.batches import Batch, Sent, columns
from jobmaster.master.connection import Calls, to_us
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Onboarded, Written


class Onboarding:
    """``jobmaster.ports.Onboarding`` on PostgreSQL."""

    _data: Calls

    async def onboard(self, fence: Fence, lane: str, priority: int, horizon_seconds: float, limit: int) -> Onboarded:
        """The oldest due-soon HELD rows become ASSIGNED to the bucket, under its lock, SKIP LOCKED."""
        rows = await self._data.tell("jobs/onboard", *fence, lane, priority, horizon_seconds, limit)
        entries = [
            Entry(id_, token, handler, args, to_us(due), headers, attempt, rescues)
            for _, id_, token, handler, args, due, headers, attempt, rescues in rows
            if id_ is not None
        ]
        return Onboarded(rows[0]["bucket_ok"], entries, len(entries) == limit)

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        """``(id, token)`` ASSIGNED in this bucket -> HELD, by identity."""

        async def send(some: Sequence[tuple[bytes, int]]) -> Sent:
            ids, tokens = columns(some)
            rows = await self._data.tell(
                "jobs/release", fence.bucket_id, fence.epoch, ids, tokens, min(ids), max(ids), ids=ids
            )
            cancelled = [row["id"] for row in rows if row["state"] == JobState.CANCELLED]
            return Sent([row["id"] for row in rows], cancelled=cancelled)

        def judge(row: tuple[bytes, int], found: verdicts.Found) -> verdicts.Verdict:
            if found.state == JobState.PROCESSING:
                return verdicts.Verdict.REFUSED  # it runs: somebody has the copy after all
            return verdicts.held(row[1], fence.bucket_id, fence.epoch, found)

        return await Batch(self._data, "jobs/release", send, judge, bucket_id=fence.bucket_id, rowless=False).write(
            identities
        )
