"""``ctx.transaction()`` of a cluster in memory: on a connection that the test gives."""

from __future__ import annotations

from typing import Any

import msgspec

from jobmaster.clock import new_id
from jobmaster.handlers.registry import unknown_handler
from jobmaster.model.errors import Conflict, InputError
from jobmaster.model.job import Conclusion, FinalRow, NewJob
from jobmaster.testing.memory.rows import MemoryRows


class CallerTransactions:
    """Transactions on a connection that the test gives."""

    def __init__(self, connection: Any, rows: MemoryRows) -> None:
        self._connection = connection
        self._rows = rows

    async def begin(self, attempt: str) -> CallerTransaction:
        """Open one."""
        transaction = None
        if self._connection is not None:
            transaction = self._connection.transaction()
            await transaction.start()
        return CallerTransaction(self._connection, transaction, self._rows)


class CallerTransaction:
    """One of them; without a connection only an outcome can be written."""

    def __init__(self, connection: Any, transaction: Any, rows: MemoryRows) -> None:
        self._connection = connection
        self._transaction = transaction
        self._rows = rows
        self._submitted: list[NewJob] = []
        self._reserved: list[tuple[str, str]] = []

    @property
    def connection(self) -> Any:
        if self._connection is None:
            raise InputError(
                "ctx.transaction() needs a connection, and a cluster in memory has none",
                hint="give an asyncpg connection, connection=..., or use the fixture jobmaster_cluster",
            )
        return self._connection

    async def write(self, row: FinalRow) -> bool:
        """The outcome is kept in memory."""
        return True

    async def submit(self, handler: str, args: str, options: str) -> None:
        """A job that counts when this is committed."""
        rows, data, declared = self._rows, args.encode(), None
        if rows.handlers is not None:
            declared = rows.handlers.get(handler)
            if declared is None:
                raise unknown_handler(handler, rows.handlers.names(), "declare it: @handlers.outbox(...)")
            declared.check(data)
        job_id = new_id()
        if (key := msgspec.json.decode(options).get("idempotency_key")) is not None:
            holder, before = rows.keys.setdefault((handler, key), (job_id, data))
            if before != data:
                raise Conflict(f"idempotency key {key!r} of handler {handler!r} belongs to other arguments")
            if holder != job_id:
                return
            self._reserved.append((handler, key))
        own, defaults = None if declared is None else declared.options, rows.settings.jobs
        priority = int((own and own.priority) or defaults.priority)
        lane = (own and own.lane) or defaults.lane
        self._submitted.append(NewJob(job_id, priority, lane, handler, data, b"", 0))

    async def commit(self) -> Conclusion:
        """Commit what the handler did."""
        if self._transaction is not None:
            await self._transaction.commit()
        for job in self._submitted:
            self._rows.insert(job)
        return Conclusion.COMMITTED

    async def rollback(self) -> None:
        """Undo it, the keys of messages included."""
        for reserved in self._reserved:
            del self._rows.keys[reserved]
        if self._transaction is not None:
            await self._transaction.rollback()
