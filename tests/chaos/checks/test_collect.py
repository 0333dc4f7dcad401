"""What is read from the master of a run has the right times, whatever the master's wall clock was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobmaster.master.master import Master
from jobmaster.master.schema.migrate import migrate
from jobmaster.settings.model import MasterSettings
from tests.chaos.checks import collect
from tests.chaos.checks.history import History
from tests.chaos.cluster.servers import ServerRole, Servers
from tests.integration.postgres.fixture import SCHEMA, MasterFixture, connect

pytestmark = pytest.mark.slow


@pytest.fixture
async def db(master_dsn: str) -> AsyncIterator[MasterFixture]:
    """A master of its own: the traps stay in it."""
    settings = MasterSettings()
    await migrate(dsn=master_dsn, schema=SCHEMA, cluster="chaos", settings=settings)
    master = await Master.connect(dsn=master_dsn, schema=SCHEMA, settings=settings, application_name="test")
    sql = await connect(master_dsn)
    yield MasterFixture(master_dsn, master, sql)
    await sql.close()
    await master.close()


@pytest.fixture
async def servers(db: MasterFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """The servers of a run, of which there is only the master."""
    made = Servers(tmp_path, disks=False)
    made.roles["master"] = ServerRole("master", cast("Any", SimpleNamespace(address=db.dsn)), None)
    monkeypatch.setattr(collect, "STORES", {})
    await asyncio.to_thread(collect.set_trap, made, SCHEMA)
    return made


async def test_times_are_right_although_the_masters_clock_was_stepped(db: MasterFixture, servers: Servers) -> None:
    began = time.time()
    owner = await db.agent(bytes.fromhex("01" * 16))
    lost = await db.bucket(owner)
    await db.master.members.end_agent(owner, dead=True, reason="test")
    ended = time.time()
    await db.agent(bytes.fromhex("02" * 16))
    again = time.time()
    assert await asyncio.to_thread(collect.unrescued, servers, SCHEMA) == {lost.bucket_id.hex(): "LOST"}
    assert (await asyncio.to_thread(collect.waiting, servers, SCHEMA))["buckets"] == 1
    # As if the clock had gone back by a minute before all this.
    await db.sql.execute("UPDATE bucket_event SET at = at - interval '60 s'")
    await db.sql.execute("UPDATE agent SET ended_at = ended_at - interval '60 s'")
    history = History()
    await asyncio.to_thread(collect.read_master, servers, SCHEMA, history)
    [(bucket, evacuation)] = history.evacuations.items()
    assert bucket == lost.bucket_id.hex()
    assert began - 1 < evacuation.left_at < ended + 1
    assert evacuation.emptied_at == float("inf")
    [death] = history.deaths
    assert began - 1 < death.at < ended + 1
    assert death.at <= death.again_at < again + 1
