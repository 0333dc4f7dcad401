"""One range of a table as Arrow batches: the server's COPY on one side, Spark on the other, a bounded buffer between.

The connection runs in a thread with a loop of its own, so that the server sends while the last block is being parsed. At
most ``_BLOCKS`` blocks wait; a slow reader slows the server, whatever the number of rows.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from jobmaster.master.export import DELIMITER, NULL, QUOTE, copy_rows, open_scan
from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.place import Place
from jobmaster.pipeline.selection import Selection
from jobmaster.pipeline.tables import FLAG, INT, LONG, SHORT, TEXT, TIME, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCKS = 3
_TURN_SECONDS = 0.5


class _Stopped(Exception):
    """Nobody reads any more."""


def arrow_schema(selection: Selection) -> pa.Schema:
    """The schema of the batches, as Spark expects it."""
    import pyarrow as pa

    types = {
        TEXT: pa.string(),
        SHORT: pa.int16(),
        INT: pa.int32(),
        LONG: pa.int64(),
        FLAG: pa.bool_(),
        TIME: pa.timestamp("us", "UTC"),
    }
    table = table_of(selection.table)
    return pa.schema([pa.field(name, types[table.type_of(name)]) for name in selection.columns])


class Scan:
    """Reads one range."""

    def __init__(
        self,
        place: Place,
        selection: Selection,
        block_bytes: int,
        *,
        snapshot: str | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        """``window``: only what the transactions from the first one on, below the second, have recorded."""
        self._place = place
        self._selection = selection
        self._snapshot = snapshot
        self._window = window
        self._block_bytes = block_bytes
        self._blocks: queue.Queue[bytes | Exception | None] = queue.Queue(_BLOCKS)
        self._stop = threading.Event()

    def batches(self, low: UUID, high: UUID) -> Iterator[pa.RecordBatch]:
        """The range in batches of about ``block_bytes`` of text each.

        Raises:
            Unavailable: the server went away in the middle. Nothing is read twice: the task fails, and Spark repeats it.
        """
        thread = threading.Thread(target=self._run, args=(low, high), name="jobmaster-scan", daemon=True)
        thread.start()
        parse = _parser(self._selection)
        try:
            while (block := self._blocks.get()) is not None:
                if isinstance(block, Exception):
                    raise block
                yield from parse(block)
        finally:
            self._stop.set()
            with suppress(queue.Empty):
                while True:
                    self._blocks.get_nowait()
            thread.join()

    def _run(self, low: UUID, high: UUID) -> None:
        try:
            asyncio.run(self._copy(low, high))
            self._put(None)
        except _Stopped:
            pass
        except Exception as error:
            with suppress(_Stopped):
                self._put(error)

    async def _copy(self, low: UUID, high: UUID) -> None:
        gathered: list[bytes] = []
        size = 0

        async def output(rows: bytes) -> None:
            nonlocal size
            gathered.append(rows)
            size += len(rows)
            if size >= self._block_bytes:
                self._put(b"".join(gathered))
                gathered.clear()
                size = 0

        connection = await open_scan(self._place.opener(), self._snapshot)
        try:
            selection, window = self._selection, self._window
            name = selection.table if window is None else f"recorded_{selection.table}"
            values = [*(window or ()), *selection.values(low, high)]
            await copy_rows(connection, name, asked_for(selection), values, output)
        finally:
            connection.terminate()
        if gathered:
            self._put(b"".join(gathered))

    def _put(self, block: bytes | Exception | None) -> None:
        """Hand a block over. Blocks this thread's loop, which has nothing else to do."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._blocks.put(block, timeout=_TURN_SECONDS)
                return
        raise _Stopped


CREATED = "created_at"
"""The time in a job's id. Read out of the id here: the server needs 6 us a row for it, as long as for all the rest."""
_ID = "id"
_ID_CHARS = 36
_TIME_DIGITS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12)


def asked_for(selection: Selection) -> tuple[str, ...]:
    """The columns that the server is asked for: all that are wanted but the time in the id, and the id for that."""
    columns = tuple(name for name in selection.columns if not _from_id(selection, name))
    wants_id = len(columns) < len(selection.columns) and _ID not in columns
    return (*columns, _ID) if wants_id or not columns else columns


def _from_id(selection: Selection, column: str) -> bool:
    return selection.table == "jobs" and column == CREATED


def moments_of(ids: pa.Array) -> pa.Array:
    """The times in some UUIDv7, which are written as text."""
    import numpy as np
    import pyarrow as pa

    _, offsets, data = ids.buffers()
    first = np.frombuffer(offsets, np.int32, 1, ids.offset * 4)[0]
    text = np.frombuffer(data, np.uint8, len(ids) * _ID_CHARS, first).reshape(len(ids), _ID_CHARS)
    digits = text[:, _TIME_DIGITS]
    values = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0")).astype(np.int64)
    milliseconds = values @ (16 ** np.arange(11, -1, -1, dtype=np.int64))
    return pa.array(milliseconds * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))


def _parser(selection: Selection):  # type: ignore[no-untyped-def]  # a function of pyarrow's types, which are not checked
    import pyarrow as pa
    from pyarrow import csv

    wanted = arrow_schema(selection)
    schema = arrow_schema(selection._replace(columns=asked_for(selection)))
    read = csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=1 << 30)
    parse = csv.ParseOptions(delimiter=DELIMITER, quote_char=QUOTE, double_quote=True, newlines_in_values=True)
    convert = csv.ConvertOptions(
        column_types=schema,
        null_values=[NULL],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )

    def batches(block: bytes) -> Iterator[pa.RecordBatch]:
        try:
            table = csv.read_csv(
                pa.BufferReader(block), read_options=read, parse_options=parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            raise Unavailable(f"the rows of table {selection.table!r} cannot be read: {error}") from error
        for batch in table.to_batches():
            if batch.schema != wanted:
                columns = [
                    moments_of(batch.column(_ID)) if _from_id(selection, name) else batch.column(name)
                    for name in selection.columns
                ]
                batch = pa.RecordBatch.from_arrays(columns, schema=wanted)
            yield batch

    return batches
