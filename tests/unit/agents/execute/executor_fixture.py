"""An executor without stores: jobs are put in by hand, outcomes are collected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from jobmaster.clock import SystemClock, new_id
from jobmaster.handlers import Handlers
from jobmaster.model.bucket import BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, JobDefaults, Limits
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder, StopCause
from jobmaster_agents.state.job_table import ClaimedJob, ClaimedList, JobTable
from jobmaster_agents.state.limited_starts import LimitedStarts
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from tests.support.patience import PATIENCE_SECONDS

CLOCK = SystemClock()


class CollectedOutcomes:
    """Collects outcomes instead of writing them."""

    def __init__(self) -> None:
        self.rows: list[FinalRow | HoldRow] = []
        self.heres: list[bool] = []
        self.changed = asyncio.Event()

    def final(self, job: ClaimedJob) -> None:
        assert isinstance(job.row, FinalRow)
        self._keep(job.row)

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        assert isinstance(job.row, HoldRow)
        self.heres.append(here)
        self._keep(job.row)

    def _keep(self, row: FinalRow | HoldRow) -> None:
        self.rows.append(row)
        self.changed.set()

    async def wait_rows(self, count: int) -> list[FinalRow | HoldRow]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.rows) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.rows


class NoDispatcher:
    stuck = 0

    def start(self, job: ClaimedJob, done: Callable[[ClaimedJob], None]) -> None:
        raise AssertionError("these handlers run on the loop")

    def stop(self, job: ClaimedJob, cause: StopCause) -> None:
        raise AssertionError("these handlers run on the loop")

    def give_back(self, job: ClaimedJob) -> None:
        raise AssertionError("these handlers run on the loop")

    def sweep(self, now: float) -> None:
        raise AssertionError("these handlers run on the loop")

    def started_at(self, job: ClaimedJob) -> float | None:
        raise AssertionError("these handlers run on the loop")

    def started_before(self, moment: float) -> list[ClaimedJob]:
        return []

    def is_waiting(self, job: ClaimedJob) -> bool:
        raise AssertionError("these handlers run on the loop")


class ExecutorHarness:
    """An execution with one bucket per priority given."""

    def __init__(self, handlers: Handlers, settings: AgentSettings, allow: bool = True) -> None:
        self.handlers = {handler.name: handler for handler in handlers}
        self.ownership = Ownership(b"a" * 16)
        self.ownership.trust(term(CLOCK.boottime(), 60.0))
        self.sink = CollectedOutcomes()
        self.job_table = JobTable()
        self.overdue: list[tuple[ClaimedJob, float]] = []
        self.policy_problems: list[str] = []
        self.outcome_builder = OutcomeBuilder(
            self.sink,
            JobDefaults(max_snoozes=3),
            Limits(),
            300.0,
            CLOCK,
            random.Random(1),
            on_policy_problem=lambda job, why: self.policy_problems.append(why),
        )

        async def authorise(job: ClaimedJob) -> bool:
            await asyncio.sleep(0)
            return allow

        self.executor = Executor(
            settings,
            900.0,
            CLOCK,
            self.ownership,
            self.outcome_builder,
            NoDispatcher(),
            authorise,
            lambda bucket_id: None,
            on_overdue=lambda job, seconds: self.overdue.append((job, seconds)),
            on_detached=lambda job, cause, seconds: None,
            limits=LimitedStarts(CLOCK.boottime),
        )
        self.names = 0

    def bucket(self, priority: int = 3) -> OwnedBucket:
        owned = OwnedBucket(Fence(BucketId(new_id()), 1, AgentId(b"a" * 16)), "default", priority, "default")
        owned.state = BucketState.ACTIVE
        self.executor.open(owned)
        return owned

    def put(self, owned: OwnedBucket, calls: Iterable[tuple[str, bytes]], age_seconds: float = 0.0) -> list[ClaimedJob]:
        self.names += 1
        claimed_list = ClaimedList(owned, str(self.names), CLOCK.boottime() - age_seconds, CLOCK.wall_us())
        entries = [Entry(new_id(), 1, name, args) for name, args in calls]
        jobs = self.job_table.adopt(claimed_list, entries, self.handlers)
        self.executor.enqueue(jobs)
        return jobs
