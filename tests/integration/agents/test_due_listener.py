"""Notices of submits in SQL, from a real server to the notifier of due jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import asyncpg
import pytest
from msgspec.structs import replace

from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master
from jobmaster_agents.leader.due_listener import IDLE_SECONDS, PROBE_SECONDS, DueListener
from jobmaster_agents.leader.due_notifier import DueNotifier, Group
from tests.conftest import MIGRATED_SCHEMA
from tests.integration.client.fixture import settings_for
from tests.support.patience import PATIENCE_SECONDS


class Notified(DueNotifier):
    """Keeps the groups instead of calling stores."""

    def __init__(self) -> None:
        self.groups: set[Group] = set()

    async def notify(self, groups: Iterable[Group], *, afresh: bool = False) -> set[Group]:
        self.groups |= set(groups)
        return set()


async def test_it_listens_while_it_leads_and_passes_on_what_was_committed(
    migrated_dsn: str, cluster_settings: ClusterSettings
) -> None:
    leads, looks = False, 0

    def look() -> None:
        nonlocal looks
        looks += 1

    notified = Notified()
    master = await open_master(cluster_settings, application_name="listening", agent=True)
    assert master.due_notices is not None
    listener = DueListener(master.due_notices, notified, lambda: leads, look)
    sql = await asyncpg.connect(migrated_dsn)
    channel = cluster_settings.schema_name()

    async def sessions() -> int:
        return int(await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'listening'"))

    async def channels() -> list[str]:
        return await master._control.run(
            "look", lambda one: one.fetchval("SELECT array(SELECT pg_listening_channels())")
        )

    assert await listener.tick() == IDLE_SECONDS
    await master.pauses.in_force()  # opens the control connection
    assert await sessions() == 1
    leads = True
    assert await listener.tick() == PROBE_SECONDS
    assert await listener.tick() == PROBE_SECONDS
    assert looks == 1, "the leader looks for what was committed before"
    for payload in ("default 3", "far-away 5", "default 3", "nonsense", "", "x y"):
        await sql.execute("SELECT pg_notify($1, $2)", channel, payload)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while notified.groups != {("default", 3), ("far-away", 5)}:
            await listener.kicked.wait()
            listener.kicked.clear()
            await listener.tick()
    assert (await sessions(), await channels()) == (1, [channel]), "the connection that control statements use"
    # A connection that was ended is noticed at once, and the next tick listens again, also when it passes on a notice.
    await sql.execute("SELECT pg_notify($1, 'last 9')", channel)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while ("last", 9) not in listener._due:
            listener.kicked.clear()
            await listener.kicked.wait()
    await sql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'listening'"
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while master.due_notices._connection is not None:
            listener.kicked.clear()
            await listener.kicked.wait()
    listener.kicked.clear()
    await listener.tick()
    assert looks == 2
    assert ("last", 9) in notified.groups
    await sql.execute("SELECT pg_notify($1, 'again 1')", channel)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await listener.kicked.wait()
    await listener.tick()
    assert ("again", 1) in notified.groups
    leads = False
    assert await listener.tick() == IDLE_SECONDS
    assert await channels() == []
    await sql.close()
    await master.close()


@pytest.fixture
def cluster_settings(migrated_dsn: str) -> ClusterSettings:
    settings = settings_for("listening", {"default": "redis://localhost"})
    return replace(settings, master=replace(settings.master, dsn=migrated_dsn, schema=MIGRATED_SCHEMA))
