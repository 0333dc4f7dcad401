"""A rescuer waits until the store term of the former owner is over: nothing is started twice (real servers)."""

from __future__ import annotations

import asyncio

import pytest

from jobmaster.ports import ReplyStatus
from jobmaster_agents.rescue.rescuer import StoreRescuer
from tests.integration.agents.fixture import DrivenCluster, check

TERM = 3.0


async def finish(task: StoreRescuer) -> None:
    """Tick as the task asks for, until it has nothing unfinished."""
    while True:
        wait = await task.tick()
        if not task.unfinished:
            return
        await asyncio.sleep(wait)


@pytest.mark.slow
async def test_nothing_moves_before_the_store_term_is_over(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    lived = await owner.live()
    assert await owner.store.grant_term(owner.fence, TERM) is ReplyStatus.OK
    before = await driven.jobs()
    await owner.die()
    task = rescuer.rescue()
    wait = await task.tick()
    assert 0.0 < wait <= TERM
    assert len(task.unfinished) == 1
    assert await driven.jobs() == before
    assert rescuer.telemetry.drains_postponed == 0, "it is no failure"
    assert await owner.store.grant_term(owner.fence, TERM) is ReplyStatus.FENCED, (
        "but its former owner learns it at once"
    )
    await finish(task)
    await check(driven, owner, lived)
    assert rescuer.telemetry.buckets_drained == 1


@pytest.mark.slow
async def test_a_rescuer_that_dies_while_it_waits_leaves_the_wait_to_the_next(driven: DrivenCluster) -> None:
    owner, first, second = await driven.owner(), await driven.agent(), await driven.agent()
    lived = await owner.live()
    assert await owner.store.grant_term(owner.fence, TERM) is ReplyStatus.OK
    await owner.die()
    await first.rescue().tick()
    await first.die()
    task = second.rescue()
    await task.tick()
    await finish(task)
    await check(driven, owner, lived)


async def test_other_buckets_do_not_wait_for_one_that_does(driven: DrivenCluster) -> None:
    waiting, other, rescuer = await driven.owner(), await driven.owner(), await driven.agent()
    await waiting.live()
    lived = await other.live()
    assert await waiting.store.grant_term(waiting.fence, 60.0) is ReplyStatus.OK
    await waiting.die()
    await other.die()
    task = rescuer.rescue()
    await task.tick()
    assert len(task.unfinished) == 1
    await check(driven, other, lived)
