"""Circuit breakers of a cluster in memory: the test of an application sees what a breaker holds back."""

from __future__ import annotations

import pytest

from jobmaster import Breaker, Conflict, Handlers, JobContext, Retry
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.pause import PauseKind
from jobmaster.testing import Drained, Jobs

stripe = Breaker("stripe", min_calls=4, open_for=60, half_open=2, on=ConnectionError)
handlers = Handlers()
down: set[str] = set()


@handlers.job(breaker=stripe, max_attempts=1)
async def charge(order: int) -> None:
    if "stripe" in down:
        raise ConnectionError("refused")


@handlers.job(breaker=stripe, max_attempts=3)
async def refund(ctx: JobContext, order: int) -> None:
    if ctx.attempt == 1:
        raise Retry(after=1)


@handlers.job
async def mail(order: int) -> None: ...


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    down.clear()
    return handlers


async def state(jobs: Jobs) -> BreakerState:
    return (await jobs.cluster.breakers.get("stripe")).state


async def test_the_jobs_of_an_open_breaker_wait_and_use_up_no_attempt(jobs: Jobs) -> None:
    cluster = jobs.cluster
    await cluster.breakers.open("stripe", reason="maintenance")
    charged = await cluster.submit(charge, {"order": 1})
    await cluster.submit(refund, {"order": 1})
    await cluster.submit(mail, {"order": 1})
    assert await jobs.drain(due_within="1h") == Drained(succeeded=1, left=2)
    assert (await charged.get()).attempt == 0
    (line,) = await cluster.pauses()
    assert (line.kind, line.value, line.reason) == (PauseKind.BREAKER, "stripe", "maintenance")
    assert len(line.handlers) == 2
    await cluster.breakers.close("stripe")
    assert await jobs.drain(due_within=2) == Drained(succeeded=2)
    assert await cluster.pauses() == []


async def test_a_breaker_opens_by_the_failures_of_its_jobs(jobs: Jobs) -> None:
    down.add("stripe")
    for order in range(6):
        await jobs.cluster.submit(charge, {"order": order})
    assert await jobs.drain() == Drained(failed=4, left=2)
    view = await jobs.cluster.breakers.get("stripe")
    assert (view.state, view.actor, view.reason) == (BreakerState.OPEN, "breaker", "4 of 4 runs have failed")


async def test_a_half_open_breaker_is_closed_by_trials_that_succeed(jobs: Jobs) -> None:
    await jobs.cluster.breakers.open("stripe", open_for=60)
    for order in range(4):
        await jobs.cluster.submit(charge, {"order": order})
    assert await jobs.drain(due_within=59) == Drained(left=4)
    assert await state(jobs) is BreakerState.OPEN
    assert await jobs.drain(due_within=61) == Drained(succeeded=4)
    assert await state(jobs) is BreakerState.CLOSED


async def test_a_trial_that_fails_opens_the_breaker_again(jobs: Jobs) -> None:
    down.add("stripe")
    await jobs.cluster.breakers.open("stripe", open_for=60)
    for order in range(4):
        await jobs.cluster.submit(charge, {"order": order})
    assert await jobs.drain(due_within=61) == Drained(failed=1, left=3)
    assert await state(jobs) is BreakerState.OPEN
    assert await jobs.drain(due_within=121) == Drained(failed=1, left=2)
    down.clear()
    assert await jobs.drain(due_within=181) == Drained(succeeded=2)
    assert await state(jobs) is BreakerState.CLOSED


async def test_a_change_for_an_epoch_that_is_over_is_refused(jobs: Jobs) -> None:
    breakers = jobs.cluster.breakers
    seen = await breakers.get("stripe")
    opened = await breakers.open("stripe", reason="maintenance", actor="ann", epoch=seen.epoch)
    with pytest.raises(Conflict, match=r"breaker 'stripe' has changed and is OPEN since .* by ann: maintenance"):
        await breakers.open("stripe", actor="bob", epoch=seen.epoch)
    assert (await breakers.close("stripe", epoch=opened.epoch)).state is BreakerState.CLOSED
