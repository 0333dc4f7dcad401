"""Failovers that nothing but the configuration follows: a standby of the master, and a replica that Sentinels promote.

Agents and producers are the same processes before and after.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from jobmaster.embedded import PostgresServer
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.servers.sentinel_group import SentinelGroup
from tests.support.waiting import eventually
from tests.system.jobs import handlers
from tests.system.outages.test_master_down import LEASES, Load, all_ended, assert_whole

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Pair(NamedTuple):
    """A primary and its synchronous standby."""

    primary: PostgresServer
    standby: PostgresServer
    dsn: str
    """Names both."""


@pytest.fixture
def pair(server_root: Path, tmp_path: Path, store_url: str, cluster_name: str) -> Iterator[Pair]:
    folders = [server_root / f"{name}-{cluster_name}" for name in ("first", "second")]
    ports = [free_port(), free_port()]
    primary = PostgresServer(folders[0], durable=False, port=ports[0])
    with primary:
        migrated = Deployment(tmp_path, primary.dsn, store_url, cluster_name).run("db", "migrate")
        assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    # A copy of a server that was stopped is a backup of it.
    subprocess.run(["cp", "-a", str(folders[0]), str(folders[1])], check=True)
    (folders[1] / "data" / "standby.signal").touch()
    with primary:
        login = urlsplit(primary.tcp_dsn)
        upstream = f"host=127.0.0.1 port={ports[0]} user={login.username} password={login.password}"
        standby = PostgresServer(folders[1], durable=False, port=ports[1], settings={"primary_conninfo": upstream})
        with standby:
            hosts = [parse_qs(urlsplit(each.dsn).query)["host"][0] for each in (primary, standby)]
            where = f"host={','.join(hosts)}&port={ports[0]},{ports[1]}&target_session_attrs=read-write"
            yield Pair(primary, standby, urlsplit(primary.dsn)._replace(query=where).geturl())


async def make_synchronous(pair: Pair) -> None:
    """From now on a commit waits for the standby."""
    admin = await asyncpg.connect(pair.primary.dsn)
    try:
        await admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await admin.execute("SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        await eventually(lambda: admin.fetchval(query), 20, "the standby to be synchronous")
    finally:
        await admin.close()


async def test_a_promoted_standby_is_found_by_agents_and_producers(
    pair: Pair, tmp_path: Path, store_url: str, cluster_name: str
) -> None:
    deployment = Deployment(tmp_path, pair.dsn, store_url, cluster_name)
    deployment.document["leases"] = {**LEASES, "lease": "30s"}
    await make_synchronous(pair)
    try:
        agent = await deployment.start_agent()
        children = agent.children()
        async with await open_cluster(deployment.settings, handlers) as cluster:
            load = Load(cluster, deployment)
            await load.warm()
            await asyncio.to_thread(pair.primary.kill)
            admin = await asyncpg.connect(pair.standby.dsn)
            assert await admin.fetchval("SELECT pg_promote()")
            await admin.close()
            in_master = await cluster.submit("add", {"one": 1, "other": 2}, durability="master")
            assert await in_master.result(timeout=PATIENCE_SECONDS) == 3
            await load.stop()
            await all_ended(cluster, load.receipts)
        assert agent.children() == children
        assert agent.count("child_exited") == agent.count("agent_fenced") == 0
        assert await deployment.bucket_events("LOST") == 0
        await assert_whole(deployment, [*load.receipts, in_master])
        assert await agent.terminate() == 0
    finally:
        await deployment.close()


@pytest.fixture
def group(server_root: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup(server_root) as group:
        yield group


@pytest.fixture
async def watched(deployment: Deployment, group: SentinelGroup) -> AgentProcess:
    """An agent whose store Sentinels watch. Its lease is longer than their failover takes."""
    deployment.document["stores"]["default"]["url"] = group.url
    deployment.document["leases"] = {**LEASES, "lease": "60s"}
    return await deployment.start_agent()


async def promoted(group: SentinelGroup) -> None:
    async def seen() -> bool:
        return await asyncio.to_thread(group.promoted)

    await eventually(seen, 30, "the Sentinels to promote the replica")
    await asyncio.to_thread(group.stay_calm)


@pytest.mark.parametrize("frozen", [pytest.param(False, marks=pytest.mark.long), True], ids=["killed", "frozen"])
async def test_a_store_that_fails_over_while_jobs_flow_keeps_what_its_replica_had(
    deployment: Deployment, group: SentinelGroup, watched: AgentProcess, frozen: bool
) -> None:
    """Frozen: the former primary comes back and takes writes, until the Sentinels make it a replica."""
    children = watched.children()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        # A submit on its way to a server that is killed has no answer.
        load = Load(cluster, deployment, refusals=(OutcomeUnknown, Unavailable))
        await load.warm()
        covered = list(load.receipts)
        await asyncio.to_thread(group.replicated)
        former = group.primary.pid
        assert former is not None
        await asyncio.to_thread(group.be_alert)
        if frozen:
            os.kill(former, signal.SIGSTOP)
        else:
            await asyncio.to_thread(group.primary.kill)
        await promoted(group)
        if frozen:
            os.kill(former, signal.SIGCONT)
            await eventually(lambda: asyncio.to_thread(group.demoted), 30, "the former primary to be a replica")
        ran = len(deployment.witnessed("w"))

        async def goes_on() -> bool:
            return len(deployment.witnessed("w")) > ran + 50

        await eventually(goes_on, 20, "jobs to run from the new primary")
        later = len(load.receipts)

        async def acknowledged() -> bool:  # what runs may have waited in the bucket for long
            return len(load.receipts) > later

        await eventually(acknowledged, what="more jobs")
        await load.stop()
        # What was acknowledged between the last word of the replica and the kill may be gone: level `store`.
        receipts = [*covered, *load.receipts[later:]]
        await all_ended(cluster, receipts)
    assert watched.children() == children
    assert watched.count("agent_fenced") == 0
    await assert_whole(deployment, receipts)
    assert await watched.terminate() == 0


async def test_a_replica_that_lags_is_noticed_when_it_takes_over(
    deployment: Deployment, group: SentinelGroup, watched: AgentProcess
) -> None:
    """The replica follows nothing while the owner works on, so what it has is older than what the owner has seen."""
    async with await open_cluster(deployment.settings, handlers) as cluster:
        path, gate = str(deployment.path("held")), str(deployment.path("gate"))
        held = await cluster.submit("until_file", {"path": path, "gate": gate}, durability="master")

        async def began() -> bool:
            return bool(deployment.witnessed("held"))

        await eventually(began, 20, "the job to begin")
        await asyncio.to_thread(group.replicated)
        await asyncio.to_thread(group.cut_replica_off)
        for _ in range(5):
            receipt = await cluster.submit("add", {"one": 1, "other": 2})
            assert await receipt.result(timeout=PATIENCE_SECONDS) == 3
        await asyncio.to_thread(group.be_alert, 3_000)
        await asyncio.to_thread(group.primary.kill)
        await promoted(group)
        await watched.wait_event("bucket_forgotten")
        deployment.path("gate").touch()
        assert await held.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
        again = await cluster.submit("add", {"one": 2, "other": 2})
        assert await again.result(timeout=PATIENCE_SECONDS) == 4
    await assert_whole(deployment, [held, again])
    assert watched.process.poll() is None
