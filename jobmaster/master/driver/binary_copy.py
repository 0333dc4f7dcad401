"""Outcomes as the bytes of a binary COPY. The hot path of the whole system ends here.

The driver's own encoder takes a row of Python objects and looks up a codec for each of its 17 values. Of one batch most rows
differ only in id, arguments, waiting and running time, so the columns between are encoded once for each combination that
occurs and taken from a table afterwards: half the CPU for each row (0.35 instead of 0.8 microseconds, the making of the
driver's row included).

The format (PostgreSQL, "Binary Format" of COPY): a signature; per row the number of fields, then each field as its length
and its bytes, length -1 for NULL; -1 at the end. Numbers are big-endian; an enum is its label; ``timestamptz`` is in
microseconds since 2000.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from struct import Struct
from typing import Any

from jobmaster.model.job import FinalRow

COLUMNS = (
    "id", "state", "priority", "lane", "handler", "token", "bucket_id", "bucket_epoch", "attempt", "rescues", "due_at",
    "waited_us", "ran_us", "args", "headers", "result", "error",
)  # fmt: skip
"""``FinalRow`` in its own order; ``cancel_requested`` and ``changed_at`` have defaults."""
HELD_COLUMNS = (
    "id", "state", "priority", "lane", "handler", "token", "due_at", "changed_at", "args", "headers",
)  # fmt: skip
"""Of rows that wait in the master and do not expire, as ``intake/insert_held`` makes them. ``changed_at`` is given: its
default is the time of each row, and for such a default PostgreSQL would write the rows of a COPY one by one."""
EPOCH_2000_US = 946_684_800_000_000
_PIECE_PARTS = 3000
"""Parts of one message: 500 rows."""
BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
_HEAD = Struct("!hi").pack(len(COLUMNS), 16)
HELD_HEAD = Struct("!hi").pack(len(HELD_COLUMNS), 16)
"""Of each row, before its id."""
_NULL = b"\xff\xff\xff\xff"
_NOTHING_MORE = bytes(4) + _NULL + _NULL
"""No headers, no result, no error."""
_size = Struct("!i").pack
_int2, _int4, _int8 = Struct("!ih").pack, Struct("!ii").pack, Struct("!iq").pack
_times = Struct("!iqiqi").pack


def encode(rows: Sequence[FinalRow]) -> list[bytes]:
    """One whole COPY, in parts that are to be sent one after the other (the arguments are not copied here).

    Raises:
        struct.error, UnicodeEncodeError: a value that its column cannot hold; which row it was, the caller must find out.
    """
    same: dict[tuple[Any, ...], bytes] = {}
    parts: list[bytes] = [BEGIN]
    for row in rows:
        alike = row[1:11]
        middle = same.get(alike)
        if middle is None:
            middle = same[alike] = _middle(*alike)
        args = row[13]
        if row[14] or row[15] is not None or row[16] is not None:
            rest = _bytes(row[14]) + _bytes(row[15]) + _bytes(row[16])
        else:
            rest = _NOTHING_MORE
        parts += (_HEAD, row[0], middle, _times(8, row[11], 8, row[12], len(args)), args, rest)
    parts.append(END)
    return parts


async def source(parts: list[bytes]) -> AsyncIterator[bytes]:
    """In the form that the driver takes: each message that it sends is one piece. Pieces, because arguments may be large."""
    for start in range(0, len(parts), _PIECE_PARTS):
        yield b"".join(parts[start : start + _PIECE_PARTS])


def held_middle(priority: int, lane: str, handler: str) -> bytes:
    """The columns between the id and the due time of ``HELD_COLUMNS``."""
    texts = _bytes(b"HELD"), _int2(2, priority), _bytes(lane.encode()), _bytes(handler.encode()), _int4(4, 1)
    return b"".join(texts)


def time_field(us: int) -> bytes:
    """A time (microseconds since 1970) as a field."""
    return _int8(8, us - EPOCH_2000_US)


def _middle(state: str, priority: int, lane: str, handler: str, token: int, bucket_id: bytes, *numbers: int) -> bytes:
    """The columns between the id and the times."""
    epoch, attempt, rescues, due_us = numbers
    return b"".join(
        (
            _bytes(state.encode()), _int2(2, priority), _bytes(lane.encode()), _bytes(handler.encode()), _int4(4, token),
            _bytes(bucket_id), _int8(8, epoch), _int4(4, attempt), _int4(4, rescues),
            _int8(8, due_us - EPOCH_2000_US) if due_us else _NULL,
        )
    )  # fmt: skip


def _bytes(value: bytes | None) -> bytes:
    return _NULL if value is None else _size(len(value)) + value
