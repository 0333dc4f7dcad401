"""Metrics of committed outcomes; `failure_log` writes the lines of those that failed.

Called after the commit only, so that the sum over all agents equals the rows of the master (an agent that dies between a
commit and this call loses the count of that batch). Counted once per batch, never per job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from jobmaster.metric_values import Histogram, Labels
from jobmaster.model.job import FinalRow, HoldRow, JobState, Priority
from jobmaster.ports import Written
from jobmaster.telemetry import RunOutcome, Telemetry
from jobmaster_agents.outcomes.failure_log import FailureLog

_RAN = (JobState.SUCCEEDED, JobState.FAILED)
"""A job can be cancelled or expire without a start: its times would say 0."""
_SUCCEEDED = JobState.SUCCEEDED
# By position: of all ways to take a column out of rows the cheapest.
_state, _waited_us, _ran_us = (itemgetter(FinalRow._fields.index(name)) for name in ("state", "waited_us", "ran_us"))
_handler, _bucket_id = (itemgetter(FinalRow._fields.index(name)) for name in ("handler", "bucket_id"))
_held_handler, _held_ran_us = (itemgetter(HoldRow._fields.index(name)) for name in ("handler", "ran_us"))
_BUCKETS_MAX = 10_000
"""Buckets whose lane and priority are remembered: ended ones stay until there are so many."""
_LABELS = {priority.value: priority.label for priority in Priority}


class _OfHandler(NamedTuple):
    """Where the runs of one handler are counted."""

    succeeded: Labels
    """Labels of its successes."""
    seconds: Histogram


class OutcomeMetrics:
    """Counts committed batches."""

    def __init__(self, telemetry: Telemetry, failures: FailureLog) -> None:
        self._telemetry = telemetry
        self._failures = failures
        self._handlers: dict[str, _OfHandler] = {}
        """By name, of those with series of their own."""
        self._waits: dict[bytes, Histogram] = {}
        """By bucket, which has one lane and one priority for its life."""

    def ended(self, rows: Sequence[FinalRow]) -> None:
        """These outcomes were committed."""
        if not rows:
            return
        telemetry = self._telemetry
        states: list[str] = list(map(_state, rows))
        first = states[0]
        all_alike = states.count(first) == len(states)
        succeeded: Counter[str] | None = None
        if all_alike:
            telemetry.jobs_ended[first] += len(states)
            if first != _SUCCEEDED:
                succeeded = Counter()
                self._failures.ended(rows)
            if first not in _RAN:
                return
        else:
            for state, count in Counter(states).items():
                telemetry.jobs_ended[state] += count
            self._failures.ended(row for row in rows if row.state != _SUCCEEDED)
            rows = [row for row in rows if row.state in _RAN]
            if not rows:
                return
            succeeded = Counter(row.handler for row in rows if row.state == _SUCCEEDED)
        self._waited(rows)
        self._ran(list(map(_handler, rows)), list(map(_ran_us, rows)), succeeded)

    def _waited(self, rows: Sequence[FinalRow]) -> None:
        """Jobs have waited in the buckets of these rows: mostly all of one lane and priority, though of several buckets."""
        known, waits = self._waits, self._waits.get(rows[0].bucket_id)
        if waits is not None and (len(rows) == 1 or set(map(known.get, set(map(_bucket_id, rows)))) == {waits}):
            waits.observe_batch_us(list(map(_waited_us, rows)))
            return
        if len(known) >= _BUCKETS_MAX:
            known.clear()
        by_histogram: defaultdict[Histogram, list[int]] = defaultdict(list)
        for row in rows:
            waits = known.get(row.bucket_id)
            if waits is None:
                waits = self._telemetry.job_wait_seconds.of(row.lane, _LABELS[row.priority])
                known[row.bucket_id] = waits
            by_histogram[waits].append(row.waited_us)
        for waits, waited_us in by_histogram.items():
            waits.observe_batch_us(waited_us)

    def _ran(self, handlers: list[str], ran_us: list[int], succeeded: Counter[str] | None) -> None:
        """Runs have ended.

        Args:
            handlers, ran_us: of each run.
            succeeded: how many of them by handler; ``None``: all.
        """
        telemetry, first = self._telemetry, handlers[0]
        parts: Iterable[tuple[str, list[int]]]
        if handlers.count(first) == len(handlers):
            parts = ((first, ran_us),)
        else:
            by_handler: defaultdict[str, list[int]] = defaultdict(list)
            for handler, each in zip(handlers, ran_us, strict=True):
                by_handler[handler].append(each)
            parts = by_handler.items()
        for handler, times in parts:
            of_handler = self._handlers.get(handler) or self._of_handler(handler)
            if count := len(times) if succeeded is None else succeeded[handler]:
                telemetry.handler_runs[of_handler.succeeded] += count
            of_handler.seconds.observe_batch_us(times)

    def _of_handler(self, handler: str) -> _OfHandler:
        telemetry = self._telemetry
        label = telemetry.handler_label(handler)
        found = _OfHandler(
            telemetry.handler_runs.place((label, RunOutcome.SUCCEEDED)), telemetry.handler_run_seconds.of(label)
        )
        if label == handler:
            self._handlers[handler] = found
        return found

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
            self._ran(list(map(_held_handler, tried)), list(map(_held_ran_us, tried)), Counter())
            self._failures.tried(tried)
        if not here:
            telemetry.jobs_held += sum(row.error is None and row.id not in written.cancelled for row in done)

    def wrote(self, seconds: float) -> None:
        """One batch has its answer, after so long."""
        self._telemetry.outcome_write_seconds.observe(seconds)
