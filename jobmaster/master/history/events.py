"""Events that the master has recorded, by transaction.

The place of a reader is a transaction below which every other one has ended, as of the streams of ``jobmaster.pipeline``, and
for their reason: the highest number or the latest time that was seen is no place to continue from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.codec import decode_error
from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, ConnectionPool, Row, StatementRunner, to_us
from jobmaster.master.driver.statements import sql
from jobmaster.master.history.export import SCANNING, refuse_dropped
from jobmaster.model.errors import Refused
from jobmaster.model.event import (
    ENDED,
    BucketEvent,
    ClusterEvent,
    EventKind,
    JobEvent,
    OperatorEvent,
    ScheduleEvent,
)
from jobmaster.model.job import JobState, Priority
from jobmaster.ports import ChangedJob, EventPage, EventPlace

_LOWEST, _HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
_FIRST = 3
"""First normal transaction of PostgreSQL."""
_REACH = (1 << 31) - (1 << 20)
"""Rows have only the lower 32 bits of a transaction, so older ones are ambiguous."""
_READ_SECONDS = 600.0
_CHANGED = {
    JobState.PROCESSING: EventKind.JOB_STARTED,
    JobState.HELD: EventKind.JOB_WAITS,
    **{state: EventKind(kind) for kind, state in ENDED.items()},
}


class Events:
    """``jobmaster.ports.ClientEvents`` on PostgreSQL.

    Args:
        data: short statements.
        scans: statements that read a range as a whole; ``None``: there are none.
    """

    def __init__(self, data: StatementRunner, scans: ConnectionPool | None) -> None:
        self._data = data
        self._scans = scans

    async def place(self, *, start: bool) -> EventPlace:
        """The present end of the stream; ``start``: its beginning."""
        async with self._transaction("export/horizon") as connection:
            now = await _horizon(connection)
        first = max(_FIRST, now["xid"] - _REACH) if start else now["xid"]
        return EventPlace(now["system"], now["timeline"], now["xid"], first, "")

    async def read(
        self, after: EventPlace, kinds: Sequence[str] | None, handlers: Sequence[str] | None, limit: int
    ) -> EventPage:
        """Events that follow a place, at most ``limit``."""
        async with self._transaction("events/recorded") as connection:
            for jobs in (True, False):
                await refuse_dropped(connection, after.began, after.xid, (_LOWEST, _HIGHEST), jobs=jobs)
            now = await _horizon(connection)
            _check(after, now)
            rows = await connection.fetch(
                sql("events/recorded"), after.xid, now["xid"], after.key, kinds, handlers, limit, timeout=_READ_SECONDS
            )
        events = [(_place(after, row), _event(row)) for row in rows]
        more = len(rows) == limit
        end = events[-1][0] if more else after._replace(xid=max(now["xid"], after.xid), key="")
        if not more and now["xid"] <= after.xid:
            end = after
        return EventPage(events, end, more)

    async def changed(self, job_ids: Sequence[bytes]) -> list[ChangedJob]:
        """Those of the jobs that have a row, as it is now."""
        if not job_ids:
            return []
        rows = await self._data.read("events/changed", list(job_ids), min(job_ids), max(job_ids))
        return [
            ChangedJob(state, _job_event(_CHANGED[state], row["id"], row, row["state"]))
            for row in rows
            if (state := JobState(row["state"])) in _CHANGED
        ]

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """A transaction for statements that take long and read much; every statement sees a state of its own."""
        assert self._scans is not None, "this master was opened without connections for long reads"
        try:
            async with self._scans.acquire() as connection, connection.transaction():
                await connection.fetch(sql("schema/local_settings"), list(SCANNING), list(SCANNING.values()))
                yield connection
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, name, writes=False) from error


async def _horizon(connection: Connection) -> Row:
    row = await connection.fetchrow(sql("export/horizon"))
    assert row is not None, "the statement has one row"
    return row


def _check(after: EventPlace, now: Row) -> None:
    """Refuse a place from which the stream cannot go on."""
    if now["system"] != after.system:
        raise Refused(
            "the cursor is of another server than this master: its transactions begin again",
            hint="start without a cursor, and remove what comes twice by id",
        )
    if now["timeline"] != after.timeline:
        raise Refused(
            "a standby has taken over since the cursor was made; events that it did not have, or that have taken their "
            "place, would be missed",
            hint="with a synchronous standby nothing is missed: go on with accept_failover=True (--accept-failover)",
        )
    if now["xid"] - after.xid > _REACH:
        raise Refused(
            "the cursor is too old: more than two thousand million transactions have ended since",
            hint="start without a cursor, or at the start",
        )


def _place(after: EventPlace, row: Row) -> EventPlace:
    return after._replace(xid=after.xid + row["distance"], key=row["key"])


def _event(row: Row) -> ClusterEvent:
    kind = EventKind(row["kind"])
    at_us = to_us(row["at"])
    if kind is EventKind.BUCKET_CHANGED:
        return BucketEvent(
            kind=kind, at_us=at_us, bucket_id=row["bucket_id"], state=row["subject"], reason=row["detail"]
        )
    if kind is EventKind.SCHEDULE_FIRED:
        job_id = None if row["job_id"] is None else UUID(bytes=row["job_id"])
        return ScheduleEvent(kind=kind, at_us=at_us, schedule=row["subject"], outcome=row["detail"], job_id=job_id)
    if kind is EventKind.OPERATOR_ACTED:
        act: dict[str, Any] = msgspec.json.decode(row["detail"])
        return OperatorEvent(kind=kind, at_us=at_us, subject=row["subject"], **act)
    return _job_event(kind, row["job_id"], row, row["subject"] or "")


def _job_event(kind: EventKind, job_id: bytes, row: Row, outcome: str) -> JobEvent:
    return JobEvent(
        kind=kind,
        at_us=to_us(row["at"]),
        id_bytes=job_id,
        handler=row["handler"] or "",
        lane=row["lane"] or "",
        priority=None if row["priority"] is None else Priority(row["priority"]),
        token=row["token"],
        attempt=row["attempt"],
        outcome=outcome if kind is EventKind.ATTEMPT_ENDED else "",
        bucket_id=row["bucket_id"],
        waited_us=row["waited_us"],
        ran_us=row["ran_us"],
        headers_json=row["headers"] or b"",
        error=decode_error(row["error"]) if row["error"] else None,
    )
