"""Transactions of handlers on the master: what a handler writes is committed together with its job's outcome, or not at all.

The application uses these connections, so they are like its own: usual codecs, usual search path, usual plans.
Each attempt finds one as it was opened, whatever the attempt before has done to its session: temporary tables, roles,
settings, prepared statements, codecs, locks. Only their limits in time are set, and their application name is the agent's id,
so that the rescuer of a dead agent's jobs ends its open transactions, too.

Order of an attempt: begin -> statements of the handler -> the outcome, as the last statement, by the same guarded upsert as
every outcome -> commit. No lock of ours is held before that last statement. A commit whose answer is lost is *unknown*; the
row decides, because it has the outcome if and only if the rest was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncpg
import msgspec
from asyncpg.pgproto.pgproto import UUID
from asyncpg.prepared_stmt import PreparedStatement

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import DatabaseConnector, close_politely, password_of
from jobmaster.master.driver.statements import sql, statement
from jobmaster.model.errors import Conflict, InputError, Unavailable, UnknownHandler
from jobmaster.model.job import Conclusion, FinalRow
from jobmaster.settings.model import MasterSettings

_TIDY_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_UNKNOWN = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
    EOFError,
)
"""After these a commit may have happened."""


class _OurStatements(NamedTuple):
    """Prepared before the attempt uses the connection: with the usual codecs, and plans that stay."""

    begin: PreparedStatement[asyncpg.Record]
    still_open: PreparedStatement[asyncpg.Record]
    record_final: PreparedStatement[asyncpg.Record]

    @classmethod
    async def on(cls, connection: AttemptConnection, schema: str) -> _OurStatements:
        return cls(
            await connection.prepare(sql("transactions/begin")),
            await connection.prepare(sql("transactions/still_open")),
            await connection.prepare(statement("outcomes/record_final").qualified(schema)),
        )


if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection  # generic for type checkers alone


class AttemptConnection(_Connection):
    """A connection that can be reset for the next attempt, or is marked as one that cannot."""

    is_soiled = False
    """The attempt has left something that cannot be taken back."""

    ours: _OurStatements | None = None
    _set_codecs: tuple[tuple[str, str], ...] = ()
    """Names and schemas of types that the attempt has codecs of its own for."""

    def get_reset_query(self) -> str:
        """The driver's own leaves temporary tables, prepared statements and roles as they are."""
        return sql("transactions/forget")

    async def renew(self) -> None:
        """As it was when it was opened: the session in the server, and its state in the driver."""
        codecs, self._set_codecs = self._set_codecs, ()
        for name, schema in set(codecs):
            try:
                await self.reset_type_codec(name, schema=schema)
            except ValueError:  # the type is gone
                self.is_soiled = True
        await self.reset()
        # Statements of the attempt may name its temporary tables: the next one's, of another shape, would be an error.
        self._drop_local_statement_cache()  # type: ignore[attr-defined]

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        encoder: Callable[[Any], Any],
        decoder: Callable[[Any], Any],
        format: str = "text",  # noqa: A002 - the name of the driver
    ) -> None:
        """The driver's own, noted."""
        self._set_codecs += ((typename, schema),)
        await super().set_type_codec(typename, schema=schema, encoder=encoder, decoder=decoder, format=format)

    async def set_builtin_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        codec_name: str,
        format: str | None = None,  # noqa: A002
    ) -> None:
        """The driver's own, noted."""
        self._set_codecs += ((typename, schema),)
        await super().set_builtin_type_codec(typename, schema=schema, codec_name=codec_name, format=format)

    def add_query_logger(self, callback: Any) -> None:
        """The driver's own, noted."""
        self.is_soiled = True
        super().add_query_logger(callback)

    def add_termination_listener(self, callback: Any) -> None:
        """The driver's own, noted."""
        self.is_soiled = True
        super().add_termination_listener(callback)


class MasterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which a process opens transactions on the master."""

    dsn: str
    schema: str
    application_name: str
    settings: MasterSettings


class Transactions:
    """At most ``master.transactions`` connections, opened when they are first needed. Belongs to one event loop."""

    def __init__(self, access: MasterAccess) -> None:
        self.access: Final = access
        self._connector = DatabaseConnector(access.dsn, AttemptConnection, password_of(access.settings))
        self._free = asyncio.Semaphore(access.settings.transactions)
        self._idle: list[AttemptConnection] = []
        self._lent: set[AttemptConnection] = set()
        self._closed = False

    async def begin(self, attempt: str) -> Transaction:
        """A new transaction; waits for a free connection.

        Args:
            attempt: identity of the attempt, as text.

        Raises:
            Unavailable: the master cannot be reached. Refused: it does not accept the user.
        """
        await self._free.acquire()
        try:
            while self._idle and not self._closed:
                connection = self._idle.pop()
                try:
                    return await self._begin(connection, attempt)
                except _UNKNOWN:
                    continue  # it went stale while it lay there (a restart of the server): nothing had been begun
            if self._closed:
                raise Unavailable("the connections for transactions have been closed: the agent ends")
            try:
                return await self._begin(await self._open(), attempt)
            except errors.DRIVER_ERRORS as error:
                raise errors.connecting(error, self._connector.place) from error
        except BaseException:
            self._free.release()
            raise

    async def close(self) -> None:
        """Close every connection; what is open on one is cut, and rolled back by the server."""
        self._closed = True
        for connection in list(self._lent):
            connection.terminate()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(close_politely(connection) for connection in idle))

    async def _open(self) -> AttemptConnection:
        access, settings = self.access, self.access.settings
        limits = {
            "statement_timeout": settings.transaction_statement_timeout_seconds,
            "lock_timeout": settings.transaction_lock_timeout_seconds,
            "idle_in_transaction_session_timeout": settings.transaction_idle_timeout_seconds,
        }
        connection = await self._connector.connect(
            settings.connect_timeout_seconds,
            command_timeout=settings.transaction_statement_timeout_seconds + _ANSWER_SECONDS,
            server_settings={
                "application_name": access.application_name,
                **{name: f"{seconds * 1000:.0f}" for name, seconds in limits.items()},
            },
        )
        assert isinstance(connection, AttemptConnection), "the class that the connector was given"
        return connection

    async def _begin(self, connection: AttemptConnection, attempt: str) -> Transaction:
        try:
            if (ours := connection.ours) is None:
                ours = connection.ours = await _OurStatements.on(connection, self.access.schema)
            transaction = connection.transaction()
            await transaction.start()
            await ours.begin.fetchval(attempt)
        except BaseException:
            connection.terminate()
            raise
        self._lent.add(connection)
        return Transaction(connection, transaction, attempt, self)

    async def take_back(self, connection: AttemptConnection, *, sound: bool) -> None:
        """A transaction is over; ``sound``: and in a known way, so that its connection may serve another one."""
        self._lent.discard(connection)
        try:
            if not sound or self._closed or connection.is_closed() or connection.is_in_transaction():
                connection.terminate()
                return
            try:
                async with asyncio.timeout(_TIDY_SECONDS):
                    await connection.renew()  # what a handler has done to its session does not reach the next one
                if connection.is_soiled:
                    await close_politely(connection)
                else:
                    self._idle.append(connection)
            except errors.DRIVER_ERRORS:
                connection.terminate()
        finally:
            self._free.release()


class Transaction:
    """One open transaction. Ends by ``commit`` or ``rollback``."""

    def __init__(self, connection: AttemptConnection, transaction: Any, attempt: str, source: Transactions) -> None:
        self.connection: Final = connection
        self._transaction = transaction
        self._attempt = attempt
        self._source = source
        self._given_back = False

    async def rollback(self) -> None:
        """Undo everything; bounded, and a connection that does not answer is cut."""
        sound = False
        try:
            if not self.connection.is_closed():
                async with asyncio.timeout(_TIDY_SECONDS):
                    await self._transaction.rollback()
                sound = True
        except errors.DRIVER_ERRORS:
            pass  # the server rolls back what it finds without a client
        finally:
            await self._give_back(sound=sound)

    async def _give_back(self, *, sound: bool) -> None:
        if not self._given_back:
            self._given_back = True
            await self._source.take_back(self.connection, sound=sound)

    async def write(self, row: FinalRow) -> bool:
        """Write the outcome, as the last statement. False: refused by the row.

        Raises:
            InputError: the handler has ended the transaction by itself, or went on after an error that had spoilt it.
            Exception: the server's or the driver's own.
        """
        connection, ours = self.connection, self.connection.ours
        assert ours is not None, "they were prepared before the attempt began"
        if connection.is_closed():
            raise InputError(
                "the transaction's connection is closed: nothing of it was committed",
                hint="the server ends it when it idles too long (master.transaction_idle_timeout), or the handler closed it",
            )
        try:
            same = connection.is_in_transaction() and await ours.still_open.fetchval(self._attempt)
            if not same:
                raise InputError(
                    "the handler has ended its transaction by itself: its outcome cannot be part of it any more",
                    hint="leave COMMIT and ROLLBACK out; connection.transaction() inside the block is a savepoint",
                )
            found = await ours.record_final.fetchrow(*_columns(row))
        except asyncpg.InFailedSQLTransactionError as error:
            raise InputError(
                "an error that the handler has caught had spoilt its transaction: nothing of it was committed",
                hint="put what may fail into `async with connection.transaction()`, a savepoint",
            ) from error
        return found is not None and bool(found["accepted"])

    async def submit(self, handler: str, args: str, options: str) -> None:
        """A job in this transaction, by the SQL function ``submit``; arguments and options are JSON.

        Raises:
            UnknownHandler, Conflict, InputError: as the function has refused it; the transaction can only be rolled back
                then, or continued from a savepoint before it.
            Exception: the server's or the driver's own.
        """
        text = statement("intake/submit").qualified(self._source.access.schema)
        try:
            await self.connection.fetchval(text, handler, args, options)
        except asyncpg.UndefinedObjectError as error:
            raise UnknownHandler(error.message, hint=error.hint) from error
        except asyncpg.UniqueViolationError as error:
            raise Conflict(error.message, hint=error.hint) from error
        except (asyncpg.InvalidParameterValueError, asyncpg.DataError) as error:
            raise InputError(error.message, hint=error.hint) from error

    async def commit(self) -> Conclusion:
        """COMMITTED or UNKNOWN.

        Raises:
            Exception: the server's own, of a constraint that is checked at the commit; rolled back.
        """
        seconds = self._source.access.settings.transaction_statement_timeout_seconds + _ANSWER_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._transaction.commit()
        except _UNKNOWN:
            await self._give_back(sound=False)
            return Conclusion.UNKNOWN
        except asyncpg.PostgresError:
            await self._give_back(sound=True)  # refused, and so rolled back
            raise
        except BaseException:
            await self._give_back(sound=False)
            raise
        await self._give_back(sound=True)
        return Conclusion.COMMITTED


def _columns(row: FinalRow) -> list[list[Any]]:
    """One row as the arrays of ``record_final``, for a connection with the usual codecs."""
    values: dict[str, Any] = {**row._asdict(), "id": UUID(row.id), "bucket_id": UUID(row.bucket_id)}
    return [[value] for value in values.values()]
