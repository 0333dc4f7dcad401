"""Migrated databases for tests, each used by one test after another: to empty one costs a tenth of what a copy costs.

Before a test gets a database that another test had, its tables are as the migrations left them. A test that changed the
schema itself, a partition or a right, leaves its database to no other test: it is dropped, and the next test gets a copy.
Each use has a database name of its own, so a connection of an earlier test that comes back finds no database.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import MasterSettings

_CATALOGS = (
    "pg_attrdef", "pg_attribute", "pg_constraint", "pg_db_role_setting", "pg_default_acl", "pg_description", "pg_enum",
    "pg_event_trigger", "pg_extension", "pg_index", "pg_inherits", "pg_language", "pg_largeobject_metadata",
    "pg_namespace", "pg_opclass", "pg_operator", "pg_partitioned_table", "pg_policy", "pg_proc", "pg_publication",
    "pg_rewrite", "pg_sequence", "pg_statistic_ext", "pg_subscription", "pg_trigger", "pg_type",
)  # fmt: skip
"""What describes a schema, but for ``pg_class``: emptying a table changes its row there."""

_SCHEMA_STATE = " UNION ALL ".join(
    [
        "SELECT 'pg_class' AS catalog, count(*) AS rows, md5(string_agg(concat_ws(' ', oid, relname, relnamespace,"
        " relowner, relkind, relpersistence, reltablespace, relacl, reloptions, relrowsecurity, relispartition),"
        " ',' ORDER BY oid)) AS state FROM pg_class WHERE oid >= 16384 AND relkind <> 't'",
        *(
            f"SELECT '{catalog}', count(*), concat_ws(' ', sum(xmin::text::bigint), max(xmin::text::bigint)) FROM {catalog}"
            for catalog in _CATALOGS
            if catalog != "pg_db_role_setting"
        ),
        "SELECT 'pg_db_role_setting', count(*), '' FROM pg_db_role_setting"
        " WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
    ]
)
_CHANGING = ["pg_class", *(catalog for catalog in _CATALOGS if catalog != "pg_db_role_setting")]
_CATALOG_CHANGES = (
    "SELECT sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid)) +"
    " (SELECT count(*) FROM pg_db_role_setting"
    " WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    " FROM unnest($1::text[]::regclass[]::oid[]) AS oid"
)
"""Rows of these catalogs that were written since the database was made: a session has added its own before it is gone. As
long as the sum is the same, so is the schema. To read all catalogs takes a new session ten times as long."""
_TABLES_WITH_ROWS = (
    "SELECT relname AS name, file.size AS bytes FROM pg_database d, pg_class c,"
    " pg_stat_file(format('base/%s/%s', d.oid, c.relfilenode)) AS file"
    " WHERE datname = current_database() AND relkind = 'r' AND relnamespace = $1::regnamespace AND file.size > 0"
)
"""By the size of its file: to ask for the size of a relation, a new session reads all that describes it, of each table."""
_SEQUENCES = "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'S' AND relnamespace = $1::regnamespace"
_SET_SEQUENCES = (
    "SELECT setval(name::regclass, value, called)"
    " FROM unnest($1::text[], $2::bigint[], $3::boolean[]) AS s (name, value, called)"
)
_TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1"
_LOOKS_MAX = 1000
_SMALL_BYTES = 65_536
"""TRUNCATE makes a new file for a table and for each of its indexes, so it is for tables with many rows."""


@dataclass(frozen=True)
class _Migrated:
    """A database as the migrations left it."""

    name: str
    schema_state: list[tuple[Any, ...]]
    rows: dict[str, bytes]
    """What the tables hold that are not empty, as COPY writes it."""
    sequences: list[tuple[str, int, bool]]
    """Name, last value, and whether it was drawn."""


class MigratedDatabases:
    """The databases of one server.

    Args:
        server: DSN of a superuser.
        schema: name of the migrated schema.
    """

    def __init__(self, server: str, schema: str) -> None:
        self._server = server
        self._schema = schema
        self._admin: asyncpg.Connection[asyncpg.Record] | None = None
        self._template: _Migrated | None = None
        self._used: list[str] = []
        self._changes: dict[str, int] = {}
        """Database -> ``_CATALOG_CHANGES`` when its schema was as the migrations left it, and the test began."""

    async def take(self, cluster: str) -> str:
        """DSN of a migrated database; its cluster has this name and a uid of its own."""
        template = await self._made_template()
        while self._used:
            name = self._used.pop()
            if await self._prepare(name, cluster, template):
                return self._dsn(name)
            await (await self._connected()).execute(f"DROP DATABASE {name} WITH (FORCE)")
        name = _new_name()
        await (await self._connected()).execute(f"CREATE DATABASE {name} TEMPLATE {template.name} STRATEGY file_copy")
        assert await self._prepare(name, cluster, template)
        return self._dsn(name)

    async def give_back(self, dsn: str) -> None:
        """A test has ended; connections that are still open are closed."""
        name, after = urlsplit(dsn).path.removeprefix("/"), _new_name()
        admin = await self._connected()
        await close_connections(admin, name)
        try:
            await admin.execute(f"ALTER DATABASE {name} RENAME TO {after}")
        except asyncpg.ObjectInUseError:
            # Somebody connected again since.
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        else:
            self._used.append(after)
            if (changes := self._changes.pop(name, None)) is not None:
                self._changes[after] = changes

    async def close(self) -> None:
        """End the connection to the server."""
        if self._admin is not None:
            await self._admin.close()

    async def _prepare(self, name: str, cluster: str, template: _Migrated) -> bool:
        """Bring a database to where the migrations left it; False when its schema was changed."""
        connection = await self._connect(name)
        try:
            changes = await connection.fetchval(_CATALOG_CHANGES, _CHANGING)
            if changes != self._changes.pop(name, None) and await _schema_state(connection) != template.schema_state:
                return False
            if not await self._empty(connection, template):
                self._changes[name] = changes
            await connection.execute("UPDATE cluster SET name = $1, uid = gen_random_uuid()", cluster)
            return True
        finally:
            await connection.close()

    async def _empty(self, connection: asyncpg.Connection[asyncpg.Record], template: _Migrated) -> bool:
        """True when that has written to the catalogs."""
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            tables = await connection.fetch(_TABLES_WITH_ROWS, self._schema)
            large = [row["name"] for row in tables if row["bytes"] > _SMALL_BYTES]
            emptied = [f"DELETE FROM {row['name']}" for row in tables if row["bytes"] <= _SMALL_BYTES]
            await connection.execute(
                "; ".join([*emptied, *([f"TRUNCATE {', '.join(large)} CASCADE"] if large else [])])
            )
            for table, rows in template.rows.items():
                await connection.copy_to_table(table, source=io.BytesIO(rows), format="binary")
            await connection.execute(_SET_SEQUENCES, *map(list, zip(*template.sequences, strict=True)))
        return bool(large)

    async def _made_template(self) -> _Migrated:
        if self._template is None:
            name = _new_name()
            admin = await self._connected()
            await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
            await migrate(dsn=self._dsn(name), schema=self._schema, cluster="template", settings=MasterSettings())
            connection = await self._connect(name)
            try:
                self._template = await self._described(name, connection)
            finally:
                await connection.close()
        return self._template

    async def _described(self, name: str, connection: asyncpg.Connection[asyncpg.Record]) -> _Migrated:
        rows = dict[str, bytes]()
        for row in await connection.fetch(_TABLES_WITH_ROWS, self._schema):
            written = io.BytesIO()
            await connection.copy_from_table(row["name"], output=written, format="binary")
            rows[row["name"]] = written.getvalue()
        sequences = []
        for row in await connection.fetch(_SEQUENCES, self._schema):
            found = await connection.fetchrow(f"SELECT last_value, is_called FROM {row['name']}")
            assert found is not None
            sequences.append((row["name"], found["last_value"], found["is_called"]))
        return _Migrated(name, await _schema_state(connection), rows, sequences)

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._admin is None:
            self._admin = await asyncpg.connect(self._server)
        return self._admin

    async def _connect(self, name: str) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(self._dsn(name), server_settings={"search_path": self._schema})

    def _dsn(self, name: str) -> str:
        return urlunsplit(urlsplit(self._server)._replace(path=f"/{name}"))


async def close_connections(admin: asyncpg.Connection[asyncpg.Record], database: str) -> None:
    """End every connection to a database, and wait for the end, unless a program opens new ones again and again.

    A statement that needs a database without connections looks for them, sleeps 100 ms, and looks again.
    """
    for _ in range(_LOOKS_MAX):
        if not await admin.fetchval(_TERMINATE, database):
            return
        await asyncio.sleep(0.001)


async def _schema_state(connection: asyncpg.Connection[asyncpg.Record]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in await connection.fetch(_SCHEMA_STATE))


def _new_name() -> str:
    return f"test_{secrets.token_hex(6)}"
