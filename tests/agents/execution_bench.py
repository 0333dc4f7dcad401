"""An execution without stores: jobs are put in by hand, verdicts are collected."""

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
from jobmaster_agents.execution import Execution
from jobmaster_agents.holdings import Holding, Holdings
from jobmaster_agents.portions import LiveJob, Memory, Portion
from jobmaster_agents.verdicts import StopCause, Verdicts
from tests.patience import PATIENCE_SECONDS

CLOCK = SystemClock()


class Sink:
    """Collects verdicts instead of writing them."""

    def __init__(self) -> None:
        self.rows: list[FinalRow | HoldRow] = []
        self.heres: list[bool] = []
        self.changed = asyncio.Event()

    def final(self, job: LiveJob) -> None:
        assert isinstance(job.row, FinalRow)
        self._keep(job.row)

    def hold(self, job: LiveJob, *, here: bool) -> None:
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


class NotElsewhere:
    stuck = 0

    def start(self, job: LiveJob, done: Callable[[LiveJob], None]) -> None:
        raise AssertionError("these handlers run on the loop")

    def stop(self, job: LiveJob, cause: StopCause) -> None:
        raise AssertionError("these handlers run on the loop")

    def sweep(self, now: float) -> None:
        raise AssertionError("these handlers run on the loop")

    def started_before(self, moment: float) -> list[LiveJob]:
        return []


class Bench:
    """An execution with one bucket per priority given."""

    def __init__(self, handlers: Handlers, settings: AgentSettings, allow: bool = True) -> None:
        self.handlers = {handler.name: handler for handler in handlers}
        self.holdings = Holdings(b"a" * 16)
        self.holdings.trust(term(CLOCK.boottime(), 60.0))
        self.sink = Sink()
        self.memory = Memory()
        self.verdicts = Verdicts(self.sink, JobDefaults(), Limits(), 300.0, CLOCK, random.Random(1))

        async def authorise(job: LiveJob) -> bool:
            await asyncio.sleep(0)
            return allow

        self.execution = Execution(
            settings,
            900.0,
            CLOCK,
            self.holdings,
            self.verdicts,
            NotElsewhere(),
            authorise,
            lambda bucket_id: None,
        )
        self.names = 0

    def bucket(self, priority: int = 3) -> Holding:
        holding = Holding(Fence(BucketId(new_id()), 1, AgentId(b"a" * 16)), "default", priority, "default")
        holding.state = BucketState.ACTIVE
        self.execution.open(holding)
        return holding

    def put(self, holding: Holding, calls: Iterable[tuple[str, bytes]], age_seconds: float = 0.0) -> list[LiveJob]:
        self.names += 1
        portion = Portion(holding, str(self.names), CLOCK.boottime() - age_seconds, CLOCK.wall_us())
        entries = [Entry(new_id(), 1, name, args) for name, args in calls]
        jobs = self.memory.adopt(portion, entries, self.handlers)
        self.execution.enqueue(jobs)
        return jobs
