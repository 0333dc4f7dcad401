"""Bulk operations on PostgreSQL and on the simulated master: the same answers, and the same jobs and operations then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.bulk_operation import (
    ELIGIBLE,
    BulkKind,
    BulkPage,
    BulkRetry,
    BulkView,
    NewBulk,
    SkipCause,
)
from jobmaster.model.ids import text
from jobmaster.model.job import Headers
from jobmaster.model.job_change import NewValues
from jobmaster.model.job_view import JobFilter
from tests.integration.postgres.fixture import final_row, in_flight_row, new_job
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

JOBS = st.lists(st.integers(0, 5), unique=True, max_size=4).map(sorted)
_TIMES = ("created_us", "started_us", "moved_us", "ended_us")
_HEADERS = (
    b"",
    encode_headers(Headers(tags=("a",))),
    encode_headers(Headers(workflow=("00000000-0000-7000-8000-000000000000", 1))),
)


class BulkUsers(TwoMasters):
    """Three operations over six jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(self.sql.execute("DELETE FROM bulk_operation"))
        self.operations = sorted(new_id() for _ in range(3))
        row = Bucket(
            id=self.buckets[0], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))

    @rule(
        job=st.integers(0, 5),
        state=st.sampled_from(("SUCCEEDED", "FAILED", "FAILED", "HELD", "HELD", "PROCESSING")),
        headers=st.sampled_from(_HEADERS),
    )
    def write(self, job: int, state: str, headers: bytes) -> None:
        job_id, fence = self.jobs[job], self.fence(0, None, 0)
        if state == "HELD":
            self.both(lambda master: master.intake.insert_held([new_job(job_id, headers=headers)]))
        elif state == "PROCESSING":
            self.both(lambda master: master.outcomes.persist(fence, [in_flight_row(job_id)._replace(headers=headers)]))
        else:
            ended = final_row(job_id, fence, state=state)._replace(headers=headers)
            self.both(lambda master: master.outcomes.record_final([ended]))

    @rule(number=st.integers(0, 2), kind=st.sampled_from(tuple(BulkKind)), tag=st.sampled_from((None, "a")))
    def start(self, number: int, kind: BulkKind, tag: str | None) -> None:
        chosen = JobFilter(states=tuple(sorted(ELIGIBLE[kind])), tag=tag)
        bounds = (bytes(16), self.jobs[5], "test", "", 2)
        new = NewBulk(self.operations[number], kind, chosen, NewValues(), *bounds)
        self.both(lambda master: master.bulk.start(new))

    @rule(kind=st.sampled_from(tuple(BulkKind)), tag=st.sampled_from((None, "a")), reads=st.integers(1, 6))
    def find(self, kind: BulkKind, tag: str | None, reads: int) -> None:
        chosen = JobFilter(states=tuple(sorted(ELIGIBLE[kind])), tag=tag)
        bounds = (self.jobs[1], self.jobs[5])
        self.both(
            lambda master: master.bulk.find(
                kind, chosen, NewValues(due_us=0), *bounds, reads=reads, limit=3, payload=True
            )
        )

    @rule()
    def next(self) -> None:
        self.both(lambda master: master.bulk.next())

    def page(self, number: int, after: int | None, read_to: int) -> BulkPage:
        """A page whose place is that of the operation, or another one."""
        rows = self.server.statements.tables.bulk
        there = rows.get(self.operations[number])
        cursor = self.jobs[after] if after is not None else None if there is None else there.cursor
        return BulkPage(self.operations[number], cursor, self.jobs[read_to], {SkipCause.RETRIED: 1})

    @rule(
        number=st.integers(0, 2), after=st.sampled_from((None, None, None, 1)), read_to=st.integers(0, 5), jobs=JOBS,
        kind=st.sampled_from(tuple(BulkKind)), due_us=st.sampled_from((None, 0, 1_900_000_000_000_000)),
    )  # fmt: skip
    def write_page(
        self, number: int, after: int | None, read_to: int, jobs: list[int], kind: BulkKind, due_us: int | None
    ) -> None:
        page, ids = self.page(number, after, read_to), [self.jobs[job] for job in jobs]
        states = tuple(ELIGIBLE[kind])
        if kind is BulkKind.RETRY:
            made = [BulkRetry(job, new_id(), False, b'{"key":"k"}', b"digest") for job in ids]
            made[:1] = [each._replace(args=b'{"sealed":"anew"}') for each in made[:1]]
            self.both(lambda master: master.bulk.retry_page(page, made, states))
        elif kind is BulkKind.CANCEL:
            self.both(lambda master: master.bulk.cancel_page(page, ids, states))
        elif kind is BulkKind.DELETE:
            self.both(lambda master: master.bulk.delete_page(page, ids, states))
        else:
            change = NewValues(due_us, 4, "other")
            self.both(lambda master: master.bulk.reschedule_page(page, ids, change))

    @rule(job=st.integers(0, 5))
    def retried_alone(self, job: int) -> None:
        key = [(f"retry of {text(self.jobs[job])}", self.jobs[(job + 1) % 6], b"digest")]
        self.both(lambda master: master.intake.reserve_keys("handler", key))

    @rule(number=st.integers(0, 2), error=st.sampled_from(("", "", "refused")))
    def finish(self, number: int, error: str) -> None:
        page = self.page(number, None, 5)
        self.both(lambda master: master.bulk.finish(page, error))

    @rule(number=st.integers(0, 2))
    def cancel(self, number: int) -> None:
        self.both(lambda master: master.bulk.cancel(self.operations[number], "test"))

    @invariant()
    def both_hold_the_same_operations(self) -> None:
        async def operations(master: Master) -> Any:
            return [_untimed(each) for each in await master.bulk.list()]

        self.both(operations)


def _untimed(view: BulkView) -> Any:
    return [
        (name, getattr(view, name) is not None if name in _TIMES else getattr(view, name))
        for name in view.__struct_fields__
        if name not in ("filter_json", "change_json")
    ]


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_bulk_operations_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(BulkUsers, migrated, examples=20, share=share)


pytestmark = pytest.mark.slow
