"""Rescue when stores disagree or are silent, and the whole chain from a lease that runs out to jobs that are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.clock import SystemClock, new_id
from jobmaster.embedded import ValkeyServer
from jobmaster.model.ids import AgentId, Fence, text
from jobmaster.ports import Word
from jobmaster.rules.lease import term
from jobmaster.settings.model import Leases
from jobmaster_agents.events import EventLog
from jobmaster_agents.judging import Judging
from tests.agents.stage import Stage, check

# ---------------------------------------------------------------- stores that disagree or are silent


async def test_a_store_with_a_higher_epoch_is_taken_above_it(stage: Stage) -> None:
    """A failover of the master forgot the last takeovers: the store knows epoch 7000, the master only 1."""
    owner, rescuer = await stage.owner(), await stage.agent()
    lived = await owner.live(2)
    await owner.die()
    word, _ = await rescuer.store.fence(Fence(owner.fence.bucket_id, 7000, AgentId(new_id())))
    assert word is Word.OK
    await rescuer.rescue().tick()
    await check(stage, owner, lived)
    assert (await stage.bucket_state(owner.fence.bucket_id))[1] == 7001
    assert rescuer.telemetry.buckets_taken == 2


async def test_a_silent_store_keeps_its_bucket_draining_until_it_answers(
    stage: Stage, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    stage.store_url = server.url
    owner, rescuer = await stage.owner(), await stage.agent()
    lived = await owner.live(2)
    await owner.die()
    server.kill()
    duty = rescuer.rescue()
    await duty.tick()
    assert duty.unfinished == 1
    assert rescuer.telemetry.drains_postponed == 1
    assert (await stage.bucket_state(owner.fence.bucket_id))[0] == "DRAINING"
    server.start()
    for work in duty._unfinished.values():
        work.next_at = 0.0
    await duty.tick()
    await check(stage, owner, lived)


async def test_other_buckets_are_drained_while_one_store_is_silent(
    stage: Stage, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server, url = new_valkey(), stage.store_url
    stage.store_url = server.url
    silent = await stage.owner()
    await silent.submit(1)
    stage.store_url = url
    owner, rescuer = await stage.owner(), await stage.agent()
    lived = await owner.live(2)
    await stage.rows("UPDATE bucket SET store = 'silent' WHERE id = $1", text(silent.fence.bucket_id))
    await silent.die()
    await owner.die()
    duty = rescuer.rescue()
    duty._stores = {**duty._stores, "silent": silent.store}
    server.kill()
    await duty.tick()
    await check(stage, owner, lived)
    assert duty.unfinished == 1


# ---------------------------------------------------------------- the whole chain, by leases alone


async def test_jobs_of_a_silent_agent_are_held_within_its_lease_and_two_seconds(stage: Stage) -> None:
    leases = Leases(lease_seconds=1.5, renew_seconds=0.5)
    rescuer = await stage.agent(lease_seconds=leases.lease_seconds)
    clock = SystemClock()
    rescue = rescuer.rescue()
    certified = asyncio.Event()
    judging = Judging(rescuer.holdings, rescuer.master, leases, clock, certified.set, rescuer.telemetry, EventLog())
    began = clock.boottime()

    async def renew_until(moment: float) -> None:
        while clock.boottime() < moment:
            sent = clock.boottime()
            assert (await rescuer.master.renew(rescuer.agent_id, leases.lease_seconds)).alive
            rescuer.holdings.trust(term(sent, leases.lease_seconds))
            await asyncio.sleep(0.2)

    await judging.tick()
    await renew_until(began + leases.lease_seconds)  # nobody judges in its own first term
    owner = await stage.owner(leases.lease_seconds)
    lived = await owner.live(1)
    assert (await owner.master.renew(owner.agent_id, leases.lease_seconds)).alive
    silent_since = clock.boottime()
    while not certified.is_set():
        await renew_until(clock.boottime() + 0.1)
        await judging.tick()
        assert clock.boottime() < silent_since + leases.lease_seconds + 2.0
    assert clock.boottime() >= silent_since + leases.lease_seconds * 0.99
    await rescue.tick()
    assert clock.boottime() < silent_since + leases.lease_seconds + 2.0
    await check(stage, owner, lived)
