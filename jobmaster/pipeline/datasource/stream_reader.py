"""Stream reads: rows recorded since the last batch, by transaction.

The offset is a transaction id: every lower transaction has ended and was delivered. The highest sequence number or time seen
is no safe offset: transaction A takes number 1, B takes 2 and commits first, and a reader that continues after 2 misses 1.
The consequence: a transaction that stays open holds every stream back.

The transaction id is the row's own ``xmin``, which costs writers nothing; a poll reads the attached ranges. A row that was
moved afterwards has the id in a column, so it is not delivered again.

Rows dropped before they were read are an error, never a gap: the manifest records for each dropped range the last transaction
that recorded a row of it. Every task reads the manifest while it holds a lock that prevents drops of ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jobmaster.master.driver.connection import Connection
from jobmaster.master.history.export import cut_window, horizon, newest, open_scan
from jobmaster.model.errors import Refused
from jobmaster.pipeline.datasource.batch_reader import IdRange, ReadPlan, ranges, read_range
from jobmaster.pipeline.datasource.range_scan import TransactionWindow, check_window
from jobmaster.pipeline.datasource.tables import RECORDED

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
_T = TypeVar("_T")
_REACH = 1 << 31
"""Rows have only the lower 32 bits of the transaction id: older transactions are ambiguous."""
_FIRST = 3
"""First normal transaction id of PostgreSQL."""


class JobMasterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delivers each recorded row once. Its only state is the goal of ``AvailableNow``, and what the last poll has found."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self._goal: int | None = None
        self._newest: Offset | None = None

    def initialOffset(self) -> Offset:
        """The first recorded row, the current moment, or the given offset."""
        start = self.plan.start
        if start.offset is not None:
            return dict(start.offset)
        now, system = asyncio.run(self._on_connection(horizon))
        first = now if start.from_now else max(_FIRST, now - _REACH)
        return {"xid": first, "began": now, "system": system}

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
            Refused: the server is not that of the checkpoint, or rows were dropped before they were read.
        """
        now, system = asyncio.run(self._on_connection(self._poll))
        if system != start["system"]:
            raise Refused(
                "the master is another server than the one this stream has read so far: its transactions begin again",
                hint="start the stream with a new checkpoint, and remove what comes twice by id",
            )
        end = now if self._goal is None else min(now, self._goal)
        window = _window(start, {"xid": end})
        asyncio.run(self._on_connection(partial(check_window, selection=self.plan.selection, window=window)))
        if window.end <= window.first:
            return start
        if isinstance(limit, ReadMaxRows):
            end = asyncio.run(self._cut(window.first, end, limit.max_rows))
        return {**start, "xid": end}

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
        xid, seconds = await newest(connection)
        self._newest = {"xid": xid, "readable_xid": now, "oldest_write_seconds": seconds, "system": system}
        return now, system

    async def _on_connection(self, query: Callable[[Connection], Coroutine[Any, Any, _T]]) -> _T:
        connection = await open_scan(self.plan.cluster.reading_factory(), seconds=self.plan.statement_seconds)
        try:
            return await query(connection)
        finally:
            connection.terminate()

    async def _cut(self, begin: int, end: int, rows: int) -> int:
        selection = self.plan.selection

        async def cut(connection: Connection) -> int:
            values = selection.values(selection.low, selection.high)
            return await cut_window(connection, RECORDED[selection.table], (begin, end), values, rows)

        return await self._on_connection(cut)


def _window(start: Offset, end: Offset) -> TransactionWindow:
    # A checkpoint of an older version has no "began": every dropped range counts.
    return TransactionWindow(int(start.get("began", 0)), int(start["xid"]), int(end["xid"]))
