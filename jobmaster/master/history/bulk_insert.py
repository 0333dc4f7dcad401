"""Insert rows by the hundred thousand into the master, chunk by chunk.

A chunk is one transaction: the rows, sorted by id, and their count. Sorted statements that hold the same ids wait for each
other and never deadlock, which a transaction over several of them would.

Rows come in by COPY, which takes the server half the time of the statement that producers use. A COPY that meets a row that
is there already writes nothing; then that statement inserts the rest of the chunk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import asyncpg

from jobmaster.clock import SystemClock
from jobmaster.master.driver import binary_copy, errors
from jobmaster.master.driver.batches import columns
from jobmaster.master.driver.connection import Connection, ConnectionFactory, Row, rows_of
from jobmaster.master.flow.uniqueness import values_of
from jobmaster.model.errors import Conflict, Unavailable
from jobmaster.model.flow.uniqueness import UniqueOutcome, UniqueRule, UniqueSubmit
from jobmaster.model.job import NewJob
from jobmaster.rules.backoff import backoff_delay

_TRIES = 6
_PAUSE_SECONDS = 0.25
_PLACE_SECONDS = 0.5
"""Between two looks for a free connection: each look is a connection of some milliseconds."""
_PAUSED_SECONDS = 2.0
"""Between two looks at a pause; each is a connection, because a pause may last for days."""
_HELD_BACK_SECONDS = 0.5
_ROOM_SECONDS = 1.0
"""A count of the backlog is valid for so long, and is not repeated while the run is held back."""
_RECOUNT_SECONDS = 0.1
"""The room of a count is used up: many rows were there already, or agents are as fast as the writers."""
_SAMPLE = 50
"""Ids of a chunk that are looked for before a COPY of it."""
_TIME_BYTES = 6
_LIMITS = {"statement_timeout": "300s", "lock_timeout": "120s"}
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class _Present(Exception):
    """A row of a chunk is there already; nothing was written."""


class Part(NamedTuple):
    """One task of a run: what its rows are counted under."""

    run_id: str
    number: int


class Brake(NamedTuple):
    """When a run is held back. Both are jobs of one lane and priority that are due and have not begun."""

    max_backlog: int
    """At this backlog the run writes no further due jobs of the lane and priority."""
    resume_at: int
    """At this backlog it goes on."""


class Inserted(NamedTuple):
    """What became of a chunk."""

    new: int
    """Rows of it that were new; exactly, unless a try before was in doubt."""
    of_task: int
    """Rows that every copy and attempt of the task has inserted so far; exactly."""


class HeldColumns(Protocol):
    """Rows as columns: sorted by id, none twice, none that expires or holds a unique key."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    def ids(self) -> list[bytes]:
        """16 bytes each."""
        ...

    def jobs(self) -> list[NewJob]:
        """The rows one by one."""
        ...

    def only(self, ids: Set[bytes]) -> Self:
        """The rows with these ids."""
        ...

    def copied(self, now_us: int) -> Iterator[bytes]:
        """A COPY of ``binary_copy.HELD_COLUMNS``; ``now_us``: the time of the server."""
        ...


def row_key(job_id: bytes) -> bytes:
    """The part of an id made of data that identifies its row: all of it but the time."""
    return bytes(_TIME_BYTES) + job_id[_TIME_BYTES:]


class Importer:
    """Writes chunks on one connection, which it opens again when it breaks: a chunk sent twice is in once.

    Args:
        source: number of the source whose rows are remembered; a row that an earlier run has handed in is left out.
        connections: how many connections the tasks of the run have at once; ``None``: no limit. A task that finds none free
            connects again a moment later.
        brake: holds the run back by the cluster's backlog; ``None``: nothing does.
    """

    def __init__(
        self,
        connection_factory: ConnectionFactory,
        part: Part,
        source: int | None = None,
        *,
        connections: int | None = None,
        brake: Brake | None = None,
    ) -> None:
        self._connection_factory = connection_factory
        self._source = source
        self._connections = connections
        self._brake = brake
        self.part = part
        self._connection: Connection | None = None
        self._may_copy = True
        """False after a COPY that met a row, until a whole chunk is new."""

    async def insert(self, jobs: Sequence[NewJob], unique: Mapping[bytes, UniqueRule], handled: int = 0) -> Inserted:
        """HELD rows, as ``intake/insert_held`` makes them.

        Args:
            unique: of jobs that are to hold a unique key, by id. One that meets another job is not inserted.
            handled: rows that this attempt of the task has read, for the progress of the run.

        Raises:
            Unavailable: the master did not come back in time. Conflict: the source was forgotten.
        """
        return await self._repeated(partial(self._insert, jobs, unique, handled))

    async def insert_columns(self, rows: HeldColumns, handled: int = 0) -> Inserted:
        """``insert`` for rows as columns."""
        if self._may_copy and rows.count:
            try:
                return await self._repeated(partial(self._copy, rows, handled))
            except _Present:
                self._may_copy = False
        inserted = await self.insert(rows.jobs(), {}, handled)
        self._may_copy = inserted.new == rows.count
        return inserted

    async def _repeated(self, insert: Callable[[], Awaitable[Inserted]]) -> Inserted:
        """The transaction of a chunk, repeated while the master is away."""
        for attempt in range(_TRIES):
            try:
                return await insert()
            except (Unavailable, *_AGAIN, *errors.DRIVER_ERRORS) as error:
                await self.close()
                if attempt == _TRIES - 1 or not isinstance(error, (Unavailable, *_AGAIN, *_BROKEN)):
                    if isinstance(error, Unavailable):
                        raise
                    raise errors.calling(error, "intake/insert_held", writes=True) from error
                await asyncio.sleep(backoff_delay(attempt + 1, _PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    async def wait_for_turn(self, batch: str, seconds: float) -> None:
        """Wait until rows that take so long at the wanted rate may be written."""
        connection = await self._open()
        try:
            rows = await rows_of(connection, "pipeline/rate_limit", batch, seconds)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "pipeline/rate_limit", writes=False) from error
        await asyncio.sleep(rows[0]["wait_seconds"] if rows else 0.0)

    async def wait_for_permission(self, jobs: list[NewJob] | HeldColumns) -> None:
        """Wait until the backfill is not paused and, under a brake, until the backlog has room for the due ones of the jobs.

        The backlog of a lane and priority exceeds the brake's by one chunk of each task at most, and by what others submit.
        """
        while await self._value("pipeline/is_paused", self.part.run_id):
            await self.close()
            await asyncio.sleep(_PAUSED_SECONDS * (0.5 + random.random()))
        if self._brake is not None:
            now_us = SystemClock().wall_us()
            rows = jobs if isinstance(jobs, list) else jobs.jobs()
            due = Counter((job.lane, job.priority) for job in rows if job.due_us <= now_us)
            for (lane, priority), count in sorted(due.items()):
                await self._take_room(self._brake, lane, priority, count)

    async def finish_files(self, name: str, files: Sequence[int], rows: Sequence[int]) -> None:
        """Record files of the source whose rows are all jobs, for runs to come.

        Args:
            name: of the backfill.
            rows: of each file.
        """
        await self._rows("pipeline/finish_files", name, self.part.run_id, files, rows)

    async def _take_room(self, brake: Brake, lane: str, priority: int, count: int) -> None:
        group = self.part.run_id, lane, priority
        while await self._value("pipeline/take_room", *group, count, _ROOM_SECONDS) is None:
            measured = await self._rows("pipeline/measure_backlog", *group, *brake, _RECOUNT_SECONDS)
            if measured and not measured[0]["held_back"] and measured[0]["backlog"] < brake.max_backlog:
                continue
            await asyncio.sleep(_HELD_BACK_SECONDS * (0.5 + random.random()))
            if await self._value("pipeline/is_paused", self.part.run_id):
                await self.wait_for_permission([])

    async def _value(self, name: str, *values: object) -> Any:
        """The first value of a statement; ``None``: no row."""
        rows = await self._rows(name, *values)
        return rows[0][0] if rows else None

    async def _rows(self, name: str, *values: object) -> Sequence[Row]:
        """Rows of a statement, which is repeated while the master is away."""
        for attempt in range(_TRIES):
            try:
                return await rows_of(await self._open(), name, *values)
            except (Unavailable, *errors.DRIVER_ERRORS) as error:
                await self.close()
                if attempt == _TRIES - 1 or not isinstance(error, (Unavailable, *_BROKEN)):
                    raise (
                        error if isinstance(error, Unavailable) else errors.calling(error, name, writes=False)
                    ) from error
                await asyncio.sleep(backoff_delay(attempt + 1, _PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Cut the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _copy(self, rows: HeldColumns, handled: int) -> Inserted:
        connection = await self._open()
        async with connection.transaction():
            if self._source is not None:
                rows = rows.only(await self._claimed(connection, self._source, rows.ids()))
            copied = await self._copy_rows(connection, rows) if rows.count else 0
            counted = await rows_of(connection, "pipeline/count_inserted", *self.part, copied, handled)
        return Inserted(copied, counted[0]["inserted"])

    async def _copy_rows(self, connection: Connection, rows: HeldColumns) -> int:
        """How many rows are in; ``_Present``: one is there already."""
        ids = rows.ids()
        looked = await rows_of(connection, "pipeline/before_copy", ids[:: len(ids) // _SAMPLE + 1], ids[0], ids[-1])
        if looked[0]["present"]:
            raise _Present
        pieces = list(rows.copied(looked[0]["now_us"]))  # all of it is encoded before the COPY takes locks
        try:
            status = await connection.copy_to_table(
                "job", source=_source(pieces), columns=binary_copy.HELD_COLUMNS, format="binary"
            )
        except asyncpg.UniqueViolationError:
            raise _Present from None
        return int(status.split()[-1])  # a row below the watermark vanishes

    async def _claimed(self, connection: Connection, source: int, ids: Sequence[bytes]) -> frozenset[bytes]:
        """The rows that no run has handed in before."""
        claimed = await rows_of(connection, "pipeline/claim_keys", source, [*map(row_key, ids)], ids)
        if not claimed[0]["remembered"]:
            raise Conflict(
                "the source of these rows was forgotten while they were written (jobmaster pipeline forget)",
                hint="write them again: each row is a new job then, also those that this run has inserted",
            )
        return frozenset(claimed[0]["job_ids"])

    async def _insert(self, jobs: Sequence[NewJob], unique: Mapping[bytes, UniqueRule], handled: int) -> Inserted:
        connection = await self._open()
        async with connection.transaction():
            if self._source is not None:
                ours = await self._claimed(connection, self._source, [job.id for job in jobs])
                jobs = [job for job in jobs if job.id in ours]
            plain = [job for job in jobs if job.id not in unique] if unique else jobs
            count = 0
            if plain:
                rows = await rows_of(connection, "intake/insert_held", *columns(plain))
                count = len(rows[0]["accepted"])
            if keyed := [UniqueSubmit(job, unique[job.id]) for job in jobs if job.id in unique]:
                rows = await rows_of(connection, "uniqueness/submit", *values_of(keyed), False)
                count += sum(row["answer"] in _NEW for row in rows)
            rows = await rows_of(connection, "pipeline/count_inserted", *self.part, count, handled)
        return Inserted(count, rows[0]["inserted"])

    async def _open(self) -> Connection:
        while self._connection is None:
            connection = await self._connection_factory.open(plan_once=True, over=_LIMITS)
            try:
                if await self._has_place(connection):
                    self._connection = connection
            finally:
                if self._connection is None:
                    connection.terminate()
            if self._connection is None:
                await asyncio.sleep(_PLACE_SECONDS * (0.5 + random.random()))
        return self._connection

    async def _has_place(self, connection: Connection) -> bool:
        """Whether the connection is one of those that the run may have. Its lock ends with its session."""
        if self._connections is None:
            return True
        try:
            return bool(await rows_of(connection, "pipeline/take_place", self.part.run_id, self._connections))
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "pipeline/take_place", writes=False) from error


async def _source(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """In the form that the driver takes: each piece is a message. ``binary_copy.source`` would join them, and a message over
    1 GiB is refused; a chunk with large arguments may be as long."""
    for piece in pieces:
        yield piece


_NEW = (UniqueOutcome.CREATED, UniqueOutcome.REPLACED)
_BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
    EOFError,
)
