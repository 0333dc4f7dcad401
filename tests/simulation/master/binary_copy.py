"""A binary COPY read back: what the real server makes of the bytes that the product sends."""

from __future__ import annotations

from struct import Struct
from typing import Any

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_COUNT, _SIZE = Struct("!h"), Struct("!i")
_NUMBERS = {2: Struct("!h"), 4: Struct("!i"), 8: Struct("!q")}
_TEXTS = frozenset({"state", "lane", "handler"})
_BYTES = frozenset({"id", "bucket_id", "args", "headers", "result", "error"})


def rows_of(data: bytes, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows in column order; a time is the driver's tuple of one number."""
    assert data.startswith(_SIGNATURE), "a COPY without its signature"
    place = len(_SIGNATURE) + 8
    rows: list[tuple[Any, ...]] = []
    while True:
        (count,) = _COUNT.unpack_from(data, place)
        place += 2
        if count < 0:
            assert place == len(data), "bytes after the end of a COPY"
            return rows
        assert count == len(columns)
        values: list[Any] = []
        for column in columns:
            (size,) = _SIZE.unpack_from(data, place)
            place += 4
            raw = None if size < 0 else data[place : place + size]
            place += max(size, 0)
            values.append(_value(column, raw))
        rows.append(tuple(values))


def _value(column: str, raw: bytes | None) -> Any:
    if raw is None or column in _BYTES:
        return raw
    if column in _TEXTS:
        return raw.decode()
    (number,) = _NUMBERS[len(raw)].unpack(raw)
    return (number,) if column == "due_at" else number
