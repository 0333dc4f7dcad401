"""Idempotency keys and unique keys that go to the master of another cluster: all at first, then what is new.

A key must be in the target before its job is. The source takes submits until the end, so each page of jobs is preceded by a
look for keys that became visible since the look before. A key has the time at which it was written, not that of its commit: a
transaction may stay open for hours. So each look notes the snapshot of the source. What a look did not see was written by
transactions that ran then or began later; and of a transaction that runs it is known between which two looks it began to
write. No other session is asked for its times, for which a role would need more rights. (A fixed margin alone was tried: it
missed keys of longer transactions, and each page read the keys of the whole margin again.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

import asyncpg

_PAGE_ROWS = 5000
_MARGIN = timedelta(seconds=120)
"""A key gets its time shortly before its transaction gets a number; longer before, where it waits for another one that has
the same key and is rolled back."""
_TABLES = {"idempotency": "created_at", "unique_key": "held_at"}
"""Table -> when a row of it was written."""


class Look(NamedTuple):
    """One look at the source."""

    at: datetime
    lowest: int
    """Transactions before this one had ended."""
    running: dict[int, datetime | None]
    """Transactions that ran, and the look before which they had no number yet; ``None``: there was none."""


class _Run(Protocol):
    def __call__(self, name: str, /, *values: object) -> Awaitable[list[asyncpg.Record]]: ...


class MovingKeys:
    """What has been read. Belongs to one move.

    Args:
        run: a statement of the source.
        take: rows of a table, each as JSON, go to the target; how many are new there.
    """

    def __init__(self, run: _Run, take: Callable[[str, list[str]], Awaitable[int]]) -> None:
        self._run = run
        self._take = take
        self._last: Look | None = None

    async def take_new(self) -> int:
        """Take to the target what is visible in the source at this moment and was not at the last call.

        Returns:
            Number of keys that are new there.
        """
        (row,) = await self._run("cluster/snapshot")
        look, since = next_look(self._last, row["at"], row["lowest"], row["running"])
        written = None if self._last is None else self._last.lowest
        taken = 0
        for table, time_column in _TABLES.items():
            taken += await self._take_pages(table, time_column, since, written)
        self._last = look
        return taken

    async def _take_pages(self, table: str, time_column: str, since: datetime | None, written: int | None) -> int:
        """Keys of any time are read in the order of the primary key: the index of times sorts nothing."""
        by_time = None if since is None else time_column
        taken, after, oldest = 0, None, None if since is None else since - _MARGIN
        while True:
            rows = await self._run("cluster/read_rows", table, by_time, oldest, written, after, _PAGE_ROWS)
            taken += await self._take(table, [row["row_text"] for row in rows])
            if len(rows) < _PAGE_ROWS:
                return taken
            after = rows[-1]["place"]


def next_look(last: Look | None, at: datetime, lowest: int, running: list[Any]) -> tuple[Look, datetime | None]:
    """This look, and since when the rows can have been written that it sees and the last one did not; ``None``: at any time.

    Args:
        at: a moment before the snapshot.
        lowest: the oldest transaction that runs, or the next one.
        running: transactions that run.
    """
    if last is None:
        return Look(at, lowest, dict.fromkeys(running)), None
    look = Look(at, lowest, {number: last.running.get(number, last.at) for number in running})
    ended = [began for number, began in last.running.items() if number not in look.running]
    since = last.at
    for began in ended:
        if began is None:
            return look, None
        since = min(since, began)
    return look, since
