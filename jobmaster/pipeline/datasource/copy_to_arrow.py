"""Rows of a COPY as Arrow batches, through a bounded buffer.

The connection runs in a thread with an event loop of its own: the server sends the next block while the last one is parsed.
At most ``_BLOCKS`` blocks wait, so a slow reader slows the server down and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobmaster.clock import monotonic_us
from jobmaster.master.history.export import DELIMITER, NULL, QUOTE
from jobmaster.model.errors import Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

Output = Callable[[bytes], Coroutine[Any, Any, None]]
_BLOCKS = 3
_TURN_SECONDS = 0.5
_BLOCK_US = 1_000_000
"""A block that is not full is passed on after so long: a slow COPY would fill one in minutes."""


class _Stopped(Exception):
    """The reader has stopped."""


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a type of Spark's DDL."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return types[kind]


class CopyStream:
    """One COPY.

    Args:
        copy: runs the COPY and passes whole rows to its argument. Where it waits between rows it passes empty portions, so
            that it ends soon after its reader.
        block_bytes: bytes of text that are parsed at once.
    """

    def __init__(self, copy: Callable[[Output], Coroutine[Any, Any, None]], block_bytes: int) -> None:
        self._copy = copy
        self._block_bytes = block_bytes
        self._blocks: queue.Queue[bytes | Exception | None] = queue.Queue(_BLOCKS)
        self._stop = threading.Event()

    def batches(self, schema: pa.Schema, what: str) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of about ``block_bytes`` of text each.

        Raises:
            JobMasterError: an error of ``copy``, after the batches that preceded it.
        """
        thread = threading.Thread(target=self._run, name="jobmaster-copy", daemon=True)
        thread.start()
        parse = _parser(schema, what)
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

    def _run(self) -> None:
        try:
            asyncio.run(self._gather())
            self._put(None)
        except _Stopped:
            pass
        except Exception as error:
            with suppress(_Stopped):
                self._put(error)

    async def _gather(self) -> None:
        gathered: list[bytes] = []
        size = 0
        put_us = monotonic_us()

        async def output(rows: bytes) -> None:
            nonlocal size, put_us
            if self._stop.is_set():
                raise _Stopped
            if rows:
                gathered.append(rows)
                size += len(rows)
            if size >= self._block_bytes or (size and monotonic_us() - put_us >= _BLOCK_US):
                self._put(b"".join(gathered))
                gathered.clear()
                size, put_us = 0, monotonic_us()

        await self._copy(output)
        if gathered:
            self._put(b"".join(gathered))

    def _put(self, block: bytes | Exception | None) -> None:
        """Put a block into the buffer. Blocks this thread's loop: until there is room, a pace is not looked at, either."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._blocks.put(block, timeout=_TURN_SECONDS)
                return
        raise _Stopped


def _parser(schema: pa.Schema, what: str) -> Callable[[bytes], Iterator[pa.RecordBatch]]:
    import pyarrow as pa
    from pyarrow import csv

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
            raise Unavailable(f"the rows of {what} cannot be read: {error}") from error
        yield from table.to_batches()

    return batches
