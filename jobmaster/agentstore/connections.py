"""How one connection to a store is made: by redis-py (TLS, authentication, database number), bounded in time.

No retries anywhere below the caller: the driver cannot know whether sending twice is safe, the protocol above does.
``socket_timeout`` stays unset: the driver would start a task or a timer for every write and read. The
user of a connection bounds its waiting: one alarm for a whole queue of calls, one time-out around a blocking one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from jobmaster.agentstore.errors import NotSent, PasswordRefused, is_reply, translate
from jobmaster.model.errors import JobMasterError, StoreRefused
from jobmaster.passwords import RotatingPassword
from jobmaster.settings.masking import mask_secrets

READ_BYTES = 256 * 1024
"""One read of the driver; a claim of 1,000 jobs is about this long."""


class Connector:
    """Makes connections to one store."""

    def __init__(
        self,
        *,
        cluster: str,
        name: str,
        url: str,
        connect_timeout_seconds: float,
        password: RotatingPassword | None = None,
    ) -> None:
        self.where = f"agent store {name!r} at {mask_secrets(url)}"
        self._timeout_seconds = connect_timeout_seconds
        self._password = password
        self._client_name = f"jobmaster:{cluster}"
        try:
            options: dict[str, Any] = dict(parse_url(url))
            self._make: type[AbstractConnection] = options.pop("connection_class", Connection)
            self._options = options
            self._new("check")
        except (ValueError, TypeError, driver.RedisError) as error:
            raise StoreRefused(
                f"{self.where}: the URL cannot be used: {mask_secrets(str(error))}",
                hint="write redis://host:6379/0, rediss://host:6379/0 or unix:///path/to.sock",
            ) from None

    async def open(self, purpose: str) -> AbstractConnection:
        """A connection that has been authenticated and has answered.

        Raises:
            NotSent: it cannot be reached, or did not answer in time.
            StoreRefused: it can, but refuses this user.
        """
        if self._password is None:
            return await self._opened(self._new(purpose))
        return await self._password.use(lambda password: self._opened(self._new(purpose, password)), PasswordRefused)

    async def _opened(self, connection: AbstractConnection) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await connection.connect()  # type: ignore[no-untyped-call]  # the driver forgot its annotation
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError | driver.TimeoutError):
                raise NotSent(f"no connection within {self._timeout_seconds:g} s") from None
            if isinstance(error, driver.RedisError) and is_reply(error):
                raise self._refused(error) from None
            if isinstance(error, driver.RedisError | OSError):
                raise NotSent(mask_secrets(str(error))) from None
            raise
        return connection

    def _refused(self, error: driver.RedisError) -> JobMasterError:
        return translate(error, where=self.where, mutating=False)

    def _new(self, purpose: str, password: str | None = None) -> AbstractConnection:
        fixed: dict[str, Any] = {
            "client_name": f"{self._client_name}:{purpose}",
            "decode_responses": False,
            "health_check_interval": 0,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "retry_on_timeout": False,
            "socket_connect_timeout": self._timeout_seconds,
            "socket_read_size": READ_BYTES,
            "socket_timeout": None,
        }
        if password is not None:
            fixed["password"] = password
        if "path" not in self._options:
            fixed["socket_keepalive"] = True
        return self._make(**{**self._options, **fixed})
