"""Ids of the jobs of a batch: one range after the other, each with an index that grows.

An id is a UUIDv7: milliseconds, 42 random bits of the range, and a 32-bit index. Stores refuse ids whose time is too far from
their clock, so a range is used for half of ``limits.clock_skew``, and then the batch gets another one.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from jobmaster.clock import Clock, new_id
from jobmaster.model.batch import INDEX_MAX, RANGE_BYTES
from jobmaster.model.ids import ID_BYTES, created_ms

_INDEX_BYTES = ID_BYTES - RANGE_BYTES


def new_range() -> bytes:
    """Lowest id of a fresh range, of the present."""
    random = bytearray(os.urandom(RANGE_BYTES - 6))
    random[0] = 0x70 | random[0] & 0x0F
    random[2] = 0x80 | random[2] & 0x3F
    return new_id()[:6] + bytes(random) + bytes(_INDEX_BYTES)


class BatchIds:
    """Gives each job of a batch its id.

    Args:
        lowest: of the first range.
        add_range: stores another range; raises when the batch takes none.
        range_seconds: how long a range is used.
    """

    def __init__(
        self, lowest: bytes, add_range: Callable[[bytes], Awaitable[None]], clock: Clock, range_seconds: float
    ) -> None:
        self._add_range = add_range
        self._clock = clock
        self._range_ms = int(range_seconds * 1000)
        self._begin(lowest)

    def _begin(self, lowest: bytes) -> None:
        self._prefix = lowest[:RANGE_BYTES]
        self._index = 0
        self._until_us = (created_ms(lowest) + self._range_ms) * 1000

    def next(self) -> bytes | None:
        """The next id; ``None``: another range is needed first (``renew``)."""
        if self._clock.wall_us() >= self._until_us or self._index >= INDEX_MAX:
            return None
        self._index += 1
        return self._prefix + self._index.to_bytes(_INDEX_BYTES, "big")

    async def renew(self) -> None:
        """Get another range, if the present one is used up."""
        if self._clock.wall_us() < self._until_us and self._index < INDEX_MAX:
            return
        lowest = new_range()
        await self._add_range(lowest)
        self._begin(lowest)

    async def take(self) -> bytes:
        """The next id, from another range if need be."""
        while (job_id := self.next()) is None:
            await self.renew()
        return job_id
