"""The leader's maintenance tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError, StoreRefused, Unavailable
from jobmaster.ports import EndedWaits, Reassigned, RecordKind, ReplyStatus, Swept
from jobmaster.settings.model import AgentSettings, ClusterSettings, StoreSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.maintenance import ClusterMaintenance
from jobmaster_agents.leader.maintenance_runner import MORE
from jobmaster_agents.state.store_reachability import StoreReachability
from tests.support.hand_clock import HandClock
from tests.support.master_parts import MasterParts

SETTINGS = ClusterSettings(
    stores={"one": StoreSettings(url="redis://one"), "two": StoreSettings(url="redis://two")},
    agents={"default": AgentSettings(store="one")},
)


class Queries:
    def __init__(self, ledger: dict[bytes, Bucket]) -> None:
        self.ledger = ledger

    async def list_buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        return list(self.ledger.values())


class Master(MasterParts):
    def __init__(self) -> None:
        self.ledger: dict[bytes, Bucket] = {}
        self.leftovers: dict[RecordKind, int] = {}
        self.deletions: list[tuple[RecordKind, float]] = []
        self.orphans = 0
        self.expired = 0
        self.late = 0
        self.waits = self.unfinished = self.kept = 0
        self.calls = 0
        self.age = 130.0
        """Of every tombstone, in seconds."""

    def retired(self, store: str = "one") -> Bucket:
        bucket = Bucket(
            id=new_id(), store=store, lane="default", priority=3, state=BucketState.READY_TO_DELETE, epoch=2,
            owner=new_id(),
        )  # fmt: skip
        self.ledger[bucket.id] = bucket
        return bucket

    async def expire_waits(self, limit: int) -> EndedWaits:
        self.calls += 1
        ended = min(limit, self.waits)
        self.waits -= ended
        return EndedWaits(ended, 0)

    async def finish_sent(self, age_seconds: float) -> bool:
        self.unfinished -= 1
        return self.unfinished >= 0

    async def end_kept(self, limit: int) -> int:
        ended = min(limit, self.kept)
        self.kept -= ended
        return ended

    async def return_orphans(self, grace_seconds: float, limit: int, *, max_rescues: int) -> Swept:
        assert max_rescues == 3
        self.calls += 1
        moved = min(limit, self.orphans)
        self.orphans -= moved
        return Swept(moved, moved, min(moved, 7))

    async def expire_unconfirmed(self, limit: int) -> int:
        return 0

    async def reassign_late(self, limit: int, *, max_reassigns: int) -> Reassigned:
        self.late, moved = self.late - min(self.late, limit), min(self.late, limit)
        return Reassigned(moved, moved // 100)

    async def expire_held(self, limit: int) -> int:
        moved = min(limit, self.expired)
        self.expired -= moved
        return moved

    async def forget(self, what: RecordKind, days: float, limit: int) -> int:
        self.deletions.append((what, days))
        count = min(limit, self.leftovers.get(what, 0))
        self.leftovers[what] = self.leftovers.get(what, 0) - count
        return count

    async def forget_buckets(
        self, tombstone_seconds: float, stores: Sequence[str], *, others: bool = False
    ) -> list[Bucket]:
        """The oldest thousand, like the statement."""
        old = [b for b in self.ledger.values() if self.age >= tombstone_seconds]
        return [b for b in old if b.state is BucketState.READY_TO_DELETE and (b.store in stores) != others][:1000]

    async def drop_bucket(self, bucket_id: bytes) -> None:
        del self.ledger[bucket_id]

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        return [f"job_{span}"]

    async def resurrect_bucket(self, bucket: Bucket, reason: str) -> bool:
        return self.ledger.setdefault(bucket.id, bucket) is bucket

    async def resurrect_retired(self, bucket: Bucket, reason: str) -> bool:
        there = self.ledger.get(bucket.id)
        if there is None or there.epoch != bucket.epoch:
            return False
        self.ledger[bucket.id] = msgspec.structs.replace(there, state=BucketState.LOST)
        return True

    @property
    def queries(self) -> Queries:  # type: ignore[override]  # not the same object: a part and a method of another are called alike
        return Queries(self.ledger)


class Store:
    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}
        """Bucket -> jobs that lie in it."""
        self.failure: JobMasterError | None = None
        self.calls = 0

    async def delete_bucket(self, bucket_id: bytes, lists: Sequence[str] = ()) -> ReplyStatus:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        if self.keys.get(bucket_id):
            return ReplyStatus.NOT_EMPTY
        self.keys.pop(bucket_id, None)
        return ReplyStatus.OK

    async def known_buckets(self) -> list[bytes]:
        if self.failure is not None:
            raise self.failure
        return list(self.keys)

    async def ping(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def known_lists(self, bucket_id: bytes) -> list[str]:
        return []


class MaintenanceHarness:
    def __init__(self) -> None:
        self.master = Master()
        self.stores = {"one": Store(), "two": Store()}
        self.telemetry = Telemetry()
        self.agent_id = new_id()
        self.kicks = 0
        clock = HandClock()
        self.reachability = StoreReachability(
            self.stores, self.stores, clock, lambda _: None, self.telemetry, EventLog()
        )
        self.maintenance = ClusterMaintenance(
            self.agent_id,
            self.master,
            self.stores,
            self.reachability,
            SETTINGS,
            self.kick,
            self.telemetry,
            EventLog(),
        )

    def kick(self) -> None:
        self.kicks += 1


async def test_retired_buckets_lose_their_keys_before_their_tombstone() -> None:
    harness = MaintenanceHarness()
    empty = harness.master.retired()
    harness.stores["one"].keys[empty.id] = 0
    await harness.maintenance.forget_buckets()
    assert harness.stores["one"].keys == {}
    assert harness.master.ledger == {}


async def test_a_tombstone_waits_for_its_store() -> None:
    harness = MaintenanceHarness()
    waiting, other = harness.master.retired("two"), harness.master.retired("one")
    harness.stores["two"].failure = Unavailable("away")
    await harness.maintenance.forget_buckets()
    assert set(harness.master.ledger) == {waiting.id}
    assert other.id not in harness.master.ledger


async def test_tombstones_of_a_silent_store_do_not_stop_the_deletion_of_others() -> None:
    """There may be more of them than one page or one round takes."""
    harness = MaintenanceHarness()
    waiting = [harness.master.retired("two") for _ in range(1100)]
    others = [harness.master.retired("one") for _ in range(30)]
    harness.stores["two"].failure = Unavailable("away")
    await harness.maintenance.forget_buckets()
    assert harness.stores["two"].calls == 1, "the first silence is enough"
    await harness.maintenance.forget_buckets()
    assert set(harness.master.ledger) == {bucket.id for bucket in waiting}
    assert not set(harness.master.ledger) & {bucket.id for bucket in others}
    assert harness.stores["two"].calls == 1


async def test_nor_do_those_of_a_store_that_refuses() -> None:
    """Its user has lost a right. The refusal is raised after all others have had their turn."""
    harness = MaintenanceHarness()
    waiting = [harness.master.retired("one") for _ in range(1100)]
    others = [harness.master.retired("two") for _ in range(30)]
    gone = harness.master.retired("gone")
    harness.master.age = float("inf")
    harness.stores["one"].failure = StoreRefused("no right")
    with pytest.raises(StoreRefused):
        await harness.maintenance.forget_buckets()
    assert set(harness.master.ledger) == {bucket.id for bucket in waiting}
    assert not set(harness.master.ledger) & {gone.id, *(bucket.id for bucket in others)}
    assert harness.stores["one"].calls == 1


async def test_a_store_that_refuses_does_not_stop_the_look_at_the_others() -> None:
    harness = MaintenanceHarness()
    harness.stores["one"].failure = StoreRefused("no right")
    risen = new_id()
    harness.stores["two"].keys = {risen: 1}
    with pytest.raises(StoreRefused):
        await harness.maintenance.resurrected.resurrect()
    assert harness.master.ledger[risen].state is BucketState.LOST


async def test_tombstones_of_a_store_outside_the_configuration_are_forgotten_later() -> None:
    harness = MaintenanceHarness()
    gone = [harness.master.retired("gone") for _ in range(70)]
    others = [harness.master.retired("one") for _ in range(30)]
    await harness.maintenance.forget_buckets()
    assert set(harness.master.ledger) == {bucket.id for bucket in gone}, "another agent's configuration may be newer"
    harness.master.age = ClusterSettings().leases.store_dead_seconds
    for _ in range(2):
        await harness.maintenance.forget_buckets()
    assert harness.master.ledger == {}
    assert harness.telemetry.buckets_dropped == len(gone) + len(others)


async def test_keys_of_a_retired_bucket_that_hold_jobs_again_make_it_lost() -> None:
    harness = MaintenanceHarness()
    bucket = harness.master.retired()
    harness.stores["one"].keys[bucket.id] = 3
    await harness.maintenance.forget_buckets()
    assert harness.master.ledger[bucket.id].state is BucketState.LOST
    assert harness.kicks == 1
    assert harness.telemetry.buckets_resurrected == 1


async def test_jobs_of_a_bucket_the_master_forgot_are_adopted_as_lost() -> None:
    harness = MaintenanceHarness()
    risen, empty = new_id(), new_id()
    harness.stores["two"].keys = {risen: 5, empty: 0}
    await harness.maintenance.resurrected.resurrect()
    assert harness.master.ledger[risen].state is BucketState.LOST
    assert harness.master.ledger[risen].store == "two"
    assert empty not in harness.master.ledger
    assert harness.stores["two"].keys == {risen: 5}
    assert harness.kicks == 1
    await harness.maintenance.resurrected.resurrect()
    assert harness.kicks == 1  # known now


async def test_a_newborn_bucket_is_no_resurrected_one() -> None:
    """It appears between the two lists: made in the master before it is opened in its store, so the second list has it."""
    harness = MaintenanceHarness()
    newborn = harness.master.retired()
    harness.stores["one"].keys[newborn.id] = 1
    before = harness.master.ledger[newborn.id]
    await harness.maintenance.resurrected.resurrect()
    assert harness.master.ledger[newborn.id] == before
    assert harness.kicks == 0


async def test_a_silent_store_does_not_stop_the_look_at_the_others() -> None:
    harness = MaintenanceHarness()
    harness.stores["one"].failure = Unavailable("away")
    risen = new_id()
    harness.stores["two"].keys = {risen: 1}
    await harness.maintenance.resurrected.resurrect()
    assert harness.master.ledger[risen].state is BucketState.LOST


async def test_orphans_and_expiries_are_worked_off_in_batches() -> None:
    harness = MaintenanceHarness()
    harness.master.orphans, harness.master.expired = 2500, 1000
    await harness.maintenance.return_orphans()
    await harness.maintenance.expire_jobs()
    assert (harness.master.orphans, harness.master.expired) == (0, 0)
    assert (harness.telemetry.orphans_returned, harness.telemetry.jobs_given_up) == (2500, 21)
    assert harness.telemetry.jobs_expired == 1000
    assert harness.master.calls == 3


async def test_late_jobs_are_worked_off_in_batches_and_counted() -> None:
    harness = MaintenanceHarness()
    harness.master.late = 2500
    await harness.maintenance.reassign_late()
    assert harness.master.late == 0
    assert (harness.telemetry.jobs_reassigned, harness.telemetry.jobs_too_slow) == (2475, 25)


async def test_every_maintenance_task_has_its_interval() -> None:
    harness = MaintenanceHarness()
    tasks = {task.name: task for task in harness.maintenance.tasks()}
    assert tasks["partitions"].every_seconds == 3600.0
    assert tasks["tombstones"].every_seconds == 30.0
    for task in tasks.values():
        await task.run()


async def test_leftovers_are_forgotten_by_their_own_retention_in_bounded_batches() -> None:
    harness = MaintenanceHarness()
    limit = ClusterSettings().thresholds.transfer_batch
    harness.master.leftovers = {
        RecordKind.KEYS: 2 * limit + 5,
        RecordKind.AGENTS: 3,
        RecordKind.OPERATOR_LOG: 100 * limit,
    }
    assert await harness.maintenance.forget_leftovers() is MORE
    keep = ClusterSettings().retention
    assert harness.master.deletions[0] == (RecordKind.AGENTS, keep.ended_agents_days)
    assert dict(harness.master.deletions)[RecordKind.BUCKET_EVENTS] == keep.bucket_history_days
    assert harness.master.leftovers[RecordKind.KEYS] == 0
    assert harness.master.leftovers[RecordKind.OPERATOR_LOG] == 80 * limit, "the rest waits for the next turn"
    assert harness.telemetry.rows_forgotten == 2 * limit + 5 + 3 + 20 * limit


async def test_leftovers_of_an_hour_may_be_more_than_one_run_forgets() -> None:
    """200 schedules of each second leave more lines in an hour than the batches of one run."""
    harness = MaintenanceHarness()
    limit = ClusterSettings().thresholds.transfer_batch
    harness.master.leftovers = {RecordKind.SCHEDULE_FIRES: 50 * limit}
    results = [await harness.maintenance.forget_leftovers() for _ in range(3)]
    assert (results, harness.master.leftovers[RecordKind.SCHEDULE_FIRES]) == ([MORE, MORE, None], 0)


async def test_signals_may_end_to_be_kept_faster_than_one_run_ends_them() -> None:
    harness = MaintenanceHarness()
    harness.master.kept = 21 * ClusterSettings().thresholds.transfer_batch
    assert [await harness.maintenance.end_waits() for _ in range(2)] == [MORE, None]
    assert harness.master.kept == 0
