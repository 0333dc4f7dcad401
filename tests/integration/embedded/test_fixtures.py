"""The fixtures of the whole test tree keep their word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
import redis

from jobmaster.embedded import PostgresServer, ValkeyServer
from tests.conftest import MIGRATED_SCHEMA
from tests.support.servers.migrated_databases import MigratedDatabases
from tests.support.waiting import until


async def test_a_test_gets_an_empty_database(master_dsn: str) -> None:
    connection = await asyncpg.connect(master_dsn)
    try:
        assert await connection.fetchval("SELECT current_database()") != "jobmaster"
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.close()


@pytest.fixture
async def databases(postgres_server: PostgresServer) -> AsyncIterator[MigratedDatabases]:
    made = MigratedDatabases(postgres_server.dsn, MIGRATED_SCHEMA)
    yield made
    await made.close()


async def contents(dsn: str) -> dict[str, int | tuple[int, bool]]:
    """Rows of each table and state of each sequence, and which database this is by its number."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": MIGRATED_SCHEMA})
    try:
        found = {"": await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")}
        query = "SELECT relname, relkind FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'S')"
        for row in await connection.fetch(query, MIGRATED_SCHEMA):
            name = row["relname"]
            if row["relkind"] == b"S":
                found[name] = tuple(await connection.fetchrow(f"SELECT last_value, is_called FROM {name}") or ())
            else:
                found[name] = await connection.fetchval(f"SELECT count(*) FROM {name}")
        return found
    finally:
        await connection.close()


async def test_a_migrated_database_is_given_to_the_next_test_as_if_it_were_new(databases: MigratedDatabases) -> None:
    first = await databases.take("one")
    fresh = await contents(first)
    left = await asyncpg.connect(first, server_settings={"search_path": MIGRATED_SCHEMA})
    await left.execute("INSERT INTO handler VALUES ('a', '{}', 'x', gen_random_uuid()); DELETE FROM watermark")
    await left.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, args, due_at)"
        " VALUES (uuid_floor(now()), 'HELD', 3, 'default', 'a', 1, '{}', now())"
    )
    for row in await left.fetch("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND oid >= 16384"):
        await left.execute(f"SELECT nextval('{row[0]}')")
    uid = await left.fetchval("SELECT uid FROM cluster")
    await databases.give_back(first)
    await until(left.is_closed, "the end of the connection")

    second = await databases.take("two")
    assert second != first
    assert await contents(second) == fresh
    now = await asyncpg.connect(second, server_settings={"search_path": MIGRATED_SCHEMA})
    assert await now.fetchval("SELECT name FROM cluster") == "two"
    assert await now.fetchval("SELECT uid FROM cluster") != uid
    await now.close()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(first)
    await databases.give_back(second)


CHANGES = (
    "ALTER TABLE agent ADD COLUMN further int",
    "ALTER TABLE agent ALTER COLUMN name DROP NOT NULL",
    "CREATE TABLE further (n int)",
    "CREATE TABLE public.further (n int)",
    "CREATE INDEX ON job (handler)",
    "CREATE OR REPLACE FUNCTION uuid_floor(moment timestamptz) RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'",
    "GRANT SELECT ON agent TO public",
    "ALTER TABLE agent SET (autovacuum_enabled = off)",
    "ALTER SEQUENCE bucket_event_seq_seq INCREMENT 2",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 1000', current_database()); END $$",
)
"""One in each kind of catalog; beside the first, in the slow part."""


@pytest.mark.parametrize(
    "change", [CHANGES[0], *(pytest.param(each, marks=[pytest.mark.slow, pytest.mark.long]) for each in CHANGES[1:])]
)
async def test_a_database_whose_schema_a_test_changed_is_used_by_no_other(
    databases: MigratedDatabases, change: str
) -> None:
    first = await databases.take("one")
    fresh = await contents(first)
    connection = await asyncpg.connect(first, server_settings={"search_path": MIGRATED_SCHEMA})
    await connection.execute(change)
    await connection.close()
    await databases.give_back(first)
    second = await databases.take("two")
    after = await contents(second)
    assert after.pop("") != fresh.pop("")
    assert after == fresh
    await databases.give_back(second)


def test_the_shared_store_answers(store_url: str, cluster_name: str) -> None:
    with redis.Redis.from_url(store_url) as client:
        assert client.set(f"{{{cluster_name}}}", 1)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_further_stores_are_separate(
    new_valkey: Callable[..., ValkeyServer], store_url: str, cluster_name: str
) -> None:
    mine = new_valkey(appendfsync="always")
    with redis.Redis.from_url(mine.url) as client, redis.Redis.from_url(store_url) as shared:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        client.set(cluster_name, 1)
        assert shared.get(cluster_name) is None
