"""What an earlier run of a producer has stored of a batch with a key, so that no job of it is stored twice.

A producer makes known in advance which numbers it may store (``reserved``), and from time to time before which number all is
settled (``settled``). After its death only the jobs between the two are in doubt. They are looked for once, when the batch is
resumed; those that exist count. The others are stored under the same ids as rows of the master, where an id exists once: a
late copy from the first run cannot make a second job of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any

from jobmaster.client.batches.batch_ids import numbered_id
from jobmaster.client.bulk import Items
from jobmaster.model.errors import Conflict
from jobmaster.model.flow.batch import FoundBatch


class EarlierRun:
    """Jobs of a batch up to the last one that an earlier run may have stored."""

    def __init__(self, found: FoundBatch) -> None:
        self._ranges = found.ranges
        self._closed = found.state.final or not found.taken
        self.settled = found.settled
        self.reserved = found.settled if self._closed else found.reserved
        self.number = 0
        """Number of the next job of the present run."""
        self.existing: set[int] = set()
        """Jobs that were in doubt and exist."""

    @property
    def over(self) -> bool:
        """The present run has come beyond it."""
        return self.number >= self.reserved and not self._closed

    @property
    def closed(self) -> bool:
        """It has closed the batch: there is nothing to add."""
        return self._closed

    def in_doubt(self) -> dict[bytes, int]:
        """Numbers of the jobs in doubt, by their ids."""
        return {self.id_of(number): number for number in range(self.settled, self.reserved)}

    def id_of(self, number: int) -> bytes:
        """Id of a job, by its number."""
        lowest, first = max((each for each in self._ranges if each[1] <= number), key=lambda each: (each[1], each[0]))
        return numbered_id(lowest, first, number)

    def exists(self, number: int) -> bool:
        """True for a job that was stored."""
        return number < self.settled or number in self.existing

    def take(self) -> int | None:
        """Number of the next job; ``None``: the earlier run did not come so far.

        Raises:
            Conflict: the earlier run has closed the batch, with fewer jobs.
        """
        if self.number >= self.reserved:
            if self._closed:
                raise Conflict(
                    f"the batch was closed with {self.reserved} jobs, and this is one more",
                    hint="a batch with a key is filled with the same jobs in the same order",
                )
            return None
        self.number += 1
        return self.number - 1


class ItemReader:
    """Reads an iterable in portions."""

    def __init__(self, items: Items) -> None:
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        if isinstance(items, AsyncIterable):
            self._async = aiter(items)
        else:
            self._sync = iter(items)

    async def take(self, count: int) -> list[Any]:
        """The next items, fewer at the end."""
        if self._sync is not None:
            return list(islice(self._sync, count))
        assert self._async is not None
        found: list[Any] = []
        while len(found) < count:
            try:
                found.append(await anext(self._async))
            except StopAsyncIteration:
                break
        return found

    @property
    def rest(self) -> Iterable[Any] | AsyncIterable[Any]:
        """All items that were not taken."""
        if self._sync is not None:
            return self._sync
        assert self._async is not None
        return self._async
