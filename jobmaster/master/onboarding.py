"""From HELD into a bucket, and back when the bucket has no copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobmaster.master import verdicts
from jobmaster.master.batches import Batch, Sent, columns
from jobmaster.master.connection import Calls, to_us
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Onboarded, Written

_LEAPS_MAX = 16
"""Batches in a row that may begin where the last one began."""


class Cursor(NamedTuple):
    """Where the next batch of a lane and priority begins to read."""

    due_us: int
    leaps: int


_FROM_THE_OLDEST = Cursor(0, 0)


class Onboarding:
    """``jobmaster.ports.Onboarding`` on PostgreSQL.

    While a backlog is drained batch after batch, each begins at the due time where the last one began instead of reading
    over all the dead index entries before it (a long transaction elsewhere may pin them for hours). Older rows that come
    back meanwhile wait for the next batch that begins at the start: after 16 batches, or as soon as one is not full.
    """

    _data: Calls
    _cursors: dict[tuple[str, int], Cursor]

    async def onboard(
        self,
        fence: Fence,
        lane: str,
        priority: int,
        horizon_seconds: float,
        limit: int,
        handlers: Sequence[str] | None = None,
    ) -> Onboarded:
        """The oldest due-soon HELD rows become ASSIGNED to the bucket, under its lock, SKIP LOCKED."""
        cursor = self._cursors.pop((lane, priority), _FROM_THE_OLDEST)
        rows = await self._data.tell(
            "jobs/onboard", *fence, lane, priority, horizon_seconds, limit, cursor.due_us, handlers
        )
        entries = [
            Entry(id_, token, handler, args, to_us(due), headers, attempt, rescues)
            for _, id_, token, handler, args, due, headers, attempt, rescues in rows
            if id_ is not None
        ]
        full = len(entries) == limit
        if full and cursor.leaps < _LEAPS_MAX:
            oldest = min(entry.due_us for entry in entries)
            self._cursors[lane, priority] = Cursor(oldest, cursor.leaps + 1)
        # A batch that began further on and was not full says nothing about what lies before it.
        return Onboarded(rows[0]["bucket_ok"], entries, full or cursor.leaps > 0)

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
