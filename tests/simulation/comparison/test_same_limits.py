"""Limits and ordering keys on PostgreSQL and on the simulated master: the same answers, and the same rows and permits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.limit import LimitUse, LimitValues, LoanQuestion
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, Headers, HoldRow, InFlightRow, NewJob
from jobmaster.ports import FetchScope
from jobmaster.rules import capabilities
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both
from tests.simulation.master.tables import PermitRow

HOURS_FOR_ONE = 1 / 36_000
"""A rate that gives no start while a test runs."""
KEY = "order ü"
ORDERED = encode_headers(Headers(ordering_key=KEY, metadata={"ordering_key": "other"}))
MISLEADING = encode_headers(Headers(metadata={"ordering_key": KEY}))
uses = st.lists(
    st.tuples(st.sampled_from(("pool", "pool", "paced", "unknown")), st.sampled_from(("", "k")), st.integers(1, 3)),
    min_size=1, max_size=2, unique_by=lambda use: use[0],
)  # fmt: skip
some = st.sets(st.integers(0, 5), min_size=1, max_size=3).map(sorted)


class Limited(TwoMasters):
    """Two buckets of two agents, six jobs; the first three have an ordering key."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(
            self.sql.execute(
                "DELETE FROM permit; DELETE FROM permit_loan; DELETE FROM limit_state; DELETE FROM job_limit"
            )
        )
        self.questions = 2

    @initialize()
    def begin(self) -> None:
        for place in range(2):
            fence = self.fence(place, 1, place)
            self.both(lambda m, f=fence: m.buckets.create_buckets([self._bucket(f)]))  # type: ignore[misc]
        values = [LimitValues("paced", None, HOURS_FOR_ONE, 2.0), LimitValues("pool", 3, None, None)]
        self.both(lambda m: m.limits.declare(self.agents[0], values))
        rows = [
            NewJob(job_id, 3, "default", "handler", b"{}", ORDERED if place < 3 else MISLEADING, 0)
            for place, job_id in enumerate(self.jobs)
        ]
        self.both(lambda m: m.intake.insert_held(rows))

    def _bucket(self, fence: Any) -> Bucket:
        return Bucket(
            id=fence.bucket_id, store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=fence.owner, changed_us=0,
        )  # fmt: skip

    def _row(self, job: int, step: int = 0) -> Any:
        return self.server.statements.tables.jobs.get(self.jobs[job])

    @rule(bucket=st.integers(0, 1), most=st.integers(1, 6))
    def onboard(self, bucket: int, most: int) -> None:
        scope = FetchScope(sorted(capabilities.CAPABILITIES))
        self.both(
            lambda m: m.onboarding.onboard(self.fence(bucket, None, 0), "default", 3, 60.0, most, None, (), scope)
        )

    @rule(
        bucket=st.integers(0, 1),
        jobs=some,
        takes=st.lists(uses, min_size=3, max_size=3),
        step=st.sampled_from((0, 0, 0, 1)),
    )
    def admit(self, bucket: int, jobs: list[int], takes: list[Any], step: int) -> None:
        rows, wanted = [], {}
        for job, mine in zip(jobs, takes, strict=False):
            job_id = self.jobs[job]
            headers = ORDERED if job < 3 else MISLEADING
            rows.append(InFlightRow(
                job_id, "PROCESSING", 3, "default", "handler", self.token(job, step), 0, 0, 0, b"{}", headers, None
            ))  # fmt: skip
            ordering = [LimitUse("", KEY, 1)] if job < 3 else []
            wanted[job_id] = [*ordering, *(LimitUse(*each) for each in mine)]

        async def admitted(master: Master) -> Any:
            answer = await master.limits.admit(self.fence(bucket, None, 0), rows, wanted)
            denied = {job_id: (full.name, full.key, full.wait_seconds > 0) for job_id, full in answer.denied.items()}
            return answer.written, denied

        self.both(admitted)

    @rule(job=st.integers(0, 5), how=st.sampled_from(("final", "hold", "here")))
    def end(self, job: int, how: str) -> None:
        row = self._row(job)
        if row is None or row.bucket_id is None:
            return
        fence = self.fence([*self.buckets].index(row.bucket_id), None, 0)
        if how == "final":
            final = FinalRow(
                row.id, "SUCCEEDED", 3, "default", "handler", row.token, fence.bucket_id, fence.epoch, 1, 0, 0, 0, 0, b"{}",
                row.headers, b"1", None,
            )  # fmt: skip
            self.both(lambda m: m.outcomes.record_final([final]))
            return
        held = HoldRow.of(Entry(row.id, row.token, "handler", b"{}", headers=row.headers), 3, "default")
        if how == "hold":
            self.both(lambda m: m.outcomes.hold(fence, [held]))
        else:
            self.both(lambda m: m.outcomes.retry_here(fence, [held]))

    @rule(job=st.integers(0, 5))
    def cancel(self, job: int) -> None:
        self.both(lambda m: m.requests.cancel(self.jobs[job], tombstone=None, actor="test"))

    @rule(running=st.sampled_from((1, 2, 5, None)), rate=st.sampled_from((None, HOURS_FOR_ONE)))
    def set_limit(self, running: int | None, rate: float | None) -> None:
        if running is None and rate is None:
            self.both(lambda m: m.limits.reset("pool", "test"))
        else:
            self.both(
                lambda m: m.limits.set(LimitValues("pool", running, rate, None if rate is None else 2.0), "ann", "")
            )

    @rule(agent=st.integers(0, 2), running=st.sampled_from((2, 3)))
    def declare(self, agent: int, running: int) -> None:
        self.both(lambda m: m.limits.declare(self.agents[agent], [LimitValues("pool", running, None, None)]))

    @rule(
        agent=st.integers(0, 2),
        limits=st.sets(st.sampled_from((("pool", ""), ("pool", "k"), ("paced", ""), ("unknown", ""))), min_size=1),
        keeps=st.integers(0, 2),
        wanted=st.integers(0, 4),
        step=st.sampled_from((1, 1, 1, 1, 0, -1)),
    )
    def lend(self, agent: int, limits: set[tuple[str, str]], keeps: int, wanted: int, step: int) -> None:
        """Now and then a question comes a second time, or late."""
        self.questions += max(step, 0)
        number = self.questions + min(step, 0)
        asked = [LoanQuestion(*limit, keeps, max(wanted, keeps), number) for limit in sorted(limits)]
        self.both(lambda m: m.limits.lend(self.agents[agent], asked))

    @rule(agent=st.integers(1, 2), dead=st.booleans(), ended=st.booleans(), takes=st.sampled_from((0, 0, 1, 2)))
    def end_agent(self, agent: int, dead: bool, ended: bool, takes: int) -> None:
        """One of two, never both; in its place comes another one, and it may have a bucket."""
        self.both(lambda m: m.members.end_agent(self.agents[agent], dead=dead, reason="test", process_ended=ended))
        if self.server.statements.tables.agents[self.agents[agent]].state == "ACTIVE":
            return
        self.agents[agent] = new_id()
        row = self.agent_row(self.agents[agent])
        self.both(lambda m: m.members.register(row, ["default"], []))
        for _ in range(takes):
            fence = Fence(BucketId(new_id()), 1, AgentId(row.id))
            self.both(lambda m, f=fence: m.buckets.create_buckets([self._bucket(f)]))  # type: ignore[misc]

    @rule(agent=st.integers(0, 2), is_swept=st.booleans())
    def rescue(self, agent: int, is_swept: bool) -> None:
        lost = [row for row in self.server.statements.tables.buckets.values() if row.state == "LOST"]
        if len(lost) == 1:  # which of several is taken is a matter of the clock
            self.both(lambda m: m.rescue.take_lost(self.agents[agent], ["store"], {}))
            if is_swept:
                fence = Fence(BucketId(lost[0].id), lost[0].epoch + 1, AgentId(self.agents[agent]))
                self.both(lambda m: m.rescue.sweep(fence, 10, max_rescues=3))

    @rule(agent=st.integers(0, 2))
    def look_elsewhere(self, agent: int) -> None:
        keys = [("pool", ""), ("pool", "k"), ("paced", ""), ("", KEY)]

        async def waiting(master: Master) -> Any:
            return sorted(await master.limits.waiting_elsewhere(self.agents[agent], keys))

        self.both(waiting)

    @invariant()
    def both_have_the_same_permits(self) -> None:
        """Of jobs that run: what is left of the others counts nowhere, and is removed at other times."""

        async def real() -> dict[Any, Any]:
            rows = await self.sql.fetch(
                "SELECT p.name, p.key, p.job_id, p.token, p.weight, p.maximum FROM permit p JOIN job j ON j.id = p.job_id"
                " WHERE j.state = 'PROCESSING' AND j.token = p.token"
            )
            return {(row[0], row[1], row[2].bytes): PermitRow(*row[3:]) for row in map(tuple, rows)}

        tables = self.server.statements.tables
        valid = {
            key: permit
            for key, permit in tables.permits.items()
            if (row := tables.jobs.get(key[2])) is not None and (row.state, row.token) == ("PROCESSING", permit.token)
        }
        assert self.wait(real()) == valid

    @invariant()
    def both_have_lent_the_same(self) -> None:
        async def real() -> dict[Any, Any]:
            rows = await self.sql.fetch("SELECT name, key, agent_id, permits, wanted, sequence FROM permit_loan")
            return {(row[0], row[1], row[2].bytes): tuple(row)[3:] for row in map(tuple, rows)}

        async def weights() -> dict[Any, Any]:
            rows = await self.sql.fetch("SELECT name, key, waiting_weight FROM limit_state")
            return {(row[0], row[1]): row[2] for row in map(tuple, rows)}

        states = self.server.statements.tables.limit_states
        assert self.wait(weights()) == {key: state.waiting_weight for key, state in states.items()}
        loans = self.server.statements.tables.permit_loans
        assert self.wait(real()) == {key: tuple(loan)[:3] for key, loan in loans.items()}


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_limits_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(Limited, migrated, examples=25, share=share)


pytestmark = pytest.mark.slow
