"""The owner's comparison of rows, store and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import AgentId, BucketId, Fence, Identity
from jobmaster.model.job import Entry
from jobmaster.ports import RowRef, Written
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.buckets.anti_entropy import GRACE_SHARE, PACE_SECONDS, AntiEntropy, _Watch
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.hand_clock import HandClock, trusted

GRACE_SECONDS = Leases().anti_entropy_seconds * GRACE_SHARE


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.ownership = trusted(self.clock)
        self.owned = OwnedBucket(
            Fence(BucketId(new_id()), 4, AgentId(self.ownership.agent_id)), "default", 3, "default"
        )
        self.ownership.add(self.owned)
        self.rows: dict[bytes, RowRef] = {}
        self.copies: dict[bytes, Entry] = {}
        self.job_table: set[bytes] = set()
        self.settled: set[tuple[bytes, int]] = set()
        self.released: list[tuple[bytes, int]] = []
        self.given_back: list[RowRef] = []
        self.bucket_ok = True
        self.queries = 0
        self.adopted = 0
        self.finds: list[int] = []
        self.on_find: Callable[[], None] = lambda: None
        self.telemetry = Telemetry()
        self.watch = _Watch(0.0)
        self.duty = AntiEntropy(self.ownership, self, self, self, self.adopt, self.clock, self.telemetry, EventLog(),
                                every_seconds=Leases().anti_entropy_seconds)  # fmt: skip

    def ids_of(self, bucket_id: bytes) -> set[bytes]:
        return set(self.job_table)

    def settled_of(self, bucket_id: bytes) -> set[tuple[bytes, int]]:
        return self.settled

    def row(self, *, state: str = "ASSIGNED", token: int = 2, epoch: int = 4) -> bytes:
        job_id = new_id()
        identity = Identity(token, self.owned.fence.bucket_id, epoch)
        self.rows[job_id] = RowRef(job_id, identity, state, 0)
        return job_id

    def copy(self, job_id: bytes, token: int = 2) -> None:
        self.copies[job_id] = Entry(job_id, token, "work", b"{}")

    async def adopt(self, bucket_id: bytes) -> None:
        self.adopted += 1

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        self.queries += 1
        return sorted(row for row in self.rows.values() if after is None or row.id > after)[:limit]

    async def release(self, fence: Fence, identities: Sequence[tuple[bytes, int]]) -> Written:
        assert fence == self.owned.fence
        if not self.bucket_ok:
            return Written(False, frozenset())
        self.released.extend(identities)
        for job_id, _ in identities:
            del self.rows[job_id]
        return Written(True, frozenset(job_id for job_id, _ in identities))

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        self.given_back.extend(rows)
        for row in rows:
            del self.rows[row.id]
        return len(rows)

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        return [BucketDepth(0, len(self.copies), 0, 0, 0)]

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        self.finds.append(len(job_ids))
        self.on_find()
        return [{job_id: self.copies[job_id] for job_id in job_ids if job_id in self.copies}]

    async def compare(self, later: float = 30.0) -> None:
        self.clock.now += later
        await self.duty.compare(self.owned, self.watch)


async def test_a_row_without_any_copy_is_given_back_after_the_grace_period() -> None:
    world = World()
    orphan, waiting, running = world.row(), world.row(), world.row(state="PROCESSING")
    world.copy(waiting)
    world.job_table = {running}
    await world.compare()
    assert world.released == []
    await world.compare(GRACE_SECONDS - 1.0)
    assert world.released == []
    await world.compare(2.0)
    assert world.released == [(orphan, 2)]
    assert world.telemetry.rows_released == 1


async def test_a_row_that_was_assigned_again_meanwhile_starts_its_grace_anew() -> None:
    world = World()
    orphan = world.row(token=2)
    await world.compare()
    world.rows[orphan] = world.rows[orphan]._replace(identity=Identity(3, world.owned.fence.bucket_id, 4))
    await world.compare()
    assert world.released == []
    await world.compare()
    assert world.released == [(orphan, 3)]


async def test_a_copy_with_an_older_token_is_no_copy_of_this_row() -> None:
    world = World()
    orphan = world.row(token=3)
    world.copy(orphan, token=2)
    world.copies[new_id()] = Entry(new_id(), 1, "work", b"{}")
    await world.compare()
    await world.compare()
    assert world.released == [(orphan, 3)]


async def test_a_finished_copy_whose_list_is_not_deleted_yet_is_no_copy() -> None:
    """A failover has forgotten that the job went on, and a neighbour that nobody can record keeps the list in the store."""
    world = World()
    orphan, waiting = world.row(token=2), world.row(token=2)
    world.copy(orphan)
    world.copy(waiting)
    world.settled = {(orphan, 2), (waiting, 1)}
    for _ in range(40):
        await world.compare()
    assert world.released == [(orphan, 2)]


async def test_a_job_that_moves_into_memory_during_the_comparison_is_not_lost() -> None:
    """Store looked at: gone. Memory looked at before: not there yet. It was being claimed: memory is read once more."""
    world = World()
    moving = world.row()
    await world.compare()
    world.on_find = lambda: world.job_table.add(moving)
    await world.compare()
    assert world.released == []


async def test_while_the_bucket_keeps_outcomes_no_row_is_taken_for_one_without_a_copy() -> None:
    """The outcome of a job that has left memory is a copy of it, and is not looked up: it is replayed first."""
    world = World()
    world.row()
    world.row(state="PROCESSING")
    world.owned.kept = 2
    for _ in range(5):
        await world.compare()
        world.clock.now += 100.0
        await world.duty.tick()
    assert (world.released, world.given_back) == ([], [])
    world.owned.kept = 0
    world.clock.now += 100.0
    await world.compare()
    await world.compare()
    assert (len(world.released), len(world.given_back)) == (1, 1)


async def test_an_outcome_that_the_master_refuses_keeps_no_other_row_from_being_given_back() -> None:
    """It may lie in the bucket for as long as the bucket lives; it is a copy of its own job, and of no other."""
    world = World()
    orphan, lost, unwritable = world.row(), world.row(state="PROCESSING"), world.row(state="PROCESSING")
    world.owned.kept = world.owned.unwritable = 1
    world.owned.unwritable_ids = frozenset({unwritable})
    for _ in range(3):
        world.clock.now += 100.0
        await world.duty.tick()
    assert world.released == [(orphan, 2)]
    assert {ref.id for ref in world.given_back} == {lost}


async def test_rows_of_a_later_epoch_are_the_rescuers() -> None:
    world = World()
    world.row(epoch=5)
    await world.compare()
    await world.compare()
    assert world.released == []
    assert world.given_back == []


async def test_a_row_from_before_a_freeze_without_a_running_job_is_given_back() -> None:
    world = World()
    forgotten, running = world.row(epoch=3), world.row(state="PROCESSING", epoch=3)
    world.copy(forgotten)
    world.job_table = {running}
    await world.compare()
    assert world.given_back == []
    await world.compare()
    assert [ref.id for ref in world.given_back] == [forgotten]
    assert world.released == []


async def test_a_running_row_without_memory_is_logged_and_given_back_after_the_grace_period() -> None:
    world = World()
    lost, running = world.row(state="PROCESSING"), world.row(state="PROCESSING")
    world.job_table = {running}
    await world.compare()
    await world.compare(GRACE_SECONDS - 1.0)
    assert world.given_back == []
    await world.compare(2.0)
    assert [ref.id for ref in world.given_back] == [lost]
    assert world.released == []
    assert world.telemetry.rows_without_memory == 1
    assert world.telemetry.rows_released == 1


async def test_a_release_refused_by_the_lock_loses_the_bucket() -> None:
    world = World()
    world.row()
    world.bucket_ok = False
    await world.compare()
    await world.compare()
    assert world.owned.lost


async def test_when_counts_agree_only_a_sample_is_looked_up() -> None:
    world = World()
    for _ in range(1000):
        world.copy(world.row())
    await world.compare()
    assert world.finds == [100], "one call, one scan"


async def test_a_missing_row_is_found_among_many_although_a_stale_copy_hides_it() -> None:
    world = World()
    for _ in range(50):
        world.copy(world.row())
    orphan = world.row()
    stale = new_id()
    world.copies[stale] = Entry(stale, 1, "work", b"{}")  # counts agree, and yet one is missing
    for _ in range(200):
        await world.compare()
        if world.released:
            break
    assert world.released == [(orphan, 2)]


async def test_an_agent_with_many_idle_buckets_compares_rarely() -> None:
    world = World()
    for _ in range(14):
        fence = Fence(BucketId(new_id()), 1, AgentId(world.ownership.agent_id))
        world.ownership.add(OwnedBucket(fence, "default", 3, "default"))
    begin, queries_before = world.clock.now, 0
    while world.clock.now < begin + 1200.0:
        delay = await world.duty.tick()
        assert delay >= PACE_SECONDS
        if world.clock.now < begin + 120.0:
            queries_before = world.queries  # the first round starts at random moments
        world.clock.now += delay
    renewals, failure_detector = 1 / Leases().renew_seconds, 1 / Leases().lease_seconds
    assert (world.queries - queries_before) / 1080.0 + renewals + failure_detector < 0.7


async def test_lists_that_memory_does_not_know_are_looked_for_first() -> None:
    world = World()
    await world.compare()
    assert world.adopted == 1


async def test_past_half_the_lease_nothing_is_compared() -> None:
    world = World()
    world.ownership.fence("in doubt")
    for _ in range(100):
        world.clock.now += await world.duty.tick()
    assert world.queries == 0
