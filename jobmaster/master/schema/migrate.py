"""Migrate the master's schema to this program's version, and refuse one that does not fit it.

A schema fits when it has every migration of this program, and each further one allows programs as old as this one
(``-- programs: >= NNNN``). So agents and producers of two versions run side by side during an upgrade.

Two migrators at once wait for each other (advisory lock); each migration is one transaction together with its line in
``schema_migration``, so a crash leaves whole migrations. Indexes on large partitions are built before it, while others write
(see ``index_building``). Locks are waited for shortly and often instead of long: a
migration that queues behind a slow reader would make every writer queue behind it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import Connection, ConnectionFactory, Row, StatementRunner, rows_of, to_us
from jobmaster.master.driver.statements import sql, statement
from jobmaster.master.schema.index_building import build_indexes
from jobmaster.master.schema.migrations import (
    AppliedMigration,
    Migration,
    MigrationState,
    MigrationStatus,
    compare,
    migrations,
    recorded,
    refuse_pending,
    refuse_strangers,
    table_names,
)
from jobmaster.master.schema.roles import grants, role_names
from jobmaster.model.errors import Refused, SchemaMismatch, Unavailable
from jobmaster.settings.model import MasterSettings

_T = TypeVar("_T")
_APPLICATION_NAME = "jobmaster-migrate"
_VERSION_MIN = 150_000
_LOCK_TRIES = 30
_ALONE_TRIES = 150
_LOCK_PAUSE_SECONDS = 0.5
_MIGRATION_SECONDS = 3600.0


async def migrate(
    *,
    dsn: str,
    schema: str,
    cluster: str,
    settings: MasterSettings,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Migration]:
    """Apply what is missing; returns what was applied, nothing when the schema is current.

    Args:
        schema: made if it is not there.
        cluster: the cluster it belongs to from then on.
        progress: called with one sentence per step.

    Raises:
        SchemaMismatch: the schema was edited, made by a newer program, or belongs to another cluster.
        Refused: the server is older than PostgreSQL 15, or lacks the rights.
        Unavailable: the server cannot be reached, is read-only, or a lock could not be had in about a minute.
    """
    async with _connected(dsn, schema, settings) as connection:
        await _suits(connection)
        await _patiently(lambda: _alone(connection, schema), progress, tries=_ALONE_TRIES)
        await _is_ours_or_free(connection, schema)
        await connection.execute(statement("schema/create_schema").qualified(schema))
        await connection.execute(sql("schema/create_list"))
        await _patiently(lambda: connection.execute(sql("schema/complete_list")), progress)
        lines = await _lines(connection)
        refuse_strangers(lines, schema)
        await _belongs(connection, lines, schema, cluster)
        pending = {line.number for line in lines if line.standing is MigrationState.PENDING}
        todo = [migration for migration in migrations() if migration.number in pending]
        for migration in todo:
            await build_indexes(connection, migration, progress)
            progress(f"applying {migration.label}")
            await _patiently(lambda migration=migration: _apply(connection, migration), progress)  # type: ignore[misc]
        await connection.fetch(sql("schema/create_cluster"), cluster)
        await _grant(connection, schema, progress)
        progress(f"schema {schema} is current ({len(lines)} migrations, {len(todo)} of them new)")
        return todo


async def drop(*, dsn: str, schema: str, cluster: str, settings: MasterSettings) -> None:
    """Drop the schema of a cluster, if it is there; its agents and producers must be gone.

    Raises:
        SchemaMismatch: it belongs to another cluster, or is none of ours.
    """
    async with _connected(dsn, schema, settings) as connection:
        there = (await rows_of(connection, "schema/schema_exists", schema))[0]
        if not there["schema_there"]:
            return
        names = [row["name"] for row in await rows_of(connection, "schema/cluster")] if there["list_there"] else []
        if names != [cluster]:
            raise SchemaMismatch(
                f"schema {schema} of the master is not that of cluster {cluster!r}; nothing was dropped"
            )
        await connection.execute(statement("schema/drop_schema").qualified(schema))


async def status(*, dsn: str, schema: str, settings: MasterSettings) -> list[MigrationStatus]:
    """Every migration of the schema or of this program; all pending when there is no schema."""
    async with _connected(dsn, schema, settings) as connection:
        there = (await rows_of(connection, "schema/schema_exists", schema))[0]
        return await _lines(connection) if there["list_there"] else compare([], migrations())


async def check_schema(statements: StatementRunner, schema: str, *, allow_newer: bool = False) -> None:
    """``SchemaMismatch``, one sentence and what to do, unless the schema is this program's, or a newer one that allows
    this program.

    Args:
        allow_newer: accept every newer one: the caller ends the work of a program that was running when it was made.
    """
    there = (await statements.read("schema/schema_exists", schema))[0]
    if not there["list_there"]:
        what = "has no tables of JobMaster" if there["schema_there"] else "does not exist"
        raise SchemaMismatch(f"schema {schema} of the master {what}", hint=errors.MIGRATE_HINT)
    lines = compare(_applied(await statements.read("schema/applied")), migrations())
    if allow_newer:
        lines = [line for line in lines if line.standing is not MigrationState.UNKNOWN]
    refuse_strangers(lines, schema)
    refuse_pending(lines, schema)


@asynccontextmanager
async def _connected(dsn: str, schema: str, settings: MasterSettings) -> AsyncIterator[Connection]:
    connection_factory = ConnectionFactory(dsn, schema, settings, _APPLICATION_NAME)
    connection = await connection_factory.open(plan_once=False)
    try:
        yield connection
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "the migration", writes=True) from error
    finally:
        connection.terminate()


async def _suits(connection: Connection) -> None:
    server = (await rows_of(connection, "schema/server"))[0]
    refuse_old_server(server["version"], server["version_text"])
    if server["read_only"]:
        raise Unavailable("the master is a read-only standby", hint="point master.dsn at the primary")


def refuse_old_server(version: int, text: str) -> None:
    """``Refused`` for a server that lacks what the statements need.

    Args:
        version: ``server_version_num``.
        text: ``server_version``.
    """
    if version < _VERSION_MIN:
        raise Refused(
            f"the master is PostgreSQL {text}; JobMaster needs 15 or newer",
            hint="upgrade the server with pg_upgrade, or name another one in master.dsn; `jobmaster dev` brings its own",
        )


async def _is_ours_or_free(connection: Connection, schema: str) -> None:
    """The schema has migrations of ours, or nothing that would be in their way. It is asked before the first migration."""
    if taken := [row["name"] for row in await rows_of(connection, "schema/names_taken", schema, sorted(table_names()))]:
        raise SchemaMismatch(
            f"schema {schema} of the master has {', '.join(taken)} of another program, and no migrations of JobMaster",
            hint="give this cluster a master.schema of its own",
        )


async def _belongs(connection: Connection, lines: list[MigrationStatus], schema: str, cluster: str) -> None:
    if all(line.standing is MigrationState.PENDING for line in lines):
        return
    for row in await rows_of(connection, "schema/cluster"):
        if row["name"] != cluster:
            raise SchemaMismatch(
                f"schema {schema} of the master belongs to cluster {row['name']!r}, not to {cluster!r}",
                hint="give this cluster a master.schema of its own",
            )


async def _lines(connection: Connection) -> list[MigrationStatus]:
    return compare(_applied(await rows_of(connection, "schema/applied")), migrations())


def _applied(rows: list[Row]) -> list[AppliedMigration]:
    return [
        AppliedMigration(
            row["number"], row["name"], row["checksum"], to_us(row["applied_at"]), row["by"], row["programs"]
        )
        for row in rows
    ]


async def _alone(connection: Connection, schema: str) -> None:
    """One migrator at a time. Retried instead of waiting: a statement that waits delays the building of indexes."""
    if not (await rows_of(connection, "schema/lock", schema))[0]["taken"]:
        raise asyncpg.LockNotAvailableError("another session migrates the schema")


async def _apply(connection: Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(migration.sql, timeout=_MIGRATION_SECONDS)
        await connection.fetch(sql("schema/record"), *recorded(migration))


async def _grant(connection: Connection, schema: str, progress: Callable[[str], None]) -> None:
    """The rights of the cluster's roles, where there are any: a migration brings tables and functions."""
    roles = role_names(schema)
    if (await rows_of(connection, "schema/roles_there", roles))[0]["roles"] == len(roles):
        async with connection.transaction():
            await connection.execute(grants(schema))
        progress("the rights of the roles are granted")


async def _patiently(
    step: Callable[[], Awaitable[_T]], progress: Callable[[str], None], *, tries: int = _LOCK_TRIES
) -> _T:
    """Wait for locks shortly and often."""
    for attempt in range(tries):
        try:
            return await step()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if attempt == tries - 1:
                raise
            progress("waiting for a lock that another session holds")
            await asyncio.sleep(_LOCK_PAUSE_SECONDS * (0.5 + random.random()))
    raise AssertionError("the last try returns or raises")
