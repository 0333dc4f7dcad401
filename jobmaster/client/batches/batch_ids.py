"""Ids of the jobs of a batch: one range after the other, each with an index that grows.

An id is a UUIDv7: milliseconds, 42 random bits of the range, and a 32-bit index. Stores refuse ids whose time is too far from
their clock, so a range is used for half of ``limits.clock_skew``, and then the batch gets another one.

The jobs of a batch are numbered from 0 in the order in which they are given. A range begins at some number, so a number has
one id.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from jobmaster.clock import Clock, new_id
from jobmaster.model.flow.batch import INDEX_MAX, RANGE_BYTES
from jobmaster.model.ids import ID_BYTES, created_ms

_INDEX_BYTES = ID_BYTES - RANGE_BYTES
AddRange = Callable[[bytes, int], Awaitable[None]]
"""Stores another range, from its lowest id and the number of its first job; raises when the batch takes none."""
Reserve = Callable[[int], Awaitable[int]]
"""Makes it known that the jobs from a number on may be stored from now on; the number before which that is known."""


def new_range() -> bytes:
    """Lowest id of a fresh range, of the present."""
    random = bytearray(os.urandom(RANGE_BYTES - 6))
    random[0] = 0x70 | random[0] & 0x0F
    random[2] = 0x80 | random[2] & 0x3F
    return new_id()[:6] + bytes(random) + bytes(_INDEX_BYTES)


def numbered_id(lowest: bytes, first: int, number: int) -> bytes:
    """Id of a job, from the range that it is in."""
    return lowest[:RANGE_BYTES] + (number - first + 1).to_bytes(_INDEX_BYTES, "big")


class GivenIds:
    """Ids that jobs have already."""

    def __init__(self, job_ids: list[bytes]) -> None:
        self._left = iter(job_ids)

    def next(self) -> bytes | None:
        """The next one."""
        return next(self._left)

    async def renew(self) -> None:
        """There are enough."""


class BatchIds:
    """Gives each job of a batch its id.

    Args:
        lowest: of the first range.
        first: number of its first job.
        range_seconds: how long a range is used.
        reserve: of a batch that can be resumed; called before ids are given that no call has covered.
    """

    def __init__(
        self,
        lowest: bytes,
        add_range: AddRange,
        clock: Clock,
        range_seconds: float,
        *,
        first: int = 0,
        reserve: Reserve | None = None,
    ) -> None:
        self._add_range = add_range
        self._clock = clock
        self._range_ms = int(range_seconds * 1000)
        self._reserve = reserve
        self._reserved: int | None = None if reserve is None else first
        self._firsts: dict[bytes, int] = {}
        """Number of the first job of each range, by its prefix."""
        self._renewing = asyncio.Lock()
        self._waiting = 0
        self._begin(lowest, first)

    def _begin(self, lowest: bytes, first: int) -> None:
        self._prefix = lowest[:RANGE_BYTES]
        self._firsts[self._prefix] = self._first = first
        self._index = 0
        self._until_us = (created_ms(lowest) + self._range_ms) * 1000
        self._bound()

    def _bound(self) -> None:
        self._index_max = INDEX_MAX if self._reserved is None else min(self._reserved - self._first, INDEX_MAX)

    @property
    def number(self) -> int:
        """Number of the next job."""
        return self._first + self._index

    def number_of(self, job_id: bytes) -> int:
        """Number of a job that has got its id here."""
        return self._firsts[job_id[:RANGE_BYTES]] + int.from_bytes(job_id[RANGE_BYTES:], "big") - 1

    def next(self) -> bytes | None:
        """The next id; ``None``: another range is needed first, or more numbers (``renew``)."""
        if self._clock.wall_us() >= self._until_us or self._index >= self._index_max:
            return None
        self._index += 1
        return self._prefix + self._index.to_bytes(_INDEX_BYTES, "big")

    async def renew(self) -> None:
        """Get another range, and more numbers, where the present ones are used up."""
        if self._reserve is not None and self._reserved is not None and self.number >= self._reserved:
            self._reserved = await self._reserve(self.number)
            self._bound()
        if self._clock.wall_us() >= self._until_us or self._index >= INDEX_MAX:
            lowest, first = new_range(), self.number
            await self._add_range(lowest, first)
            self._begin(lowest, first)

    async def take(self) -> bytes:
        """The next id, from another range if need be. Callers get their ids in the order of their calls."""
        if not self._waiting and (job_id := self.next()) is not None:
            return job_id
        self._waiting += 1  # a lock that was given back a moment ago shows no sign of those that wait for it
        try:
            async with self._renewing:
                while (job_id := self.next()) is None:
                    await self.renew()
                return job_id
        finally:
            self._waiting -= 1
