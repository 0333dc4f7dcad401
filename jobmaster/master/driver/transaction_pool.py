"""Connections through a pooler that gives each transaction any of its server connections (PgBouncer in transaction mode).

Such a pooler refuses settings in the start-up packet. What one statement leaves on a server connection is there or not for
the next. So each call is a transaction of its own: its settings are ``SET LOCAL``, its statements have no names, and nothing
is left on the server connection, which another program has next. A call costs some exchanges more than without a pooler.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from jobmaster.master.driver.connection import Connection, ConnectionFactory, ConnectionPool, rows_of


class TransactionPool(ConnectionPool):
    """A ``ConnectionPool`` whose connections lead to a pooler in transaction mode.

    Args:
        connection_factory: one that was made for a pooler.
    """

    def __init__(self, connection_factory: ConnectionFactory, size: int) -> None:
        super().__init__(connection_factory, size)
        local = connection_factory.local_settings
        self._local = (list(local), list(local.values()))

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection in a transaction with the settings of our sessions, for one call; committed at its end."""
        async with super().acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await rows_of(connection, "schema/local_settings", *self._local)
            try:
                yield connection
            except asyncpg.PostgresError:
                # After any other error the connection is cut, and the pooler ends the transaction.
                if not connection.is_closed():
                    await transaction.rollback()
                raise
            await transaction.commit()
