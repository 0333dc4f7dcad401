"""Insert rows by the hundred thousand into the master, with the statement that producers use, chunk by chunk.

A chunk is one transaction: the rows, sorted by id, and their count. Sorted statements that hold the same ids wait for each
other and never deadlock, which a transaction over several of them would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.batches import columns
from jobmaster.master.driver.connection import Connection, ConnectionFactory, rows_of
from jobmaster.master.flow.uniqueness import values_of
from jobmaster.model.errors import Unavailable
from jobmaster.model.flow.uniqueness import UniqueOutcome, UniqueRule, UniqueSubmit
from jobmaster.model.job import NewJob
from jobmaster.rules.backoff import backoff_delay

_TRIES = 6
_PAUSE_SECONDS = 0.25
_PLACE_SECONDS = 0.5
"""Between two looks for a free connection: each look is a connection of some milliseconds."""
_TIME_BYTES = 6
_LIMITS = {"statement_timeout": "300s", "lock_timeout": "120s"}
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class Part(NamedTuple):
    """One task of a run: what its rows are counted under."""

    run_id: str
    number: int


class Inserted(NamedTuple):
    """What became of a chunk."""

    new: int
    """Rows of it that were new; exactly, unless a try before was in doubt."""
    of_task: int
    """Rows that every copy and attempt of the task has inserted so far; exactly."""


def row_key(job_id: bytes) -> bytes:
    """The part of an id made of data that identifies its row: all of it but the time."""
    return bytes(_TIME_BYTES) + job_id[_TIME_BYTES:]


class Importer:
    """Writes chunks on one connection, which it opens again when it breaks: a chunk sent twice is in once.

    Args:
        source: number of the source whose rows are remembered; a row that an earlier run has handed in is left out.
        connections: how many connections the tasks of the run have at once; ``None``: no limit. A task that finds none free
            connects again a moment later.
    """

    def __init__(
        self,
        connection_factory: ConnectionFactory,
        part: Part,
        source: int | None = None,
        *,
        connections: int | None = None,
    ) -> None:
        self._connection_factory = connection_factory
        self._source = source
        self._connections = connections
        self.part = part
        self._connection: Connection | None = None

    async def insert(self, jobs: Sequence[NewJob], unique: Mapping[bytes, UniqueRule]) -> Inserted:
        """HELD rows, as ``intake/insert_held`` makes them.

        Args:
            unique: of jobs that are to hold a unique key, by id. One that meets another job is not inserted.

        Raises:
            Unavailable: the master did not come back in time.
        """
        for attempt in range(_TRIES):
            try:
                return await self._insert(jobs, unique)
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

    async def close(self) -> None:
        """Cut the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _insert(self, jobs: Sequence[NewJob], unique: Mapping[bytes, UniqueRule]) -> Inserted:
        connection = await self._open()
        async with connection.transaction():
            if self._source is not None:
                ids = [job.id for job in jobs]
                claimed = await rows_of(connection, "pipeline/claim_keys", self._source, [*map(row_key, ids)], ids)
                ours = frozenset(claimed[0]["job_ids"])
                jobs = [job for job in jobs if job.id in ours]
            plain = [job for job in jobs if job.id not in unique] if unique else jobs
            count = 0
            if plain:
                rows = await rows_of(connection, "intake/insert_held", *columns(plain))
                count = len(rows[0]["accepted"])
            if keyed := [UniqueSubmit(job, unique[job.id]) for job in jobs if job.id in unique]:
                rows = await rows_of(connection, "uniqueness/submit", *values_of(keyed), False)
                count += sum(row["answer"] in _NEW for row in rows)
            rows = await rows_of(connection, "pipeline/count_inserted", self.part.run_id, self.part.number, count)
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


_NEW = (UniqueOutcome.CREATED, UniqueOutcome.REPLACED)
_BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
    EOFError,
)
