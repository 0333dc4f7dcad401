"""A migrated database for every test of the statements."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.embedded import PostgresServer
from jobmaster.master.driver.connection import Connection, ConnectionFactory, ConnectionPool, StatementRunner
from jobmaster.master.master import Master
from jobmaster.master.schema.migrate import migrate
from jobmaster.model.cluster import ClusterRow
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA, MasterFixture, connect
from tests.support.patience import PATIENCE_SECONDS

SETTINGS = MasterSettings(
    connect_timeout_seconds=PATIENCE_SECONDS / 4,
    lock_timeout_seconds=PATIENCE_SECONDS / 4,
    statement_timeout_seconds=PATIENCE_SECONDS / 2,
)
"""A call that waits for a lock goes on waiting until its test has seen that it waits, however busy the machine is."""


_TABLES = (
    "job_limit", "limit_state", "permit",
    "job", "attempt", "bucket", "bucket_event", "agent", "agent_store", "lease", "handler", "operator_log", "quarantine",
    "store_loss", "idempotency", "unique_key", "put_off", "bucket_request", "pause",
    "named_lock", "once_action", "once_attempt", "schedule", "schedule_fire", "signal",
    "workflow", "job_log",
    "breaker", "breaker_handler", "breaker_result", "breaker_trial",
    "batch", "batch_range", "batch_tally", "batch_note", "batch_callback", "bulk_operation",
)  # fmt: skip


_FILLED = (
    "SELECT c.oid::regclass::text AS name FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
    " WHERE c.relkind = 'r' AND c.relnamespace = $1::regnamespace AND pg_relation_size(c.oid) > 0"
    " AND coalesce(i.inhparent, c.oid) = ANY ($2::text[]::regclass[]::oid[])"
)
"""Tables and partitions with rows: a DELETE from a partitioned table looks at each of its partitions."""


_BUSY = (
    "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
)
"""Sessions that a failed test has left in a transaction or in a statement."""


class _Cluster:
    """A migrated database whose connections serve one test after another, each with a ``Master`` of its own.

    A new session reads the catalogs and plans its statements anew, which takes longer than most tests. A database a test
    would cost more still: its partitions are 200 files.
    """

    def __init__(self, dsn: str, cluster: ClusterRow, cleaner: Connection) -> None:
        self._dsn = dsn
        self._cluster = cluster
        self._cleaner = cleaner
        self._sql: Connection | None = None
        self._pools = self._new_pools()

    async def take(self) -> MasterFixture:
        """Connections as if they were new, to empty tables."""
        if await self._cleaner.fetchval(_BUSY):
            await self._close_lent()
        filled = await self._cleaner.fetch(_FILLED, SCHEMA, list(_TABLES))
        await self._cleaner.execute(";".join(["SELECT 1", *(f"DELETE FROM {row['name']}" for row in filled)]))
        await self._cleaner.execute("UPDATE pause_version SET version = 0")
        if self._sql is None or self._sql.is_closed():
            self._sql = await connect(self._dsn)
        await self._sql.reset()
        data, control, heartbeat = map(StatementRunner, self._pools[:3])
        master = Master(self._cluster, SCHEMA, data, control, heartbeat, self._pools[3])
        return MasterFixture(self._dsn, master, self._sql)

    async def close(self) -> None:
        """Close every connection."""
        await self._close_lent()
        await self._cleaner.close()

    async def _close_lent(self) -> None:
        pools, self._pools = self._pools, self._new_pools()
        for pool in pools:
            await pool.close()
        if self._sql is not None:
            self._sql.terminate()
            self._sql = None

    def _new_pools(self) -> list[ConnectionPool]:
        """Data, control, heartbeat and scans, as ``Master.connect`` makes them."""
        factory = ConnectionFactory(self._dsn, SCHEMA, SETTINGS, "tests")
        once = [ConnectionPool(factory, 1, plan_once=True) for _ in range(2)]
        return [ConnectionPool(factory, SETTINGS.pool_size), *once, ConnectionPool(factory, 1)]


@pytest.fixture(scope="session")
async def migrated(postgres_server: PostgresServer) -> str:
    """DSN of a migrated database."""
    name = f"statements_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres_server.dsn)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
    await admin.close()
    dsn = urlunsplit(urlsplit(postgres_server.dsn)._replace(path=f"/{name}"))
    await migrate(dsn=dsn, schema=SCHEMA, cluster="test", settings=SETTINGS)
    return dsn


@pytest.fixture(scope="session")
async def shared(migrated: str) -> AsyncIterator[_Cluster]:
    """The cluster of all tests that want no other one."""
    cleaner = await connect(migrated)
    row = await cleaner.fetchrow("SELECT name, uid FROM cluster")
    assert row is not None
    cluster = _Cluster(migrated, ClusterRow(row["name"], row["uid"].bytes), cleaner)
    yield cluster
    await cluster.close()


@pytest.fixture
async def db(shared: _Cluster) -> MasterFixture:
    """A cluster with one living agent and one ACTIVE bucket, and nothing else in its tables."""
    db = await shared.take()
    await db.agent(db.owner)
    db.fence = await db.bucket()
    return db


@pytest.fixture
async def fresh(migrated_dsn: str) -> AsyncIterator[MasterFixture]:
    """A cluster in a database of its own, for tests that change partitions."""
    settings = MasterSettings()
    sql = await connect(migrated_dsn)
    master = await Master.connect(dsn=migrated_dsn, schema=SCHEMA, settings=settings, application_name="tests")
    db = MasterFixture(migrated_dsn, master, sql)
    await db.agent(db.owner)
    db.fence = await db.bucket()
    yield db
    await master.close()
    await sql.close()


@pytest.fixture
async def rescuer(db: MasterFixture) -> bytes:
    """A second living agent."""
    return await db.agent(new_id())
