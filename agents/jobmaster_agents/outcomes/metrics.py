"""Metrics of committed outcomes; `failure_log` writes the lines of those that failed.

Called after the commit only, so that the sum over all agents equals the rows of the master (an agent that dies between a
commit and this call loses the count of that batch). Counted once per batch, never per job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import TypeVar

from jobmaster.model.job import FinalRow, HoldRow, JobState, Priority
from jobmaster.ports import Written
from jobmaster.telemetry import RunOutcome, Telemetry
from jobmaster_agents.outcomes.failure_log import FailureLog

_RAN = (JobState.SUCCEEDED, JobState.FAILED)
"""A job can be cancelled or expire without a start: its times would say 0."""
# By position: of all ways to take a column out of rows the cheapest.
_state, _waited_us, _ran_us = (itemgetter(FinalRow._fields.index(name)) for name in ("state", "waited_us", "ran_us"))
_handler = itemgetter(FinalRow._fields.index("handler"))
_group = itemgetter(FinalRow._fields.index("lane"), FinalRow._fields.index("priority"))
_LABELS = {priority.value: priority.label for priority in Priority}
_held_handler = itemgetter(HoldRow._fields.index("handler"))

_Row = TypeVar("_Row")
_Key = TypeVar("_Key", bound=Hashable)


class OutcomeMetrics:
    """Counts committed batches."""

    def __init__(self, telemetry: Telemetry, failures: FailureLog) -> None:
        self._telemetry = telemetry
        self._failures = failures

    def ended(self, rows: Sequence[FinalRow]) -> None:
        """These outcomes were committed."""
        if not rows:
            return
        telemetry = self._telemetry
        states: list[str] = list(map(_state, rows))
        first = states[0]
        all_alike = states.count(first) == len(states)
        all_succeeded = all_alike and first == JobState.SUCCEEDED
        if all_alike:
            telemetry.jobs_ended[first] += len(states)
            if not all_succeeded:
                self._failures.ended(rows)
            if first not in _RAN:
                return
        else:
            for state, count in Counter(states).items():
                telemetry.jobs_ended[state] += count
            self._failures.ended(row for row in rows if row.state != JobState.SUCCEEDED)
            rows = [row for row in rows if row.state in _RAN]
        for (lane, priority), waited in _parted(rows, _group):
            waits = telemetry.job_wait_seconds.of(lane, _LABELS[priority])
            waits.observe_batch_us(list(map(_waited_us, waited)))
        for handler, done in _parted(rows, _handler):
            succeeded = len(done) if all_succeeded else sum(row.state == JobState.SUCCEEDED for row in done)
            if succeeded:
                telemetry.handler_runs.add((telemetry.handler_label(handler), RunOutcome.SUCCEEDED), succeeded)
            self._ran(handler, list(map(_ran_us, done)))

    def _ran(self, handler: str, ran_us: list[int]) -> None:
        telemetry = self._telemetry
        telemetry.job_run_seconds.observe_batch_us(ran_us)
        telemetry.handler_run_seconds.of(telemetry.handler_label(handler)).observe_batch_us(ran_us)

    def accepted(self, rows: Sequence[FinalRow], written: Written) -> None:
        """The master has answered a batch of outcomes."""
        accepted = written.accepted
        self.ended(rows if len(accepted) == len(rows) else [row for row in rows if row.id in accepted])

    def given_back(self, rows: Sequence[HoldRow], written: Written, *, here: bool) -> None:
        """The master has answered a batch of jobs that have not ended.

        Args:
            here: they stay in their bucket.
        """
        telemetry = self._telemetry
        if written.cancelled:
            telemetry.jobs_ended[JobState.CANCELLED] += len(written.cancelled)
        done = [row for row in rows if row.id in written.accepted]
        if tried := [row for row in done if row.error is not None]:
            for handler, failed in _parted(tried, _held_handler):
                self._ran(handler, [row.ran_us for row in failed])
            self._failures.tried(tried)
        if not here:
            telemetry.jobs_held += sum(row.error is None and row.id not in written.cancelled for row in done)

    def wrote(self, seconds: float) -> None:
        """One batch has its answer, after so long."""
        self._telemetry.outcome_write_seconds.observe(seconds)


def _parted(rows: Sequence[_Row], key: Callable[[_Row], _Key]) -> list[tuple[_Key, Sequence[_Row]]]:
    """Rows by a key; without a copy when all have the same, as most batches do."""
    if not rows:
        return []
    if len(rows) == 1:  # at light load each outcome is a batch
        return [(key(rows[0]), rows)]
    keys = list(map(key, rows))
    first = keys[0]
    if keys.count(first) == len(keys):
        return [(first, rows)]
    parts: defaultdict[_Key, list[_Row]] = defaultdict(list)
    for each, row in zip(keys, rows, strict=True):
        parts[each].append(row)
    return list(parts.items())
