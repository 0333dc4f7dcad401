"""Notices of submits in SQL, from a real server to the notifier of due jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import asyncpg
import pytest
from msgspec.structs import replace

from jobmaster.master.master import Master
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


class Listening:
    """A listener on a master of its own, and whether it leads."""

    def __init__(self, master: Master) -> None:
        assert master.due_notices is not None
        self.master, self.notices = master, master.due_notices
        self.leads, self.looks = False, 0
        self.notified = Notified()
        self.listener = DueListener(self.notices, self.notified, lambda: self.leads, self._look)

    def _look(self) -> None:
        self.looks += 1

    async def channels(self) -> list[str]:
        """What the connection for control statements listens to."""
        return await self.master._control.run(
            "look", lambda one: one.fetchval("SELECT array(SELECT pg_listening_channels())")
        )

    async def kicks_until(self, holds: Callable[[], bool], *, ticks: bool = False) -> None:
        """Wait for kicks of the listener until a condition holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await self.listener.kicked.wait()
                self.listener.kicked.clear()
                if ticks:
                    await self.listener.tick()


async def test_it_listens_while_it_leads_and_passes_on_what_was_committed(
    listening: Listening, sql: asyncpg.Connection, cluster_settings: ClusterSettings
) -> None:
    listener, channel = listening.listener, cluster_settings.schema_name()

    async def sessions() -> int:
        return int(await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'listening'"))

    assert await listener.tick() == IDLE_SECONDS
    await listening.master.pauses.in_force()  # opens the control connection
    assert await sessions() == 1
    listening.leads = True
    assert await listener.tick() == PROBE_SECONDS
    assert await listener.tick() == PROBE_SECONDS
    assert listening.looks == 1, "the leader looks for what was committed before"
    for payload in ("default 3", "far-away 5", "default 3", "nonsense", "", "x y"):
        await sql.execute("SELECT pg_notify($1, $2)", channel, payload)
    await listening.kicks_until(lambda: listening.notified.groups == {("default", 3), ("far-away", 5)}, ticks=True)
    assert (await sessions(), await listening.channels()) == (1, [channel]), (
        "the connection that control statements use"
    )
    listening.leads = False
    assert await listener.tick() == IDLE_SECONDS
    assert await listening.channels() == []


async def test_a_lost_connection_is_listened_for_again_also_by_a_tick_that_passes_on_a_notice(
    listening: Listening, sql: asyncpg.Connection, cluster_settings: ClusterSettings
) -> None:
    listener, channel = listening.listener, cluster_settings.schema_name()
    listening.leads = True
    await listener.tick()
    await sql.execute("SELECT pg_notify($1, 'last 9')", channel)
    await listening.kicks_until(lambda: ("last", 9) in listener._due)
    await sql.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'listening'"
    )
    await listening.kicks_until(lambda: listening.notices._connection is None)
    await listener.tick()
    assert listening.looks == 2, "it listens again at once, and the leader looks for what was committed in between"
    assert ("last", 9) in listening.notified.groups
    await sql.execute("SELECT pg_notify($1, 'again 1')", channel)
    await listening.kicks_until(lambda: ("again", 1) in listening.notified.groups, ticks=True)


@pytest.fixture
async def listening(cluster_settings: ClusterSettings) -> AsyncIterator[Listening]:
    master = await open_master(cluster_settings, application_name="listening", agent=True)
    yield Listening(master)
    await master.close()


@pytest.fixture
async def sql(migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(migrated_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def cluster_settings(migrated_dsn: str) -> ClusterSettings:
    settings = settings_for("listening", {"default": "redis://localhost"})
    return replace(settings, master=replace(settings.master, dsn=migrated_dsn, schema=MIGRATED_SCHEMA))
