"""Reads from a PostgreSQL that is not the master: jobs may be made of any tables."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, DatabaseConnector, place_of
from jobmaster.master.driver.statements import quoted
from jobmaster.master.history.export import DELIMITER, NULL, QUOTE
from jobmaster.model.errors import InputError, JobMasterError, Unavailable

_TYPES = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double",
    "timestamptz": "timestamp",
}  # fmt: skip
"""The others come as text, which is exact."""
_CONNECT_SECONDS = 10.0


def query_of(table: str | None, query: str | None) -> str:
    """The query that is meant.

    Raises:
        InputError: neither or both are given.
    """
    if (table is None) == (query is None):
        raise InputError("give the name of a table or a query, one of them", hint="options dbtable and query")
    if query is not None:
        return query.strip().rstrip(";")
    assert table is not None
    return f"TABLE {'.'.join(quoted(part) for part in table.split('.'))}"


async def describe(dsn: str, text: str) -> tuple[tuple[str, str], ...]:
    """Names and types (as Spark names them) of a query's columns.

    Raises:
        InputError: the server does not take the query. Unavailable: it does not answer.
    """
    connection = await _open(dsn)
    try:
        prepared = await connection.prepare(text)
        return tuple((one.name, _TYPES.get(one.type.name, "string")) for one in prepared.get_attributes())
    except asyncpg.PostgresError as error:
        raise InputError(f"the database {place_of(dsn)} does not take the query: {error}") from None
    except errors.DRIVER_ERRORS as error:
        raise Unavailable(f"the database {place_of(dsn)} went away: {error}") from error
    finally:
        connection.terminate()


async def copy_query(dsn: str, text: str, output: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Rows of a query as delimited text, whole rows at a time."""
    connection = await _open(dsn)
    try:
        await connection.copy_from_query(
            text, output=output, format="csv", delimiter=DELIMITER, quote=QUOTE, null=NULL, timeout=None
        )
    except errors.DRIVER_ERRORS as error:
        raise _broken(error, dsn) from error
    finally:
        connection.terminate()


async def _open(dsn: str) -> Connection:
    try:
        return await DatabaseConnector(dsn).connect(
            _CONNECT_SECONDS,
            server_settings={
                "application_name": "jobmaster-spark",
                "default_transaction_read_only": "on",
                "timezone": "UTC",
                "extra_float_digits": "3",
            },
        )
    except errors.DRIVER_ERRORS as error:
        raise Unavailable(f"the database {place_of(dsn)} cannot be reached: {error}") from error


def _broken(error: Exception, dsn: str) -> JobMasterError:
    return Unavailable(f"the database {place_of(dsn)} stopped sending: {error}")
