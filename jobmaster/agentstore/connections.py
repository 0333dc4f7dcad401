"""How one connection to a store is made: by redis-py (TLS, authentication, database number), bounded in time.

Where Sentinels watch the store, each new connection goes to the server that they name at that moment (``sentinel``). Of a
server cluster the caller names the node (``node_map``).

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
from jobmaster.agentstore.node_map import NodeMap
from jobmaster.agentstore.sentinel import Address, Sentinels, is_primary
from jobmaster.model.errors import JobMasterError, StoreRefused
from jobmaster.passwords import RotatingPassword
from jobmaster.settings.masking import mask_secrets
from jobmaster.settings.urls import ClusterUrl, SentinelUrl, parse_cluster_url, parse_sentinel_url

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
        self._sentinels: Sentinels | None = None
        self.nodes: NodeMap | None = None
        """Of a server cluster."""
        try:
            watched, clustered = parse_sentinel_url(url), parse_cluster_url(url)
            several = watched or clustered
            options: dict[str, Any] = dict(parse_url(url if several is None else several.server))
            self._make: type[AbstractConnection] = options.pop("connection_class", Connection)
            self._options = options
            self._new("check")
            if watched is not None:
                self._sentinels = self._sentinels_of(watched)
            if clustered is not None:
                self.nodes = self._nodes_of(clustered)
        except (ValueError, TypeError, driver.RedisError) as error:
            raise StoreRefused(
                f"{self.where}: the URL cannot be used: {mask_secrets(str(error))}",
                hint="write redis://host:6379/0, rediss://host:6379/0, unix:///path/to.sock, "
                "redis+sentinel://host1:26379,host2:26379/group/0 or redis+cluster://host1:6379,host2:6379",
            ) from None

    @property
    def fails_over(self) -> bool:
        """A replica takes the place of the server when it fails; what it had not received yet is lost then."""
        return self._sentinels is not None or self.nodes is not None

    async def open(self, purpose: str, at: Address | None = None) -> AbstractConnection:
        """A connection that has been authenticated and has answered.

        Args:
            purpose: a word for the name of the connection in the server.
            at: the node of a server cluster; ``None``: one that has answered lately.

        Raises:
            NotSent: it cannot be reached, or did not answer in time.
            StoreRefused: it can, but refuses this user.
        """
        if self.nodes is not None and at is None:
            try:
                return await self.open(purpose, await self.nodes.some_node())
            except NotSent:
                await self.nodes.read()  # now some node is another one, where one answers
                at = await self.nodes.some_node()
        if self._password is None:
            return await self._opened(purpose, None, at)
        return await self._password.use(lambda password: self._opened(purpose, password, at), PasswordRefused)

    async def _opened(self, purpose: str, password: str | None, at: Address | None) -> AbstractConnection:
        if self._sentinels is None:
            return await self._connected(self._new(purpose, password, at))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                at = await self._sentinels.primary(self.where)
                connection = await self._connected(self._new(purpose, password, at))
                if await is_primary(connection):
                    return connection
                raise NotSent(f"{at}, which the Sentinels name, is a replica: a failover is under way")
        except TimeoutError:
            raise NotSent(f"no connection within {self._timeout_seconds:g} s") from None

    async def _connected(self, connection: AbstractConnection) -> AbstractConnection:
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

    def _sentinels_of(self, watched: SentinelUrl) -> Sentinels:
        """The same kind of connection as to a server, with the login of the Sentinels and no database."""
        options = {name: value for name, value in self._options.items() if name not in {"username", "password", "db"}}

        def new(at: Address) -> AbstractConnection:
            return self._make(**{**options, **watched.login, **self._fixed("sentinel", at)})

        new(Address("check", 0))
        # One share for the server itself.
        return Sentinels(watched, new, self._timeout_seconds / (len(watched.sentinels) + 1))

    def _nodes_of(self, clustered: ClusterUrl) -> NodeMap:
        seeds = [Address(*node) for node in clustered.nodes]
        return NodeMap(seeds, self.open, self._timeout_seconds / (len(seeds) + 1), self.where)

    def _refused(self, error: driver.RedisError) -> JobMasterError:
        return translate(error, where=self.where, mutating=False)

    def _new(self, purpose: str, password: str | None = None, at: Address | None = None) -> AbstractConnection:
        fixed = self._fixed(purpose, at)
        if password is not None:
            fixed["password"] = password
        return self._make(**{**self._options, **fixed})

    def _fixed(self, purpose: str, at: Address | None) -> dict[str, Any]:
        """Options that no URL changes."""
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
        if "path" not in self._options:
            fixed["socket_keepalive"] = True
        if at is not None:
            fixed |= {"host": at.host, "port": at.port}
        return fixed
