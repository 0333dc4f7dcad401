"""Checks of buckets that are requested while the answer to an older check is on its way."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import Fence
from jobmaster.ports import ReplyStatus
from jobmaster.telemetry import Telemetry
from jobmaster_agents.buckets.ownership_check import OwnershipCheck
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership


class OwnershipCheckHarness:
    """A master whose answer is old when it arrives, a store, and a bucket worker."""

    def __init__(self) -> None:
        self.ownership = Ownership(new_id())
        self.bucket = Bucket(
            id=new_id(), store="one", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.ownership.agent_id,
        )  # fmt: skip
        self.owned = OwnedBucket.of(self.bucket)
        self.ownership.add(self.owned)
        self.on_its_way: Callable[[], None] = lambda: None
        self.queries = 0
        self.done: list[str] = []
        self.ownership_check = OwnershipCheck(self.ownership, self, Store(), self, Telemetry(), EventLog())

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        self.queries += 1
        answer = [self.bucket]
        self.on_its_way()
        return answer

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        raise AssertionError("nothing is disowned")

    def freeze(self, owned: OwnedBucket) -> None:
        self.done.append("freeze")

    def unfreeze(self, owned: OwnedBucket, epoch: int) -> None:
        self.done.append("unfreeze")

    def resume(self, owned: OwnedBucket) -> None:
        self.done.append("resume")


class Store:
    """Accepts every freeze."""

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        return ReplyStatus.OK

    async def unfreeze(self, fence: Fence, list_name: str) -> ReplyStatus:
        return ReplyStatus.OK


async def test_a_request_during_a_check_leads_to_another_check() -> None:
    """Else the jobs of the refused write would wait for their bucket until a renewal names it as frozen."""
    harness = OwnershipCheckHarness()
    harness.ownership_check.request_check(harness.owned, "a write was refused")

    def stopped() -> None:
        harness.bucket = msgspec.structs.replace(harness.bucket, state=BucketState.FROZEN)
        harness.ownership_check.request_check(harness.owned, "a write was refused")
        harness.on_its_way = lambda: None

    harness.on_its_way = stopped
    assert await harness.ownership_check.tick() == 0.0, "at once"
    assert harness.done == ["resume"]
    await harness.ownership_check.tick()
    assert (harness.queries, harness.done) == (2, ["resume", "freeze"])


async def test_a_bucket_that_this_process_has_just_retired_is_no_loss() -> None:
    """The commit was faster than its answer, and two renewals crossed them."""
    harness = OwnershipCheckHarness()
    harness.owned.closed = True
    harness.owned.state = BucketState.COMPLETING
    harness.bucket = msgspec.structs.replace(harness.bucket, state=BucketState.READY_TO_DELETE)
    harness.ownership_check.request_check(harness.owned, "the master counts other buckets of this agent")
    await harness.ownership_check.tick()
    assert not harness.owned.lost
    assert list(harness.ownership.buckets) == [harness.bucket.id]


async def test_a_bucket_whose_row_is_gone_while_it_completes_is_a_loss() -> None:
    """A failover has lost it: its copies in memory are written, and the keys are adopted."""
    harness = OwnershipCheckHarness()
    harness.owned.closed = True
    harness.owned.state = BucketState.COMPLETING
    harness.bucket = msgspec.structs.replace(harness.bucket, id=new_id())
    harness.ownership_check.request_check(harness.owned, "the master counts other buckets of this agent")
    await harness.ownership_check.tick()
    assert harness.owned.lost
