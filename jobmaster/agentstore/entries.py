"""Entries as the store holds them, decoded without ever failing.

A copy that cannot be decoded must neither be lost nor stop the bucket it lies in: the next claim would meet it again,
and so would every rescuer. It therefore becomes a job of a handler that no agent has, with its id (read at the fixed
offset where the server functions read it) and all its bytes in the arguments, and goes the way of every job without a
handler.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.codec import ID_AT, decode_entries, decode_entry
from jobmaster.model.job import Entry

UNDECODABLE_HANDLER = "jobmaster.undecodable"


def read_entries(items: Sequence[bytes]) -> list[Entry]:
    """One ``Entry`` for each item, in order."""
    try:
        return decode_entries(items)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [read_entry(item) for item in items]


def read_entry(item: bytes) -> Entry:
    """The entry, or a stand-in of handler ``UNDECODABLE_HANDLER`` that carries the bytes as hexadecimal text."""
    try:
        return decode_entry(item)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        args = msgspec.json.encode({"bytes_hex": item.hex()})
        return Entry(id=item[ID_AT].ljust(16, b"\0"), token=1, handler=UNDECODABLE_HANDLER, args=args)
