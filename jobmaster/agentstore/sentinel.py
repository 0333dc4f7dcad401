"""The server that Sentinels name as the primary of a group, for each new connection.

Sentinels watch a primary and its replicas and promote a replica when the primary fails. A client follows them by these
rules: ask one Sentinel after the other for the address, connect to it, and use the connection only if the server itself says
that it is a primary. Source of the idea: "Guidelines for Redis clients with support for Redis Sentinel" of the servers'
documentation. No subscription to their messages is needed: a Sentinel that makes a primary a replica cuts its clients off,
and a server that refuses writes as a replica costs its connection (``pipelined_connection``).

Why not the Sentinel class of redis-py: its pools keep connections to the Sentinels, it bounds no attempt as a whole, and it
reports a refused password as a primary that was not found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

import redis.exceptions as driver
from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection

from jobmaster.agentstore.errors import NotSent, is_reply
from jobmaster.model.errors import StoreRefused
from jobmaster.settings.urls import SentinelUrl


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


class Sentinels:
    """The Sentinels of one store.

    Args:
        url: their addresses, and the name of the group.
        new: a connection to one of them that is not open yet.
        seconds: how long one of them may take to connect and answer.
    """

    def __init__(self, url: SentinelUrl, new: Callable[[Address], AbstractConnection], seconds: float) -> None:
        self._addresses = [Address(*one) for one in url.sentinels]
        self._group = url.group
        self._new = new
        self._seconds = seconds
        self._first = 0

    async def primary(self, where: str) -> Address:
        """The address of the primary; the Sentinel that answered last is asked first.

        Args:
            where: the store, for messages.

        Raises:
            NotSent: none of them could name it.
            StoreRefused: all of them have answered, and none knows the group; or one refuses the login.
        """
        faults = []
        unknown = 0
        for at in range(self._first, self._first + len(self._addresses)):
            number = at % len(self._addresses)
            sentinel = self._addresses[number]
            try:
                found = await self._ask(sentinel, where)
            except NotSent as error:
                faults.append(f"{sentinel}: {error}")
                continue
            if found is not None:
                self._first = number
                return found
            unknown += 1
            faults.append(f"{sentinel} does not know {self._group!r}")
        if unknown == len(self._addresses):
            raise StoreRefused(
                f"{where}: none of its Sentinels knows a group {self._group!r}",
                hint="`SENTINEL MASTERS` lists the names that they have; the URL is redis+sentinel://host1,host2/name/0",
            )
        raise NotSent(f"no Sentinel names its primary ({'; '.join(faults)})")

    async def _ask(self, sentinel: Address, where: str) -> Address | None:
        """What one of them answers; ``None``: it does not know the group."""
        connection = self._new(sentinel)
        try:
            async with asyncio.timeout(self._seconds):
                await connection.connect()  # type: ignore[no-untyped-call]  # the driver forgot its annotation
                reply = await reply_of(connection, b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._group.encode())
        except (TimeoutError, driver.TimeoutError):
            raise NotSent(f"no answer within {self._seconds:g} s") from None
        except (driver.AuthenticationError, driver.NoPermissionError) as error:
            raise StoreRefused(
                f"{where}: its Sentinel {sentinel} refuses the login: {error}",
                hint="give it with the parameters sentinel_username and sentinel_password of the URL",
            ) from None
        except (driver.RedisError, OSError) as error:
            raise NotSent(str(error)) from None
        finally:
            await connection.disconnect(nowait=True)
        if not isinstance(reply, list):
            return None
        host, port = cast(list[bytes], reply)
        return Address(host.decode(), int(port))


async def is_primary(connection: AbstractConnection) -> bool:
    """True when the server of an open connection says that it is no replica; else the connection is closed.

    INFO is read, and not ROLE, because every user of a store may read it.
    """
    primary = False
    try:
        reply = cast(bytes, await reply_of(connection, b"INFO", b"replication"))
        primary = b"role:master" in reply.split()
    except (driver.RedisError, OSError) as error:
        if isinstance(error, OSError) or not is_reply(error):
            raise NotSent(str(error)) from None
        # Loading, or INFO is forbidden: the first call gets the same answer, and reports it.
        primary = True
    finally:
        if not primary:
            await connection.disconnect(nowait=True)
    return primary


async def reply_of(connection: AbstractConnection, *command: bytes) -> object:
    """The reply of one command on a connection that serves no other call; raises the driver's errors."""
    await connection.send_packed_command(pack_command(command), check_health=False)  # type: ignore[arg-type]
    return cast(object, await connection.read_response(disable_decoding=True, disconnect_on_error=False))
