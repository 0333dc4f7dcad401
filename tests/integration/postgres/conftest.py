"""A migrated database for every test of the statements."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.embedded import PostgresServer
from jobmaster.master.master import Master
from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA, MasterFixture

SETTINGS = MasterSettings()


_TABLES = (
    "job_limit", "limit_state", "permit",
    "job", "attempt", "bucket", "bucket_event", "agent", "agent_store", "lease", "handler", "operator_log", "quarantine",
    "store_loss", "idempotency", "unique_key", "put_off", "bucket_request", "pause",
    "named_lock", "once_action", "once_attempt", "schedule", "schedule_fire", "signal",
    "workflow", "job_log",
    "breaker", "breaker_handler", "breaker_result", "breaker_trial",
    "batch", "batch_range", "batch_tally", "batch_callback", "bulk_operation",
)  # fmt: skip


_FILLED = (
    "SELECT c.oid::regclass::text AS name FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
    " WHERE c.relkind = 'r' AND c.relnamespace = $1::regnamespace AND pg_relation_size(c.oid) > 0"
    " AND coalesce(i.inhparent, c.oid) = ANY ($2::text[]::regclass[]::oid[])"
)
"""Tables and partitions with rows: a DELETE from a partitioned table looks at each of its partitions."""


@pytest.fixture(scope="session")
async def migrated(postgres_server: PostgresServer) -> str:
    """DSN of a migrated database. A database a test would cost more than the tests: its partitions are 200 files."""
    name = f"statements_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres_server.dsn)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
    await admin.close()
    dsn = urlunsplit(urlsplit(postgres_server.dsn)._replace(path=f"/{name}"))
    await migrate(dsn=dsn, schema=SCHEMA, cluster="test", settings=SETTINGS)
    return dsn


@pytest.fixture
async def db(migrated: str) -> AsyncIterator[MasterFixture]:
    """A cluster with one living agent and one ACTIVE bucket, and nothing else in its tables."""
    sql = await asyncpg.connect(migrated, server_settings={"search_path": SCHEMA})
    filled = await sql.fetch(_FILLED, SCHEMA, list(_TABLES))
    await sql.execute(";".join(["SELECT 1", *(f"DELETE FROM {row['name']}" for row in filled)]))
    await sql.execute("UPDATE pause_version SET version = 0")
    master = await Master.connect(dsn=migrated, schema=SCHEMA, settings=SETTINGS, application_name="tests")
    db = MasterFixture(migrated, master, sql)
    await db.agent(db.owner)
    db.fence = await db.bucket()
    yield db
    await master.close()
    await sql.close()


@pytest.fixture
async def rescuer(db: MasterFixture) -> bytes:
    """A second living agent."""
    return await db.agent(new_id())
