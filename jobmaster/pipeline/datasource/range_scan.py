"""Reads one range of a table as Arrow batches. Used by batch reads and stream reads; needs no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from jobmaster.master.driver.connection import Connection
from jobmaster.master.history.export import copy_rows, count_rows, open_scan, refuse_dropped
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.pipeline.datasource.cluster_ref import ClusterRef
from jobmaster.pipeline.datasource.copy_to_arrow import CopyStream, Output, arrow_type
from jobmaster.pipeline.datasource.derived_columns import SOURCES, derived, to_derive
from jobmaster.pipeline.datasource.pacing import UNLIMITED, Pace, paced
from jobmaster.pipeline.datasource.selection import EARLIEST, Selection
from jobmaster.pipeline.datasource.tables import RECORDED, Partitioning, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_ID = "id"
_ROWS_WITHOUT_VALUES = 250_000
"""In one batch."""
Check = Callable[[Connection], Coroutine[Any, Any, None]]


def arrow_schema(selection: Selection) -> pa.Schema:
    """The schema of the batches, as Spark expects it."""
    import pyarrow as pa

    table = table_of(selection.table)
    return pa.schema([pa.field(name, arrow_type(table.type_of(name))) for name in selection.columns])


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the schema. Those that the batch lacks are null: an earlier version wrote its file."""
    import pyarrow as pa

    known = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in known else pa.nulls(len(batch), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TransactionWindow(NamedTuple):
    """Part of a stream: the rows that a range of transactions recorded."""

    began: int
    """First transaction that was open when the stream began."""
    first: int
    end: int
    """First transaction after the range."""
    since: datetime = EARLIEST
    """No row that they recorded was changed before that: what is older has the number of an earlier turn of the counter."""


async def check_window(connection: Connection, selection: Selection, window: TransactionWindow) -> None:
    """Keep the rows of a window in the master while the transaction is open.

    Raises:
        Refused: some of them were dropped before they were read.
    """
    if table_of(selection.table).partitioning is Partitioning.JOB_ID:
        ids = (selection.low, selection.high)
        await refuse_dropped(connection, window.began, window.first, ids, jobs=selection.table == "jobs")


class RangeScan:
    """Reads ranges of one selection.

    Args:
        seconds: how long one range may take; 0: no limit.
        snapshot: of all tasks; ``None``: every task reads a snapshot of its own.
        window: of a stream: the transactions to read.
        pace: how fast it takes rows.
    """

    def __init__(
        self,
        cluster: ClusterRef,
        selection: Selection,
        block_bytes: int,
        *,
        seconds: int = 0,
        snapshot: str | None = None,
        window: TransactionWindow | None = None,
        pace: Pace = UNLIMITED,
    ) -> None:
        self._cluster = cluster
        self._selection = selection
        self._block_bytes = block_bytes
        self._seconds = seconds
        self._snapshot = snapshot
        self._window = window
        self._pace = pace

    def batches(self, low: UUID, high: UUID, check: Check | None = None) -> Iterator[pa.RecordBatch]:
        """The range from ``low`` (inclusive) to ``high`` (exclusive).

        Args:
            check: is awaited first, in the transaction of the scan; what it raises ends the scan. Of a snapshot that others
                share it gets a connection of its own, whose transaction is open as long: it must see what is there by now.

        Raises:
            Unavailable: the connection was lost. The task fails, and Spark repeats it.
            Refused: the snapshot no longer exists, or the range took too long.
        """
        import pyarrow as pa

        selection = self._selection
        wanted = arrow_schema(selection)
        if selection.counted:
            yield from _rows_without_values(wanted, self._counted(low, high, check))
            return
        found = _derived_columns(selection)
        asked = arrow_schema(selection._replace(columns=queried_columns(selection)))

        async def copy(output: Output) -> None:
            async with (
                self._scanning(check) as connection,
                paced(output, self._pace, self._cluster) as (slowed, pauses),
            ):
                name, values = await self._statement(connection, low, high)
                await copy_rows(connection, name, asked.names, values, slowed, pauses)

        for batch in CopyStream(copy, self._block_bytes).batches(asked, f"table {selection.table!r}"):
            if asked.names == wanted.names:
                yield batch
                continue
            columns = [derived(batch, name) if name in found else batch.column(name) for name in wanted.names]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _counted(self, low: UUID, high: UUID, check: Check | None) -> int:
        async def count() -> int:
            async with self._scanning(check) as connection:
                name, values = await self._statement(connection, low, high)
                return await count_rows(connection, name, values)

        return asyncio.run(count())

    @asynccontextmanager
    async def _scanning(self, check: Check | None) -> AsyncIterator[Connection]:
        """A connection in the transaction of a scan, which has passed the check."""
        factory = self._cluster.reading_factory()
        connection = await open_scan(factory, self._snapshot, seconds=self._seconds)
        guard: Connection | None = None
        try:
            if check is not None and self._snapshot is None:
                await check(connection)
            elif check is not None:
                guard = await open_scan(factory, seconds=self._seconds)
                await check(guard)
            yield connection
        except Unavailable as error:
            if not error.timed_out:
                raise
            raise Refused(
                f"a task has read table {self._selection.table!r} for {self._seconds} s, the limit of maxStatementSeconds",
                hint="read with more numPartitions, or select less; a longer snapshot keeps vacuum waiting"
                if self._pace.unlimited
                else "while others write a read is slow: read a standby (readDsn), or give a higher rowsPerSecond",
            ) from error
        finally:
            connection.terminate()
            if guard is not None:
                guard.terminate()

    async def _statement(self, connection: Connection, low: UUID, high: UUID) -> tuple[str, list[Any]]:
        """Name and parameters of the statement of a range."""
        selection, window = self._selection, self._window
        if window is None:
            return selection.table, selection.values(low, high)
        await check_window(connection, selection, window)
        return RECORDED[selection.table], [window.first, window.end, window.since, *selection.values(low, high)]


def _rows_without_values(schema: pa.Schema, count: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    while count > 0:
        rows = min(count, _ROWS_WITHOUT_VALUES)
        yield pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
        count -= rows


def queried_columns(selection: Selection) -> tuple[str, ...]:
    """The columns of the statement: those of the selection, with their sources in place of those that are derived."""
    columns = tuple(name for name in selection.columns if name not in _derived_columns(selection))
    sources = (source for name in selection.columns for source in _derived_columns(selection).get(name, ()))
    return tuple(dict.fromkeys((*columns, *sources))) or (_ID,)


def _derived_columns(selection: Selection) -> dict[str, tuple[str, ...]]:
    """Columns that are not asked from the server, and their sources."""
    return {name: SOURCES[name] for name in to_derive(selection.columns)} if selection.table == "jobs" else {}
