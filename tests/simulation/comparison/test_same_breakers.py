"""Circuit breakers on PostgreSQL and on the simulated master: the same answers, and the same trials afterwards."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.breaker import BreakerRule, BreakerState, TrialResult
from jobmaster.model.job import NewJob
from jobmaster.model.pause import PauseKind
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

HANDLERS = st.sampled_from(("charge", "refund", "plain"))
JOBS = st.integers(0, 5)


class Breakers(TwoMasters):
    """One breaker of two handlers, three agents, six jobs. The simulated master holds a version of the pauses alone."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = [0, 0, 0]
        owner = new_id()
        specs = [HandlerSpec(name=name, digest="d", schema={}) for name in ("charge", "plain")]
        self.both(lambda master: master.members.register(self.agent_row(owner), ["default"], specs))
        self.agents[0] = owner
        self.own_bucket()
        self.declare(0, 2)

    def own_bucket(self) -> None:
        made = Bucket(
            id=self.buckets[0], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([made]))

    @rule(agent=st.integers(0, 2), half_open=st.integers(1, 2))
    def declare(self, agent: int, half_open: int) -> None:
        rules = [BreakerRule("stripe", 0.5, 3600.0, 3, 0.0, half_open)]
        handlers = {"charge": "stripe", "refund": "stripe"}
        self.both(lambda master: master.breakers.declare(self.agents[agent], rules, handlers))

    @rule(job=JOBS, handler=HANDLERS, ahead=st.sampled_from((-60, 0, 3600)))
    def hold(self, job: int, handler: str, ahead: int) -> None:
        due_us = time.time_ns() // 1000 + ahead * 1_000_000 + job
        row = NewJob(self.jobs[job], 3, "default", handler, b"{}", b"", due_us)
        self.both(lambda master: master.intake.insert_held([row]))

    @rule(
        agent=st.integers(0, 2),
        calls=st.integers(1, 3),
        failures=st.integers(0, 3),
        jobs=st.lists(st.tuples(JOBS, st.integers(0, 1), st.booleans()), max_size=2, unique_by=lambda each: each[0]),
        again=st.booleans(),
    )
    def report(self, agent: int, calls: int, failures: int, jobs: list[tuple[int, int, bool]], again: bool) -> None:
        self.numbers[agent] += not again
        ended = [TrialResult("stripe", self.jobs[job], attempt, failed) for job, attempt, failed in jobs]
        counts = {"stripe": (calls, min(failures, calls)), "unknown": (1, 0)}
        number = max(self.numbers[agent], 1)
        self.both(lambda master: master.breakers.report(self.agents[agent], number, counts, ended))

    @rule(nobody_waits=st.booleans())
    def evaluate(self, nobody_waits: bool) -> None:
        async def changes(master: Master) -> Any:
            found = await master.breakers.evaluate(["stripe", "unknown"], nobody_waits=nobody_waits)
            return [change[:3] for change in found]

        self.both(changes)

    @rule()
    def half_open(self) -> None:
        async def changes(master: Master) -> Any:
            return [change[:3] for change in await master.breakers.half_open()]

        self.both(changes)

    @rule(depth=st.sampled_from((1, 2, 100)))
    def choose(self, depth: int) -> None:
        async def looks(master: Master) -> Any:
            found = await master.breakers.choose_trials(depth)
            return [look._replace(left_seconds=look.left_seconds is None) for look in found]

        self.both(looks)

    @rule(opens=st.booleans(), seconds=st.sampled_from((None, 0.0)), seen=st.sampled_from((None, 0, 1)))
    def set_state(self, opens: bool, seconds: float | None, seen: int | None) -> None:
        """``seen``: the epoch of the present minus so much; ``None``: none is named."""

        async def known(master: Master) -> bool:
            state = BreakerState.OPEN if opens else BreakerState.CLOSED
            (view,) = await master.breakers.list("stripe")
            epoch = None if seen is None else view.epoch - seen
            return await master.breakers.set_state("stripe", state, seconds, "test", "why", epoch) is not None

        self.both(known)

    @rule(
        job=JOBS,
        state=st.sampled_from(("SUCCEEDED", "FAILED", "PROCESSING", "WAITING", "HELD")),
        attempt=st.integers(0, 1),
    )
    def move(self, job: int, state: str, attempt: int) -> None:
        """What an agent would write, in the tables themselves."""
        row = self.server.statements.tables.jobs.get(self.jobs[job])
        if row is None or row.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
            return
        bucket = None if state in ("HELD", "WAITING") else self.buckets[0]
        moved = row._replace(state=state, attempt=attempt, bucket_id=bucket, bucket_epoch=None if bucket is None else 1)
        self.server.statements.tables.jobs[row.id] = moved
        self.wait(
            self.sql.execute(
                "UPDATE job SET state = $2::text::job_state, attempt = $3, bucket_id = $4, bucket_epoch = $5 WHERE id = $1",
                *map(_uuid, (row.id,)), state, attempt, *map(_uuid, (bucket,)), bucket and 1,
            )
        )  # fmt: skip

    @rule(kind=st.sampled_from((PauseKind.LANE, PauseKind.HANDLER)), pauses=st.booleans())
    def pause(self, kind: PauseKind, pauses: bool) -> None:
        value = "default" if kind is PauseKind.LANE else "charge"

        async def done(master: Master) -> None:
            if pauses:
                await master.pauses.pause(kind, value, None, None, "test", "")
            else:
                await master.pauses.resume(kind, value, "test", "")

        self.both(done)

    @invariant()
    def both_hold_the_same(self) -> None:
        async def real() -> Any:
            rows = await self.sql.fetch("SELECT name, state, half_open, actor, reason FROM breaker ORDER BY name")
            trials = await self.sql.fetch(
                "SELECT t.job_id, t.attempt, t.failed, t.passed_at IS NOT NULL AS passed, t.epoch = b.epoch AS present"
                " FROM breaker_trial t JOIN breaker b ON b.name = t.breaker ORDER BY t.job_id"
            )
            results = await self.sql.fetch("SELECT breaker, agent_id, number, calls, failures FROM breaker_result")
            return [sorted(tuple(_plain(each) for each in row) for row in found) for found in (rows, trials, results)]

        tables = self.server.statements.tables
        simulated = [
            [(row.name, row.state, row.half_open, row.actor, row.reason) for row in sorted(tables.breakers.values())],
            sorted(
                (
                    job_id,
                    each.attempt,
                    each.failed,
                    each.passed_us is not None,
                    each.epoch == tables.breakers[name].epoch,
                )
                for (name, job_id), each in tables.breaker_trials.items()
            ),
            sorted((*key, each.calls, each.failures) for key, each in tables.breaker_results.items()),
        ]
        assert self.wait(real()) == simulated

        async def shown(master: Master) -> Any:
            lines = [each for each in (await master.pauses.in_force()).pauses if each.kind is PauseKind.BREAKER]
            listed = await master.breakers.list()
            return [(each.value, each.handlers, each.trials, each.reason) for each in lines], [
                (each.name, each.calls, each.failed, each.trial_jobs, each.succeeded, each.handlers) for each in listed
            ]

        self.both(shown)


def _uuid(value: bytes | None) -> UUID | None:
    return None if value is None else UUID(bytes=value)


def _plain(value: Any) -> Any:
    return value.bytes if hasattr(value, "bytes") else value


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_breakers_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(Breakers, migrated, examples=25, steps=30, share=share)


pytestmark = pytest.mark.slow
