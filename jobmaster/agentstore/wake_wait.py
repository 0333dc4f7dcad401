"""The two connections that wait: for a wake token, and for ids of finished jobs. Neither polls.

A blocking command may only be given up by giving up its connection: a reply that arrives later would be taken for the
answer to the next command. So every connection here is dropped on any exception, cancellation included.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection

from jobmaster.agentstore.calls import pack
from jobmaster.agentstore.connections import Connector
from jobmaster.agentstore.errors import NoReply, NotSent, is_reply, translate
from jobmaster.agentstore.keys import Keys
from jobmaster.model.errors import CodeError, JobMasterError

SHORTEST_SECONDS = 0.001
"""BLPOP reads 0 as for ever."""


class WakeWaiter:
    """One blocking pop over the wake keys of all buckets of an owner."""

    def __init__(self, connector: Connector, keys: Keys, *, timeout_seconds: float) -> None:
        self._connector = connector
        self._keys = keys
        self._timeout_seconds = timeout_seconds
        self._connection: AbstractConnection | None = None
        self._busy = False
        self._turn = 0

    async def wait(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """A bucket that has just had a token, or ``None`` after the time-out.

        The first key with a token wins, so the order is turned each time; a busy bucket would otherwise starve the rest.
        """
        if self._busy:
            raise CodeError("wait_wake is already waiting: its one connection serves one call at a time")
        if not bucket_ids:
            raise CodeError("wait_wake needs at least one bucket to wait for")
        self._turn = (self._turn + 1) % len(bucket_ids)
        ordered = [*bucket_ids[self._turn :], *bucket_ids[: self._turn]]
        by_key = {self._keys.bucket(bucket_id).wake: bucket_id for bucket_id in ordered}
        seconds = max(timeout_seconds, SHORTEST_SECONDS)
        self._busy = True
        try:
            if self._connection is None or not self._connection.is_connected:
                self._connection = await self._connector.open("wake")
            async with asyncio.timeout(seconds + self._timeout_seconds):
                await self._connection.send_packed_command(
                    pack(b"BLPOP", *by_key, b"%.3f" % seconds), check_health=False
                )
                reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except BaseException as error:
            await self.close()
            raise mapped(error, self._connector.where) from None
        finally:
            self._busy = False
        return by_key[reply[0]] if reply else None

    async def close(self) -> None:
        """Drop the connection; the next ``wait`` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


class FinishedSubscriptions:
    """Subscriptions to the ids that agents publish on a store."""

    def __init__(self, connector: Connector, keys: Keys, *, timeout_seconds: float) -> None:
        self._connector = connector
        self._keys = keys
        self._timeout_seconds = timeout_seconds
        self._open: set[AbstractConnection] = set()

    async def listen(self) -> AsyncIterator[bytes]:
        """``b""`` once the subscription is established, then one id after the other.

        Ends with ``Unavailable`` when the connection is lost or does not answer a PING; what was published meanwhile is
        not repeated, so a caller that subscribes again reads the master once.
        """
        connection: AbstractConnection | None = None
        try:
            connection = await self._connector.open("finished")
            self._open.add(connection)
            await connection.send_packed_command(pack(b"SUBSCRIBE", self._keys.finished), check_health=False)
            pinged = False
            while True:
                reply = await connection.read_response(disable_decoding=True, timeout=self._timeout_seconds)
                if reply is None:
                    await self._ping(connection, pinged)
                    pinged = True
                    continue
                pinged = False
                if reply[0] == b"subscribe":
                    yield b""
                elif reply[0] == b"message":
                    for start in range(0, len(reply[2]), 16):
                        yield reply[2][start : start + 16]
        except (NotSent, NoReply, driver.RedisError, OSError) as error:
            raise mapped(error, self._connector.where) from None
        finally:
            if connection is not None:
                self._open.discard(connection)
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """End every subscription."""
        for connection in tuple(self._open):
            await connection.disconnect(nowait=True)

    async def _ping(self, connection: AbstractConnection, pinged: bool) -> None:
        """A silent connection gets a PING: it may be dead, or merely quiet."""
        if pinged:
            raise NoReply(f"a subscription did not answer a PING within {self._timeout_seconds:g} s")
        await connection.send_packed_command(pack(b"PING"), check_health=False)


def mapped(error: BaseException, where: str) -> BaseException:
    """Our error for the driver's; everything else (cancellation) as it is."""
    if isinstance(error, JobMasterError):
        return error
    if isinstance(error, NotSent | NoReply):
        return translate(error, where=where, mutating=False)
    if isinstance(error, driver.RedisError) and is_reply(error):
        return translate(error, where=where, mutating=False)
    if isinstance(error, TimeoutError | driver.RedisError | OSError):
        return translate(NoReply(str(error) or "no answer in time"), where=where, mutating=False)
    return error
