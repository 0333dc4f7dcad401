"""Counts the results of runs whose handlers have a circuit breaker.

It stands between the builder of outcomes and their writer, and only in an agent with such handlers: others are not slowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from jobmaster.handlers import Handler
from jobmaster.handlers.flow.breaker import Breaker
from jobmaster.model.errors import ConfigError
from jobmaster.model.flow.breaker import BreakerRule, TrialResult
from jobmaster.model.job import ErrorInfo, FinalRow, HoldRow, JobState
from jobmaster_agents.outcomes.outcome_builder import OutcomeSink
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.pauses import Pauses

_ERROR = msgspec.json.Decoder(ErrorInfo)


class BreakerResults:
    """A sink of outcomes that passes every outcome on."""

    def __init__(self, sink: OutcomeSink, pauses: Pauses) -> None:
        self._sink = sink
        self._pauses = pauses
        self._counts: dict[str, list[int]] = {}
        self._trials: list[TrialResult] = []

    def final(self, job: ClaimedJob) -> None:
        """Count the outcome of a job, and pass it on."""
        handler = job.handler
        if handler is not None and (breaker := handler.options.breaker) is not None:
            row = job.row
            assert isinstance(row, FinalRow)
            if row.state == JobState.SUCCEEDED:
                self._count(job, breaker, failed=False)
            elif row.state == JobState.FAILED and row.error is not None:
                self._failed(job, breaker, row.error)
        self._sink.final(job)

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        """Count a failed attempt, and pass it on."""
        handler, row = job.handler, job.row
        if handler is not None and (breaker := handler.options.breaker) is not None:
            assert isinstance(row, HoldRow)
            if row.error is not None:
                self._failed(job, breaker, row.error)
        self._sink.hold(job, here=here)

    def succeeded(self, job: ClaimedJob) -> None:
        """Count a success that its attempt has recorded itself."""
        if job.handler is not None and (breaker := job.handler.options.breaker) is not None:
            self._count(job, breaker, failed=False)

    def take(self) -> tuple[dict[str, tuple[int, int]], list[TrialResult]]:
        """Runs and failures by breaker, and ends of trials, since the last call."""
        counts, trials = {name: (calls, failures) for name, (calls, failures) in self._counts.items()}, self._trials
        self._counts, self._trials = {}, []
        return counts, trials

    def _failed(self, job: ClaimedJob, breaker: Breaker, error: bytes) -> None:
        info = _ERROR.decode(error)
        failed = breaker.is_failure(info.reason, info.type)
        if failed is not None:
            self._count(job, breaker, failed=failed)

    def _count(self, job: ClaimedJob, breaker: Breaker, *, failed: bool) -> None:
        name = breaker.rule.name
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts[name] = [0, 0]
        counts[0] += 1
        counts[1] += failed
        if job.entry.id in self._pauses.trials:
            self._trials.append(TrialResult(name, job.entry.id, job.entry.attempt, failed))
            self._pauses.end_trial(job.entry.id)


def rules_of(handlers: Iterable[Handler]) -> Mapping[str, BreakerRule]:
    """Breakers of handlers by name.

    Raises:
        ConfigError: two handlers declare one breaker with different numbers.
    """
    found: dict[str, tuple[BreakerRule, str]] = {}
    for handler in handlers:
        if (breaker := handler.options.breaker) is None:
            continue
        rule, first = found.setdefault(breaker.rule.name, (breaker.rule, handler.name))
        if rule != breaker.rule:
            raise ConfigError(
                f"handlers {first!r} and {handler.name!r} declare the breaker {rule.name!r} with different numbers",
                hint=f"make one Breaker({rule.name!r}, ...) and give it to both",
            )
    return {name: rule for name, (rule, _) in found.items()}


def handlers_by_breaker(handlers: Iterable[Handler]) -> dict[str, frozenset[str]]:
    """Breaker -> names of its handlers."""
    found: dict[str, set[str]] = {}
    for handler in handlers:
        if (breaker := handler.options.breaker) is not None:
            found.setdefault(breaker.rule.name, set()).add(handler.name)
    return {name: frozenset(names) for name, names in found.items()}
