"""The declaration of lost buckets, and the copies of their jobs in their owner's memory."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, JobMasterError, Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.ports import Renewal, ReplyStatus
from jobmaster.telemetry import Telemetry
from jobmaster_agents.buckets.lost_buckets import LostBuckets
from jobmaster_agents.buckets.memory_recovery import RecoveryResult
from jobmaster_agents.buckets.ownership_check import OwnershipCheck
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket, Ownership


class FakeBuckets:
    """Buckets of the master, and the losses that were noted there."""

    def __init__(self) -> None:
        self.buckets: dict[bytes, Bucket] = {}
        self.losses: list[tuple[bytes, int, int]] = []
        self.steps: list[str] = []
        self.failures: dict[str, JobMasterError] = {}

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        return [bucket for bucket in self.buckets.values() if bucket.owner == agent_id]

    async def note_loss(self, fence: Fence, store: str, at_risk: int, salvaged: int, reason: str) -> None:
        if "note" in self.failures:
            raise self.failures["note"]
        self.losses.append((fence.bucket_id, at_risk, salvaged))

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        self.steps.append("declare")
        if "move" in self.failures:
            raise self.failures["move"]
        bucket = self.buckets[bucket_id]
        if (bucket.epoch, bucket.owner) != (epoch, owner):
            return False
        self.buckets[bucket_id] = msgspec.structs.replace(bucket, state=to)
        return True

    def rescue(self, bucket_id: bytes) -> None:
        """Another takes it."""
        bucket = self.buckets[bucket_id]
        taken = msgspec.structs.replace(bucket, state=BucketState.DRAINING, epoch=bucket.epoch + 1, owner=new_id())
        self.buckets[bucket_id] = taken


class NoFreezing:
    """No bucket is frozen or resumed here."""

    def freeze(self, *_: object) -> None:
        raise AssertionError

    def unfreeze(self, *_: object) -> None:
        raise AssertionError

    def resume(self, *_: object) -> None:
        raise AssertionError


class LostBucketsHarness:
    """An agent with some buckets, and the same number of copies without a row of each."""

    def __init__(self, buckets: int = 1, copies: int = 3, waiting: int = 4) -> None:
        self.fake_buckets = FakeBuckets()
        self.telemetry = Telemetry()
        self.ownership = Ownership(new_id())
        self.saved = RecoveryResult(copies, copies)
        self.written: list[bytes] = []
        self.declared: list[bytes] = []
        self.blocked: asyncio.Event | None = None
        self.failing: dict[bytes, JobMasterError] = {}
        self.periodic_task = LostBuckets(
            self.ownership,
            self.fake_buckets,
            self,
            lambda lost: self.declared.append(lost.fence.bucket_id),
            self.telemetry,
            EventLog(),
        )
        self.ids = [self._bucket(copies + waiting) for _ in range(buckets)]

    def _bucket(self, at_risk: int) -> bytes:
        bucket = Bucket(
            id=new_id(), store="one", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.ownership.agent_id,
        )  # fmt: skip
        self.fake_buckets.buckets[bucket.id] = bucket
        self.ownership.add(OwnedBucket.of(bucket))
        self.ownership.buckets[bucket.id].at_risk = at_risk
        return bucket.id

    async def write(self, owned: OwnedBucket) -> RecoveryResult:
        if self.blocked is not None:
            await self.blocked.wait()
        self.fake_buckets.steps.append("write")
        if owned.fence.bucket_id in self.failing:
            raise self.failing[owned.fence.bucket_id]
        self.written.append(owned.fence.bucket_id)
        return self.saved

    def lose(self, reply: ReplyStatus | None = ReplyStatus.GENERATION) -> None:
        for bucket_id in self.ids:
            self.ownership.lose(bucket_id, f"the store answered {reply} to a claim", reply)


async def test_a_fenced_owner_that_the_master_still_names_declares_its_bucket_lost() -> None:
    harness = LostBucketsHarness()
    harness.lose()
    assert harness.periodic_task.kicked.is_set()
    await harness.periodic_task.tick()
    assert harness.fake_buckets.buckets[harness.ids[0]].state is BucketState.LOST
    assert harness.declared == harness.ids
    assert (harness.telemetry.jobs_at_risk, harness.telemetry.jobs_salvaged) == (4, 3)
    assert harness.fake_buckets.losses == [(harness.ids[0], 4, 3)]
    assert harness.fake_buckets.steps == ["write", "declare"], "outcomes stand before a rescuer sweeps"


async def test_buckets_that_wait_and_that_this_agent_itself_declares_first_are_saved_and_counted() -> None:
    """The write of the first takes long. Meanwhile two renewals count other buckets, and a rescuer takes what is LOST."""
    harness = LostBucketsHarness(buckets=3)
    none = NoFreezing()
    ownership_check = OwnershipCheck(harness.ownership, harness.fake_buckets, none, none, harness.telemetry, EventLog())  # type: ignore[arg-type]
    harness.blocked = asyncio.Event()
    harness.lose()
    task = asyncio.ensure_future(harness.periodic_task.tick())
    await asyncio.sleep(0)
    for _ in range(2):
        ownership_check.renewed(Renewal(True, False, None, [], [], at_work=3, epochs=3))
    await ownership_check.tick()
    assert {bucket.state for bucket in harness.fake_buckets.buckets.values()} == {BucketState.LOST}
    for bucket_id in harness.ids:
        harness.fake_buckets.rescue(bucket_id)
    harness.blocked.set()
    await task
    assert harness.written == harness.ids
    assert (harness.telemetry.jobs_at_risk, harness.telemetry.jobs_salvaged) == (12, 9)
    assert harness.fake_buckets.losses == [(bucket_id, 4, 3) for bucket_id in harness.ids]


async def test_a_bucket_with_another_owner_stays_with_it_and_nothing_counts_as_lost() -> None:
    harness = LostBucketsHarness(copies=0)
    harness.fake_buckets.rescue(harness.ids[0])
    theirs = harness.fake_buckets.buckets[harness.ids[0]]
    harness.lose(ReplyStatus.FENCED)
    await harness.periodic_task.tick()
    assert harness.fake_buckets.buckets[harness.ids[0]] == theirs
    assert harness.declared == harness.ids
    assert harness.telemetry.jobs_at_risk == 0, "its store has them all, for the rescuer"
    assert not harness.fake_buckets.losses


@pytest.mark.parametrize("reply", [None, *ReplyStatus])
async def test_only_the_replies_of_a_store_that_has_lost_a_bucket_are_a_loss(reply: ReplyStatus | None) -> None:
    """``None``: the master's row shows it, or the store was only slow to grant a term."""
    harness = LostBucketsHarness()
    harness.lose(reply)
    await harness.periodic_task.tick()
    assert harness.fake_buckets.buckets[harness.ids[0]].state is BucketState.LOST
    lost = reply in (ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.NO_BUCKET)
    assert harness.fake_buckets.losses == ([(harness.ids[0], 4, 3)] if lost else [])
    assert (harness.telemetry.jobs_at_risk, harness.telemetry.jobs_salvaged) == (4 if lost else 0, 3)


async def test_what_is_safe_in_another_way_is_neither_saved_nor_at_risk() -> None:
    harness = LostBucketsHarness(copies=3)
    harness.saved = RecoveryResult(1, 3)
    harness.lose()
    await harness.periodic_task.tick()
    assert harness.fake_buckets.losses == [(harness.ids[0], 4, 1)]


async def test_a_declaration_that_fails_is_made_again() -> None:
    harness = LostBucketsHarness()
    harness.lose()
    harness.fake_buckets.failures["move"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await harness.periodic_task.tick()
    assert not harness.declared
    assert not harness.fake_buckets.losses
    harness.fake_buckets.failures.clear()
    await harness.periodic_task.tick()
    await harness.periodic_task.tick()
    assert harness.declared == harness.written == harness.ids
    assert harness.fake_buckets.losses == [(harness.ids[0], 4, 3)]
    assert harness.telemetry.jobs_at_risk == 4


async def test_a_bucket_whose_copies_cannot_be_written_is_declared_and_holds_up_no_other() -> None:
    harness = LostBucketsHarness(buckets=3)
    harness.lose()
    harness.failing = {harness.ids[0]: Unavailable("its statement takes too long"), harness.ids[1]: Refused("no right")}
    with pytest.raises(Unavailable):
        await harness.periodic_task.tick()
    assert harness.written == harness.ids[2:]
    assert harness.declared == harness.ids
    assert harness.fake_buckets.losses == [(harness.ids[2], 4, 3)]
    del harness.failing[harness.ids[0]]
    with pytest.raises(Refused):
        await harness.periodic_task.tick()
    harness.failing.clear()
    await harness.periodic_task.tick()
    assert harness.declared == harness.ids, "each once"
    assert {bucket_id for bucket_id, _, _ in harness.fake_buckets.losses} == set(harness.ids)


async def test_a_refused_record_of_a_loss_holds_up_no_bucket() -> None:
    harness = LostBucketsHarness(buckets=2)
    harness.lose()
    harness.fake_buckets.failures["note"] = Refused("permission denied for table store_loss")
    await harness.periodic_task.tick()
    assert harness.declared == harness.written == harness.ids
    assert harness.telemetry.jobs_at_risk == 8


async def test_a_defect_of_our_own_is_no_failure_to_be_tried_again() -> None:
    harness = LostBucketsHarness()
    harness.lose()
    harness.failing = {harness.ids[0]: CodeError("an answer leaves out a copy")}
    harness.fake_buckets.failures["move"] = Unavailable("away")
    with pytest.raises(CodeError):
        await harness.periodic_task.tick()
