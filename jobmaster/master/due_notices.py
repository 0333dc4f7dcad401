"""Notices of submits in SQL: the leader listens, so that their jobs need not wait for its next look.

The function ``submit`` of the schema sends one with the commit, on the channel that is named as the schema: lane and
priority. A notice that is lost costs a second, not a job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, ConnectionPool, rows_of

OnNotice = Callable[[str, int], None]
"""Called with lane and priority."""


class DueNotices:
    """Listens, while there is a listener, on a connection that does other work too: notices come between its statements.

    Args:
        connections: one at most. If it is cut, the next one does not listen.
    """

    def __init__(self, connections: ConnectionPool, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        self._connection: Connection | None = None
        self._callback: Callable[..., None] | None = None

    async def listen(self, on_notice: OnNotice, on_lost: Callable[[], None]) -> bool:
        """Listen from now on; when it listens already, make sure that the connection still answers.

        Args:
            on_lost: called when the connection is cut: until ``listen`` is called again there are no notices.

        Returns:
            True when it begins to listen: earlier notices are lost.

        Raises:
            Unavailable: the master cannot be reached. Refused: it does not accept the user.
        """

        def pass_on(_: Any, __: int, ___: str, payload: object) -> None:
            lane, _, priority = str(payload).rpartition(" ")
            if lane and priority.isdecimal():
                on_notice(lane, int(priority))

        def cut(connection: Any) -> None:
            if connection is self._connection:
                self._connection = None
                on_lost()

        try:
            async with self._connections.acquire() as connection:
                if connection is self._connection:
                    await rows_of(connection, "schema/server")
                    return False
                await connection.add_listener(self._schema, pass_on)
                connection.add_termination_listener(cut)
                self._connection, self._callback = connection, pass_on
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "LISTEN", writes=False) from error
        return True

    async def stop(self) -> None:
        """Listen no more, until ``listen`` is called again.

        Raises:
            Unavailable: the master cannot be reached.
        """
        listening, self._connection = self._connection, None
        if listening is None or listening.is_closed():
            return
        try:
            async with self._connections.acquire() as connection:
                if connection is listening and self._callback is not None:
                    await connection.remove_listener(self._schema, self._callback)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "UNLISTEN", writes=False) from error
