"""Batches on PostgreSQL and on the simulated master: the same answers, and the same batches and callbacks afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.flow import batches as batches_module
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.batch import BatchView, Callback, EndReason, NewBatch, Occasion, Position, range_of
from jobmaster.model.job import Headers
from jobmaster.ports import RecordKind, UnstorableEntry
from tests.integration.postgres.fixture import final_row, in_flight_row, new_job
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

BATCH = st.integers(0, 2)
_MARK = encode_headers(Headers(batch=True))
_TIMES = ("created_us", "closed_us", "ended_us", "expires_us")


class BatchUsers(TwoMasters):
    """Three batches, the third inside the second, and a further range of the first; four jobs in each of the four ranges."""

    def __init__(self) -> None:
        super().__init__()
        for table in ("batch", "batch_range", "batch_tally", "batch_callback", "batch_dropped"):
            self.wait(self.sql.execute(f"DELETE FROM {table}"))
        self.ranges = [range_of(new_id()) for _ in range(4)]
        self.jobs = [lowest[:12] + number.to_bytes(4, "big") for lowest in self.ranges for number in range(1, 5)]
        row = Bucket(
            id=self.buckets[0], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))

    @rule(batch=BATCH, timeout=st.sampled_from((None, 600.0)), callbacks=st.sets(st.sampled_from(tuple(Occasion))))
    def open(self, batch: int, timeout: float | None, callbacks: set[Occasion]) -> None:
        made = tuple(Callback(each, 3, "default", f"on.{each}", b"{}", b"") for each in sorted(callbacks))
        parent = self.ranges[1] if batch == 2 else None
        self.both(
            lambda master: master.batches.open(
                NewBatch(
                    self.ranges[batch],
                    parent,
                    None,
                    "name",
                    "",
                    timeout,
                    600.0,
                    made,
                    self.key(batch),
                    self.producer(batch),
                )
            )
        )

    @rule(batch=BATCH)
    def add_range(self, batch: int) -> None:
        producer = self.producer(batch)
        self.both(lambda master: master.batches.add_range(self.ranges[batch], self.ranges[3], 4, producer))

    def key(self, batch: int) -> str | None:
        return "key" if batch == 1 else None

    def producer(self, batch: int) -> bytes | None:
        return self.agents[0] if batch == 1 else None

    @rule(agent=st.integers(0, 1), silent=st.sampled_from((-5.0, 600.0)))
    def take_over(self, agent: int, silent: float) -> None:
        self.both(lambda master: master.batches.take_over("key", self.agents[agent], silent, 600.0))

    @rule(batch=BATCH, size=st.integers(0, 4), settled=st.sampled_from((None, 3)))
    def close(self, batch: int, size: int, settled: int | None) -> None:
        producer, position = self.producer(batch), Position(settled, settled, 7)
        self.both(lambda master: master.batches.touch(self.ranges[batch], 600.0, producer, position))
        self.both(lambda master: master.batches.close(self.ranges[batch], size, producer, 4))

    @rule(
        jobs=st.lists(st.integers(0, 15), unique=True, min_size=1),
        state=st.sampled_from(("SUCCEEDED", "FAILED", "HELD", "PROCESSING")),
    )
    def write(self, jobs: list[int], state: str) -> None:
        ids = sorted(self.jobs[job] for job in jobs)
        fence = self.fence(0, None, 0)
        if state == "HELD":
            self.both(lambda master: master.intake.insert_held([new_job(each, headers=_MARK) for each in ids]))
        elif state == "PROCESSING":
            self.both(lambda master: master.outcomes.persist(fence, [in_flight_row(each) for each in ids]))
        else:
            self.both(
                lambda master: master.outcomes.record_final([final_row(each, fence, state=state) for each in ids])
            )

    @rule(job=st.integers(0, 15))
    def quarantine(self, job: int) -> None:
        unfit = [UnstorableEntry(self.jobs[job], "pending", b"x", "cannot be stored")]
        self.both(lambda master: master.outcomes.quarantine(self.buckets[0], unfit))

    @rule(ranges=st.lists(st.integers(0, 3), unique=True, min_size=1), agent=st.integers(0, 1), ended=st.integers(1, 3))
    def tally(self, ranges: list[int], agent: int, ended: int) -> None:
        of = {self.ranges[each]: ended for each in ranges}
        self.both(lambda master: master.batches.tally(self.agents[agent], of))
        self.both(lambda master: master.batches.full(list(of)))

    @rule(job=st.integers(0, 15), known=st.booleans())
    def cancel_job(self, job: int, known: bool) -> None:
        tombstone = None if known else new_job(self.jobs[job], headers=_MARK)
        self.both(lambda master: master.requests.cancel(self.jobs[job], tombstone=tombstone, actor="test"))

    @rule(agent=st.integers(0, 1), limit=st.sampled_from((1, 100)))
    def take_notes(self, agent: int, limit: int) -> None:
        self.both(lambda master: master.batches.take_notes(self.agents[agent], limit))

    @rule(batch=BATCH, reason=st.sampled_from((None, None, None, EndReason.EXPIRED)))
    def conclude(self, batch: int, reason: EndReason | None) -> None:
        ids = [new_id(), new_id()]
        given = iter(ids * 2)  # the same on both sides
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches_module, "new_id", lambda: next(given))
            self.both(lambda master: master.batches.conclude(self.ranges[batch], reason))

    @rule(batch=BATCH, limit=st.integers(1, 3), after=st.sampled_from((None, 0, 2, 13)))
    def cancel(self, batch: int, limit: int, after: int | None) -> None:
        self.both(lambda master: master.batches.request_cancel(self.ranges[batch], "test"))
        last = None if after is None else self.jobs[after]
        self.both(lambda master: master.batches.cancel_page(self.ranges[batch], last, limit))

    @rule(batch=BATCH, seconds=st.sampled_from((0.0, 5000.0)))
    def look(self, batch: int, seconds: float) -> None:
        self.both(lambda master: master.batches.postpone(self.ranges[batch], seconds))

        async def due(master: Master) -> Any:
            found = await master.batches.due(10, 600.0)
            return sorted(
                (each._replace(quiet_seconds=each.quiet_seconds > 100) for each in found), key=lambda each: each.id
            )

        self.both(due)

    @rule(batch=BATCH)
    def read(self, batch: int) -> None:
        self.both(lambda master: master.batches.progress(self.ranges[batch]))
        self.both(lambda master: master.batches.callbacks(self.ranges[batch]))

        async def ranges(master: Master) -> Any:
            return (await master.pauses.in_force()).cancelled_ranges

        self.both(ranges)

    @rule(days=st.sampled_from((-1.0, 1.0)))
    def forget(self, days: float) -> None:
        self.both(lambda master: master.maintenance.forget(RecordKind.BATCHES, days, 10))

    @invariant()
    def both_hold_the_same_batches(self) -> None:
        async def batches(master: Master) -> Any:
            return [_untimed(each) for each in await master.batches.list()]

        self.both(batches)


def _untimed(view: BatchView) -> Any:
    return [
        (name, value is None if name in _TIMES else value)
        for name in view.__struct_fields__
        if (value := getattr(view, name)) is not ...
    ]


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_batches_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(BatchUsers, migrated, examples=20, share=share)


pytestmark = pytest.mark.slow
