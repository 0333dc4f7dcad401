"""Which copies of a lost bucket are written, which are counted, and that none waits for an unfit neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import CodeError, Refused, Unavailable, ValueRefused
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow, JobState
from jobmaster.ports import ReplyStatus, UnstorableEntry, Written
from jobmaster_agents import call_retry
from jobmaster_agents.buckets.memory_recovery import MemoryRecovery, RecoveryResult
from jobmaster_agents.outcomes import kept
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, Gate, WorkerHarness, turns
from tests.support.waiting import until

handlers = Handlers()
go = asyncio.Event()
ran: list[bool] = []


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    ran.append(True)
    await go.wait()


@handlers.job(name="once", timeout=1e6, delivery="at_most_once")
async def once() -> None:
    ran.append(True)
    await go.wait()


@handlers.job(name="fail", timeout=1e6, max_attempts=2, backoff=1000, backoff_jitter=0.0)
async def fail() -> None:
    ran.append(True)
    await go.wait()
    raise RuntimeError("on purpose")


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_LOOK_SECONDS", 0.0)
    go.clear()
    ran.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers) as made:
        made.bucket_worker.in_flight_writer._within_seconds = 0.0
        yield made
        go.set()


def job(name: str, token: int = 1) -> Entry:
    return Entry(new_id(), token, name, b"{}")


# ------------------------------------------------------------ of a working agent


@pytest.mark.parametrize(
    ("name", "call", "state"),
    [("wait", "record_final", "SUCCEEDED"), ("once", "record_final", "SUCCEEDED"), ("fail", "hold", "HELD")],
)
async def test_an_outcome_of_a_job_whose_row_is_known_is_written_and_not_counted(
    harness: WorkerHarness, name: str, call: str, state: str
) -> None:
    bucket, entry = harness.bucket(), job(name)
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    await harness.bucket_worker.in_flight_writer.tick()
    assert harness.master.rows[entry.id].state == "PROCESSING"
    on_its_way = {writer: Gate(DOWN) for writer in ("copy_final", "record_final", "hold")}
    for writer, gate in on_its_way.items():
        harness.master.script[writer].append(gate)
    go.set()
    await until(lambda: any(gate.reached.is_set() for gate in on_its_way.values()))
    harness.ownership.lose(bucket.fence.bucket_id, "its store was emptied", ReplyStatus.GENERATION)
    assert bucket.at_risk == 0
    for writer, gate in on_its_way.items():
        if not gate.reached.is_set():
            harness.master.script[writer].clear()
    told: list[FinalRow] = []
    harness.bucket_worker.memory_recovery.on_ended = told.extend
    assert await harness.bucket_worker.memory_recovery.write(bucket) == RecoveryResult(0, 0)
    assert harness.master.rows[entry.id].state == state
    assert [row.id for row in told] == ([entry.id] if name != "fail" else []), "batches count it"
    assert len(harness.master.attempts) == (name == "fail")
    for gate in on_its_way.values():
        gate.opened.set()


async def test_a_job_that_runs_and_whose_row_is_known_is_left_to_the_sweep(harness: WorkerHarness) -> None:
    bucket, entries = harness.bucket(), [job("wait"), job("once"), job("wait", token=2)]
    harness.submit(bucket, entries)
    await until(lambda: len(ran) == 3)
    await harness.bucket_worker.in_flight_writer.tick()
    before = {job_id: row.state for job_id, row in harness.master.rows.items()}
    harness.ownership.lose(bucket.fence.bucket_id, "its store was emptied", ReplyStatus.GENERATION)
    assert bucket.at_risk == 0
    assert await harness.bucket_worker.memory_recovery.write(bucket) == RecoveryResult(0, 0)
    assert {job_id: row.state for job_id, row in harness.master.rows.items()} == before


async def test_outcomes_that_memory_let_go_to_a_lost_store_are_counted(harness: WorkerHarness) -> None:
    bucket, entries = harness.bucket(), [job("wait") for _ in range(5)]
    harness.suspend()
    harness.submit(bucket, entries)
    await until(lambda: len(ran) == 5)
    go.set()
    await until(lambda: bucket.kept == 5 and not len(harness.bucket_worker.job_table))
    harness.bucket_worker.forget(bucket.fence.bucket_id, "the store answered GEN", ReplyStatus.GENERATION)
    assert bucket.store_lost
    assert bucket.at_risk == 5
    assert await harness.bucket_worker.memory_recovery.write(bucket) == RecoveryResult(0, 0)


async def test_an_outcome_that_is_kept_in_the_store_and_in_memory_is_counted_once(harness: WorkerHarness) -> None:
    bucket, gate = harness.bucket(), Gate(DOWN)
    harness.master.script["copy_final"].append(gate)
    go.set()
    harness.submit(bucket, [job("wait")])
    await gate.reached.wait()
    await turns()
    harness.clock.now = harness.ownership.soft_until + 1.0
    await harness.bucket_worker.kept_outcomes.keep()
    assert bucket.kept == 1
    harness.bucket_worker.forget(bucket.fence.bucket_id, "the store answered GEN", ReplyStatus.GENERATION)
    assert bucket.at_risk == 1
    assert await harness.bucket_worker.memory_recovery.write(bucket) == RecoveryResult(1, 1)
    gate.opened.set()


async def test_a_stores_reply_about_a_frozen_bucket_is_kept_until_its_row_was_read(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    harness.ownership.on_refused_write = lambda owned, why: None
    harness.bucket_worker.freeze(bucket)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "the store answered NOBUCKET", ReplyStatus.NO_BUCKET)
    assert not bucket.lost
    harness.ownership.lose(bucket.fence.bucket_id, "the master names another owner")
    assert bucket.store_lost


# ------------------------------------------------------------ one by one


class Master:
    """Accepts what the test does not make it refuse."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.aside: list[bytes] = []
        self.calls = 0
        self.refusals: dict[bytes, Exception] = {}
        self.others: frozenset[bytes] = frozenset()
        self.silent = False

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        return self._take([row.id for row in rows])

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        return self._take([row.id for row in rows])

    async def quarantine(self, bucket_id: bytes, entries: Sequence[UnstorableEntry]) -> None:
        self.aside += [each.id for each in entries]

    def _take(self, ids: list[bytes]) -> Written:
        self.calls += 1
        for job_id in ids:
            if job_id in self.refusals:
                raise self.refusals[job_id]
        if self.silent:
            return Written(True, frozenset())
        refused = self.others & set(ids)
        self.taken += [job_id for job_id in ids if job_id not in refused]
        return Written(True, frozenset(ids) - refused, refused=refused)


class LostCopies:
    """Copies of one bucket that is lost: some ended, some not."""

    def __init__(self, ended: int, waiting: int) -> None:
        self.master = Master()
        self.memory_recovery = MemoryRecovery(self.master, lambda: True)
        self.owned = OwnedBucket(Fence(BucketId(new_id()), 2, AgentId(new_id())), "default", 3, "default")
        jobs = [self._copy(ended=True) for _ in range(ended)] + [self._copy(ended=False) for _ in range(waiting)]
        self.ids = [each.entry.id for each in jobs]
        self.jobs = jobs

    def keep(self) -> int:
        return self.memory_recovery.keep(self.owned, self.jobs)

    def _copy(self, *, ended: bool) -> ClaimedJob:
        past = self.owned.predecessor(1) if ended else self.owned
        copy = ClaimedJob(job("wait"), ClaimedList(past, "list", 0.0, 0), None)
        if ended:
            entry = copy.entry
            copy.row = FinalRow(
                entry.id, JobState.SUCCEEDED, 3, "default", "wait", 1, past.fence.bucket_id, 1, 1, 0, 0, 0, 0,
                b"{}", b"", b"null", None,
            )  # fmt: skip
        return copy


async def test_a_copy_that_is_refused_for_another_reason_holds_up_no_other() -> None:
    copies = LostCopies(ended=5, waiting=5)
    assert copies.keep() == 10
    bad = copies.ids[2]
    copies.master.refusals[bad] = Refused("no partition may be made")
    with pytest.raises(Refused):
        await copies.memory_recovery.write(copies.owned)
    assert sorted(copies.master.taken) == sorted(set(copies.ids) - {bad})
    copies.master.refusals.clear()
    assert await copies.memory_recovery.write(copies.owned) == RecoveryResult(10, 10)
    assert sorted(copies.master.taken) == sorted(copies.ids), "each once: only what was left is sent again"


async def test_a_refusal_of_everything_does_not_become_a_storm() -> None:
    copies = LostCopies(ended=300, waiting=300)
    copies.keep()
    copies.master.refusals = dict.fromkeys(copies.ids, Refused("permission denied for table job"))
    with pytest.raises(Refused):
        await copies.memory_recovery.write(copies.owned)
    assert copies.master.calls < 60


async def test_only_what_the_master_takes_counts_as_saved() -> None:
    copies = LostCopies(ended=2, waiting=3)
    copies.keep()
    copies.master.others = frozenset(copies.ids[1:3])
    copies.master.refusals[copies.ids[4]] = ValueRefused("text with NUL")
    assert await copies.memory_recovery.write(copies.owned) == RecoveryResult(2, 5)
    assert copies.master.aside == [copies.ids[4]]


async def test_an_outcome_that_no_table_takes_is_left_to_its_row() -> None:
    copies = LostCopies(ended=1, waiting=0)
    copies.jobs[0].row_state = JobState.PROCESSING
    assert copies.keep() == 0
    copies.master.refusals[copies.ids[0]] = ValueRefused("text with NUL")
    assert await copies.memory_recovery.write(copies.owned) == RecoveryResult(0, 0)
    assert not copies.master.aside, "the job is in its row"


async def test_an_answer_that_leaves_out_a_copy_settles_nothing() -> None:
    copies = LostCopies(ended=0, waiting=2)
    copies.keep()
    copies.master.silent = True
    with pytest.raises(CodeError):
        await copies.memory_recovery.write(copies.owned)


async def test_nothing_is_written_after_the_lease() -> None:
    copies = LostCopies(ended=2, waiting=2)
    copies.memory_recovery = MemoryRecovery(copies.master, lambda: False)
    copies.keep()
    with pytest.raises(Unavailable):
        await copies.memory_recovery.write(copies.owned)
    assert not copies.master.calls
