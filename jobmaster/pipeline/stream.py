"""Stream read: what was recorded since the last batch, by transaction.

The offset is a transaction: everything below it has ended and was delivered. The highest number or time seen would not do:
one transaction takes number 1, another takes 2 and commits first, and a reader that goes on from 2 never sees 1. So a
transaction that stays open holds every stream back; ``lag`` in the offsets tells.

The number of the transaction is the row's own ``xmin``, which costs writers nothing; a poll reads the attached ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jobmaster.master.export import cut_window, horizon, open_scan
from jobmaster.model.errors import Refused
from jobmaster.pipeline.reader import IdRange, ReadPlan, ranges, read_range
from jobmaster.pipeline.tables import RECORDED

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
_REACH = 1 << 31
"""Rows know the lower half of the number of their transaction only: no farther back than this can be told apart."""
_FIRST = 3
"""Lower numbers have a meaning of their own."""


class JobMasterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delivers each recorded row once. Made anew for every batch, so it keeps nothing but the goal of ``AvailableNow``."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self._goal: int | None = None

    def initialOffset(self) -> Offset:
        """From the first row there is, or from now."""
        now = self._horizon(0)
        first = now["xid"] if self.plan.from_now else max(_FIRST, now["xid"] - _REACH)
        return {"xid": first, "at_us": now["now_us"] if self.plan.from_now else 0, "system": now["system"]}

    def getDefaultReadLimit(self) -> ReadLimit:
        """As option ``maxRowsPerBatch`` says."""
        rows = self.plan.rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing beyond what has ended by now."""
        self._goal = self._horizon(0)["xid"]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch goes; ``start`` itself when there is nothing new.

        Raises:
            Refused: the server is another one than that of the checkpoint, or rows were dropped before they were read.
        """
        now = self._horizon(int(start["at_us"]))
        if now["system"] != start["system"]:
            raise Refused(
                "the master is another server than the one this stream has read so far: its transactions begin anew",
                hint="start the stream with a new checkpoint, and remove what comes twice by id",
            )
        if now["lost"] and start["at_us"]:
            raise Refused(
                f"{now['lost']} ranges of history were dropped before this stream had read them",
                hint="read them from the lake, and start the stream with a new checkpoint",
            )
        begin, end = int(start["xid"]), now["xid"]
        if self._goal is not None:
            end = min(end, self._goal)
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxRows):
            end = asyncio.run(self._cut(begin, end, limit.max_rows))
        # The time is that of the poll only when everything up to it is in.
        at_us = now["now_us"] if end == now["xid"] else start["at_us"]
        return {"xid": end, "at_us": at_us, "system": now["system"]}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of ids, each with the transactions of the batch."""
        window = (int(start["xid"]), int(end["xid"]))
        if window[0] >= window[1]:
            return []
        return [IdRange(low, high, window) for low, high in ranges(self.plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range of one batch."""
        return read_range(self.plan, partition)

    def _horizon(self, at_us: int) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            connection = await open_scan(self.plan.place.opener())
            try:
                return await horizon(connection, at_us)
            finally:
                connection.terminate()

        return asyncio.run(ask())

    async def _cut(self, begin: int, end: int, rows: int) -> int:
        selection = self.plan.selection
        connection = await open_scan(self.plan.place.opener())
        try:
            values = selection.values(selection.low, selection.high)
            return await cut_window(connection, RECORDED[selection.table], (begin, end), values, rows)
        finally:
            connection.terminate()
