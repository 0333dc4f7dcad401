"""Jobs with unique keys: submits of few keys that meet each other, replace each other, and are sent again."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from jobmaster.client.cluster import Cluster
from jobmaster.handlers import Unique
from jobmaster.model.errors import JobMasterError, NotUnique
from tests.simulation.checks.audit import Job
from tests.simulation.workload.clients import plain

if TYPE_CHECKING:
    from tests.simulation.history import History

UNIQUE_EVERY = 6
"""Of so many histories one has such jobs."""
_JOBS, _KEYS, _SUBMITS_MAX = 16, 2, 8


class UniqueJobs:
    """Two processes that submit jobs of two keys.

    Args:
        chance: the stream of the workload.
    """

    def __init__(self, history: History, clusters: list[Cluster], chance: Random) -> None:
        self._history = history
        self._clusters = clusters
        self._chance = chance

    async def run(self, seconds: float) -> None:
        """Some submits at about the same time, until the end of the history's active part."""
        async with asyncio.TaskGroup() as group:
            for number in range(_JOBS):
                wait = 0.9 * seconds * (number // 4) * 4 / _JOBS + 0.01 * self._chance.random()
                group.create_task(self._submit(self._clusters[number % len(self._clusters)], wait), name="unique")

    async def _submit(self, cluster: Cluster, wait: float) -> None:
        history, chance = self._history, self._chance
        await asyncio.sleep(wait)
        job = Job(history.new_id(), "unique", seconds=chance.choice((0.0, 0.05, 0.3, 0.7)))
        job.snoozes, job.pause = chance.randint(0, 1), chance.choice((0.02, 1.0))
        job.cancelled = True  # another one may replace it
        history.audit.jobs[job.id] = job
        rule = Unique(
            key=f"key {chance.randrange(_KEYS)}",
            on_conflict=chance.choice(("existing", "reject", "replace", "replace")),
        )
        for _ in range(_SUBMITS_MAX):
            try:
                receipt = await cluster.submit(plain, {}, job_id=job.id, unique=rule)
            except NotUnique:
                history.audit.hits["unique: reject"] += 1
                return
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * chance.random())
                continue
            history.audit.hits[f"unique: {receipt.answer}"] += 1
            if receipt.id_bytes == job.id:
                history.audit.acknowledged(job, str(receipt.level))
            return
