"""Notices of submits in SQL: the leader listens, so that their jobs need not wait for its next look.

The function ``submit`` of the schema sends one with the commit, on the channel that is named as the schema: lane and
priority. A notice that is lost costs a second, not a job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, ConnectionFactory, close_politely, rows_of
from jobmaster.master.transactions import MasterAccess

OnNotice = Callable[[str, int], None]
"""Called with lane and priority."""


class DueNotices:
    """One connection of its own that listens, while there is a listener. Belongs to one event loop."""

    def __init__(self, access: MasterAccess) -> None:
        self._schema = access.schema
        self._connections = ConnectionFactory(access.dsn, access.schema, access.settings, access.application_name)
        self._connection: Connection | None = None

    async def listen(self, on_notice: OnNotice) -> bool:
        """Listen from now on; when it listens already, make sure that the connection still answers.

        Returns:
            True when it begins to listen: earlier notices are lost.

        Raises:
            Unavailable: the master cannot be reached. Refused: it does not accept the user.
        """
        connection = self._connection
        if connection is not None and not connection.is_closed():
            try:
                await rows_of(connection, "schema/server")
            except errors.DRIVER_ERRORS as error:
                connection.terminate()
                raise errors.calling(error, "the look at the connection for notices", writes=False) from error
            return False

        def pass_on(_: Any, __: int, ___: str, payload: object) -> None:
            lane, _, priority = str(payload).rpartition(" ")
            if lane and priority.isdecimal():
                on_notice(lane, int(priority))

        connection = await self._connections.open(plan_once=False)
        try:
            await connection.add_listener(self._schema, pass_on)
        except errors.DRIVER_ERRORS as error:
            connection.terminate()
            raise errors.calling(error, "LISTEN", writes=False) from error
        self._connection = connection
        return True

    async def stop(self) -> None:
        """Listen no more, until ``listen`` is called again; close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_politely(connection)
