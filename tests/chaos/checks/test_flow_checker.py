"""The checks of limits, order, signals, batches, workflows and unique keys: each kind of violation is flagged, no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.checks.checker import check
from tests.chaos.checks.flow import LOSS_SECONDS
from tests.chaos.checks.history import BatchRow, FaultRecord, History, Row, Run
from tests.chaos.processes import flow_jobs

BATCH, GOOD, UNDONE = "b" * 32, "c" * 32, "d" * 32


def ran(history: History, job: int, handler: str, at: float, seconds: float = 1.0, pid: int = 1) -> str:
    """A job of the value of its number that ran once and succeeded."""
    name = f"{job:032x}"
    history.runs[name] = [Run(pid, at, job, 1, handler)]
    history.ended[name] = [(pid, at + seconds)]
    failed = handler == flow_jobs.DECLINED
    history.rows[name] = Row("FAILED", 1, job, 0, 1, "failed") if failed else Row("SUCCEEDED", 1, job, 1, 1)
    return name


def good() -> History:
    """As much as the limit at once, the next one as soon as one has ended; a bit of everything else."""
    history = History(attempted=[(0, 99)])
    for job in range(flow_jobs.RUNNING_MAX):
        ran(history, job, flow_jobs.LIMITED, 1000.0)
    ran(history, flow_jobs.TENANTS, flow_jobs.LIMITED, 1001.0)
    for job in range(flow_jobs.LENT_RUNNING_MAX):
        ran(history, 80 + job, flow_jobs.LENT, 1000.0)
    history.loans = 2
    history.ordered = [[ran(history, 20 + n, flow_jobs.ORDERED, 1000.0 + 2 * n) for n in range(3)]]
    history.signalled = {ran(history, 30, flow_jobs.SIGNALLED, 1000.0)}
    callback = ran(history, 40, flow_jobs.CALLBACK, 1000.0)
    history.batches = {BATCH: (5, 40)}
    history.batch_rows = {BATCH: BatchRow("SUCCEEDED", 5, 5, (callback,))}
    history.workflows = {GOOD: (50, "SUCCEEDED"), UNDONE: (60, "FAILED")}
    history.workflow_states = {GOOD: "SUCCEEDED", UNDONE: "FAILED"}
    ran(history, 50, flow_jobs.CHARGE, 1000.0)
    history.runs["e" * 32] = [Run(1, 1001.0, 50, 1, flow_jobs.SHIP)]
    for number, handler in enumerate((flow_jobs.CHARGE, flow_jobs.DECLINED, flow_jobs.REFUND)):
        name = ran(history, 60 + number, handler, 1000.0 + number)
        history.runs[name] = [history.runs[name][0]._replace(value=60)]
    history.uniques = {70: ["1" * 32, "1" * 32]}
    history.fires = 3
    return history


def test_a_good_history_has_no_violation_and_is_counted() -> None:
    findings = check(good())
    assert findings.violations == {}
    assert findings.flow == {
        "limited_runs": 5, "limited_at_once": 4, "lent_runs": 12, "lent_at_once": 12, "loans": 2, "ordering_keys": 1,
        "signals": 1, "batches": 1, "batch_jobs": 5, "workflows": 1, "compensated_workflows": 1, "unique_keys": 1,
        "schedule_fires": 3,
    }  # fmt: skip


def exceed_the_limit(history: History) -> None:
    ran(history, 4, flow_jobs.LIMITED, 1000.5, 0.1)


def exceed_the_lent_permits(history: History) -> None:
    ran(history, 99, flow_jobs.LENT, 1000.5, 0.1)


def exceed_the_limit_of_a_tenant(history: History) -> None:
    for number in (1, 2):
        ran(history, number * flow_jobs.TENANTS, flow_jobs.LIMITED, 1001.0)
    ran(history, 3 * flow_jobs.TENANTS, flow_jobs.LIMITED, 1001.5)


def overlap(history: History) -> None:
    first = history.ordered[0][0]
    history.ended[first] = [(1, 1002.5)]


def swap(history: History) -> None:
    history.ordered[0][1:] = history.ordered[0][:0:-1]


def miss_a_signal(history: History) -> None:
    history.ended.pop(next(iter(history.signalled)))


def count_a_batch_wrong(history: History) -> None:
    history.batch_rows[BATCH] = history.batch_rows[BATCH]._replace(rows=4)


def never_end_a_batch(history: History) -> None:
    history.batch_rows[BATCH] = BatchRow("CLOSED", 5, 5, history.batch_rows[BATCH].fired)


def fire_no_callback(history: History) -> None:
    history.batch_rows[BATCH] = history.batch_rows[BATCH]._replace(fired=())
    history.batches.clear()


def run_two_callbacks(history: History) -> None:
    ran(history, 41, flow_jobs.CALLBACK, 1000.0)
    history.runs[f"{41:032x}"] = [Run(1, 1000.0, 40, 1, flow_jobs.CALLBACK)]


def stop_a_workflow(history: History) -> None:
    history.workflow_states[GOOD] = "RUNNING"


def undo_nothing(history: History) -> None:
    del history.runs[f"{62:032x}"]
    del history.rows[f"{62:032x}"]


def start_a_step_twice(history: History) -> None:
    history.runs["f" * 32] = [Run(1, 1001.0, 50, 1, flow_jobs.SHIP)]


def answer_with_two_jobs(history: History) -> None:
    history.uniques[70].append("2" * 32)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (exceed_the_limit, "limit_exceeded"),
        (exceed_the_lent_permits, "limit_exceeded"),
        (exceed_the_limit_of_a_tenant, "limit_exceeded"),
        (overlap, "order_broken"),
        (swap, "order_broken"),
        (miss_a_signal, "signal_missed"),
        (count_a_batch_wrong, "batch_wrong"),
        (never_end_a_batch, "batch_wrong"),
        (fire_no_callback, "batch_wrong"),
        (run_two_callbacks, "batch_wrong"),
        (stop_a_workflow, "workflow_wrong"),
        (undo_nothing, "workflow_wrong"),
        (start_a_step_twice, "workflow_wrong"),
        (answer_with_two_jobs, "unique_twice"),
    ],
)
def test_every_known_bad_history_is_flagged_as_what_it_is(spoil: Callable[[History], None], name: str) -> None:
    history = good()
    spoil(history)
    assert check(history).violations == {name: 1}


def test_what_stood_still_or_was_lost_by_its_store_may_overlap() -> None:
    for excuse in ("frozen", "lost", "no end"):
        history = good()
        job = ran(history, 4, flow_jobs.LIMITED, 1000.5, 0.1, pid=2)
        assert check(history).violations == {"limit_exceeded": 1}
        if excuse == "frozen":
            history.woken[2] = 1010.0
        elif excuse == "lost":
            at = 1000.0 - LOSS_SECONDS
            history.faults = [FaultRecord("store_flushed", at, at, frozenset({"store"}), "default")]
        else:
            del history.ended[job]
        assert check(history).violations == {}
