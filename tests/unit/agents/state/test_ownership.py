"""The lease of a process and its buckets."""

from __future__ import annotations

import asyncio

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.rules.lease import LeaseStatus, term
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from tests.support.patience import PATIENCE_SECONDS


def a_holding() -> OwnedBucket:
    return OwnedBucket(Fence(BucketId(new_id()), 1, AgentId(new_id())), "default", 3, "default")


def test_before_the_first_lease_nothing_may_start_or_commit() -> None:
    ownership = Ownership(new_id())
    assert not ownership.may_start(0.0)
    assert not ownership.may_commit(0.0)
    assert ownership.lease_status(0.0) is LeaseStatus.ENDED


def test_starts_end_at_half_the_lease_and_commits_before_its_end() -> None:
    ownership = Ownership(new_id())
    ownership.trust(term(100.0, 10.0))
    assert ownership.may_start(104.9)
    assert not ownership.may_start(105.0)
    assert ownership.may_commit(108.9)
    assert not ownership.may_commit(109.0)
    assert ownership.trusted_until == 110.0


async def test_a_renewal_wakes_the_tasks_that_wait_for_it() -> None:
    ownership = Ownership(new_id())
    ownership.trust(term(100.0, 10.0))
    waiting = asyncio.create_task(ownership.wait_trusted())
    await asyncio.sleep(0)
    assert not waiting.done()
    ownership.trust(term(103.0, 10.0))
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_fenced_is_for_ever_and_keeps_the_first_reason() -> None:
    ownership = Ownership(new_id())
    ownership.trust(term(100.0, 10.0))
    ownership.fence("first")
    ownership.fence("second")
    ownership.trust(term(200.0, 10.0))
    assert ownership.fenced.is_set()
    assert ownership.fenced_why == "first"
    assert not ownership.may_start(200.0)
    assert not ownership.may_commit(200.0)
    assert ownership.lease_status(200.0) is LeaseStatus.ENDED


def test_a_bucket_is_lost_once_and_the_callbacks_run_in_order() -> None:
    ownership = Ownership(new_id())
    owned = a_holding()
    ownership.add(owned)
    losses: list[str] = []
    ownership.on_lost.append(lambda which, why: losses.append(f"a {why}"))
    ownership.on_lost.append(lambda which, why: losses.append(f"b {why}"))
    assert ownership.lose(owned.fence.bucket_id, "fenced")
    assert not ownership.lose(owned.fence.bucket_id, "again")
    assert losses == ["a fenced", "b fenced"]
    assert owned.lost
    assert owned.closed
    assert ownership.get(owned.fence.bucket_id) is None


def test_a_retired_bucket_is_not_a_loss() -> None:
    ownership = Ownership(new_id())
    owned = a_holding()
    ownership.add(owned)
    ownership.on_lost.append(lambda which, why: (_ for _ in ()).throw(AssertionError("a loss is reported")))
    ownership.retire(owned.fence.bucket_id)
    assert owned.state is BucketState.READY_TO_DELETE
    assert not owned.lost
    assert not ownership.buckets
