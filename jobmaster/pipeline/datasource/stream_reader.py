"""Stream reads: rows recorded since the last batch, by transaction.

The offset is a transaction id: every lower transaction has ended and was delivered. The highest sequence number or time seen
is no safe offset: transaction A takes number 1, B takes 2 and commits first, and a reader that continues after 2 misses 1.
The consequence: a transaction that stays open holds every stream back.

The transaction id is the row's own ``xmin``, which costs writers nothing; a poll reads the attached ranges. A row that was
moved afterwards has the id in a column, so it is not delivered again.

``xmin`` has 32 bits, so a row that an earlier turn of the counter has recorded looks like a new one. Its time tells them
apart: the offset has a mark, a transaction and the time of the poll that found it. No later transaction changes a row before
that time, less a day for transactions that were open then; and a whole turn takes longer than a day.

Rows dropped before they were read are an error, never a gap: the manifest records for each dropped range the last transaction
that recorded a row of it. Every task reads the manifest while it holds a lock that prevents drops of ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jobmaster.master.driver.connection import Connection
from jobmaster.master.history.export import cut_window, horizon, newest, open_scan
from jobmaster.model.errors import Refused
from jobmaster.pipeline.datasource.batch_reader import IdRange, ReadPlan, ranges, read_range
from jobmaster.pipeline.datasource.range_scan import TransactionWindow, check_window
from jobmaster.pipeline.datasource.selection import EARLIEST
from jobmaster.pipeline.datasource.tables import RECORDED

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
_T = TypeVar("_T")
_REACH = 1 << 31
"""How far back the first batch of a stream begins: rows have only the lower 32 bits of the transaction id."""
_LAG_MAX = 3 << 30
"""Transactions from the mark to the newest one. A quarter of a turn is left to the rows of the turn before: more than a day
at twelve thousand transactions a second."""
_OPEN = timedelta(days=1)
"""How long a transaction may stay open that records an end."""
_FIRST = 3
"""First normal transaction id of PostgreSQL."""


class JobMasterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delivers each recorded row once. Its only state is the goal of ``AvailableNow``, and what the last poll has found."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self._goal: int | None = None
        self._newest: Offset | None = None
        self._now_us = 0

    def initialOffset(self) -> Offset:
        """The first recorded row, the current moment, or the given offset."""
        start = self.plan.start
        if start.offset is not None:
            return dict(start.offset)
        now, system = asyncio.run(self._on_connection(self._poll))
        first = now if start.from_now else max(_FIRST, now - _REACH)
        # Of the rows that are there by now each is asked for once, whatever its time is.
        mark = {"mark_xid": first, "mark_us": self._now_us if start.from_now else 0}
        return {"xid": first, "began": now, "system": system, **mark, "next_xid": now, "next_us": self._now_us}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of option ``maxRowsPerTrigger``."""
        rows = self.plan.rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the goal: transactions that have ended by now."""
        self._goal, _ = asyncio.run(self._on_connection(horizon))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """End of the next batch; ``start`` itself when there is nothing new.

        Raises:
            Refused: the server is not that of the checkpoint, rows were dropped before they were read, or the stream is so
                far behind that the transactions of rows are ambiguous.
        """
        now, system = asyncio.run(self._on_connection(self._poll))
        if system != start["system"]:
            raise Refused(
                "the master is another server than the one this stream has read so far: its transactions begin again",
                hint="start the stream with a new checkpoint, and remove what comes twice by id",
            )
        self._refuse_lag(start)
        end = now if self._goal is None else min(now, self._goal)
        window = _window(start, {"xid": end})
        asyncio.run(self._on_connection(partial(check_window, selection=self.plan.selection, window=window)))
        if window.end <= window.first:
            return start
        if isinstance(limit, ReadMaxRows):
            end = asyncio.run(self._cut(window, limit.max_rows))
        return {**start, "xid": end, **self._marks(start, end, now)}

    def reportLatestOffset(self) -> Offset | None:
        """The newest transaction at the last poll, for the progress of the query: what the stream lags behind it."""
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of ids, with the transactions of the batch."""
        window = _window(start, end)
        if window.first >= window.end:
            return []
        return [IdRange(low, high, window) for low, high in ranges(self.plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range of one batch."""
        return read_range(self.plan, partition)

    async def _poll(self, connection: Connection) -> tuple[int, str]:
        now, system = await horizon(connection)
        xid, seconds, self._now_us = await newest(connection)
        self._newest = {"xid": xid, "readable_xid": now, "oldest_write_seconds": seconds, "system": system}
        return now, system

    async def _on_connection(self, query: Callable[[Connection], Coroutine[Any, Any, _T]]) -> _T:
        connection = await open_scan(self.plan.cluster.reading_factory(), seconds=self.plan.statement_seconds)
        try:
            return await query(connection)
        finally:
            connection.terminate()

    def _marks(self, start: Offset, end: int, now: int) -> Offset:
        """The mark of the next batch, and the poll that becomes the mark once the stream has passed its transaction."""
        if "next_xid" not in start:  # a checkpoint of an older version
            return {"next_xid": now, "next_us": self._now_us}
        if end < start["next_xid"]:
            return {}
        return {"mark_xid": start["next_xid"], "mark_us": start["next_us"], "next_xid": now, "next_us": self._now_us}

    def _refuse_lag(self, start: Offset) -> None:
        assert self._newest is not None
        lag = self._newest["xid"] - start.get("mark_xid", start["xid"])
        if lag > _LAG_MAX:
            raise Refused(
                f"this stream is {lag} transactions behind: rows have 32 bits of their transaction, so new ones and old ones "
                "look alike",
                hint="start the stream with a new checkpoint, and remove what comes twice by id",
            )

    async def _cut(self, window: TransactionWindow, rows: int) -> int:
        selection = self.plan.selection

        async def cut(connection: Connection) -> int:
            values = [window.since, *selection.values(selection.low, selection.high)]
            return await cut_window(connection, RECORDED[selection.table], (window.first, window.end), values, rows)

        return await self._on_connection(cut)


def _window(start: Offset, end: Offset) -> TransactionWindow:
    # A checkpoint of an older version has no "began": every dropped range counts.
    window = TransactionWindow(int(start.get("began", 0)), int(start["xid"]), int(end["xid"]))
    if not start.get("mark_us"):
        return window
    return window._replace(since=EARLIEST + timedelta(microseconds=start["mark_us"]) - _OPEN)
