"""Several stores in one cluster, one of them dead or emptied."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from jobmaster.embedded import ValkeyServer
from jobmaster.model.job import Durability, JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import add, handlers, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NewValkey = Callable[..., ValkeyServer]


async def test_a_dead_store_stops_neither_agents_nor_producers_elsewhere(
    deployment: Deployment, new_valkey: NewValkey
) -> None:
    second = new_valkey()
    deployment.document["stores"]["second"] = {"url": second.url}
    deployment.document["agents"]["second"] = {
        **copy.deepcopy(deployment.document["agents"]["default"]),
        "store": "second",
    }
    second.kill()
    agent = await deployment.start_agent("--name", "default")
    assert agent.count("store_unreachable") == 1
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipt = await cluster.submit(add, {"one": 1, "other": 2})
        assert await receipt.result(timeout=PATIENCE_SECONDS) == 3
        second.start()
        late = await deployment.start_agent("--name", "second")
        assert late.count("store_unreachable") == 0

        async def joined() -> bool:
            return agent.count("store_joined") == 1

        await eventually(joined, 20, "the agent that came first to use the second store too")


async def test_with_every_store_dead_jobs_go_to_the_master(deployment: Deployment, new_valkey: NewValkey) -> None:
    only = new_valkey()
    deployment.document["stores"]["default"] = {"url": only.url}
    only.kill()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipt = await cluster.submit(add, {"one": 1, "other": 2})
        assert receipt.level is Durability.MASTER
        only.start()
        await deployment.start_agent()
        assert await receipt.result(timeout=PATIENCE_SECONDS) == 3


async def test_an_emptied_store_is_noticed_and_what_the_master_knows_runs_again(
    deployment: Deployment, new_valkey: NewValkey
) -> None:
    only = new_valkey()
    deployment.document["stores"]["default"] = {"url": only.url}
    agent = await deployment.start_agent()
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipt = await cluster.submit(until_file, {"path": path, "gate": gate}, durability="master")

        async def began() -> bool:
            return bool(deployment.witnessed("w"))

        await eventually(began, 15, "the job to run")
        import redis

        with redis.Redis.from_url(only.url) as connection:
            connection.flushall()
        deployment.path("gate").touch()
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
        assert await (await cluster.submit(add, {"one": 1, "other": 2})).result(timeout=PATIENCE_SECONDS) == 3
    assert agent.process.poll() is None
    assert agent.count("bucket_forgotten") > 0
