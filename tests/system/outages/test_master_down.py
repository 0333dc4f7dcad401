"""PostgreSQL away for more than three leases, under load: intake and runs continue from the store, no agent restarts, and
every outcome is there once when it is back. Real servers, real processes; handlers write what they did to a file.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from jobmaster.audit import AuditScope, audit
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.embedded import PostgresServer
from jobmaster.model.errors import JobMasterError
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster, open_reader, open_stores
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import children_of
from tests.support.proxy.tcp_proxy import HEALTHY, TcpProxy, WireProtocol, socket_of
from tests.support.waiting import eventually
from tests.system.jobs import handlers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEASE = 6.0
"""An agent that the machine holds up for two thirds of it is suspended, or ends itself, although its master is there."""
OUTAGE = 3.3 * LEASE
LEASES = {"lease": f"{LEASE}s", "renew": "0.8s", "store_beat": "0.3s", "grace": "10s"}


class Outage(Protocol):
    """How the master goes away, and comes back."""

    def __call__(self, server: PostgresServer) -> Callable[[], object]: ...


def stopped(server: PostgresServer) -> Callable[[], object]:
    """As ``pg_ctl stop -m immediate``."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGQUIT)
    while server.is_running():
        time.sleep(0.01)
    return server.start


def frozen(server: PostgresServer) -> Callable[[], object]:
    """SIGSTOP to every process of it: nothing is closed, and nothing answers."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)  # first, so that it forks no further one
    pids = [server.pid, *children_of(server.pid)]
    for pid in pids[1:]:
        os.kill(pid, signal.SIGSTOP)

    def unfreeze() -> None:
        for pid in reversed(pids):
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    return unfreeze


class Load:
    """A producer that goes on submitting while the master is away.

    Args:
        refusals: errors after which it goes on, without the job; any other error ends it, and ``stop`` raises it.
    """

    def __init__(
        self, cluster: Cluster, deployment: Deployment, refusals: tuple[type[JobMasterError], ...] = ()
    ) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._deployment = deployment
        self._path = str(deployment.path("w"))
        self._fenced = str(deployment.path("fenced"))
        self.receipts: list[JobReceipt[object]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go())

    async def warm(self) -> None:
        """Start, and wait until jobs run."""
        self.start()

        async def runs() -> bool:
            return len(self._deployment.witnessed("w")) > 50

        await eventually(runs, 20, "jobs to run")

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            return

    async def _go(self) -> None:
        number = 0
        while True:
            sent = [self._cluster.submit("stamped", {"path": self._path}) for _ in range(10)]
            if number % 5 == 0:
                sent.append(self._cluster.submit("third_time", {}))
                sent.append(self._cluster.submit("fenced_stamped", {"path": self._fenced}))
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(answer, BaseException):
                    if not isinstance(answer, self._refusals):
                        raise answer
                else:
                    self.receipts.append(answer)
            number += 1
            await asyncio.sleep(0.05)


@pytest.fixture
def postgres(new_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return new_postgres()


@pytest.fixture
async def own(tmp_path: Path, postgres: PostgresServer, store_url: str, cluster_name: str) -> AsyncIterator[Deployment]:
    """A rig whose master is the test's own."""
    deployment = Deployment(tmp_path, postgres.dsn, store_url, cluster_name)
    deployment.document["leases"] = dict(LEASES)
    migrated = deployment.run("db", "migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    yield deployment
    await deployment.close()


@pytest.fixture
async def client(own: Deployment) -> AsyncIterator[Cluster]:
    async with await open_cluster(own.settings, handlers) as cluster:
        yield cluster


async def assert_whole(deployment: Deployment, receipts: list[JobReceipt[object]]) -> None:
    """Every acknowledged job has one outcome, and no promise is broken."""
    reader, stores = await open_reader(deployment.settings), await open_stores(deployment.settings)
    try:
        scope = AuditScope(quiet_seconds=0.0, acknowledged=[receipt.id_bytes for receipt in receipts])
        report = await audit(reader, stores, scope)
    finally:
        await reader.close()
        for store in stores.values():
            await store.close()
    assert report.clean, f"{report.violations} {report.evidence}"


async def all_ended(cluster: Cluster, receipts: list[JobReceipt[object]]) -> None:
    states = await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
    assert set(states.values()) == {JobState.SUCCEEDED}


async def submit_held(deployment: Deployment, client: Cluster) -> JobReceipt[object]:
    """A job that runs until its gate is there."""
    return await client.submit(
        "until_file", {"path": str(deployment.path("held")), "gate": str(deployment.path("gate"))}
    )


async def running(deployment: Deployment, count: int) -> bool:
    return len(deployment.witnessed("held")) >= count


def ran_between(deployment: Deployment, begin: float, end: float) -> list[str]:
    return [line[0] for line in deployment.witnessed("w") if begin < float(line[4]) < end]


def fenced_between(deployment: Deployment, begin: float, end: float) -> int:
    return sum(1 for line in deployment.witnessed("fenced") if begin < float(line[4]) < end)


@pytest.mark.parametrize("away", [pytest.param(stopped, marks=pytest.mark.long), frozen], ids=["stopped", "frozen"])
async def test_work_goes_on_without_the_master_and_every_outcome_is_there_once(
    own: Deployment, client: Cluster, postgres: PostgresServer, away: Outage
) -> None:
    own.document["agents"]["default"]["processes"] = 2
    agent = await own.start_agent(processes=2)
    children = agent.children()
    load = Load(client, own)
    await load.warm()
    waiting = asyncio.ensure_future(load.receipts[-1].wait(timeout=PATIENCE_SECONDS))
    began = time.time()
    back = away(postgres)
    submitted = len(load.receipts)
    await asyncio.sleep(OUTAGE)

    async def work_has_gone_on() -> bool:
        return len(ran_between(own, began + LEASE, time.time())) > 200 and len(load.receipts) - submitted > 300

    await eventually(work_has_gone_on, PATIENCE_SECONDS, "intake, and jobs that run long after every lease was over")
    ended = time.time()
    await asyncio.to_thread(back)
    await asyncio.sleep(1.0)
    await load.stop()
    await all_ended(client, load.receipts)
    assert await waiting is JobState.SUCCEEDED, "a wait that began before it outlasts the outage"

    assert fenced_between(own, began + LEASE, ended) == 0, "what needs an accepted write waits"
    assert own.witnessed("fenced")
    runs = [line[0] for line in own.witnessed("w")]
    assert len(runs) == len(set(runs)), "nothing ran twice"
    assert agent.children() == children, "no agent was restarted"
    assert agent.count("child_exited") == agent.count("agent_fenced") == agent.count("agent_certified_dead") == 0
    assert agent.count("agent_suspended") == agent.count("agent_resumed") >= 2

    async def applied() -> bool:  # the outcomes are committed before the line about them is written
        lines = [line for line in agent.events if line.get("event") == "outcomes_applied"]
        return sum(int(line["applied"]) for line in lines) > 200

    await eventually(applied, PATIENCE_SECONDS, "the lines of what was kept in the store")
    assert (await own.fetch("SELECT count(*) FROM job WHERE rescues > 0"))[0][0] == 0
    assert await own.bucket_events("LOST") == 0
    await assert_whole(own, load.receipts)
    assert await agent.terminate() == 0


async def test_an_agent_killed_during_the_outage_loses_nothing(
    own: Deployment, client: Cluster, postgres: PostgresServer
) -> None:
    agent = await own.start_agent()
    load = Load(client, own)
    await load.warm()
    gate = own.path("gate")
    held = [await submit_held(own, client) for _ in range(3)]

    await eventually(lambda: running(own, 3), 20, "the jobs that are held")
    began = time.time()
    back = stopped(postgres)
    await asyncio.sleep(2 * LEASE)

    async def work_has_gone_on() -> bool:
        return len(ran_between(own, began + LEASE, time.time())) > 400

    await eventually(work_has_gone_on, PATIENCE_SECONDS, "jobs that run after the lease was over")
    (child,) = agent.children()
    os.kill(child, signal.SIGKILL)
    await agent.wait_event("child_exited")
    await asyncio.sleep(1.2 * LEASE)
    await load.stop()
    kept = len(ran_between(own, began, time.time()))
    assert agent.count("child_exited") == 1, "its successor waits for the master instead of dying of it"
    gate.touch()
    await asyncio.to_thread(back)
    receipts = [*load.receipts, *held]
    await all_ended(client, receipts)
    assert (await own.fetch("SELECT count(*) FROM job WHERE rescues > 0"))[0][0] >= 3
    twice = {line[0] for line in own.witnessed("w")}
    # What had been kept in the store was applied by the rescuer, and not run again.
    assert len(own.witnessed("w")) - len(twice) < kept / 4
    await assert_whole(own, receipts)
    assert await agent.terminate() == 0


async def test_an_agent_that_is_cut_off_alone_is_rescued_and_fenced_in_its_store(
    own: Deployment, client: Cluster, postgres: PostgresServer
) -> None:
    """Its store would go on standing for it; a rescuer fences the store first, and waits until that word is over."""
    own.document["agents"]["default"]["isolated_processes"] = 4
    async with TcpProxy(WireProtocol.POSTGRES, socket_of(postgres.dsn), random.Random(0)) as proxy:
        document, config = dict(own.document), own.path("cut.yaml")
        document["master"] = {"dsn": proxy.master_dsn(postgres.dsn)}
        config.write_text(yaml.safe_dump(document))
        cut = AgentProcess(config, own.path("agent-cut.log"))
        own.agents.append(cut)
        await cut.wait_event("agent_started")
        load = Load(client, own)
        await load.warm()
        held = [await submit_held(own, client) for _ in range(3)]
        await eventually(lambda: running(own, 3), 20, "the jobs that are held")
        other = await own.start_agent()
        await asyncio.sleep(1.5 * LEASE)  # the agent that writes the certificate has held its own lease for a term
        (child,) = cut.children()
        proxy.cut()
        await cut.wait_event("agent_suspended")
        await other.wait_event("agent_certified_dead", seconds=3 * LEASE + 10)
        await cut.wait_event("bucket_forgotten", times=6, seconds=2 * LEASE + 10)
        await eventually(lambda: running(own, 6), 30, "the jobs that were held to run elsewhere")
        assert other.count("bucket_drain_waits") > 0
        own.path("gate").touch()
        await load.stop()
        receipts = [*load.receipts, *held]
        await all_ended(client, receipts)
        began: dict[str, list[list[str]]] = {}
        for run in own.witnessed("w"):
            began.setdefault(run[0], []).append(run)
        for first, *again in began.values():
            assert not again or int(first[3]) == child, (
                "started by the cut agent, then by the other, never the other way"
            )
        assert [run[4] for run in own.witnessed("held") if int(run[3]) == child] == ["began"] * 3
        assert cut.children() == [child], "it waits for word of its master"
        proxy.set(HEALTHY)
        fenced = await cut.wait_event("agent_fenced")
        assert "certificate" in fenced["reason"]
        await cut.wait_event("agent_started", times=2)
        await assert_whole(own, receipts)
        assert await cut.terminate() == 0
        assert await other.terminate() == 0


async def test_a_process_that_is_stopped_while_suspended_is_killed_when_the_stores_word_is_over(
    own: Deployment, client: Cluster, postgres: PostgresServer
) -> None:
    """SIGSTOP: its supervisor ends it; the kernel's timer would, too, before its next instruction."""
    agent = await own.start_agent()
    load = Load(client, own)
    await load.warm()
    back = stopped(postgres)
    await agent.wait_event("agent_suspended")
    await asyncio.sleep(LEASE)
    (child,) = agent.children()
    os.kill(child, signal.SIGSTOP)
    killed = await agent.wait_event("child_killed", seconds=2 * LEASE + 5)
    assert killed["pid"] == child
    await load.stop()
    await asyncio.to_thread(back)
    await all_ended(client, load.receipts)
    await assert_whole(own, load.receipts)


async def test_the_operator_may_forbid_it(own: Deployment, client: Cluster, postgres: PostgresServer) -> None:
    own.document["leases"]["master_down"] = "fence"
    agent = await own.start_agent()
    load = Load(client, own)
    await load.warm()
    began = time.time()
    back = stopped(postgres)
    await agent.wait_event("agent_fenced")
    await asyncio.sleep(LEASE)
    assert not ran_between(own, began + LEASE, time.time())
    await load.stop()
    await asyncio.to_thread(back)
    await all_ended(client, load.receipts)
    assert agent.count("agent_suspended") == 0
    await assert_whole(own, load.receipts)


async def test_an_agent_waits_for_a_master_that_is_not_there_yet(own: Deployment, postgres: PostgresServer) -> None:
    _ = own.settings
    back = stopped(postgres)
    agent = AgentProcess(own.config, own.path("agent-early.log"))
    own.agents.append(agent)
    await agent.wait_event("call_failed")
    await asyncio.sleep(2.0)
    assert agent.count("child_exited") == agent.count("crash_loop") == 0
    await asyncio.to_thread(back)
    await agent.wait_event("agent_started")
    assert await agent.terminate() == 0


async def test_an_agent_that_waits_for_its_master_leaves_on_sigterm(own: Deployment, postgres: PostgresServer) -> None:
    _ = own.settings
    stopped(postgres)
    agent = AgentProcess(own.config, own.path("agent-early.log"))
    own.agents.append(agent)
    await agent.wait_event("call_failed")
    assert await agent.terminate(seconds=10) == 0
    postgres.start()
