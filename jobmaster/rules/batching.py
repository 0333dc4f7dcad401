"""Sizes of batches, in bytes as well as in rows.

A job may have arguments and a result of 128 KiB each (``limits``), so a number of rows alone is no limit: 2,000 outcomes are
40 kB or 500 MB. Every statement, claim, page and call is limited to ``BATCH_BYTES`` of payload; a larger job is sent alone. A
batch that times out is halved and never sent again at the same size. The batches after it are as small (``BatchSize``) and
grow again while they succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

BATCH_BYTES = 4 * 1024 * 1024
"""Payload of one statement, one call to a store or one page of its answer."""
CLAIMED_BYTES = 16 * 1024 * 1024
"""Claimed lists of one bucket in an agent's memory; above that only free slots are filled."""
OUTCOME_BYTES = 64 * 1024 * 1024
"""Outcomes of one agent process on their way to the master, with their jobs' arguments; above that nothing is claimed."""
_SHARE, _GROWTH = 32, 8
"""A size that was halved grows by an eighth with every batch that succeeds, and by at most a thirty-second of the whole. If
it doubled, every second batch of a server that can do half of one would time out."""

_T = TypeVar("_T")


def fitting_count(sizes: Sequence[int], bytes_max: int) -> int:
    """Number of items, from the first on, that fit into one batch; at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > bytes_max and count:
            return count
    return len(sizes)


def split_batches(items: Sequence[_T], sizes: Sequence[int], rows_max: int, bytes_max: int) -> list[Sequence[_T]]:
    """The items in batches, in order. Each batch is within both limits or has one item."""
    if len(items) <= rows_max and sum(sizes) <= bytes_max:
        return [items] if items else []
    batches: list[Sequence[_T]] = []
    first = 0
    while first < len(items):
        last = first + fitting_count(sizes[first : first + rows_max], bytes_max)
        batches.append(items[first:last])
        first = last
    return batches


def halves(items: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T]]:
    """The first half and the second half."""
    half = len(items) // 2
    return items[:half], items[half:]


class BatchSize:
    """Limits of the next batch: a time-out halves them, and each success lets them grow again.

    Args:
        rows_max: limit while no batch times out, in rows.
        bytes_max: the same in bytes of payload.
    """

    def __init__(self, rows_max: int, bytes_max: int = BATCH_BYTES) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self.rows = rows_max
        self.bytes = bytes_max

    @property
    def whole(self) -> bool:
        """True when no time-out reduces the limits."""
        return self.rows == self._rows_max and self.bytes == self._bytes_max

    def timed_out(self, rows: int, size: int) -> None:
        """A batch of so many rows and bytes timed out: limit the next ones to half of each. (One row has no half.)"""
        if rows > 1:
            self.rows = min(self.rows, rows // 2)
            self.bytes = max(min(self.bytes, size // 2), 1)

    def succeeded(self) -> None:
        """A batch succeeded in time: let the limits grow."""
        if not self.whole:
            self.rows = _grown(self.rows, self._rows_max)
            self.bytes = _grown(self.bytes, self._bytes_max)


def _grown(value: int, whole: int) -> int:
    return min(value + max(min(value // _GROWTH, whole // _SHARE), 1), whole)
