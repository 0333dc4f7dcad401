"""What is promised of limits, ordering keys, signals, batches, workflows and unique keys, on what handlers and producers
wrote down and what the master says in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.checks.history import History
from tests.chaos.processes import flow_jobs

FLOW_VIOLATIONS = (
    "limit_exceeded",
    "order_broken",
    "signal_missed",
    "batch_wrong",
    "workflow_wrong",
    "unique_twice",
)
LOSS_SECONDS = 12.0
"""A bucket whose store has lost it is rescued without waiting for what its living agent runs: so long after a store's loss
two runs of a job may overlap. Three leases."""
STEPS = {
    "SUCCEEDED": {flow_jobs.CHARGE: 1, flow_jobs.SHIP: 1},
    "FAILED": {flow_jobs.CHARGE: 1, flow_jobs.DECLINED: 1, flow_jobs.REFUND: 1},
}
"""End of a workflow -> the jobs of each handler that it has had."""
Note = Callable[[str, str, str], None]
"""Name of the violation, job, and what is wrong."""


class Span(NamedTuple):
    """One run of a handler whose end is known."""

    job: str
    value: int
    began: float
    ended: float


def check_flow(history: History, note: Note) -> dict[str, int]:
    """Note every violation; how much there was of each part."""
    spans = list(_spans(history, flow_jobs.LIMITED))
    most = _limit(spans, flow_jobs.RUNNING_MAX, "all", note)
    for tenant in range(flow_jobs.TENANTS):
        mine = [span for span in spans if span.value % flow_jobs.TENANTS == tenant]
        _limit(mine, flow_jobs.TENANT_RUNNING_MAX, f"tenant {tenant}", note)
    lent = list(_spans(history, flow_jobs.LENT))
    most_lent = _limit(lent, flow_jobs.LENT_RUNNING_MAX, "the lent permits", note)
    _order(history, note)
    _signals(history, note)
    jobs_of = _jobs_by_handler_and_value(history)
    _batches(history, jobs_of, note)
    _workflows(history, jobs_of, note)
    for value, jobs in history.uniques.items():
        if len(set(jobs)) > 1:
            note("unique_twice", jobs[0], f"the key {value} has also {sorted(set(jobs) - {jobs[0]})}")
    ends = Counter(state for _, state in history.workflows.values())
    return {
        "limited_runs": len(spans),
        "limited_at_once": most,
        "lent_runs": len(lent),
        "lent_at_once": most_lent,
        "loans": history.loans,
        "ordering_keys": len(history.ordered),
        "signals": len(history.signalled),
        "batches": len(history.batches),
        "batch_jobs": sum(size for size, _ in history.batches.values()),
        "workflows": ends["SUCCEEDED"],
        "compensated_workflows": ends["FAILED"],
        "unique_keys": len(history.uniques),
        "schedule_fires": history.fires,
    }


# ------------------------------------------------------------ limits and order


def _spans(history: History, handler: str) -> Iterator[Span]:
    """Runs with a known end: that of their last line, or of their process when a fault killed it. Those of a process that
    stood still are left out (it cannot stop them, and is not awake), and those during the loss of a store."""
    killed = {pid: fault.at for fault in history.faults for pid in fault.pids}
    losses = [fault for fault in history.faults if fault.uncovered]
    for job, runs in history.runs.items():
        for run in runs:
            if run.handler != handler or run.pid in history.woken:
                continue
            last_lines = [at for pid, at in history.ended.get(job, ()) if pid == run.pid and at >= run.at]
            ended = min(last_lines, default=killed.get(run.pid))
            if ended is None or ended < run.at:
                continue
            if any(loss.at <= ended and run.at <= loss.until + LOSS_SECONDS for loss in losses):
                continue
            yield Span(job, run.value, run.at, ended)


def _limit(spans: Iterable[Span], most: int, of: str, note: Note) -> int:
    """The most runs at one moment; note those beyond the limit."""
    steps = [(span.began, 1, span.job) for span in spans] + [(span.ended, 0, span.job) for span in spans]
    running = greatest = 0
    for _, begins, job in sorted(steps):  # an end before a beginning at the same time
        running += 1 if begins else -1
        greatest = max(greatest, running)
        if begins and running > most:
            note("limit_exceeded", job, f"{running} ran at once, the limit of {of} is {most}")
    return greatest


def _order(history: History, note: Note) -> None:
    by_job: dict[str, list[Span]] = {}
    for span in _spans(history, flow_jobs.ORDERED):
        by_job.setdefault(span.job, []).append(span)
    for jobs in history.ordered:
        for earlier, later in pairwise(job for job in jobs if job in by_job):
            ended = max(span.ended for span in by_job[earlier])
            began = min(span.began for span in by_job[later])
            if began < ended:
                note("order_broken", later, f"began {ended - began:.3f} s before the end of {earlier}")


# ------------------------------------------------------------ signals, batches, workflows


def _signals(history: History, note: Note) -> None:
    for job in history.signalled:
        row = history.rows.get(job)
        if row is not None and row.state == "SUCCEEDED" and job not in history.ended:
            note("signal_missed", job, "has run without the signal that was sent in time")


def _jobs_by_handler_and_value(history: History) -> dict[tuple[str, int], set[str]]:
    found: dict[tuple[str, int], set[str]] = {}
    for job, runs in history.runs.items():
        found.setdefault((runs[0].handler, runs[0].value), set()).add(job)
    return found


def _batches(history: History, jobs_of: dict[tuple[str, int], set[str]], note: Note) -> None:
    for batch, row in history.batch_rows.items():
        if len(row.fired) != 1:
            note("batch_wrong", batch, f"{row.state}, and its callback was fired {len(row.fired)} times")
        elif row.counted != row.rows:
            note("batch_wrong", batch, f"{row.state} with {row.counted} jobs, {row.rows} have ended")
    for batch, (size, value) in history.batches.items():
        there = history.batch_rows.get(batch)
        if there is None or (there.state, there.counted) != ("SUCCEEDED", size):
            note("batch_wrong", batch, f"of {size} jobs is {there}")
        elif len(jobs_of.get((flow_jobs.CALLBACK, value), ())) != 1:
            note("batch_wrong", batch, f"its callback ran as {jobs_of.get((flow_jobs.CALLBACK, value))}")


def _workflows(history: History, jobs_of: dict[tuple[str, int], set[str]], note: Note) -> None:
    handlers = sorted({handler for steps in STEPS.values() for handler in steps})
    for workflow, (value, state) in history.workflows.items():
        ran = {handler: len(jobs_of.get((handler, value), ())) for handler in handlers}
        ended = history.workflow_states.get(workflow)
        if ended != state or {handler: count for handler, count in ran.items() if count} != STEPS[state]:
            note("workflow_wrong", workflow, f"is {ended}, not {state}; jobs: {ran}")
