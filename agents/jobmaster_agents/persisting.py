"""The promise of SavePending: within ``persist_within`` of its claim a job has its row in the master, or has ended.

Looks at claimed lists that are half that old and gives the jobs in them that have not ended their in-flight rows, one
statement per bucket. In quick times there is nothing to do: lists are settled long before.
"""

from __future__ import annotations

from jobmaster.clock import Clock
from jobmaster_agents.holdings import Holding
from jobmaster_agents.portions import LiveJob, Memory, Phase, Portion
from jobmaster_agents.reporting import Reporter

_BATCH_JOBS = 1000


class Persisting:
    """A duty: ticks four times per ``persist_within``; memory only, unless something is slow."""

    name = "persisting"

    def __init__(self, memory: Memory, reporter: Reporter, clock: Clock, persist_within_seconds: float) -> None:
        self._memory = memory
        self._reporter = reporter
        self._now = clock.boottime
        self._within_seconds = persist_within_seconds

    async def tick(self) -> float:
        """Persist what is old; returns seconds until the next look."""
        old = self._memory.unpersisted(self._now() - self._within_seconds / 2)
        for holding, jobs in self._slow(old):
            for first in range(0, len(jobs), _BATCH_JOBS):
                await self._reporter.persist(holding, jobs[first : first + _BATCH_JOBS])
        return self._within_seconds / 4

    @staticmethod
    def _slow(portions: list[Portion]) -> list[tuple[Holding, list[LiveJob]]]:
        groups: dict[bytes, tuple[Holding, list[LiveJob]]] = {}
        for portion in portions:
            for job in portion.jobs:
                if not job.safe and job.phase in (Phase.QUEUED, Phase.RUNNING):
                    holding = portion.holding
                    groups.setdefault(holding.fence.bucket_id, (holding, []))[1].append(job)
        return list(groups.values())
