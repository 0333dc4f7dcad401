"""Indexes of large tables, built while others write.

A migration is one transaction, and ``CREATE INDEX ON job`` in it keeps every writer out for as long as it reads the table. So
before a migration is applied, its indexes on partitioned tables are built on each large partition by itself with CREATE
INDEX CONCURRENTLY. The migration then finds an equal index on each of them and attaches it, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from jobmaster.master.driver.connection import Connection, rows_of
from jobmaster.master.driver.statements import quoted, sql
from jobmaster.master.schema.migrations import Migration, indexes_of

_LARGE_BYTES = 4 * 1024 * 1024
"""A partition below this is read in some milliseconds."""
_TRIES = 5


async def build_indexes(connection: Connection, migration: Migration, progress: Callable[[str], None]) -> None:
    """Build what the migration's indexes on large partitions need; what was broken off is built anew.

    A build waits for transactions that are older than itself, as long as they take; nothing else waits.
    """
    found = [
        (match, row)
        for match in indexes_of(migration)
        for row in await rows_of(connection, "schema/large_partitions", match["table"], match["name"], _LARGE_BYTES)
        if not row["valid"]
    ]
    if not found:
        return
    (limits,) = await rows_of(connection, "schema/limits")
    await rows_of(connection, "schema/limit", "0", "0")
    try:
        for match, row in found:
            progress(f"building {match['name']} on {row['name']}, while others write to it")
            await _build(connection, row["name"], row["index"], match["rest"], there=row["valid"] is not None)
    finally:
        await rows_of(connection, "schema/limit", limits["locks"], limits["statements"])


async def _build(connection: Connection, table: str, index: str, rest: str, *, there: bool) -> None:
    for attempt in range(_TRIES):
        try:
            if there:
                await connection.execute(sql("schema/drop_index").replace("job_example", quoted(index)))
            there = True
            text = sql("schema/build_index").replace(
                "job_example ON job (id)", f"{quoted(index)} ON {quoted(table)} {rest}"
            )
            await connection.execute(text)
            return
        except asyncpg.DeadlockDetectedError:  # with a transaction that waits for something of ours
            if attempt == _TRIES - 1:
                raise
