"""The owner's comparison of rows, store and memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

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


class AntiEntropyHarness:
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
        self.tokens: dict[bytes, int] = {}
        """Job id -> token in memory, where it is not that of the row."""
        self.settled: set[tuple[bytes, int]] = set()
        self.released: list[tuple[bytes, int]] = []
        self.given_back: list[RowRef] = []
        self.bucket_ok = True
        self.queries = 0
        self.adopted = 0
        self.finds: list[int] = []
        self.coming: set[bytes] = set()
        self.on_find: Callable[[], None] = lambda: None
        self.telemetry = Telemetry()
        self.watch = _Watch(0.0)
        self.periodic_task = AntiEntropy(
            self.ownership, self, self, self, self.adopt, self.being_put, self.clock, self.telemetry, EventLog(),
            every_seconds=Leases().anti_entropy_seconds,
        )  # fmt: skip

    def tokens_of(self, bucket_id: bytes) -> dict[bytes, int]:
        return {job_id: self.rows[job_id].identity.token for job_id in self.job_table} | self.tokens

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

    def being_put(self, job_ids: Collection[bytes]) -> set[bytes]:
        return self.coming.intersection(job_ids)

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
        await self.periodic_task.compare(self.owned, self.watch)


async def test_a_row_without_any_copy_is_given_back_after_the_grace_period() -> None:
    harness = AntiEntropyHarness()
    orphan, waiting, running = harness.row(), harness.row(), harness.row(state="PROCESSING")
    harness.copy(waiting)
    harness.job_table = {running}
    await harness.compare()
    assert harness.released == []
    await harness.compare(GRACE_SECONDS - 1.0)
    assert harness.released == []
    await harness.compare(2.0)
    assert harness.released == [(orphan, 2)]
    assert harness.telemetry.rows_released == 1


async def test_a_row_whose_copy_is_being_put_is_not_given_back() -> None:
    harness = AntiEntropyHarness()
    unsure = harness.row()
    harness.coming = {unsure}
    await harness.compare()
    await harness.compare()
    assert harness.released == [], "cancelled as HELD, it would start all the same"
    harness.coming = set()
    await harness.compare()
    assert harness.released == [], "the put may have been done while the store was read"
    await harness.compare()
    assert harness.released == [(unsure, 2)]


async def test_a_row_that_was_assigned_again_meanwhile_starts_its_grace_anew() -> None:
    harness = AntiEntropyHarness()
    orphan = harness.row(token=2)
    await harness.compare()
    harness.rows[orphan] = harness.rows[orphan]._replace(identity=Identity(3, harness.owned.fence.bucket_id, 4))
    await harness.compare()
    assert harness.released == []
    await harness.compare()
    assert harness.released == [(orphan, 3)]


async def test_a_copy_with_an_older_token_is_no_copy_of_this_row() -> None:
    harness = AntiEntropyHarness()
    orphan = harness.row(token=3)
    harness.copy(orphan, token=2)
    harness.copies[new_id()] = Entry(new_id(), 1, "work", b"{}")
    await harness.compare()
    await harness.compare()
    assert harness.released == [(orphan, 3)]


async def test_an_older_run_in_memory_is_no_copy_of_a_later_assignment() -> None:
    """A slow run was given to another assignment, whose copy was never put: the run may go on for hours."""
    harness = AntiEntropyHarness()
    orphan = harness.row(token=3)
    harness.tokens = {orphan: 1}
    await harness.compare()
    await harness.compare()
    assert harness.released == [(orphan, 3)]


async def test_a_finished_copy_whose_list_is_not_deleted_yet_is_no_copy() -> None:
    """A failover has forgotten that the job went on, and a neighbour that cannot be recorded keeps the list in the store."""
    harness = AntiEntropyHarness()
    orphan, waiting = harness.row(token=2), harness.row(token=2)
    harness.copy(orphan)
    harness.copy(waiting)
    harness.settled = {(orphan, 2), (waiting, 1)}
    for _ in range(40):
        await harness.compare()
    assert harness.released == [(orphan, 2)]


async def test_a_job_that_moves_into_memory_during_the_comparison_is_not_lost() -> None:
    """Store looked at: gone. Memory looked at before: not there yet. It was being claimed: memory is read once more."""
    harness = AntiEntropyHarness()
    moving = harness.row()
    await harness.compare()
    harness.on_find = lambda: harness.job_table.add(moving)
    await harness.compare()
    assert harness.released == []


async def test_while_the_bucket_keeps_outcomes_no_row_is_taken_for_one_without_a_copy() -> None:
    """The outcome of a job that has left memory is a copy of it, and is not looked up: it is replayed first."""
    harness = AntiEntropyHarness()
    harness.row()
    harness.row(state="PROCESSING")
    harness.owned.kept = 2
    for _ in range(5):
        await harness.compare()
        harness.clock.now += 100.0
        await harness.periodic_task.tick()
    assert (harness.released, harness.given_back) == ([], [])
    harness.owned.kept = 0
    harness.clock.now += 100.0
    await harness.compare()
    await harness.compare()
    assert (len(harness.released), len(harness.given_back)) == (1, 1)


async def test_an_outcome_that_the_master_refuses_keeps_no_other_row_from_being_given_back() -> None:
    """It may lie in the bucket for as long as the bucket lives; it is a copy of its own job, and of no other."""
    harness = AntiEntropyHarness()
    orphan, lost, unwritable = harness.row(), harness.row(state="PROCESSING"), harness.row(state="PROCESSING")
    harness.owned.kept = harness.owned.unwritable = 1
    harness.owned.unwritable_ids = frozenset({unwritable})
    for _ in range(3):
        harness.clock.now += 100.0
        await harness.periodic_task.tick()
    assert harness.released == [(orphan, 2)]
    assert {ref.id for ref in harness.given_back} == {lost}


async def test_rows_of_a_later_epoch_are_the_rescuers() -> None:
    harness = AntiEntropyHarness()
    harness.row(epoch=5)
    await harness.compare()
    await harness.compare()
    assert harness.released == []
    assert harness.given_back == []


async def test_a_row_from_before_a_freeze_without_a_running_job_is_given_back() -> None:
    harness = AntiEntropyHarness()
    forgotten, running = harness.row(epoch=3), harness.row(state="PROCESSING", epoch=3)
    harness.copy(forgotten)
    harness.job_table = {running}
    await harness.compare()
    assert harness.given_back == []
    await harness.compare()
    assert [ref.id for ref in harness.given_back] == [forgotten]
    assert harness.released == []


async def test_a_running_row_without_memory_is_logged_and_given_back_after_the_grace_period() -> None:
    harness = AntiEntropyHarness()
    lost, running = harness.row(state="PROCESSING"), harness.row(state="PROCESSING")
    harness.job_table = {running}
    await harness.compare()
    await harness.compare(GRACE_SECONDS - 1.0)
    assert harness.given_back == []
    await harness.compare(2.0)
    assert [ref.id for ref in harness.given_back] == [lost]
    assert harness.released == []
    assert harness.telemetry.rows_without_memory == 1
    assert harness.telemetry.rows_released == 1


async def test_a_release_refused_by_the_lock_loses_the_bucket() -> None:
    harness = AntiEntropyHarness()
    harness.row()
    harness.bucket_ok = False
    await harness.compare()
    await harness.compare()
    assert harness.owned.lost


async def test_when_counts_agree_only_a_sample_is_looked_up() -> None:
    harness = AntiEntropyHarness()
    for _ in range(1000):
        harness.copy(harness.row())
    await harness.compare()
    assert harness.finds == [100], "one call, one scan"


async def test_a_missing_row_is_found_among_many_although_a_stale_copy_hides_it() -> None:
    harness = AntiEntropyHarness()
    for _ in range(50):
        harness.copy(harness.row())
    orphan = harness.row()
    stale = new_id()
    harness.copies[stale] = Entry(stale, 1, "work", b"{}")  # counts agree, and yet one is missing
    for _ in range(200):
        await harness.compare()
        if harness.released:
            break
    assert harness.released == [(orphan, 2)]


async def test_an_agent_with_many_idle_buckets_compares_rarely() -> None:
    harness = AntiEntropyHarness()
    for _ in range(14):
        fence = Fence(BucketId(new_id()), 1, AgentId(harness.ownership.agent_id))
        harness.ownership.add(OwnedBucket(fence, "default", 3, "default"))
    begin, queries_before = harness.clock.now, 0
    while harness.clock.now < begin + 1200.0:
        delay = await harness.periodic_task.tick()
        assert delay >= PACE_SECONDS
        if harness.clock.now < begin + 120.0:
            queries_before = harness.queries  # the first round starts at random moments
        harness.clock.now += delay
    renewals, failure_detector = 1 / Leases().renew_seconds, 1 / Leases().lease_seconds
    assert (harness.queries - queries_before) / 1080.0 + renewals + failure_detector < 0.7


async def test_lists_that_memory_does_not_know_are_looked_for_first() -> None:
    harness = AntiEntropyHarness()
    await harness.compare()
    assert harness.adopted == 1


async def test_past_half_the_lease_nothing_is_compared() -> None:
    harness = AntiEntropyHarness()
    harness.ownership.fence("in doubt")
    for _ in range(100):
        harness.clock.now += await harness.periodic_task.tick()
    assert harness.queries == 0
