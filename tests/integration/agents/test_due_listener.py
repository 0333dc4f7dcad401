"""Notices of submits in SQL, from a real server to the notifier of due jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import asyncpg
import pytest
from msgspec.structs import replace

from jobmaster.model.errors import Unavailable
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_due_notices
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
    notices = open_due_notices(cluster_settings, application_name="listening")
    listener = DueListener(notices, notified, lambda: leads, look)
    sql = await asyncpg.connect(migrated_dsn)
    channel = cluster_settings.schema_name()

    async def sessions() -> int:
        return int(await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'listening'"))

    assert await listener.tick() == IDLE_SECONDS
    assert await sessions() == 0
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
    # A connection that was ended is noticed, and the next tick listens again.
    await sql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'listening'"
    )
    for _ in range(2):
        try:
            await listener.tick()
        except Unavailable:
            continue
    assert looks == 2
    await sql.execute("SELECT pg_notify($1, 'again 1')", channel)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await listener.kicked.wait()
    await listener.tick()
    assert ("again", 1) in notified.groups
    leads = False
    assert await listener.tick() == IDLE_SECONDS
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await sessions():
            pass  # each look is a round trip to the server
    await sql.close()
    await notices.stop()


@pytest.fixture
def cluster_settings(migrated_dsn: str) -> ClusterSettings:
    settings = settings_for("listening", {"default": "redis://localhost"})
    return replace(settings, master=replace(settings.master, dsn=migrated_dsn, schema=MIGRATED_SCHEMA))
