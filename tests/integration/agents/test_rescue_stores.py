"""Rescue when stores disagree or are silent, and the whole chain from a lease that runs out to jobs that are held."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import SystemClock, new_id
from jobmaster.embedded import ValkeyServer
from jobmaster.model.ids import AgentId, Fence, text
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import Leases, StoreSettings
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.rescue.failure_detector import FailureDetector
from jobmaster_agents.state.store_reachability import StoreReachability
from tests.integration.agents.fixture import DrivenCluster, check

LOOKS_MAX = 10
"""Looks of a failure detector after the end of a lease: two seconds on an idle machine. One is enough, unless the machine
holds the agent that looks for so long that its own lease has ended too."""

# ---------------------------------------------------------------- stores that disagree or are silent


async def test_a_store_with_a_higher_epoch_is_taken_above_it(driven: DrivenCluster) -> None:
    """A failover of the master forgot the last takeovers: the store knows epoch 7000, the master only 1."""
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    status, _ = await rescuer.store.fence(Fence(owner.fence.bucket_id, 7000, AgentId(new_id())))
    assert status is ReplyStatus.OK
    await rescuer.rescue().tick()
    await check(driven, owner, lived)
    assert (await driven.bucket_state(owner.fence.bucket_id))[1] == 7001
    assert rescuer.telemetry.buckets_taken == 2


async def test_a_silent_store_keeps_its_bucket_draining_until_it_answers(
    driven: DrivenCluster, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    driven.store_url = server.url
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(2)
    await owner.die()
    server.kill()
    task = rescuer.rescue()
    await task.tick()
    assert len(task.unfinished) == 1
    assert rescuer.telemetry.drains_postponed == 1
    assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "DRAINING"
    await rescuer.reachability.tick()
    server.start()
    await rescuer.reachability.tick()
    assert rescuer.heard == ["default"]
    await task.tick()
    await check(driven, owner, lived)


async def test_other_buckets_are_drained_while_one_store_is_silent(
    driven: DrivenCluster, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server, url = new_valkey(), driven.store_url
    driven.store_url = server.url
    silent = await driven.owner()
    await silent.submit(1)
    driven.store_url = url
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live(2)
    await driven.rows("UPDATE bucket SET store = 'silent' WHERE id = $1", text(silent.fence.bucket_id))
    await silent.die()
    await owner.die()
    rescuer.stores["silent"] = silent.store
    stuck = rescuer.rescue(of="silent")
    server.kill()
    await stuck.tick()
    assert len(stuck.unfinished) == 1
    await rescuer.rescue().tick()
    await check(driven, owner, lived)


async def test_a_rescuer_that_leaves_does_not_wait_for_a_silent_store(
    driven: DrivenCluster, new_valkey: Callable[..., ValkeyServer]
) -> None:
    """Stopped, not ended: the kernel accepts what is sent, and no answer comes."""
    server = new_valkey()
    driven.store_url = server.url
    owner, rescuer = await driven.owner(), await driven.agent()
    await owner.submit(1)
    await owner.die()
    patient = StoreSettings(call_timeout_seconds=600.0, connect_timeout_seconds=600.0)
    store = await AgentStore.connect(cluster=driven.cluster, name="default", url=server.url, settings=patient)
    driven.opened.append(store)
    await store.initialise(rescuer.master.cluster.uid, new_id())
    task = rescuer.rescue(store=store)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        tick = asyncio.ensure_future(task.tick())
        async with asyncio.timeout(60):
            while not task.unfinished:  # noqa: ASYNC110 (the master's answer is no event here)
                await asyncio.sleep(0.01)
            await task.give_back()
            await tick
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await driven.bucket_state(owner.fence.bucket_id) == ("LOST", 2)
    assert len(task.unfinished) == 0


async def test_buckets_of_a_silent_store_are_not_taken_one_after_another(
    driven: DrivenCluster, new_valkey: Callable[..., ValkeyServer]
) -> None:
    """An agent that is cut off from a store leaves its buckets to those that reach it."""
    server = new_valkey()
    driven.store_url = server.url
    owners = [await driven.owner() for _ in range(3)]
    rescuer = await driven.agent()
    for owner in owners:
        await owner.submit(1)
        await owner.die()
    server.kill()
    task = rescuer.rescue()
    for _ in range(3):
        await task.tick()
        await rescuer.reachability.tick()
    states = [(await driven.bucket_state(owner.fence.bucket_id))[0] for owner in owners]
    assert sorted(states) == ["DRAINING", "LOST", "LOST"]
    server.start()
    await rescuer.reachability.tick()
    await task.tick()
    states = [(await driven.bucket_state(owner.fence.bucket_id))[0] for owner in owners]
    assert states == ["READY_TO_DELETE"] * 3


async def test_rows_of_a_store_that_is_silent_for_too_long_no_longer_wait_for_it(
    driven: DrivenCluster, new_valkey: Callable[..., ValkeyServer]
) -> None:
    """Also by an agent that has started since, and has never reached that store."""
    server = new_valkey()
    driven.store_url = server.url
    owner, rescuer = await driven.owner(), await driven.agent()
    known = await owner.onboard(2)
    await owner.die()
    server.kill()
    del rescuer.stores["default"]
    rescuer.reachability = StoreReachability(
        ["default"], rescuer.stores, SystemClock(), rescuer.heard.append, rescuer.telemetry, EventLog()
    )
    task = rescuer.rescue(store=rescuer.store)
    await task.tick()
    assert len(task.unfinished) == 0
    task._store_dead_seconds = 0.0
    await task.tick()
    assert len(task.unfinished) == 1
    assert {job_id: (await driven.jobs())[job_id][0] for job_id in known} == dict.fromkeys(known, "HELD")
    assert rescuer.told == [{(owner.lane, 3)}]


# ---------------------------------------------------------------- the whole chain, by leases alone


@pytest.mark.slow
async def test_jobs_of_a_silent_agent_are_held_within_its_lease_and_two_seconds(driven: DrivenCluster) -> None:
    leases = Leases(lease_seconds=1.5, renew_seconds=0.5)
    rescuer = await driven.agent(lease_seconds=leases.lease_seconds)
    clock = SystemClock()
    rescue = rescuer.rescue()
    certified = asyncio.Event()
    failure_detector = FailureDetector(
        rescuer.ownership, rescuer.master.members, leases, clock, certified.set, rescuer.telemetry, EventLog()
    )
    began = clock.boottime()

    async def renew_until(moment: float) -> None:
        while clock.boottime() < moment:
            sent = clock.boottime()
            assert (await rescuer.master.members.renew(rescuer.agent_id, leases.lease_seconds)).alive
            rescuer.ownership.trust(term(sent, leases.lease_seconds))
            await asyncio.sleep(0.2)

    await failure_detector.tick()
    await renew_until(began + leases.lease_seconds)  # no agent writes a certificate in its own first term
    owner = await driven.owner(leases.lease_seconds)
    lived = await owner.live(1)
    asked_at = clock.boottime()
    assert (await owner.master.members.renew(owner.agent_id, leases.lease_seconds)).alive
    silent_since = clock.boottime()
    looks_after = 0
    while not certified.is_set():
        await renew_until(clock.boottime() + 0.1)
        looks_after += clock.boottime() > silent_since + leases.lease_seconds * 1.01
        await failure_detector.tick()
        assert looks_after <= LOOKS_MAX
    assert clock.boottime() >= asked_at + leases.lease_seconds * 0.99
    await rescue.tick()
    await check(driven, owner, lived)
