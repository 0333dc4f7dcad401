"""Replaces names of the product while a history runs: fresh ids, worker processes, and the periods of maintenance tasks,
which are as short as the leases of a simulation.

The product has no hooks for this: the names are those that its modules import.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

from jobmaster.client.batches import batch
from jobmaster.client.batches import batches as client_batches
from jobmaster.client.bulk_operations import operations, retried_jobs
from jobmaster.client.locks import held_lock, once
from jobmaster.codec import error_of
from jobmaster.handlers import Fail, Snooze
from jobmaster.handlers.decisions import asked_seconds
from jobmaster.master import schedules
from jobmaster.master.driver import resent_writes
from jobmaster.master.flow import batches
from jobmaster.model.flow.batch import range_of
from jobmaster.model.job import ErrorInfo
from jobmaster.rules import fire_decision
from jobmaster_agents import (
    agent,
    bucket_worker,
    call_retry,
    periodic_task,
    run_agent,
    schedule_publisher,
    store_connector,
)
from jobmaster_agents.breakers import reporter
from jobmaster_agents.buckets import anti_entropy, graceful_shutdown, provisioner
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.pool import MayBegin
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.fetch import claimer, wake_listener
from jobmaster_agents.leader import (
    batch_watch,
    breaker_trials,
    bulk_worker,
    due_notifier,
    schedule_firing,
    unserved_jobs,
)
from jobmaster_agents.lease import process_statistics
from jobmaster_agents.outcomes import bucket_enqueuer, kept, kept_replay, outcome_builder, writer
from jobmaster_agents.rescue import rescuer
from jobmaster_agents.state import permit_loans, store_reachability
from tests.simulation.runtime.event_loop import PROCESS

Patch = tuple[object, str, object]


async def _nothing(_: object) -> None:
    return None


LEAD_SECONDS = 0.6
"""Time by which fires of schedules are decided ahead; the leader's lease lasts one second."""
MISFIRE_US = 700_000

PERIODS: list[Patch] = [
    (permit_loans, "HOT_STARTS", 1),  # there are few jobs
    (anti_entropy, "IDLE_FACTOR", 2.0),
    (anti_entropy, "PACE_SECONDS", 0.3),
    (bucket_enqueuer, "UNSURE_SECONDS", 2.0),  # longer than the longest wait of a call
    (store_connector, "AGAIN_SECONDS", 0.4),
    (rescuer, "IDLE_SECONDS", 2.0),
    (rescuer, "RETRY_SECONDS", 0.1),
    (rescuer, "RETRY_SECONDS_MAX", 0.6),
    (store_reachability, "PING_EVERY_SECONDS", 0.1),
    (store_reachability, "PING_SECONDS", 0.2),
    (due_notifier, "HINT_SECONDS", 0.2),
    (store_connector, "OTHERS_SECONDS", 0.2),
    (run_agent, "_LAST_TICKS_SECONDS", 0.2),
    (periodic_task, "BACKOFF_SECONDS", 0.05),
    (periodic_task, "BACKOFF_SECONDS_MAX", 0.5),
    (call_retry, "BACKOFF_SECONDS_MAX", 0.4),
    (provisioner, "REPLACE_SECONDS", 0.1),
    (wake_listener.WakeListener, "wake_seconds", 1.0),
    (graceful_shutdown, "_RETIRE_SECONDS", 2.0),
    (graceful_shutdown, "_STOP_SECONDS", 0.5),
    (kept_replay, "_AGAIN_SECONDS", 1.5),
    (writer, "_UNWRITABLE_AGAIN_SECONDS", 1.5),
    (claimer, "BATCH_BYTES", 1500),
    (claimer, "CLAIMED_BYTES", 3000),
    (writer, "OUTCOME_BYTES", 3000),
    (kept, "BATCH_BYTES", 1500),
    (schedule_publisher, "CHECK_SECONDS", 0.5),
    (once, "ONCE_TTL_SECONDS", 0.5),
    (once, "_RECORD_AGAIN_SECONDS", 0.05),
    (once, "holder_label", lambda label: "program"),
    (schedules, "LEAD_SECONDS", LEAD_SECONDS),
    (schedule_firing, "LEAD_SECONDS", LEAD_SECONDS),
    (fire_decision, "_MISFIRE_US", MISFIRE_US),
    (batch, "SIGN_SECONDS", 0.1),
    (batch, "_BLOCK_JOBS", 2),
    (batch, "_BLOCK_JOBS_MAX", 8),
    (client_batches, "SILENT_SECONDS", 0.5),
    (client_batches, "_LOOK_SECONDS_MAX", 0.1),
    (batch_watch, "QUIET_SECONDS", 1.0),
    (batch_watch, "LOOK_SECONDS", 0.3),
    (reporter, "EVERY_SECONDS", 0.15),
    (reporter, "KEPT_SECONDS", 1.0),
    (breaker_trials, "LOOK_SECONDS", 0.1),
    (bulk_worker, "PAGE_JOBS", 2),
    (bulk_worker, "PAGE_JOBS_MIN", 2),
    (bulk_worker, "PAGE_JOBS_MAX", 4),
    (bulk_worker, "READS_MAX", 16),
    (unserved_jobs.UnservedJobsMonitor, "_count_paused", _nothing),  # a figure for people, which changes nothing
    (process_statistics.ProcessStatistics, "due", lambda *_: None),  # the same of this process
]
"""Leases last one second here instead of ten, and jobs carry a kilobyte at most instead of 256."""
_COUNTED = ("final", "persisted", "held", "kept_here")
MAINTENANCE_SPEED = 40.0
"""The leader's maintenance tasks run so much more often."""


class Ids:
    """Fresh ids whose time part is the simulation's, the rest drawn."""

    def __init__(self, wall_us: Callable[[], int], chance: Random) -> None:
        self._wall_us = wall_us
        self._chance = chance
        self._last = 0
        self.ranges: list[bytes] = []
        """Ranges of batches."""

    def new_range(self) -> bytes:
        """The lowest id of a fresh range."""
        self.ranges.append(range_of(self()))
        return self.ranges[-1]

    def lowest(self) -> bytes:
        """Below every id that is made from now on."""
        return (self._wall_us() // 1000).to_bytes(6, "big") + bytes(10)

    def __call__(self) -> bytes:
        ms = self._wall_us() // 1000
        self._last += 1
        tail = (self._last << 46) | self._chance.getrandbits(46)
        return (
            ms.to_bytes(6, "big")
            + (0x7000 | (self._last >> 16 & 0xFFF)).to_bytes(2, "big")
            + ((tail & ((1 << 62) - 1)) | (2 << 62)).to_bytes(8, "big")
        )


class SimPool:
    """Worker processes: the handler runs after a while, and can be killed.

    Stands for ``ProcessPool``; a rescued job runs here whatever its handler's mode is.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    async def run(self, job: ProcessJob, begin: MayBegin, take_back: object = None) -> AttemptResult:
        return await self.run_alone(job, begin)

    async def run_alone(self, job: ProcessJob, begin: MayBegin) -> AttemptResult:
        await asyncio.sleep(0.01)
        if not await begin():
            return AttemptResult(kind=ResultKind.NOT_STARTED)
        return await _run_isolated(job, asyncio.get_running_loop().time())

    grows = True

    def room(self) -> None:
        """Every job comes by ``run``."""

    def take_back_stalled(self, now: float) -> None:
        return None

    def kill_all(self) -> None:
        return None

    async def close(self) -> None:
        return None


async def _run_isolated(job: ProcessJob, began: float) -> AttemptResult:
    process_ = PROCESS.get()
    assert process_ is not None
    result = await process_.history.run_isolated(job.job_id, job.token, job.attempt, job.snoozes)
    ran_us = int((asyncio.get_running_loop().time() - began) * 1e6)
    if not isinstance(result, Exception):
        return AttemptResult(kind=ResultKind.OK, result=b"%d" % result, ran_us=ran_us)
    handler = process_.parts.bucket_worker._handlers.get(job.handler)
    rules = handler.options.retry_rules
    if isinstance(result, Snooze):
        kind, reason = ResultKind.SNOOZE, "snoozed"
    elif isinstance(result, Fail):
        kind, reason = ResultKind.FAIL, "failed"
    elif rules is not None and not rules.decide(result, lambda: None).again:
        kind, reason = ResultKind.FAIL, "given_up"
    else:
        kind, reason = ResultKind.ERROR, "error"
    after = asked_seconds(result) if isinstance(result, Snooze) else None
    error = _error_of(result, reason=reason, limit_bytes=1000)
    return AttemptResult(kind=kind, error=error, ran_us=ran_us, after_seconds=after)


def _error_of(error: BaseException, *, reason: str = "error", limit_bytes: int = 1000) -> ErrorInfo:
    """A traceback names files and lines: a master that refuses long statements would make another history of it elsewhere,
    as would the mark of a traceback that was cut. It takes long to write, too."""
    raised_at = error.__traceback__
    try:
        found = error_of(error.with_traceback(None), reason=reason, limit_bytes=limit_bytes)
    finally:
        error.__traceback__ = raised_at
    return msgspec.structs.replace(found, traceback=_TRACEBACK)


_TRACEBACK = "Traceback (most recent call last):\n" + 5 * '  File "handler.py", line 1, in handler\n    raise error\n'


def _without_figures(runtime: agent.AgentRuntime) -> list[periodic_task.PeriodicTask]:
    """No decision reads the figures of what waits; without them a seed goes on to mean the same history."""
    return [task for task in _periodic_tasks(runtime) if task is not runtime.backlog]


_periodic_tasks = agent.AgentRuntime.periodic_tasks


class PatchedProduct:
    """Replaces names while it is open, and puts them back.

    Args:
        more: patches of an ablation.
    """

    def __init__(self, hits: Counter[str], new_id: Ids, more: list[Patch] | None = None) -> None:
        self._patches: list[Patch] = [
            *PERIODS,
            (provisioner, "new_id", new_id),
            (store_connector, "new_id", new_id),
            (schedule_firing, "new_id", new_id),
            (held_lock, "new_id", new_id),
            (batches, "new_id", new_id),
            (operations, "new_id", new_id),
            (retried_jobs, "new_id", new_id),
            (batch, "new_range", new_id.new_range),
            (agent, "__version__", "0"),
            (agent.AgentRuntime, "periodic_tasks", _without_figures),
            (bucket_worker, "ProcessPool", SimPool),
            (outcome_builder, "error_of", _error_of),
            *((resent_writes, name, _counted(getattr(resent_writes, name), name, hits)) for name in _COUNTED),
            *(more or []),
        ]  # fmt: skip
        self._before: list[Patch] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        for owner, name, value in self._patches:
            self._before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(self._before):
                setattr(owner, name, value)
            self._before.clear()


def _counted(compare: Callable[..., Any], name: str, hits: Counter[str]) -> Callable[..., Any]:
    @functools.wraps(compare)
    def counting(*args: Any) -> Any:
        result = compare(*args)
        hits[f"resent {name}: {result.value}"] += 1
        return result

    return counting
