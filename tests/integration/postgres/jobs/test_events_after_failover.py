"""A standby that takes over has its own timeline from its first moment on: a cursor of the former master is refused."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from jobmaster.embedded import PostgresServer
from jobmaster.master.master import Master
from jobmaster.master.schema.migrate import migrate
from jobmaster.model.errors import Refused
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA

pytestmark = pytest.mark.slow


async def open_master(server: PostgresServer) -> Master:
    return await Master.connect(dsn=server.dsn, schema=SCHEMA, settings=MasterSettings(), application_name="tests")


async def test_a_cursor_of_the_former_master_is_refused(server_root: Path) -> None:
    folder = server_root / "promoted"
    with PostgresServer(folder, durable=False) as server:
        await migrate(dsn=server.dsn, schema=SCHEMA, cluster="test", settings=MasterSettings())
        master = await open_master(server)
        place = await master.events.place(start=False)
        await master.close()
    (data,) = {path.parent for path in folder.glob("*/PG_VERSION")}
    (data / "standby.signal").touch()
    with PostgresServer(folder, durable=False) as server:
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SELECT pg_promote()")
        await connection.close()
        master = await open_master(server)
        now = await master.events.place(start=False)
        assert (now.system, now.timeline > place.timeline) == (place.system, True)
        with pytest.raises(Refused, match="a standby has taken over since"):
            await master.events.read(place, None, None, 10)
        assert (await master.events.read(now, None, None, 10)).events == []
        await master.close()
