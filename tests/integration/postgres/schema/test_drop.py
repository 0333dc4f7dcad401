"""Dropping a cluster that was made to be thrown away: all of it, and never another's."""

from __future__ import annotations

import asyncpg
import pytest

from jobmaster.master.schema.migrate import drop, migrate
from jobmaster.model.errors import SchemaMismatch
from jobmaster.settings.model import MasterSettings

SETTINGS = MasterSettings()
SCHEMA = "jobmaster_drop"


async def schemas(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return {row[0] for row in await connection.fetch("SELECT nspname FROM pg_namespace")}
    finally:
        await connection.close()


async def test_a_cluster_goes_with_everything_in_it_and_only_once(master_dsn: str) -> None:
    for cluster in ("drop", "stay"):
        await migrate(dsn=master_dsn, schema=f"jobmaster_{cluster}", cluster=cluster, settings=SETTINGS)
    for _ in range(2):
        await drop(dsn=master_dsn, schema=SCHEMA, cluster="drop", settings=SETTINGS)
    left = await schemas(master_dsn)
    assert SCHEMA not in left
    assert "jobmaster_stay" in left


async def test_the_schema_of_another_cluster_is_not_dropped(master_dsn: str) -> None:
    await migrate(dsn=master_dsn, schema=SCHEMA, cluster="another", settings=SETTINGS)
    with pytest.raises(SchemaMismatch, match="nothing was dropped"):
        await drop(dsn=master_dsn, schema=SCHEMA, cluster="drop", settings=SETTINGS)
    assert SCHEMA in await schemas(master_dsn)


async def test_a_schema_that_is_none_of_ours_is_not_dropped(master_dsn: str) -> None:
    connection = await asyncpg.connect(master_dsn)
    await connection.execute(f"CREATE SCHEMA {SCHEMA} CREATE TABLE theirs (x int)")
    await connection.close()
    with pytest.raises(SchemaMismatch, match="nothing was dropped"):
        await drop(dsn=master_dsn, schema=SCHEMA, cluster="drop", settings=SETTINGS)
    assert SCHEMA in await schemas(master_dsn)
