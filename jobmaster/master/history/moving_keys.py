"""Idempotency keys and unique keys that go to the master of another cluster: all at first, then what is new.

A key must be in the target before its job is. The source takes submits until the end, so each page of jobs is preceded by a
look for keys that became visible since the look before (``rules/new_rows.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol

import asyncpg

from jobmaster.rules.new_rows import Look, next_look

_PAGE_ROWS = 5000
_MARGIN = timedelta(seconds=120)
"""A key gets its time shortly before its transaction gets a number; longer before, where it waits for another one that has
the same key and is rolled back."""
_TABLES = {"idempotency": "created_at", "unique_key": "held_at"}
"""Table -> when a row of it was written."""


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
