"""Connections to the master: every call is bounded in time, and a connection whose last call is in doubt is cut.

``close()`` and the release of a cancelled connection can hang for ever behind a frozen server, so neither is awaited without
a limit, and after a time-out or a cancellation the socket is dropped. No statement is sent when a connection is lent or
returned (asyncpg's pool sends a reset): the statements of this package leave no session state behind.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.passwords import PasswordFunction, RotatingPassword, rotating
from jobmaster.settings.model import MasterSettings
from jobmaster.settings.urls import UrlError, parse_dsn

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Row: TypeAlias = asyncpg.Record

_T = TypeVar("_T")
_ANSWER_SECONDS = 2.0
"""How much longer than the server's own limit an answer may take."""
_IDLE_TRANSACTION_SECONDS = 30.0
_CLOSE_SECONDS = 2.0
_TRIES = 5
_RETRY_SECONDS = 0.01
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_NEXT_HOST = (
    OSError,
    TimeoutError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
)

EPOCH_2000_US = 946_684_800_000_000
"""PostgreSQL counts its microseconds from 2000-01-01; we count from 1970."""


def to_us(moment: tuple[int] | None) -> int:
    """Microseconds since 1970 of a timestamptz as our connections read it; 0 for NULL."""
    return moment[0] + EPOCH_2000_US if moment is not None else 0


def place_of(dsn: str) -> str:
    """``host:port/database`` for messages, without the password."""
    try:
        return str(parse_dsn(dsn))
    except UrlError:
        return "of a DSN that cannot be understood"


class DatabaseConnector:
    """Opens connections to the database of one DSN.

    A DSN may name several hosts, as at a failover: each gets its share of the time, the one that answered last is tried
    first, and a standby is passed over unless ``target_session_attrs`` requires one. ``read-write`` means ``primary`` for a
    session that is read-only by its own settings.

    Args:
        connection_class: the class of the connections, when it is not the driver's.
        password: where the password comes from, when it is not in the DSN.

    Raises:
        ConfigError: the DSN cannot be understood.
    """

    def __init__(
        self, dsn: str, connection_class: type[Connection] | None = None, password: RotatingPassword | None = None
    ) -> None:
        try:
            self.url = parse_dsn(dsn)
        except UrlError as error:
            raise ConfigError(f"the DSN of the database cannot be used: {error.message}", hint=error.hint) from None
        self.place = str(self.url)
        self._dsn = dsn
        self._class = connection_class
        self._password = password
        self._first = 0

    async def connect(
        self,
        seconds: float,
        *,
        server_settings: Mapping[str, str],
        command_timeout: float | None = None,
        prepared: bool = True,
    ) -> Connection:
        """A connection, or an error of the driver.

        Args:
            seconds: how long it may take, over all hosts.
            server_settings: of the session.
            command_timeout: how long the answer to a statement may take, in seconds.
            prepared: whether statements get names on the server and are kept there.
        """
        self._look_at_files()
        options: dict[str, Any] = {"server_settings": server_settings, "command_timeout": command_timeout}
        if not prepared:
            options["statement_cache_size"] = 0
        if self._class is not None:
            options["connection_class"] = self._class
        async with asyncio.timeout(seconds):
            if self._password is None:
                return await self._to_a_host(seconds, options)
            return await self._password.use(
                lambda password: self._to_a_host(seconds, {**options, "password": password}),
                asyncpg.InvalidAuthorizationSpecificationError,
            )

    async def _to_a_host(self, seconds: float, options: dict[str, Any]) -> Connection:
        """A connection to the host that answered last, else to the next one that answers."""
        hosts = self.url.hosts
        wanted = self.url.parameters.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
        if wanted == "read-write" and options["server_settings"].get("default_transaction_read_only") == "on":
            options["target_session_attrs"] = wanted = "primary"
        if len(hosts) < 2 or wanted == "prefer-standby":
            return await asyncpg.connect(self._dsn, timeout=seconds, **options)
        options["target_session_attrs"] = wanted or "primary"
        for at in range(self._first, self._first + len(hosts)):
            number = at % len(hosts)
            try:
                connection = await self._one(*hosts[number], seconds / len(hosts), options)
            except _NEXT_HOST as error:
                last: Exception = error
            else:
                self._first = number
                return connection
        raise last

    async def _one(self, host: str, port: int, seconds: float, options: Mapping[str, Any]) -> Connection:
        async with asyncio.timeout(seconds):
            return await asyncpg.connect(self._dsn, host=host, port=port, timeout=seconds, **options)

    def _look_at_files(self) -> None:
        """The driver's error does not name the file that it misses."""
        for name in _FILES:
            file = self.url.parameters.get(name)
            if file is not None and not os.path.exists(file):
                raise ConfigError(
                    f"the DSN of the database {self.place} names {name} {file}, which is not there",
                    hint="mend its path, or put the file there",
                )


def password_of(settings: MasterSettings, function: PasswordFunction | None = None) -> RotatingPassword | None:
    """The master's password, when it is not in the DSN."""
    return rotating(function, settings.password_command, settings.password_lifetime_seconds)


class ConnectionFactory:
    """Opens connections that are set up for the schema of one cluster.

    Args:
        pooler: the DSN leads to a pooler: sessions start without settings, and statements have no names.
        password: in place of the command of the settings.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        settings: MasterSettings,
        application_name: str,
        *,
        pooler: bool = False,
        password: PasswordFunction | None = None,
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self._connector = DatabaseConnector(dsn, password=password_of(settings, password))
        self.place = self._connector.place
        self.call_seconds = settings.statement_timeout_seconds + _ANSWER_SECONDS
        self._connect_seconds = settings.connect_timeout_seconds
        self._pooler = pooler
        self._accepted = False
        """True once the server has accepted a connection of this program."""
        self._server_settings = {
            "application_name": application_name,
            "search_path": quoted(schema),
            "timezone": "UTC",
            "jit": "off",
            # Our statements go from arrays to rows by key. On a small or empty partition the planner would rather read or
            # hash the whole of it, and a plan made then is kept while the partition grows.
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "enable_seqscan": "off",
            "statement_timeout": f"{settings.statement_timeout_seconds * 1000:.0f}",
            "lock_timeout": f"{settings.lock_timeout_seconds * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{_IDLE_TRANSACTION_SECONDS * 1000:.0f}",
        }

    @property
    def local_settings(self) -> dict[str, str]:
        """The settings of our sessions, for one transaction each: a pooler has the sessions."""
        return {**self._server_settings, "enable_bitmapscan": "off"}

    async def open(self, *, plan_once: bool, over: Mapping[str, str] | None = None) -> Connection:
        """A connection; raises ``Unavailable`` or ``Refused``.

        Args:
            over: settings of the server that replace the usual ones. Such a connection is for long work: how long it may
                wait for an answer is left to the server.
            plan_once: keep the first plan of every statement. For statements whose parameters do not matter to the plan:
                with 64 partitions, planning the leader's costs 12 ms each time, running it 1 ms.
        """
        # Many read in the order of an index up to a limit. With statistics that are behind, the planner would gather all that
        # is due in a bitmap and sort it, to take the first hundred.
        plans = {"enable_bitmapscan": "off", **({"plan_cache_mode": "force_generic_plan"} if plan_once else {})}
        session = {} if self._pooler else {**self._server_settings, **plans, **(over or {})}
        try:
            async with asyncio.timeout(self._connect_seconds):
                connection = await self._connector.connect(
                    self._connect_seconds,
                    command_timeout=None if over else self.call_seconds,
                    server_settings=session,
                    prepared=not self._pooler,
                )
                # Ids are 16 bytes and times are integers everywhere in this program; objects for them would cost more
                # than the rest of a row.
                await connection.set_type_codec(
                    "uuid", schema="pg_catalog", format="binary", encoder=bytes, decoder=bytes
                )
                await connection.set_type_codec(
                    "timestamptz", schema="pg_catalog", format="tuple", encoder=tuple, decoder=tuple
                )
                self._accepted = True
                return connection
        except errors.DRIVER_ERRORS as error:
            raise errors.connecting(error, self.place, accepted=self._accepted) from error


class ConnectionPool:
    """At most ``size`` connections, opened when they are needed, the one used last goes first."""

    def __init__(self, connection_factory: ConnectionFactory, size: int, *, plan_once: bool = False) -> None:
        self._connection_factory = connection_factory
        self._plan_once = plan_once
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()
        self._free = asyncio.Semaphore(size)
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a call would wait for its turn now."""
        return self._free.locked()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection for one call. It comes back only if the call ended in a known state."""
        await self._turn()
        try:
            connection = await self._take()
            self._lent.add(connection)
            try:
                yield connection
            except asyncpg.PostgresError:
                self._give_back(connection)
                raise
            except BaseException:
                # Time-out, cancellation, a broken socket: its next answer cannot be known.
                connection.terminate()
                raise
            else:
                self._give_back(connection)
            finally:
                self._lent.discard(connection)
        finally:
            self._free.release()

    async def _turn(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._connection_factory.call_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable("every connection to the master stayed busy; the call was not sent") from None

    async def _take(self) -> Connection:
        if self._closed:
            raise Unavailable("the connection to the master has been closed by this program")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connection_factory.open(plan_once=self._plan_once)

    def _give_back(self, connection: Connection) -> None:
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close within a moment, then cut."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(close_politely(connection) for connection in idle))
        for connection in list(self._lent):
            connection.terminate()


class SpareConnections:
    """Connections of their own, and those of another pool while these are not needed there.

    For short calls alone: the other pool's calls wait for their end.
    """

    def __init__(self, own: ConnectionPool, others: ConnectionPool) -> None:
        self._own = own
        self._others = others

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for one call."""
        pool = self._others if self._own.is_busy and not self._others.is_busy else self._own
        return pool.acquire()


async def close_politely(connection: Connection) -> None:
    """Close within a moment, else cut."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()
    except errors.DRIVER_ERRORS:
        connection.terminate()


class StatementRunner:
    """Statements by name on some connections, with one place for errors and repeats."""

    def __init__(self, connections: ConnectionPool | SpareConnections) -> None:
        self._connections = connections

    async def read(self, name: str, *args: Any) -> list[Row]:
        """Rows of a statement that changes nothing."""
        text = sql(name)
        return await self.run(name, lambda connection: connection.fetch(text, *args), writes=False)

    async def write(self, name: str, *args: Any, ids: Sequence[bytes] = ()) -> list[Row]:
        """Rows of a statement that writes; ``ids`` are the jobs to name when its outcome is unknown."""
        text = sql(name)
        return await self.run(name, lambda connection: connection.fetch(text, *args), ids=ids)

    async def run(
        self,
        what: str,
        work: Callable[[Connection], Awaitable[_T]],
        *,
        writes: bool = True,
        ids: Sequence[bytes] = (),
        raw: tuple[type[Exception], ...] = (),
    ) -> _T:
        """Run some work on one connection; repeat it after an error that the server reports as retryable.

        Args:
            what: name for messages.
            raw: errors of the driver that the caller understands itself.
        """
        for attempt in range(_TRIES):
            try:
                async with self._connections.acquire() as connection:
                    return await work(connection)
            except raw:
                raise
            except errors.DRIVER_ERRORS as error:
                if isinstance(error, _AGAIN) and attempt < _TRIES - 1:
                    await asyncio.sleep(_RETRY_SECONDS * (attempt + random.random()))
                    continue
                raise errors.calling(error, what, writes=writes, ids=ids) from error
        raise AssertionError("the last try returns or raises")

    async def in_transaction(self, what: str, work: Callable[[Connection], Awaitable[_T]]) -> _T:
        """Run some work in one transaction."""

        async def inside(connection: Connection) -> _T:
            async with connection.transaction():
                return await work(connection)

        return await self.run(what, inside)


async def rows_of(connection: Connection, name: str, *args: Any) -> list[Row]:
    """Rows of a statement on a connection that is in a transaction of ours."""
    return await connection.fetch(sql(name), *args)
