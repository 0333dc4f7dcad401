"""Batches in a history: filled and cancelled by a client, ended by whichever agent or leader comes to it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from jobmaster.client.batches.batch import Batch
from jobmaster.client.bulk import BulkFailed
from jobmaster.client.cluster import Cluster
from jobmaster.handlers import call
from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.batch import range_of
from tests.simulation.checks.audit import Job
from tests.simulation.runtime.hosts import SimClock
from tests.simulation.workload.clients import HANDLERS, plain

if TYPE_CHECKING:
    from tests.simulation.history import History

BATCHES = 4
_ABANDON_SECONDS = 10.0
_OPENS_MAX = 6
_RUNS_MAX = 12
_CANCELLED_SHARE = 0.25


async def fill_batches(history: History) -> None:
    """A client with some batches, each of which gets jobs now and then until it is closed."""
    chance = Random(f"batches {history.seed}")
    clock = SimClock(history.loop, 11.0)
    cluster = Cluster(history.settings, history.open_master(), history.open_stores(), handlers=HANDLERS, clock=clock)
    async with asyncio.TaskGroup() as group:
        for number in range(BATCHES):
            group.create_task(_life(history, cluster, chance, number), name="batch")
        group.create_task(_resumed_life(history, cluster, Random(f"resumed batch {history.seed}")), name="batch")


async def _resumed_life(history: History, cluster: Cluster, chance: Random) -> None:
    """A batch with a key whose producers die, each after some of its jobs; the last one closes it."""
    size, deaths = chance.randint(5, 25), chance.randint(1, 3)
    for run in range(_RUNS_MAX):
        await asyncio.sleep(0.5 * chance.random())
        batch = cluster.batch("resumed", key="resumed", on_complete=call(plain), abandon_after=_ABANDON_SECONDS)
        try:
            await batch.__aenter__()
            async with asyncio.timeout(0.06 * chance.random() if run < deaths else None):
                await _submit_from_the_start(history, batch, chance.randint(0, size) if run < deaths else size)
            if run >= deaths:
                await batch.close()
                break
        except TimeoutError:
            history.audit.hits["batch: its producer dies in a submit"] += 1
        except JobMasterError as error:
            history.audit.hits[f"resumed batch: {type(error).__name__}"] += 1
        finally:
            batch._stop_touching()
    else:
        return
    # A failover may have forgotten how far a producer had come.
    if batch.submitted != size and not history.audit.failed_over:
        history.audit.broken("I12", f"a batch of {size} jobs was closed with {batch.submitted}")


async def _submit_from_the_start(history: History, batch: Batch, count: int) -> None:
    """Every run gives the same jobs; those of an earlier one are passed over."""

    def known(job_id: bytes) -> bytes:
        history.audit.jobs.setdefault(job_id, Job(job_id, "batched"))
        return job_id

    if (earlier := batch._earlier) is not None:
        id_of = earlier.id_of
        vars(earlier)["id_of"] = lambda number: known(id_of(number))
    if (ids := batch._ids) is not None:
        take = ids.next
        vars(ids)["next"] = lambda: None if (job_id := take()) is None else known(job_id)
    summary = await batch.submit_many(call(plain) for _ in range(count))
    for job_id in summary.ids.as_bytes():
        history.audit.acknowledged(history.audit.jobs[job_id], "batch")


async def _life(history: History, cluster: Cluster, chance: Random, number: int) -> None:
    await asyncio.sleep(1.2 * chance.random())
    for _ in range(_OPENS_MAX):
        batch = cluster.batch(
            f"batch-{number}", on_complete=call(plain), on_success=call(plain), on_failure=call(plain),
            abandon_after=_ABANDON_SECONDS,
        )  # fmt: skip
        try:
            async with batch:
                for _ in range(chance.randint(1, 3)):
                    await _submit(history, batch, chance)
            if chance.random() < _CANCELLED_SHARE:
                await _cancel(history, cluster, batch, chance)
            return
        except JobMasterError as error:
            history.audit.hits[f"batch: {type(error).__name__}"] += 1
            if batch._id is not None:
                return  # it counts as abandoned in the end
            await asyncio.sleep(0.1 + 0.2 * chance.random())


async def _submit(history: History, batch: Batch, chance: Random) -> None:
    """Some jobs, which are known to the audit when they get their ids."""
    ids = batch._ids
    assert ids is not None
    take = type(ids).next

    def known() -> bytes | None:
        job_id = take(ids)
        if job_id is not None:
            seconds = chance.choice((0.0, 0.0, 0.02, 0.1, 0.4))
            history.audit.jobs[job_id] = Job(job_id, "batched", seconds=seconds)
        return job_id

    vars(ids)["next"] = known
    try:
        summary = await batch.submit_many(call(plain) for _ in range(chance.randint(0, 5)))
    except BulkFailed as error:
        summary = error.summary
    for job_id in summary.ids.as_bytes():
        history.audit.acknowledged(history.audit.jobs[job_id], "batch")
    await asyncio.sleep(0.3 * chance.random())


async def _cancel(history: History, cluster: Cluster, batch: Batch, chance: Random) -> None:
    await asyncio.sleep(0.5 * chance.random())
    ranges = {lowest for lowest, of in history.master.statements.tables.batch_ranges.items() if of == batch.id_bytes}
    for job in history.audit.jobs.values():
        if range_of(job.id) in ranges:
            job.cancelled = True
    await cluster.batches.cancel(batch)


def unended(history: History) -> list[str]:
    """Batches that have not ended, though every job of theirs is there."""
    tables = history.master.statements.tables
    found = []
    for row in tables.batches.values():
        ranges = {lowest for lowest, of in tables.batch_ranges.items() if of == row.id}
        mine = [job for job in history.audit.jobs.values() if range_of(job.id) in ranges]
        if row.look_us is not None and not any(job.may_be_lost for job in mine):
            found.append(f"batch {row.name} is still {row.state}")
    return found
