"""The schema is brought up once, by one migrator, and a program refuses a schema that is not its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.master.schema import index_building
from jobmaster.master.schema import migrate as migrate_module
from jobmaster.master.schema import migrations as migrations_module
from jobmaster.master.schema.migrate import migrate, status
from jobmaster.master.schema.migrations import (
    AppliedMigration,
    MigrationState,
    compare,
    migration_of,
    migrations,
    script,
)
from jobmaster.model.errors import CodeError, SchemaMismatch
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA
from tests.support.patience import PATIENCE_SECONDS

SETTINGS = MasterSettings()
NOT_ADDITIVE = re.compile(
    r"\b(?:DROP|RENAME|TRUNCATE|DELETE|UPDATE|TRIGGER|REPLACE|UNIQUE INDEX|ALTER COLUMN|ADD CONSTRAINT)\b"
    r"|ADD COLUMN(?:(?!DEFAULT|;|,\s*ADD)[\s\S])*NOT NULL(?!\s+DEFAULT)"
)


async def _migrate(dsn: str, cluster: str = "test", schema: str = SCHEMA) -> list[str]:
    return [m.label for m in await migrate(dsn=dsn, schema=schema, cluster=cluster, settings=SETTINGS)]


async def _connect(dsn: str, schema: str = SCHEMA, *, newer_schema: bool = False) -> Master:
    return await Master.connect(
        dsn=dsn, schema=schema, settings=SETTINGS, application_name="tests", newer_schema=newer_schema
    )


@pytest.fixture
async def admin(master_dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(master_dsn, server_settings={"search_path": SCHEMA})
    yield connection
    await connection.close()


def test_numbers_have_no_gap() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))


async def test_a_second_run_does_nothing(master_dsn: str) -> None:
    assert await _migrate(master_dsn) == [m.label for m in migrations()]
    assert await _migrate(master_dsn) == []
    lines = await status(dsn=master_dsn, schema=SCHEMA, settings=SETTINGS)
    assert {line.standing for line in lines} == {MigrationState.APPLIED}


async def test_two_migrators_at_once_apply_everything_once(master_dsn: str) -> None:
    answers = await asyncio.gather(*(_migrate(master_dsn) for _ in range(3)))
    assert sorted(map(len, answers)) == [0, 0, len(migrations())]


async def test_status_of_nothing_is_all_pending(master_dsn: str) -> None:
    lines = await status(dsn=master_dsn, schema=SCHEMA, settings=SETTINGS)
    assert {line.standing for line in lines} == {MigrationState.PENDING}


async def test_a_missing_schema_is_refused_with_one_sentence(master_dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"does not exist \(run `jobmaster db migrate`\)"):
        await _connect(master_dsn)


async def test_a_schema_that_is_too_old_is_refused(master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await _migrate(master_dsn)
    await admin.execute("DELETE FROM schema_migration WHERE number = $1", migrations()[-1].number)
    with pytest.raises(SchemaMismatch, match=r"lacks 1 of \d+ migrations \(run `jobmaster db migrate`\)"):
        await _connect(master_dsn)


async def test_a_schema_that_is_too_new_is_refused(master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await _migrate(master_dsn)
    await admin.execute("INSERT INTO schema_migration (number, name, checksum) VALUES (999, 'later', 'x')")
    for attempt in (_connect(master_dsn), _migrate(master_dsn)):
        with pytest.raises(SchemaMismatch, match=r"newer program \(migration 0999_later\) \(upgrade this program: pip"):
            await attempt
    await (await _connect(master_dsn, newer_schema=True)).close()
    await admin.execute("DELETE FROM schema_migration WHERE number = $1", migrations()[-1].number)
    with pytest.raises(SchemaMismatch, match="although a later one was applied"):
        await _connect(master_dsn, newer_schema=True)


@pytest.fixture
def with_later(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """Within it this process is a newer program, with further migrations."""

    @contextmanager
    def newer(*contents: str) -> Iterator[None]:
        ours = migrations()
        more = [
            migration_of(len(ours) + place, f"later_{place}", content.encode())
            for place, content in enumerate(contents, start=1)
        ]
        with monkeypatch.context() as patched:
            for module in (migrations_module, migrate_module):
                patched.setattr(module, "migrations", lambda: (*ours, *more))
            yield

    return newer


def since(number: int) -> str:
    return f"-- programs: >= {number:04d}\n"


async def test_an_older_program_runs_on_a_newer_schema_that_allows_it(
    master_dsn: str, with_later: Callable[..., AbstractContextManager[None]]
) -> None:
    last = migrations()[-1].number
    with with_later(since(last) + "CREATE TABLE one (id integer)", since(last - 1) + "CREATE TABLE two (id integer)"):
        assert len(await _migrate(master_dsn)) == last + 2
        assert await _migrate(master_dsn) == []
    assert await _migrate(master_dsn) == [], "the older one finds nothing to do"
    await (await _connect(master_dsn)).close()
    lines = await status(dsn=master_dsn, schema=SCHEMA, settings=SETTINGS)
    assert [(line.standing, line.programs) for line in lines[-2:]] == [
        (MigrationState.NEWER, last), (MigrationState.NEWER, last - 1)
    ]  # fmt: skip
    with with_later(since(last) + "CREATE TABLE one (id integer)"):
        await (await _connect(master_dsn)).close()  # a program in between


async def test_one_migration_that_forbids_older_programs_is_enough(
    master_dsn: str, with_later: Callable[..., AbstractContextManager[None]]
) -> None:
    last = migrations()[-1].number
    with with_later(since(last) + "CREATE TABLE one (id integer)", "DROP TABLE one"):
        await _migrate(master_dsn)
    for attempt in (_connect(master_dsn), _migrate(master_dsn)):
        with pytest.raises(SchemaMismatch, match=rf"newer program \(migration {last + 2:04d}_later_2\) \(upgrade"):
            await attempt


async def test_nor_does_one_help_that_needs_a_program_in_between(
    master_dsn: str, with_later: Callable[..., AbstractContextManager[None]]
) -> None:
    last = migrations()[-1].number
    with with_later(
        since(last) + "CREATE TABLE one (id integer)", since(last + 1) + "ALTER TABLE one ADD COLUMN more text"
    ):
        await _migrate(master_dsn)
    with pytest.raises(SchemaMismatch, match=f"{last + 2:04d}_later_2"):
        await _connect(master_dsn)


def test_a_migration_names_programs_that_are_older_than_itself() -> None:
    with pytest.raises(CodeError, match="not older than itself"):
        migration_of(9, "wrong", since(9).encode())
    assert migration_of(9, "additive", since(7).encode()).programs == 7
    assert migration_of(9, "breaking", b"DROP TABLE job").programs == 9


def test_a_migration_for_older_programs_only_adds_what_they_do_not_look_at() -> None:
    """Told by its words: what changes, removes or restricts something that is there is nothing for an older program."""
    for migration in migrations():
        if migration.programs < migration.number:
            text = re.sub(r"--.*", "", migration.sql)
            assert not NOT_ADDITIVE.findall(text), migration.label
    for wrong in (
        "DROP VIEW jobs", "ALTER TABLE job RENAME state TO is", "ALTER TABLE job ALTER COLUMN lane TYPE name",
        "CREATE OR REPLACE FUNCTION f", "UPDATE job SET lane = 'x'", "ALTER TABLE job ADD COLUMN a text NOT NULL",
        "ALTER TABLE job ADD CONSTRAINT c CHECK (true)", "CREATE TRIGGER t", "CREATE UNIQUE INDEX u ON job (lane)",
    ):  # fmt: skip
        assert NOT_ADDITIVE.findall(wrong), wrong
    for right in (
        "CREATE TABLE a (id uuid PRIMARY KEY, b text NOT NULL)", "ALTER TABLE job ADD COLUMN a text",
        "ALTER TABLE agent ADD COLUMN a text NOT NULL DEFAULT ''", "CREATE INDEX i ON job (lane)", "CREATE VIEW v AS",
    ):  # fmt: skip
        assert not NOT_ADDITIVE.findall(right), right


async def test_a_list_that_an_older_program_made_is_read_and_completed(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await _migrate(master_dsn)
    await admin.execute("ALTER TABLE schema_migration DROP COLUMN programs")
    await (await _connect(master_dsn)).close()
    assert await _migrate(master_dsn) == []
    assert await admin.fetchval("SELECT count(*) FROM schema_migration WHERE programs IS NULL") == len(migrations())
    lines = await status(dsn=master_dsn, schema=SCHEMA, settings=SETTINGS)
    assert {line.standing for line in lines} == {MigrationState.APPLIED}


async def test_an_edited_migration_is_refused(master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await _migrate(master_dsn)
    await admin.execute("UPDATE schema_migration SET checksum = 'other' WHERE number = 2")
    for attempt in (_connect(master_dsn), _migrate(master_dsn)):
        with pytest.raises(SchemaMismatch, match="another content of 0002_jobs"):
            await attempt


def test_a_migration_that_was_left_out_is_noticed() -> None:
    applied = [AppliedMigration(m.number, m.name, m.checksum, 0, "x") for m in migrations() if m.number != 2]
    assert [line.standing for line in compare(applied, migrations())][1] is MigrationState.SKIPPED


async def test_a_schema_of_another_cluster_is_refused(master_dsn: str) -> None:
    await _migrate(master_dsn, "first")
    with pytest.raises(SchemaMismatch, match="belongs to cluster 'first', not to 'second'"):
        await _migrate(master_dsn, "second")
    master = await _connect(master_dsn)
    assert master.cluster.name == "first"
    assert len(master.cluster.uid) == 16
    await master.close()


async def test_a_schema_of_another_program_is_refused_before_anything_is_changed(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await admin.execute(
        "CREATE SCHEMA theirs; CREATE TABLE theirs.orders (id int); CREATE VIEW theirs.jobs AS SELECT 1 AS id"
    )
    with pytest.raises(SchemaMismatch, match="has jobs of another program, and no migrations of JobMaster") as caught:
        await _migrate(master_dsn, schema="theirs")
    assert caught.value.hint == "give this cluster a master.schema of its own"
    there = await admin.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'theirs'::regnamespace AND relkind IN ('r', 'v')"
    )
    assert {row["relname"] for row in there} == {"orders", "jobs"}
    await admin.execute("DROP VIEW theirs.jobs")
    assert len(await _migrate(master_dsn, schema="theirs")) == len(migrations()), "other names are in nobody's way"


async def test_two_clusters_share_a_database_and_do_not_see_each_other(master_dsn: str) -> None:
    await _migrate(master_dsn, "one", "one")
    await _migrate(master_dsn, "two", "two")
    one, two = await _connect(master_dsn, "one"), await _connect(master_dsn, "two")
    assert one.cluster.uid != two.cluster.uid
    await one.close()
    await two.close()


async def test_a_migrator_that_finds_a_lock_waits_for_it(master_dsn: str) -> None:
    impatient = MasterSettings(lock_timeout_seconds=0.05)
    told: list[str] = []
    other = await asyncpg.connect(master_dsn)
    await other.fetch("SELECT pg_advisory_lock(hashtext('jobmaster migrate'), hashtext($1))", SCHEMA)
    waited = asyncio.Event()

    def progress(sentence: str) -> None:
        told.append(sentence)
        waited.set()

    task = asyncio.ensure_future(
        migrate(dsn=master_dsn, schema=SCHEMA, cluster="test", settings=impatient, progress=progress)
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waited.wait()
    await other.close()
    assert len(await task) == len(migrations())
    assert told[0] == "waiting for a lock that another session holds"


async def test_the_printed_sql_makes_the_same_schema(master_dsn: str) -> None:
    text = script(SCHEMA, "test")
    assert text == script(SCHEMA, "test"), "the same every time"
    connection = await asyncpg.connect(master_dsn)
    async with connection.transaction():
        await connection.execute(text)
    await connection.close()
    assert await _migrate(master_dsn) == []
    master = await _connect(master_dsn)
    assert master.cluster.name == "test"
    await master.close()


def test_the_printed_sql_names_the_indexes_that_are_built_while_writers_wait() -> None:
    assert "job_unconfirmed is built while writers to job wait." in script(SCHEMA, "test", from_=3)
    assert "is built while" not in script(SCHEMA, "test"), "a new table has no writers"


_FINISHED = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, args)
SELECT (substr(uuid_floor(clock_timestamp())::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'SUCCEEDED', 3,
       'default', 'h', 1, gen_random_uuid(), 1, '{}'
FROM generate_series($1::integer, $1 + 99) n
"""
_EXPIRES = """
SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indisvalid AND pg_get_indexdef(i.indexrelid) ~ 'USING btree \\(state, expires_at\\) WHERE .*WAITING'
"""


@pytest.fixture
async def before_its_index(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> str:
    """A cluster with jobs, of the program before the migration of that index; each partition with a row counts as large."""
    with monkeypatch.context() as older:
        older.setattr(migrate_module, "migrations", lambda: migrations()[:42])
        await _migrate(master_dsn)
    monkeypatch.setattr(index_building, "_LARGE_BYTES", 1)
    await admin.execute(_FINISHED, 1)
    return master_dsn


async def test_writers_go_on_while_an_index_on_job_is_built(
    before_its_index: str, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    """The build waits for an old transaction; no writer waits for the build."""
    reader = await asyncpg.connect(before_its_index, server_settings={"search_path": SCHEMA})
    transaction = reader.transaction(isolation="repeatable_read")
    await transaction.start()
    await reader.fetchval("SELECT count(*) FROM cluster")
    told: list[str] = []
    task = asyncio.ensure_future(
        migrate(dsn=before_its_index, schema=SCHEMA, cluster="test", settings=SETTINGS, progress=told.append)
    )
    building_waits = """SELECT count(*) FROM pg_stat_activity
                        WHERE query LIKE '%CREATE INDEX CONCURRENTLY%' AND wait_event = 'virtualxid'"""
    while not await admin.fetchval(building_waits):
        assert not task.done(), told
    for number in range(20):
        await admin.execute(_FINISHED, 1000 * (number + 1))
    assert await admin.fetchval(building_waits) == 1
    await transaction.rollback()
    await task
    assert any(line.startswith("building job_expires on job_day_") for line in told)
    parts = await admin.fetchval("SELECT count(*) FROM pg_partition_tree('job')")
    assert await admin.fetchval(_EXPIRES) == parts, "one for job and one for each partition"
    await reader.close()


async def test_an_index_whose_building_was_broken_off_is_built_anew(
    before_its_index: str, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    leaf = await admin.fetchval("SELECT tableoid::regclass::text FROM job LIMIT 1")
    await admin.execute(f"CREATE INDEX {leaf}_job_expires ON {leaf} (expires_at)")
    await admin.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = $1::text::regclass", f"{leaf}_job_expires"
    )
    await _migrate(before_its_index)
    parts = await admin.fetchval("SELECT count(*) FROM pg_partition_tree('job')")
    assert await admin.fetchval(_EXPIRES) == parts


def test_the_printed_sql_may_begin_later() -> None:
    text = script(SCHEMA, "test", from_=3)
    assert "-- 0003 " not in text
    assert "CREATE VIEW jobs" in text
    assert "CREATE TABLE job (" not in text


async def test_a_migration_that_fails_leaves_nothing(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await _migrate(master_dsn)
    makes = max(migration.number for migration in migrations() if "CREATE TABLE" in migration.sql)
    await admin.execute("DELETE FROM schema_migration WHERE number >= $1", makes)
    before = await admin.fetch("SELECT oid FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY oid", SCHEMA)
    with pytest.raises(Exception, match="already exists"):
        await _migrate(master_dsn)
    assert (
        await admin.fetch("SELECT oid FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY oid", SCHEMA)
        == before
    )


async def test_a_leader_that_was_stored_under_its_old_name_keeps_its_lease(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migration 18 renames the row of the lease, the mode of agents and the column of the view."""
    agent_id = new_id()
    before = migrations()[:17]
    with monkeypatch.context() as older:
        for module in (migrations_module, migrate_module):
            older.setattr(module, "migrations", lambda: before)
        await _migrate(master_dsn)
    await admin.execute(
        "INSERT INTO agent (id, name, host, pid, version, mode, store, weight, lease_until, lease_seconds, lanes, handlers)"
        " VALUES ($1, 'a', 'h', 1, '1', 'coordinator', 's', 1, now() + interval '1 hour', 10, '{}', '{}')",
        UUID(bytes=agent_id),
    )
    await admin.execute(
        "INSERT INTO lease (name, owner, epoch, expires_at) VALUES ('coordinator', $1, 7, now() + interval '1 hour')",
        UUID(bytes=agent_id),
    )
    await _migrate(master_dsn)
    assert [tuple(row) for row in await admin.fetch("SELECT mode, leader FROM agent_status")] == [("leader", True)]
    master = await _connect(master_dsn)
    assert await master.leadership.acquire(agent_id, 1, 10.0) == 7, "the same leader, the same epoch"
    await master.close()


@pytest.mark.slow
async def test_a_migration_that_dies_of_a_deadlock_is_tried_again(
    master_dsn: str, admin: asyncpg.Connection[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a reader that comes to two tables in another order than the migration."""
    known = migrations()
    crossing = "LOCK TABLE job IN ACCESS EXCLUSIVE MODE; LOCK TABLE attempt IN ACCESS EXCLUSIVE MODE;"
    newer = migration_of(len(known) + 1, "crossing", crossing.encode())
    await _migrate(master_dsn)
    monkeypatch.setattr(migrate_module, "migrations", lambda: (*known, newer))
    await admin.execute("SET deadlock_timeout = '1h'")  # the other side is the victim
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute("LOCK TABLE attempt IN ACCESS SHARE MODE")
    told: list[str] = []
    settings = MasterSettings(lock_timeout_seconds=PATIENCE_SECONDS / 4)  # far beyond the server's look for deadlocks
    task = asyncio.ensure_future(
        migrate(dsn=master_dsn, schema=SCHEMA, cluster="test", settings=settings, progress=told.append)
    )
    waits = "SELECT count(*) FROM pg_locks WHERE relation = 'attempt'::regclass AND NOT granted"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await admin.fetchval(waits):
            assert not task.done()
        await admin.execute("LOCK TABLE job IN ACCESS SHARE MODE")  # granted when the migration has been ended
    await transaction.rollback()
    assert await task == [newer]
    assert "waiting for a lock that another session holds" in told
