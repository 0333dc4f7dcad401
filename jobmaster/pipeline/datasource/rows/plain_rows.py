"""Rows of one handler, lane and priority as columns. Most writes have no others, and a loop over rows costs several times as
much.

The bytes of a whole COPY are joined from columns by Arrow. Format: see ``jobmaster.master.driver.binary_copy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.master.driver import binary_copy
from jobmaster.model.job import NewJob

if TYPE_CHECKING:
    import pyarrow as pa

_ID_BYTES = 16
_PIECE_BYTES = 1 << 19
_ESCAPED = bytes(range(0x20)) + b'"\\'
"""Characters with another form in JSON."""
_VERSION_7 = 0x7000
_VARIANT = 1 << 63
_LOW_BITS = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows sorted by id, none twice."""

    handler: str
    lane: str
    priority: int
    id_bytes: bytes
    """Of all ids, one after the other."""
    args: pa.LargeBinaryArray
    headers: pa.LargeBinaryArray
    due_us: Sequence[int] | None
    """0 = at once; ``None``: all of them."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.args)

    def ids(self) -> list[bytes]:
        """16 bytes each."""
        data = self.id_bytes
        return [data[start : start + _ID_BYTES] for start in range(0, len(data), _ID_BYTES)]

    def jobs(self) -> list[NewJob]:
        """The rows one by one."""
        due = self.due_us if self.due_us is not None else [0] * self.count
        texts = zip(self.ids(), self.args.to_pylist(), self.headers.to_pylist(), due, strict=True)
        fixed = self.priority, self.lane, self.handler
        return [NewJob(one, *fixed, args, headers, int(due_us)) for one, args, headers, due_us in texts]

    def only(self, ids: Set[bytes]) -> PlainRows:
        """The rows with these ids."""
        import numpy as np

        own = self.ids()
        chosen = np.array([number for number, one in enumerate(own) if one in ids], np.int64)
        if len(chosen) == len(own):
            return self
        return replace(
            self,
            id_bytes=b"".join([own[number] for number in chosen]),
            args=self.args.take(chosen),
            headers=self.headers.take(chosen),
            due_us=None if self.due_us is None else [self.due_us[number] for number in chosen],
        )

    def copied(self, now_us: int) -> Iterator[bytes]:
        """A COPY of the columns ``binary_copy.HELD_COLUMNS``, in pieces.

        Args:
            now_us: the time of the server: of rows that are due at once, and of all changes.
        """
        import numpy as np
        from pyarrow import compute

        same = binary_copy.held_middle(self.priority, self.lane, self.handler)
        changed = binary_copy.time_field(now_us)
        if self.due_us is None:
            middle = [same + changed + changed]
        else:
            due = np.asarray(self.due_us, np.int64)
            due = np.where(due > 0, due, now_us) - binary_copy.EPOCH_2000_US
            middle = [same + changed[:4], _fixed(due.astype(">i8").tobytes(), 8), changed]
        parts = [
            binary_copy.HELD_HEAD,
            _fixed(self.id_bytes, _ID_BYTES),
            *middle,
            *_sized(self.args),
            *_sized(self.headers),
        ]
        joined = compute.binary_join_element_wise(*map(_column_or_text, parts), _column_or_text(b""))
        data = memoryview(joined.buffers()[2])[: _end(joined)]
        yield binary_copy.BEGIN
        for start in range(0, len(data), _PIECE_BYTES):
            yield bytes(data[start : start + _PIECE_BYTES])
        yield binary_copy.END


def sorted_rows(
    target: tuple[str, str, int], id_bytes: bytes, args: Any, headers: Any, due_us: Any | None
) -> PlainRows:
    """Rows in the order of their ids. Of rows with the same id the first counts.

    Args:
        target: handler, lane and priority.
        due_us: an array of numpy, or ``None``.
    """
    import numpy as np

    ids = np.frombuffer(id_bytes, np.dtype([("high", ">u8"), ("low", ">u8")]))
    high, low = ids["high"].astype(np.uint64), ids["low"].astype(np.uint64)
    order = np.lexsort((low, high))  # keeps the order of equal ones
    if len(order) > 1:
        high, low = high[order], low[order]
        order = order[np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))]
    return PlainRows(
        *target,
        ids[order].tobytes(),
        args.take(order),
        headers.take(order),
        None if due_us is None else due_us[order],
    )


def ids_of_keys(as_of_ms: int, handler: str, keys: Sequence[bytes]) -> bytes:
    """``batch_id`` of each key, one after the other."""
    import numpy as np

    start = handler.encode() + b"\0"
    digests = b"".join([blake2b(start + key, digest_size=10).digest() for key in keys])
    bits = np.frombuffer(digests, np.dtype([("high", ">u2"), ("low", ">u8")]))
    high, low = bits["high"].astype(np.uint64), bits["low"].astype(np.uint64)
    found: Any = np.zeros(len(keys), np.dtype([("time", "u1", 6), ("a", ">u2"), ("b", ">u8")]))
    found["time"] = np.frombuffer(as_of_ms.to_bytes(6, "big"), np.uint8)
    found["a"] = (high & np.uint64(0x3FF)) << np.uint64(2) | low >> np.uint64(62) | np.uint64(_VERSION_7)
    found["b"] = low & np.uint64(_LOW_BITS) | np.uint64(_VARIANT)
    return found.tobytes()


def headers_of_keys(keys: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Headers with nothing but the key.

    Args:
        keys: of UTF-8.
    """
    import pyarrow as pa
    from pyarrow import compute

    data = b"".join(keys)
    if len(data.translate(None, _ESCAPED)) == len(data):
        column = pa.array(keys, pa.large_binary())
        return compute.binary_join_element_wise(
            _column_or_text(b'{"key":"'), column, _column_or_text(b'"}'), _column_or_text(b"")
        )
    encode: Callable[[str], bytes] = msgspec.json.encode
    return pa.array([b'{"key":' + encode(key.decode()) + b"}" for key in keys], pa.large_binary())


def _sized(column: Any) -> list[Any]:
    """The values as fields of a COPY: their lengths, and they themselves."""
    import numpy as np
    from pyarrow import compute

    return [_fixed(compute.binary_length(column).to_numpy().astype(np.dtype(">i4")).tobytes(), 4), column]


def _fixed(data: bytes, size: int) -> Any:
    """A column of values of the same size."""
    import numpy as np
    import pyarrow as pa

    offsets: Any = np.arange(0, len(data) + 1, size, dtype=np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )


def _column_or_text(part: Any) -> Any:
    import pyarrow as pa

    return pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part


def _end(column: Any) -> int:
    return int(memoryview(column.buffers()[1]).cast("q")[len(column)])
