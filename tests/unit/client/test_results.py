"""Results of many jobs: what their number costs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

from jobmaster.client.jobs.results import Results
from jobmaster.clock import SystemClock
from jobmaster.handlers import Handlers
from jobmaster.model.errors import NotFound
from jobmaster.model.job import JobState

JOBS = 40_000
CPU_SECONDS_MAX = 5.0
"""A copy of what is still waited for with each of 40,000 ends would take ten times that."""


class EndedOneByOne:
    """A waiter whose jobs end one after the other."""

    async def each(
        self, job_ids: Iterable[bytes], reached: Callable[..., bool], timeout: float | None, doubtful: Iterable[bytes]
    ) -> AsyncGenerator[dict[bytes, JobState], None]:
        for job_id in frozenset(job_ids):
            yield {job_id: JobState.SUCCEEDED}


class Dropped:
    """A master that has dropped every job."""

    async def ended(self, job_ids: Sequence[bytes]) -> dict[bytes, Any]:
        return {}


async def test_the_cost_of_one_end_does_not_grow_with_the_number_of_jobs() -> None:
    queries: Any = Dropped()
    waiter: Any = EndedOneByOne()
    job_ids = [number.to_bytes(16, "big") for number in range(JOBS)]
    started = time.process_time()
    results = await Results(queries, Handlers(), SystemClock()).each_of(job_ids, (), waiter, None)
    assert time.process_time() - started < CPU_SECONDS_MAX
    assert len(results) == JOBS
    assert all(isinstance(result, NotFound) for result in results)
