"""Agents and producers on a store that is a Valkey Cluster, while its nodes fail and its hash slots move."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from redis.crc import key_slot

from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers.valkey_cluster import ClusterNode, ValkeyCluster
from tests.support.waiting import eventually
from tests.system.jobs import handlers
from tests.system.outages.test_master_down import LEASES, Load, all_ended, assert_whole

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def nodes(server_root: Path) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(server_root) as nodes:
        yield nodes


@pytest.fixture
async def agents(deployment: Deployment, nodes: ValkeyCluster) -> list[AgentProcess]:
    """Two agents, so that there are buckets on several nodes. Their lease is longer than a failover takes."""
    deployment.document["stores"]["default"]["url"] = nodes.url
    deployment.document["leases"] = {**LEASES, "lease": "30s"}
    return [await deployment.start_agent() for _ in range(2)]


def is_primary(node: ClusterNode) -> bool:
    """True once it takes writes."""
    return bool(node.info("replication")["role"] == "master")


def metas(node: ClusterNode) -> list[bytes]:
    """The buckets on one node."""
    return cast("list[bytes]", node.ask("KEYS", "jm:*:meta"))


async def more_runs(deployment: Deployment, what: str) -> None:
    """Wait until jobs have run that had not before."""
    ran = len(deployment.witnessed("w"))

    async def seen() -> bool:
        return len(deployment.witnessed("w")) > ran + 50

    await eventually(seen, PATIENCE_SECONDS, what)


@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.long)], ids=["killed", "frozen"])
async def test_jobs_flow_through_a_server_cluster_that_loses_a_primary_and_an_agent(
    deployment: Deployment, nodes: ValkeyCluster, agents: list[AgentProcess], frozen: bool
) -> None:
    """Frozen: the former primary comes back and is made a replica."""
    children = agents[0].children()
    checked = await asyncio.to_thread(deployment.run, "store", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(f"{node.name} " in checked.stdout for node in nodes.primaries)
    async with await open_cluster(deployment.settings, handlers) as cluster:
        # A submit on its way to a server that is killed has no answer.
        load = Load(cluster, deployment, refusals=(OutcomeUnknown, Unavailable))
        await load.warm()
        victim = next(node for node in nodes.primaries if metas(node))
        covered = list(load.receipts)
        await asyncio.to_thread(victim.replicated, metas(victim)[0])
        in_master = await cluster.submit("add", {"one": 1, "other": 2}, durability="master")
        replica = nodes.replica_of(victim)
        former = victim.server.pid
        assert former is not None
        await asyncio.to_thread(nodes.be_alert)
        if frozen:
            os.kill(former, signal.SIGSTOP)
        else:
            await asyncio.to_thread(victim.server.kill)
        await eventually(lambda: asyncio.to_thread(is_primary, replica), PATIENCE_SECONDS, "the replica to take over")
        if frozen:
            os.kill(former, signal.SIGCONT)
        await eventually(lambda: asyncio.to_thread(nodes.whole), PATIENCE_SECONDS, "the cluster to be whole")
        await asyncio.to_thread(nodes.stay_calm)
        await more_runs(deployment, "jobs to run after the failover")
        later = len(load.receipts)
        agents[1].kill_all()
        await more_runs(deployment, "jobs to run after the rescue")
        await load.stop()
        assert load.receipts[later:]
        # What was acknowledged between the last word of the replica and the kill may be gone: level `store`.
        receipts = [*covered, in_master, *load.receipts[later:]]
        await all_ended(cluster, receipts)
    assert agents[0].children() == children
    assert agents[0].count("agent_fenced") == 0
    await assert_whole(deployment, receipts)
    assert await agents[0].terminate() == 0


@pytest.mark.long
async def test_slots_move_under_load_to_a_node_that_was_added(
    deployment: Deployment, nodes: ValkeyCluster, agents: list[AgentProcess]
) -> None:
    """Nothing fails here, so nothing that was acknowledged may be missing."""
    async with await open_cluster(deployment.settings, handlers) as cluster:
        load = Load(cluster, deployment)
        await load.warm()
        added = await asyncio.to_thread(nodes.add)
        moves = (nodes.move_slot, nodes.move_slot_at_once)
        moved = 0
        for node in nodes.primaries:
            for meta in metas(node):
                await asyncio.to_thread(moves[moved % 2], key_slot(meta), node, added)
                moved += 1
        assert moved >= 2
        await more_runs(deployment, "jobs to run on the new node")
        assert metas(added)
        await load.stop()
        await all_ended(cluster, load.receipts)
    assert [agent.count("agent_fenced") for agent in agents] == [0, 0]
    assert await deployment.bucket_events("LOST") == 0
    await assert_whole(deployment, load.receipts)
    for agent in agents:
        assert await agent.terminate() == 0
