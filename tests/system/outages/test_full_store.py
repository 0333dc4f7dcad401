"""A store at its ``maxmemory``: its agents live on and empty it, and one that starts then helps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from jobmaster.embedded import ValkeyServer
from jobmaster.model.job import JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import SHORT_LEASE_SECONDS, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.jobs import handlers, until_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

JOBS = 12


async def test_agents_of_a_full_store_live_on_and_their_successors_empty_it(
    deployment: Deployment, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    deployment.shorten_lease()
    deployment.document["stores"]["default"] = {"url": server.url}
    deployment.document["agents"]["default"] |= {"slots": 1, "bucket_buffer": 1, "max_running": 2}
    gate, path = str(deployment.path("gate")), str(deployment.path("w"))
    first = await deployment.start_agent()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipts = [await cluster.submit(until_file, {"path": path, "gate": gate}) for _ in range(JOBS)]

        async def began() -> bool:
            return bool(deployment.witnessed("w"))

        await eventually(began, PATIENCE_SECONDS, "a job to run")
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("maxmemory", 1)
            renewals = 3.2 * SHORT_LEASE_SECONDS / 0.8
            before = (await deployment.fetch("SELECT sum(beats)::int AS beats FROM agent"))[0]["beats"]

            async def outlived() -> bool:
                """Renewed for three leases and more, each time because the store beat succeeded."""
                beats = (await deployment.fetch("SELECT sum(beats)::int AS beats FROM agent"))[0]["beats"]
                return bool(beats >= before + renewals or first.count("agent_fenced"))

            await eventually(outlived, PATIENCE_SECONDS, "three leases to pass")
            assert (first.count("agent_fenced"), first.count("store_beat_failed")) == (0, 0), first.log.read_text()
            first.kill_all()
            second = await deployment.start_agent()

            async def drained() -> bool:
                return second.count("bucket_drained") >= 6

            await eventually(
                drained, PATIENCE_SECONDS, lambda: f"the rescue in a full store:\n{second.log.read_text()}"
            )
            assert (second.count("agent_fenced"), second.count("crash_loop")) == (0, 0), second.log.read_text()
            raw.config_set("maxmemory", 0)
        deployment.path("gate").touch()
        for receipt in receipts:
            assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
