"""Metrics of committed outcomes; `failure_log` writes the lines of those that failed.

Called after the commit only, so that the sum over all agents equals the rows of the master (an agent that dies between a
commit and this call loses the count of that batch). Counted once per batch, never per job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

from jobmaster.model.job import FinalRow, HoldRow, JobState
from jobmaster.ports import Written
from jobmaster.telemetry import Telemetry
from jobmaster_agents.outcomes.failure_log import FailureLog

_RAN = (JobState.SUCCEEDED, JobState.FAILED)
"""A job can be cancelled or expire without a start: its times would say 0."""
# By position: of all ways to take a column out of rows the cheapest.
_state, _waited_us, _ran_us = (itemgetter(FinalRow._fields.index(name)) for name in ("state", "waited_us", "ran_us"))


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
        if states.count(first) == len(states):
            telemetry.jobs_ended[first] += len(states)
            if first != JobState.SUCCEEDED:
                self._failures.ended(rows)
            if first not in _RAN:
                return
        else:
            for state, count in Counter(states).items():
                telemetry.jobs_ended[state] += count
            self._failures.ended(row for row in rows if row.state != JobState.SUCCEEDED)
            rows = [row for row in rows if row.state in _RAN]
        telemetry.job_wait_seconds.observe_batch_us(list(map(_waited_us, rows)))
        telemetry.job_run_seconds.observe_batch_us(list(map(_ran_us, rows)))

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
            telemetry.job_run_seconds.observe_batch_us([row.ran_us for row in tried])
            self._failures.tried(tried)
        if not here:
            telemetry.jobs_held += sum(row.error is None and row.id not in written.cancelled for row in done)

    def wrote(self, seconds: float) -> None:
        """One batch has its answer, after so long."""
        self._telemetry.outcome_write_seconds.observe(seconds)
