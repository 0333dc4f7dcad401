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


class World:
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
        self.asked = 0
        self.done: list[str] = []
        self.ownership_check = OwnershipCheck(self.ownership, self, Store(), self, Telemetry(), EventLog())

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        self.asked += 1
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
    world = World()
    world.ownership_check.request_check(world.owned, "a write was refused")

    def stopped() -> None:
        world.bucket = msgspec.structs.replace(world.bucket, state=BucketState.FROZEN)
        world.ownership_check.request_check(world.owned, "a write was refused")
        world.on_its_way = lambda: None

    world.on_its_way = stopped
    assert await world.ownership_check.tick() == 0.0, "at once"
    assert world.done == ["resume"]
    await world.ownership_check.tick()
    assert (world.asked, world.done) == (2, ["resume", "freeze"])


async def test_a_bucket_that_this_process_has_just_retired_is_no_loss() -> None:
    """The commit was faster than its answer, and two renewals crossed them."""
    world = World()
    world.owned.closed = True
    world.owned.state = BucketState.COMPLETING
    world.bucket = msgspec.structs.replace(world.bucket, state=BucketState.READY_TO_DELETE)
    world.ownership_check.request_check(world.owned, "the master counts other buckets of this agent")
    await world.ownership_check.tick()
    assert not world.owned.lost
    assert list(world.ownership.buckets) == [world.bucket.id]


async def test_a_bucket_whose_row_is_gone_while_it_completes_is_a_loss() -> None:
    """A failover has lost it: its copies in memory are written, and the keys are adopted."""
    world = World()
    world.owned.closed = True
    world.owned.state = BucketState.COMPLETING
    world.bucket = msgspec.structs.replace(world.bucket, id=new_id())
    world.ownership_check.request_check(world.owned, "the master counts other buckets of this agent")
    await world.ownership_check.tick()
    assert world.owned.lost
