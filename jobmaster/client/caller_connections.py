"""Connections of the caller's own drivers: psycopg, psycopg2, SQLAlchemy and Django. One statement runs in their open
transaction; nothing else of them is touched. None of the packages is imported: a connection shows whose it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from jobmaster.client.sql_submit import SubmitCall, styled
from jobmaster.model.errors import AccessRefused, Conflict, InputError, Unserved

TAKEN = "asyncpg, psycopg, psycopg2, SQLAlchemy or Django"
_IDLE = 0
"""``TransactionStatus.IDLE`` of libpq: no transaction is open."""


class Driver(StrEnum):
    """Package that a connection is of."""

    ASYNCPG = "asyncpg"
    PSYCOPG = "psycopg"
    PSYCOPG2 = "psycopg2"
    SQLALCHEMY = "sqlalchemy"
    DJANGO = "django"


class CallerConnection(NamedTuple):
    """A connection that a caller gave."""

    driver: Driver
    connection: Any
    awaits: bool
    """Its calls are awaited."""


def caller_connection(given: Any) -> CallerConnection:
    """What kind of connection it is; of a cursor, its connection. ``InputError`` for anything else."""
    classes = type(given).__mro__
    packages = {one.__module__.partition(".")[0] for one in classes}
    if callable(getattr(given, "is_in_transaction", None)) and callable(getattr(given, "fetchrow", None)):
        return CallerConnection(Driver.ASYNCPG, given, True)
    if "sqlalchemy" in packages and hasattr(given, "execute"):
        return CallerConnection(
            Driver.SQLALCHEMY, given, hasattr(given, "sync_session") or hasattr(given, "sync_connection")
        )
    for driver in (Driver.PSYCOPG, Driver.PSYCOPG2):
        if driver.value in packages and hasattr(given, "fetchone"):
            return caller_connection(given.connection)
        if driver.value in packages and hasattr(given, "cursor"):
            return CallerConnection(driver, given, any(one.__name__.startswith("Async") for one in classes))
    if "django" in packages and hasattr(given, "db"):
        return caller_connection(given.db)
    if "django" in packages and hasattr(given, "vendor") and hasattr(given, "cursor"):
        return CallerConnection(Driver.DJANGO, given, False)
    raise InputError(
        f"connection= takes an open connection of {TAKEN}, not {type(given).__name__}",
        hint="with another driver run the statement yourself: sql, params = cluster.statement(call(...))",
    )


def run(given: CallerConnection, text: str, call: SubmitCall) -> str:
    """Run the statement in the caller's open transaction; the job's id as text.

    Raises:
        InputError: no transaction is open, or the connection is to another database.
        Conflict: the idempotency key or the id belongs to other arguments.
        AccessRefused: the connection's role may not submit.
        Exception: any other error, as the driver raised it.
    """
    with _translated():
        return str(_RUN[given.driver](given.connection, text, call))


async def run_awaited(given: CallerConnection, text: str, call: SubmitCall) -> str:
    """``run`` for connections whose calls are awaited."""
    with _translated():
        return str(await _AWAIT[given.driver](given.connection, text, call))


# ------------------------------------------------------------ one function a driver


def _psycopg(connection: Any, text: str, call: SubmitCall) -> object:
    from psycopg.rows import scalar_row

    _refuse_idle(connection.autocommit and connection.info.transaction_status == _IDLE)
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(styled(text, "format"), call).fetchone()


async def _psycopg_awaited(connection: Any, text: str, call: SubmitCall) -> object:
    from psycopg.rows import scalar_row

    _refuse_idle(connection.autocommit and connection.info.transaction_status == _IDLE)
    async with connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(styled(text, "format"), call)
        return await cursor.fetchone()


def _psycopg2(connection: Any, text: str, call: SubmitCall) -> object:
    from psycopg2.extensions import cursor as plain_cursor

    _refuse_idle(connection.autocommit and connection.get_transaction_status() == _IDLE)
    with connection.cursor(cursor_factory=plain_cursor) as cursor:
        cursor.execute(styled(text, "format"), tuple(call))
        return cursor.fetchone()[0]


def _django(connection: Any, text: str, call: SubmitCall) -> object:
    if connection.vendor != "postgresql":
        raise _other_database(connection.vendor)
    _refuse_idle(not connection.in_atomic_block and connection.get_autocommit())
    with connection.cursor() as cursor:
        cursor.execute(styled(text, "format"), tuple(call))
        return cursor.fetchone()[0]


def _sqlalchemy(given: Any, text: str, call: SubmitCall) -> object:
    from sqlalchemy import text as sql_text

    connection = given.connection() if callable(given.connection) else given
    if connection.dialect.name != "postgresql":
        raise _other_database(connection.dialect.name)
    driver = connection.connection.dbapi_connection
    isolation = getattr(driver, "isolation_level", None)
    _refuse_idle(getattr(driver, "autocommit", False) is True or isolation == "autocommit")
    return connection.execute(sql_text(styled(text, "named")), call._asdict()).scalar_one()


async def _sqlalchemy_awaited(given: Any, text: str, call: SubmitCall) -> object:
    connection = await given.connection() if hasattr(given, "sync_session") else given
    return await connection.run_sync(_sqlalchemy_of, text, call)


def _sqlalchemy_of(connection: Any, text: str, call: SubmitCall) -> object:
    return _sqlalchemy(connection, text, call)


_RUN: dict[Driver, Callable[[Any, str, SubmitCall], object]] = {
    Driver.PSYCOPG: _psycopg,
    Driver.PSYCOPG2: _psycopg2,
    Driver.SQLALCHEMY: _sqlalchemy,
    Driver.DJANGO: _django,
}
_AWAIT: dict[Driver, Callable[[Any, str, SubmitCall], Awaitable[object]]] = {
    Driver.PSYCOPG: _psycopg_awaited,
    Driver.SQLALCHEMY: _sqlalchemy_awaited,
}


# ------------------------------------------------------------ errors


def _refuse_idle(idle: bool) -> None:
    if idle:
        raise InputError(
            "the connection given with connection= is not in a transaction: it commits each statement",
            hint="open one around the submit: connection.transaction(), session.begin(), transaction.atomic()",
        )


def _other_database(name: str) -> InputError:
    return InputError(
        f"the connection given with connection= is to {name}, and the master is PostgreSQL",
        hint="give a connection to the master's database, or submit after the commit",
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the SQL function become those of a submit; any other error is the caller's."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        known = _known(error)
        if known is not None:
            raise known from error
        raise


def _known(error: Exception) -> Exception | None:
    code, message, hint = _parts(error)
    if code in ("22023", "42704"):
        return InputError(message, hint=hint)
    if code == "23505" and message.startswith(("idempotency key ", "job ")):
        return Conflict(message, hint=hint)
    if code == "55000" and message.startswith("no bucket serves "):
        return Unserved(message, hint=hint)
    if code in ("3F000", "42883"):
        return InputError(
            f"the database of the connection has no function submit of this cluster ({message})",
            hint="give a connection to the master's database; if it is that one, run `jobmaster db migrate`",
        )
    if code == "42501":
        return AccessRefused(
            f"the role of the connection may not submit: {message}",
            hint="grant USAGE on the cluster's schema and EXECUTE on its function submit; see docs/transactions.md",
        )
    return None


def _parts(error: BaseException | None) -> tuple[str | None, str, str | None]:
    """SQLSTATE, message and hint of the driver's error inside the given one."""
    seen: list[BaseException | None] = [error, getattr(error, "orig", None), getattr(error, "__cause__", None)]
    seen += [getattr(one, "__cause__", None) for one in seen[1:] if one is not None]
    for one in seen:
        code = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(code, str):
            diag = getattr(one, "diag", None)
            message = getattr(diag, "message_primary", None) or getattr(one, "message", None) or str(one)
            return code, str(message), getattr(diag, "message_hint", None) or getattr(one, "hint", None)
    return None, "", None
