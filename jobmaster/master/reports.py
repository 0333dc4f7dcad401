"""Reports for operators: lists, counts and the auditor's statements, on a read-only connection.

Separate from the ``Master`` of agents and producers: a report may be slow, and must neither wait behind the work nor delay
it.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import DatabaseConnector, password_of
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.master.pauses import IN_FORCE, in_force_of
from jobmaster.model.pause import PausesInForce
from jobmaster.settings.model import MasterSettings

STATEMENT_SECONDS = 120.0
"""No report may run longer."""
_DEFAULTS = MasterSettings()


class Reader:
    """One read-only connection to the schema of a cluster. Belongs to the event loop it was made in."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    @classmethod
    async def connect(
        cls,
        *,
        dsn: str,
        schema: str,
        settings: MasterSettings = _DEFAULTS,
        application_name: str = "jobmaster-reader",
    ) -> Reader:
        """Connect.

        Raises:
            Unavailable: the server cannot be reached. Refused: it does not accept the user or the database.
        """
        connector = DatabaseConnector(dsn, password=password_of(settings))
        try:
            connection = await connector.connect(
                settings.connect_timeout_seconds,
                command_timeout=STATEMENT_SECONDS + 5,
                server_settings={
                    "search_path": quoted(schema),
                    "application_name": application_name,
                    "default_transaction_read_only": "on",
                    "statement_timeout": f"{STATEMENT_SECONDS * 1000:.0f}",
                    "timezone": "UTC",
                    "jit": "off",
                },
            )
        except errors.DRIVER_ERRORS as error:
            raise errors.connecting(error, connector.place) from error
        return cls(connection)

    async def close(self) -> None:
        """Give the connection back."""
        try:
            await self._connection.close(timeout=2.0)
        except errors.DRIVER_ERRORS:
            self._connection.terminate()

    async def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Rows by column name; ids come as ``UUID``.

        Raises:
            Unavailable: the connection broke, or the statement took too long.
            SchemaMismatch: the schema is not there, or is not that of this program.
        """
        try:
            return [dict(row) for row in await self._connection.fetch(statement, *values)]
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "a report", writes=False) from error

    async def report(self, name: str, *values: object) -> list[dict[str, Any]]:
        """Rows of one of the statements in ``sql/reports``."""
        return await self.rows(sql(f"reports/{name}"), *values)

    async def pauses(self) -> PausesInForce:
        """The pauses in force, and their version."""
        return in_force_of(await self.rows(sql(IN_FORCE)))
