"""A store whose host is gone: nothing is refused, nothing is answered. What other stores serve goes on.

Calls to the silent store may take ten minutes here, so whatever waits for one of them does not come to its end in this test.
"""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest

from jobmaster.embedded import ValkeyServer
from jobmaster.model.job import Durability
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import handlers, note

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_SLOW = {"call_timeout": "10m", "connect_timeout": "10m"}


class Stoppable:
    """A store that can be stopped: the kernel accepts what is sent, and no process reads it."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server

    def stop(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)


@pytest.fixture
def second(deployment: Deployment, new_valkey: Callable[..., ValkeyServer]) -> Iterator[Stoppable]:
    """A second store, and a kind of agent that lives on it."""
    server = new_valkey()
    deployment.shorten_lease()
    deployment.document["stores"]["second"] = {"url": server.url, **_SLOW}
    deployment.document["agents"]["second"] = {
        **copy.deepcopy(deployment.document["agents"]["default"]),
        "store": "second",
    }
    stoppable = Stoppable(server)
    yield stoppable
    stoppable.go_on()


def usual(settings: ClusterSettings) -> ClusterSettings:
    """For a producer: with the time-outs that it would have."""
    stores = {
        name: msgspec.structs.replace(each, call_timeout_seconds=5.0, connect_timeout_seconds=5.0)
        for name, each in settings.stores.items()
    }
    return msgspec.structs.replace(settings, stores=stores)


async def test_a_silent_store_delays_no_job_no_rescue_and_no_exit_elsewhere(
    deployment: Deployment, second: Stoppable
) -> None:
    victim = await deployment.start_agent("--name", "default")
    there = await deployment.start_agent("--name", "second")
    helper = await deployment.start_agent("--name", "default")
    buckets = {
        row["owner"]: row["n"] for row in await deployment.fetch("SELECT owner, count(*) AS n FROM bucket GROUP BY 1")
    }
    assert len(buckets) == 3
    second.stop()
    there.kill_all()

    async def given_up() -> bool:
        return await deployment.bucket_events("LOST") >= 1

    await eventually(given_up, PATIENCE_SECONDS, "the buckets of the silent store to be lost")

    async def tried() -> bool:
        return victim.count("bucket_taken") + helper.count("bucket_taken") >= 1

    await eventually(tried, PATIENCE_SECONDS, "an attempt to drain them")
    async with await open_cluster(usual(deployment.settings), handlers) as cluster:
        path = str(deployment.path("ran"))
        held = [await cluster.submit(note, {"path": path}, durability="master", after=0.3 * n) for n in range(1, 11)]
        assert {receipt.level for receipt in held} == {Durability.MASTER}

        async def all_ran() -> bool:
            return len(deployment.witnessed("ran")) >= len(held)

        await eventually(all_ran, PATIENCE_SECONDS, lambda: f"jobs of the healthy store: {deployment.witnessed('ran')}")

        victim.kill_all()

        async def drained() -> bool:
            return helper.count("bucket_drained") >= 6

        await eventually(
            drained, PATIENCE_SECONDS, lambda: f"the rescue on the healthy store:\n{helper.log.read_text()}"
        )
    assert await helper.terminate(PATIENCE_SECONDS) == 0, helper.log.read_text()
    assert helper.count("child_killed") == 0


async def test_an_agent_whose_own_store_is_silent_leaves_within_its_lease(
    deployment: Deployment, second: Stoppable
) -> None:
    """Its buckets cannot be completed; they are rescued when the store is back, and nothing is lost."""
    there = await deployment.start_agent("--name", "second")
    path = str(deployment.path("ran"))
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipt = await cluster.submit(note, {"path": path}, durability="master")
        await receipt.result(timeout=PATIENCE_SECONDS)
    second.stop()
    assert await there.terminate(PATIENCE_SECONDS) == 1
    assert there.count("agent_fenced") + there.count("child_killed") == 1, there.log.read_text()
    helper = await deployment.start_agent("--name", "default")
    second.go_on()

    async def drained() -> bool:
        return helper.count("bucket_drained") >= 6

    await eventually(drained, PATIENCE_SECONDS, lambda: f"its buckets to be drained:\n{helper.log.read_text()}")
    assert await helper.terminate(PATIENCE_SECONDS) == 0
