"""First rows: what producers and flushes put into the master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg.pgproto.pgproto import UUID

from jobmaster.master.driver import errors, resent_writes
from jobmaster.master.driver.batches import NOTHING, Batch, BatchAnswer, columns, execute_batch, ids_of
from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.statements import statement
from jobmaster.model.errors import InputError, OutcomeUnknown
from jobmaster.model.job import NewJob
from jobmaster.ports import Written

_INSERT_HELD = "intake/insert_held"
_RESERVATIONS = 5
"""How often keys are reserved that were forgotten before their holders could be read."""


def require_transaction(connection: Any) -> None:
    """``InputError`` unless it is an asyncpg connection with an open transaction."""
    if not callable(getattr(connection, "is_in_transaction", None)) or not callable(
        getattr(connection, "fetchrow", None)
    ):
        raise InputError(
            f"connection= takes an open asyncpg connection, not {type(connection).__name__}",
            hint="open it with asyncpg.connect() or take it from an asyncpg pool",
        )
    if not connection.is_in_transaction():
        raise InputError(
            "the connection given with connection= is not in a transaction",
            hint="use `async with connection.transaction():` around the submit",
        )


class Intake:
    """``jobmaster.ports.Intake`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, schema: str) -> None:
        self._data = data
        self._schema = schema

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        """HELD rows with token 1; an id that has a row is *refused*."""

        async def send(rows: Sequence[NewJob]) -> BatchAnswer:
            return await execute_batch(self._data, _INSERT_HELD, *columns(rows), ids=ids_of(rows))

        return await Batch(self._data, _INSERT_HELD, send, resent_writes.exists).write(jobs)

    async def insert_held_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """The same inside the caller's own transaction: the rows stand when the caller commits.

        Args:
            connection: an open ``asyncpg`` connection to the same database. None of its settings is touched, and its
                search path does not matter.

        Raises:
            InputError: the connection is of another driver, or not in a transaction.
            JobMasterError: as the master refused it; the caller's transaction is aborted then, as after any SQL error.
        """
        return await insert_in(connection, _INSERT_HELD, self._schema, jobs)

    @property
    def submit_sql(self) -> str:
        """A call of the function ``submit``, for a connection of any driver; its search path does not matter."""
        return statement("intake/submit").qualified(self._schema)

    async def insert_assigned(self, bucket_id: bytes, epoch: int, jobs: Sequence[NewJob]) -> Written:
        """ASSIGNED rows with token 2, under the bucket lock (ACTIVE, this epoch)."""

        async def send(rows: Sequence[NewJob]) -> BatchAnswer:
            return await execute_batch(
                self._data, "intake/insert_assigned", bucket_id, epoch, *columns(rows), ids=ids_of(rows)
            )

        return await Batch(
            self._data,
            "intake/insert_assigned",
            send,
            lambda _, found: resent_writes.assigned(bucket_id, epoch, found),
            bucket_id=bucket_id,
        ).write(jobs)

    async def reserve_keys(
        self, scope: str, keys: Sequence[tuple[str, bytes, bytes]]
    ) -> list[tuple[str, bytes, bytes]]:
        """``(key, job_id, digest)`` in, the *holding* ``(key, job_id, digest)`` of each key out, in the same order."""
        if not keys:
            return []
        names, ids, digests = columns(keys)
        holders: dict[str, tuple[str, bytes, bytes]] = {}
        for _ in range(_RESERVATIONS):
            await self._data.write("intake/reserve_keys", scope, names, ids, digests, ids=ids)
            # A second statement, because the first one's snapshot does not show the winner of a race. A key that another job
            # held may be forgotten in between (its job was dropped long ago): then it is free, and reserved again.
            holders = {row["key"]: tuple(row) for row in await self._data.read("intake/key_holders", scope, names)}
            if len(holders) == len(set(names)):
                break
        else:
            raise OutcomeUnknown("idempotency keys were forgotten as fast as they were reserved", id_bytes=ids)
        return [holders[name] for name in names]


async def insert_in(connection: Any, name: str, schema: str, jobs: Sequence[NewJob]) -> Written:
    """First rows by the named statement, inside the caller's own transaction; see ``Intake.insert_held_in``."""
    require_transaction(connection)
    if not jobs:
        return Written(True, NOTHING)
    ids, *others = columns(jobs)
    text = statement(name).qualified(schema)
    try:
        row = await connection.fetchrow(text, [UUID(id_) for id_ in ids], *others)
    except errors.DRIVER_ERRORS as error:
        # Sent inside a transaction that is not ours: it has not happened unless the caller commits.
        raise errors.calling(error, name, writes=False) from error
    accepted = frozenset(id_.bytes for id_ in row["accepted"])
    return Written(True, accepted, refused=frozenset(ids) - accepted)
