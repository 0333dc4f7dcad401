"""Whole ranges out of the master, for other engines: COPY under a snapshot that many connections share.

Separate from the connections of agents: a scan takes minutes, needs other plans, and must not delay their statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, ConnectionFactory
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.model.errors import Refused

DELIMITER, QUOTE, NULL = "\x02", "\x01", "\\N"
"""Control characters that no value holds (JSON may not, names may not), so that nearly nothing needs quoting."""
_PARAMETER = re.compile(r"\$(\d+)")
_SNAPSHOT = re.compile(r"^[0-9A-F]{8}-[0-9A-F]{8}-\d+$")
SCANNING = {
    "enable_bitmapscan": "on",
    "enable_seqscan": "on",
    "enable_hashjoin": "on",
    "enable_mergejoin": "on",
    # A scan is one process of the server. Those who read in parallel open several; with workers each would be three.
    "max_parallel_workers_per_gather": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Settings of a session that reads whole ranges."""
_DETACHED = {
    "jobs": ("export/detached_jobs", "job_detached"),
    "attempts": ("export/detached_attempts", "attempt_detached"),
    "logs": ("export/detached_logs", "job_detached"),
}
"""Statement, and the table in it that is replaced by the table of a range."""
_MORE_PAGES = 16
_SAMPLED_JOBS = 50
"""Jobs in a sample for each part: with fewer the parts differ much in their size."""
_GONE = "the snapshot is gone: the session that took it has ended or lost its connection"


class Pauses(NamedTuple):
    """Pauses that the server makes during a scan. Without them it fills the buffers of the connection at once, as soon as a
    slow reader has emptied them: a thousand rows or more, for which everything else waits."""

    rows: float
    """Mean number of rows between two pauses."""
    seconds: float
    key: int | None
    """Of an advisory lock, for each scan its own: there are no pauses while another session holds it (``set_pauses``), and
    none on a standby, where the session that looks may be one of another server. ``None``: there always are."""


async def open_scan(
    connection_factory: ConnectionFactory, snapshot: str | None = None, *, seconds: int = 0
) -> Connection:
    """A connection in a read-only transaction.

    Args:
        snapshot: see what the transaction saw that exported this name; ``None``: a state of its own.
        seconds: how long one statement may run, and how long the transaction may wait for the next one; 0: no limit.

    Raises:
        Unavailable, Refused: as for every connection. Refused: the snapshot is gone.
    """
    limits = dict.fromkeys(("statement_timeout", "idle_in_transaction_session_timeout"), f"{seconds * 1000}")
    connection = await connection_factory.open(plan_once=False, over={**SCANNING, **limits})
    try:
        await connection.transaction(isolation="repeatable_read", readonly=True).start()
        if snapshot is not None:
            if not _SNAPSHOT.match(snapshot):
                raise Refused(f"{snapshot!r} is not the name of a snapshot", hint="take one with pg_export_snapshot()")
            await connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    except (
        asyncpg.UndefinedObjectError,
        asyncpg.InvalidParameterValueError,
        asyncpg.ObjectNotInPrerequisiteStateError,
    ):
        connection.terminate()
        raise Refused(_GONE, hint="read again, with a new snapshot") from None
    except errors.DRIVER_ERRORS as error:
        connection.terminate()
        raise errors.connecting(error, connection_factory.place) from error
    except BaseException:
        connection.terminate()
        raise
    return connection


async def replica_age(connection: Connection) -> float | None:
    """How many seconds a standby is behind; ``None``: the server is the primary."""
    try:
        age: float | None = await connection.fetchval(sql("export/replica_age"))
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "export/replica_age", writes=False) from error
    return age


async def load_beside(connection: Connection, looking: str) -> tuple[bool, int, int]:
    """Whether the server is a standby; the transaction id after the highest ended one; how many sessions have the name."""
    try:
        row = await connection.fetchrow(sql("export/load_beside"), looking)
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "export/load_beside", writes=False) from error
    assert row is not None
    return row["standby"], row["next_xid"], row["looking"]


async def set_pauses(connection: Connection, key: int, *, on: bool) -> bool:
    """Let a scan of another session go on without its pauses for as long as this connection lives, or let it make them again.

    Args:
        key: of the scan's ``Pauses``.
        on: let it make them again.

    Returns:
        Whether that is done; if not, it may be tried again.
    """
    name = "export/begin_pauses" if on else "export/end_pauses"
    try:
        done: bool = await connection.fetchval(sql(name), key)
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, name, writes=False) from error
    return done


async def open_snapshot(connection_factory: ConnectionFactory) -> tuple[Connection, str]:
    """A connection that holds a snapshot open, and the snapshot's name. Terminate the connection to give it up."""
    connection = await open_scan(connection_factory)
    try:
        return connection, str(await connection.fetchval(sql("export/take_snapshot")))
    except errors.DRIVER_ERRORS as error:
        connection.terminate()
        raise errors.calling(error, "export/take_snapshot", writes=False) from error


async def copy_rows(
    connection: Connection,
    name: str,
    columns: Sequence[str],
    values: Sequence[Any],
    output: Callable[[bytes], Coroutine[Any, Any, None]],
    pauses: Pauses | None = None,
) -> int:
    """Columns of a statement as delimited text (see ``DELIMITER``), whole rows at a time; returns how many there were.

    Args:
        name: a statement ``export/...``.
        columns: some of the statement's columns, in any order.
        values: the statement's parameters. Ids are ``UUID``.
        output: is awaited with each portion, so a slow reader slows the server.
        pauses: of the server between rows; ``None``: none.

    Raises:
        Unavailable: the connection was lost, or the server ended the statement.
    """
    scan, given = sql(f"export/{name}"), list(values)
    if pauses is not None:
        scan, given = _in_portions(scan, given, pauses)
    text = f"SELECT {', '.join(map(quoted, columns))} FROM ({scan}) AS scanned"  # noqa: S608  # names of columns, quoted
    try:
        await _plain_types(connection)
        status = await connection.copy_from_query(
            text, *given, output=output, format="csv", delimiter=DELIMITER, quote=QUOTE, null=NULL
        )
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, f"export/{name}", writes=False) from error
    return int(status.split()[-1])


async def count_rows(connection: Connection, name: str, values: Sequence[Any]) -> int:
    """How many rows a statement has.

    Args:
        name: a statement ``export/...``.
        values: the statement's parameters. Ids are ``UUID``.

    Raises:
        Unavailable: the connection was lost, or the server ended the statement.
    """
    text = f"SELECT count(*) FROM ({sql(f'export/{name}')}) AS scanned"  # noqa: S608  # a statement of this package
    try:
        await _plain_types(connection)
        count: int = await connection.fetchval(text, *values)
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, f"export/{name}", writes=False) from error
    return count


async def copy_pages(
    connection: Connection,
    dataset: str,
    table: str,
    pages: tuple[int, int],
    output: Callable[[bytes], Coroutine[Any, Any, None]],
) -> int:
    """Some pages of a detached range as delimited text, all columns; returns how many rows there were.

    Args:
        dataset: ``jobs``, ``attempts`` or ``logs`` (of the jobs of the table).
        table: name of the detached table.
        pages: the first one, and the one beyond the last.

    Raises:
        Unavailable: the connection was lost, or the server ended the statement. Refused: there is no such table.
    """
    name, parent = _DETACHED[dataset]
    text = sql(name).replace(f"FROM {parent}", f"FROM {quoted(table)}")
    try:
        await connection.reset_type_codec("uuid", schema="pg_catalog")
        await connection.reset_type_codec("timestamptz", schema="pg_catalog")
        status = await connection.copy_from_query(
            text,
            *(f"({page},0)" for page in pages),
            output=output,
            format="csv",
            delimiter=DELIMITER,
            quote=QUOTE,
            null=NULL,
        )
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, name, writes=False) from error
    return int(status.split()[-1])


async def measure_logs(connection: Connection, table: str) -> tuple[int, int]:
    """Number of the log lines of detached jobs, and the sum of their checksums.

    Args:
        table: name of the detached table of jobs.

    Raises:
        Unavailable: the connection was lost, or the server ended the statement. Refused: there is no such table.
    """
    name = "export/measure_logs"
    try:
        row = await connection.fetchrow(sql(name).replace("FROM job_detached", f"FROM {quoted(table)}"))
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, name, writes=False) from error
    assert row is not None
    return int(row["lines"]), int(row["checksum"])


async def bounds(connection: Connection, low: UUID, high: UUID, parts: int, pages: int) -> list[UUID]:
    """Ids that cut a range of jobs into ``parts`` of about the same size, ascending and without repeats.

    Args:
        pages: of the sample; ``_MORE_PAGES`` times as many when it meets few jobs of the range, as of an hour of a day.
    """
    shares = [part / parts for part in range(1, parts)]
    row: Any = None
    for size in (pages, _MORE_PAGES * pages):
        try:
            row = await connection.fetchrow(sql("export/sample_bounds"), low.bytes, high.bytes, size, shares)
        except errors.DRIVER_ERRORS as error:
            raise errors.calling(error, "export/sample_bounds", writes=False) from error
        if row["whole"] or row["jobs"] >= _SAMPLED_JOBS * parts:
            break
    return sorted({UUID(bytes=bytes(one)) for one in row["bounds"] or ()})


async def horizon(connection: Connection) -> tuple[int, str]:
    """The first transaction that may still be under way, and which server's transactions these are."""
    try:
        row = await connection.fetchrow(sql("export/horizon"))
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "export/horizon", writes=False) from error
    assert row is not None
    return row["xid"], row["system"]


async def newest(connection: Connection) -> tuple[int, int, int]:
    """The first transaction that has not begun, for how many seconds the oldest open write holds streams up, and the time of
    the server (microseconds since 1970)."""
    try:
        row = await connection.fetchrow(sql("export/newest"))
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "export/newest", writes=False) from error
    assert row is not None
    return row["xid"], row["oldest_write_seconds"], row["now_us"]


async def refuse_dropped(
    connection: Connection, began: int, unread: int, ids: tuple[UUID, UUID], *, jobs: bool
) -> None:
    """Keep every range in the master until the connection's transaction ends, if none is missing for a reader of streams.

    Args:
        began: first transaction that had not ended when the stream began.
        unread: first transaction that it has not read.
        ids: lowest job id that it reads, and the one beyond the highest.
        jobs: whether it reads jobs; otherwise attempts.

    Raises:
        Refused: a range with rows that it has not read was dropped.
    """
    try:
        # Locks first: they are waited for before the transaction sees anything, so what is dropped by now is seen as dropped.
        await connection.execute(sql("export/block_retirement"))
        await connection.execute(sql("export/block_attempts_retirement"))
        low, high = (one.bytes for one in ids)
        rows = await connection.fetch(sql("export/dropped"), unread, began, jobs, low, high)
        names = [row["name"] for row in rows]
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "export/dropped", writes=False) from error
    if names:
        raise Refused(
            f"{names[0]}{f' and {len(names) - 1} more ranges' if names[1:] else ''} left the master before this stream "
            "had read all of it",
            hint="read what it lacks from the lake (a discarded range is gone), and start it with a new checkpoint",
        )


async def cut_window(
    connection: Connection, name: str, window: tuple[int, int], values: Sequence[Any], rows: int
) -> int:
    """Where to end a window of transactions so that it holds about ``rows`` rows: never within one, at least one.

    Args:
        name: a statement ``export/recorded_...``.
        values: its parameters after the window, the time of the oldest row first. Ids are ``UUID``, times are aware.
    """
    begin, end = window
    text = (
        f"SELECT distance, count(*) AS rows FROM ({sql(f'export/{name}')}) AS recorded "  # noqa: S608
        "GROUP BY distance ORDER BY distance"
    )
    try:
        await _plain_types(connection)
        total = 0
        for row in await connection.fetch(text, begin, end, *values):
            if total and total + row["rows"] > rows:
                return begin + int(row["distance"])
            total += row["rows"]
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, f"export/{name}", writes=False) from error
    return end


def _in_portions(scan: str, values: list[Any], pauses: Pauses) -> tuple[str, list[Any]]:
    """A scan with pauses, and its parameters: those of the pauses follow those of the scan."""
    text = _PARAMETER.sub(lambda found: f"${int(found[1]) + len(values)}", sql("export/in_portions"))
    return text.replace("SELECT id FROM job ", f"SELECT * FROM ({scan}) AS rows_of_scan "), [*values, *pauses]  # noqa: S608  # a statement of this package


async def _plain_types(connection: Connection) -> None:
    """Ids as ``UUID`` and times as ``datetime``, as parameters of statements that others choose."""
    for name in ("uuid", "timestamptz"):
        await connection.reset_type_codec(name, schema="pg_catalog")
