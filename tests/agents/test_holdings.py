"""What a process believes to own, and until when."""

from __future__ import annotations

import asyncio

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.rules.lease import Standing, term
from jobmaster_agents.holdings import Holding, Holdings
from tests.patience import PATIENCE_SECONDS


def a_holding() -> Holding:
    return Holding(Fence(BucketId(new_id()), 1, AgentId(new_id())), "default", 3, "default")


def test_before_the_first_lease_nothing_may_start_or_commit() -> None:
    holdings = Holdings(new_id())
    assert not holdings.may_start(0.0)
    assert not holdings.may_commit(0.0)
    assert holdings.standing(0.0) is Standing.ENDED


def test_starts_end_at_half_the_lease_and_commits_before_its_end() -> None:
    holdings = Holdings(new_id())
    holdings.trust(term(100.0, 10.0))
    assert holdings.may_start(104.9)
    assert not holdings.may_start(105.0)
    assert holdings.may_commit(108.9)
    assert not holdings.may_commit(109.0)
    assert holdings.trusted_until == 110.0


async def test_a_renewal_wakes_who_waits_for_trust() -> None:
    holdings = Holdings(new_id())
    holdings.trust(term(100.0, 10.0))
    waiting = asyncio.create_task(holdings.wait_trusted())
    await asyncio.sleep(0)
    assert not waiting.done()
    holdings.trust(term(103.0, 10.0))
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_fenced_is_for_ever_and_keeps_the_first_reason() -> None:
    holdings = Holdings(new_id())
    holdings.trust(term(100.0, 10.0))
    holdings.fence("first")
    holdings.fence("second")
    holdings.trust(term(200.0, 10.0))
    assert holdings.fenced.is_set()
    assert holdings.fenced_why == "first"
    assert not holdings.may_start(200.0)
    assert not holdings.may_commit(200.0)
    assert holdings.standing(200.0) is Standing.ENDED


def test_a_bucket_is_lost_once_and_everybody_is_told_in_order() -> None:
    holdings = Holdings(new_id())
    holding = a_holding()
    holdings.add(holding)
    told: list[str] = []
    holdings.on_lost.append(lambda which, why: told.append(f"a {why}"))
    holdings.on_lost.append(lambda which, why: told.append(f"b {why}"))
    assert holdings.lose(holding.fence.bucket_id, "fenced")
    assert not holdings.lose(holding.fence.bucket_id, "again")
    assert told == ["a fenced", "b fenced"]
    assert holding.lost
    assert holding.closed
    assert holdings.get(holding.fence.bucket_id) is None


def test_a_retired_bucket_is_not_a_loss() -> None:
    holdings = Holdings(new_id())
    holding = a_holding()
    holdings.add(holding)
    holdings.on_lost.append(lambda which, why: (_ for _ in ()).throw(AssertionError("told of a loss")))
    holdings.retire(holding.fence.bucket_id)
    assert holding.state is BucketState.READY_TO_DELETE
    assert not holding.lost
    assert not holdings.buckets
