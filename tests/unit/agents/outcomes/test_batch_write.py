"""Batches to the master: COPY before the guarded statement, halves after a failure, an account of every row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import CodeError, InputError, JobMasterError, Refused, Unavailable
from jobmaster.model.job import FinalRow, JobState
from jobmaster.ports import Written
from jobmaster.rules.batching import BatchSize
from jobmaster_agents.outcomes.batch_write import BatchWrite, RowRefusals, copied

IDS = [bytes([number]) * 16 for number in range(8)]


def timed_out() -> Unavailable:
    return Unavailable("too slow", timed_out=True)


class BatchWriteHarness:
    """Sends ids; fails for those that the test names."""

    def __init__(self, rows_max: int = 100) -> None:
        self.size = BatchSize(rows_max)
        self.sent: list[list[bytes]] = []
        self.written: list[bytes] = []
        self.alone: list[bytes] = []
        self.bad: set[bytes] = set()
        self.most = 100
        self.locked = False

    async def send(self, ids: Sequence[bytes]) -> Written:
        self.sent.append(list(ids))
        if len(ids) > self.most:
            raise timed_out()
        if self.bad & set(ids):
            raise InputError("a value")
        return Written(not self.locked, frozenset() if self.locked else frozenset(ids))

    async def refused(self, job_id: bytes, error: Refused | InputError) -> bool:
        self.alone.append(job_id)
        return True

    async def write(self) -> Written | None:
        batches: BatchWrite[bytes] = BatchWrite(self.size, lambda job_id: job_id, len)
        return await batches.write(IDS, self.send, lambda some, _: self.written.extend(some), self.refused)


async def test_a_batch_that_times_out_is_halved_and_later_ones_are_as_small() -> None:
    batches = BatchWriteHarness()
    batches.most = 2
    assert await batches.write() is None
    assert [len(ids) for ids in batches.sent][:3] == [8, 4, 2]
    assert max(map(len, batches.sent[2:])) == 2
    assert batches.written == IDS


async def test_a_refused_row_is_found_by_halving_and_all_others_are_written() -> None:
    batches = BatchWriteHarness()
    batches.bad = {IDS[5]}
    assert await batches.write() is None
    assert batches.alone == [IDS[5]]
    assert batches.written == [job_id for job_id in IDS if job_id != IDS[5]]


async def test_after_a_refusal_by_the_buckets_lock_no_batch_is_sent() -> None:
    batches = BatchWriteHarness(rows_max=2)
    batches.locked = True
    answer = await batches.write()
    assert answer is not None
    assert not answer.bucket_ok
    assert len(batches.sent) == 1
    assert not batches.written


async def test_an_answer_that_leaves_out_a_row_is_a_defect() -> None:
    async def send(ids: Sequence[bytes]) -> Written:
        return Written(True, frozenset(ids[1:]))

    batches: BatchWrite[bytes] = BatchWrite(BatchSize(100), lambda job_id: job_id, len)
    with pytest.raises(CodeError, match="leaves out 1 of 8"):
        await batches.write(IDS, send, lambda *_: None, BatchWriteHarness().refused)


def test_eight_refusals_without_a_bad_value_end_the_batch() -> None:
    refusals = RowRefusals()
    assert [refusals.add(Refused(str(number))) for number in range(8)] == [True] * 7 + [False]
    assert str(refusals.last) == "7"


class CopyMaster:
    def __init__(self, error: JobMasterError) -> None:
        self.error = error

    async def copy_final(self, rows: Sequence[FinalRow]) -> bool:
        raise self.error


def final_row() -> FinalRow:
    return FinalRow(
        new_id(), JobState.SUCCEEDED, 3, "default", "h", 1, new_id(), 1, 1, 0, 0, 0, 0, b"{}", b"", None, None
    )


async def test_a_copy_that_fails_leaves_the_rows_to_the_guarded_statement() -> None:
    for error in (Unavailable("away"), Refused("no right"), InputError("a value")):
        assert not await copied(CopyMaster(error), [final_row(), final_row()])
    assert not await copied(CopyMaster(timed_out()), [final_row()])


async def test_a_copy_of_several_rows_that_times_out_is_not_repeated_at_that_size() -> None:
    with pytest.raises(Unavailable):
        await copied(CopyMaster(timed_out()), [final_row(), final_row()])
