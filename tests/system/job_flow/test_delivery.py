"""What is promised about how often a job runs and what it does, under SIGKILL."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.job import Durability, JobState
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.delivery_jobs import adds, adds_isolated, adds_slowly, handlers, once

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

KILLS = 3


async def kill_children(agent: AgentProcess, times: int, chance: random.Random) -> None:
    """SIGKILL to the agent under its supervisor, again and again; each time a new one takes its place."""
    for started in range(1, times + 1):
        await agent.wait_event("agent_started", started)
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        os.kill(agent.children()[0], signal.SIGKILL)
    await agent.wait_event("agent_started", times + 1)


async def opened(deployment: Deployment) -> Cluster:
    deployment.document["handlers"] = ["tests.system.handlers.delivery_jobs"]
    deployment.document["agents"]["default"] |= {"slots": 10, "bucket_buffer": 20}
    return await open_cluster(deployment.settings, handlers)


async def test_at_most_once_is_never_started_twice_and_lost_jobs_are_recorded(deployment: Deployment) -> None:
    path = str(deployment.path("w"))
    async with await opened(deployment) as cluster:
        agent = await deployment.start_agent()
        killing = asyncio.ensure_future(kill_children(agent, KILLS, random.Random(11)))
        receipts = []
        for number in range(240):
            level = "master" if number % 4 == 0 else "store"
            receipts.append(await cluster.submit(once, {"path": path}, durability=Durability(level)))
            await asyncio.sleep(0.008)
        await killing
        await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
        views = {receipt.id: await receipt.get() for receipt in receipts}
    lines = deployment.witnessed("w")
    starts = Counter(UUID(line[0]) for line in lines if line[4] == "began")
    ended = {UUID(line[0]) for line in lines if line[4] == "ended"}
    assert {count for _, count in starts.most_common(1)} == {1}, "no job was started twice"
    lost = {job_id for job_id, view in views.items() if view.state == "FAILED"}
    assert {view.state.value for view in views.values()} == {"SUCCEEDED", "FAILED"}
    assert all((error := views[job_id].error) is not None and error.reason == "abandoned" for job_id in lost)
    assert lost, "agents were killed in mid-work"
    assert views.keys() - lost <= ended, "what succeeded came to its end"
    assert starts.keys() - ended <= lost, "what was cut off is not called a success"


ROOM = {"once_in_thread": 2, "once_in_process": 1, "once_confirmed": 2}
"""How many of each kind run at once, with the configuration of the test below."""


async def test_a_crash_abandons_only_what_had_begun_and_not_what_waited_for_its_turn(deployment: Deployment) -> None:
    path, gate = str(deployment.path("w")), str(deployment.path("gate"))
    deployment.document["handlers"] = ["tests.system.handlers.delivery_jobs"]
    deployment.document["master"] |= {"transactions": ROOM["once_confirmed"]}
    deployment.document["agents"]["default"] |= {"threads": 2, "isolated_processes": 1, "slots": 50}
    async with await open_cluster(deployment.settings, handlers) as cluster:
        agent = await deployment.start_agent()
        receipts = [
            await cluster.submit(name, {"path": path, "gate": gate}, durability=Durability(level))
            for name in ROOM
            for level in ("master", "store") * 6
        ]

        async def all_begun() -> bool:
            return len(deployment.witnessed("w")) == sum(ROOM.values())

        async def all_have_rows() -> bool:
            rows = await deployment.fetch("SELECT count(*) AS n FROM job WHERE state IN ('ASSIGNED', 'PROCESSING')")
            return bool(rows[0]["n"] == len(receipts))

        await eventually(all_begun, 60, "as many starts as there is room for")
        await eventually(all_have_rows, 60, "a row for every job, as persist_within promises")
        os.kill(agent.children()[0], signal.SIGKILL)
        begun = {UUID(line[0]) for line in deployment.witnessed("w")}
        await agent.wait_event("agent_started", 2, 60)
        deployment.path("gate").touch()
        states = await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
        reasons = {(await receipt.get()).error.reason for receipt in receipts if receipt.id in begun}  # type: ignore[union-attr]
    assert {job_id for job_id, state in states.items() if state is JobState.FAILED} == begun
    assert {state for job_id, state in states.items() if job_id not in begun} == {JobState.SUCCEEDED}
    assert reasons == {"abandoned"}
    starts = Counter(line[0] for line in deployment.witnessed("w"))
    assert (len(starts), max(starts.values())) == (len(receipts), 1), "each was started once, and never again"


async def counters(deployment: Deployment, count: int = 5) -> None:
    await deployment.fetch("CREATE TABLE public.counter (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")
    await deployment.fetch(f"INSERT INTO public.counter SELECT generate_series(1, {count})")


async def counted(deployment: Deployment) -> int:
    return int((await deployment.fetch("SELECT sum(n) AS n FROM public.counter"))[0]["n"])


async def test_a_transactional_handler_counts_each_job_once_however_often_it_is_killed(deployment: Deployment) -> None:
    await counters(deployment)
    async with await opened(deployment) as cluster:
        agent = await deployment.start_agent()
        killing = asyncio.ensure_future(kill_children(agent, KILLS, random.Random(5)))
        receipts = []
        for number in range(300):
            handler = adds_isolated if number % 10 == 0 else adds
            level = Durability("master" if number % 4 == 0 else "store")
            receipts.append(await cluster.submit(handler, {"counter": number % 5 + 1}, durability=level))
            await asyncio.sleep(0.008)
        await killing
        states = await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
    succeeded = [job_id for job_id, state in states.items() if state is JobState.SUCCEEDED]
    spared = await deployment.fetch("SELECT count(*) FROM job WHERE state <> 'SUCCEEDED' AND rescues < $1", KILLS)
    assert spared[0][0] == 0, "only a job that every kill has hit is given up"
    assert await counted(deployment) == len(succeeded) > 290
    rescued = await deployment.fetch("SELECT count(*) FROM job WHERE rescues > 0")
    assert rescued[0][0] > 0, "some were cut off and ran again"


async def test_a_frozen_agents_open_transaction_neither_counts_nor_holds_its_locks(deployment: Deployment) -> None:
    """SIGSTOP in the middle of it, past the lease; the rescuer ends its session, and the job counts when it runs again."""
    deployment.shorten_lease()
    await counters(deployment)
    path, gate = str(deployment.path("w")), deployment.path("gate")
    async with await opened(deployment) as cluster:
        victim = await deployment.start_agent()
        receipt = await cluster.submit(adds_slowly, {"counter": 1, "path": path, "gate": str(gate)})

        async def wrote(times: int) -> bool:
            return len(deployment.witnessed("w")) >= times

        await eventually(lambda: wrote(1), 20, "the first run")
        frozen = [victim.process.pid, *victim.children()]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        await deployment.start_agent()
        await eventually(lambda: wrote(2), 30, "the second run, which needs the lock of the first")
        gate.touch()
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)

        async def replaced() -> bool:
            return frozen[1] not in victim.children()

        await eventually(replaced, 15, "the zombie to leave")
    assert await counted(deployment) == 1


async def test_a_confirmation_from_outside_outlives_the_agent(deployment: Deployment) -> None:
    path = str(deployment.path("w"))
    async with await opened(deployment) as cluster:
        agent = await deployment.start_agent()
        receipt, other = await cluster.submit("hands_on", {"path": path}), await cluster.submit("says_done")

        async def waits() -> bool:
            return bool(deployment.witnessed("w")) and await receipt_state(receipt) is JobState.WAITING

        await eventually(waits, 20, "the end of the handler")
        assert await other.result(timeout=PATIENCE_SECONDS) == {"by": "worker"}
        agent.kill_all()
        ((_, _, _, _, confirmation),) = deployment.witnessed("w")
        await cluster.confirm_run(confirmation, {"paid": 3})
        await cluster.confirm_run(confirmation, "again")
        assert await receipt.result(timeout=PATIENCE_SECONDS) == {"paid": 3}
        with pytest.raises(Conflict, match="cannot be confirmed for that run"):
            await cluster.confirm_run(confirmation.replace(":1:", ":2:"))
        with pytest.raises(InputError, match=r"ctx\.confirmation"):
            await cluster.confirm_run("yes")


async def receipt_state(receipt: JobReceipt[Any]) -> JobState | None:
    try:
        return (await receipt.get()).state
    except NotFound:
        return None
