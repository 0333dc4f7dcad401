"""Counts and log lines of jobs and attempts that failed or were snoozed, within bounds for each handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from jobmaster.codec import decode_error
from jobmaster.metric_values import OTHER
from jobmaster.model.job import ErrorInfo, FinalRow, HoldRow, JobState, Priority
from jobmaster.telemetry import RunOutcome, Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.log_rate_limit import LogRateLimit
from jobmaster_agents.state.time_limits import trace_fields_of

_MESSAGE_CHARS = 500
_SNOOZED = "snoozed"
_TIMED_OUT = "timeout"


class FailureLog:
    """Counts jobs that did not succeed by handler and reason, and logs a line for each, within bounds.

    A cluster in which every job fails writes a few lines a minute for each handler, and the next line has the number of
    those left out.

    Args:
        now: seconds on a clock that only goes forward.
    """

    def __init__(self, telemetry: Telemetry, log: EventLog, now: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._log = log
        self._log_rate_limit = LogRateLimit(now)

    def ended(self, rows: Iterable[FinalRow]) -> None:
        """These outcomes were committed, and none is a success."""
        runs: list[tuple[str, RunOutcome]] = []
        for row in rows:
            info = _read(row.error)
            labels = self._labels(row, info)
            self._telemetry.jobs_failed.add(labels)
            if row.state == JobState.CANCELLED and row.ran_us:
                runs.append((labels[0], RunOutcome.CANCELLED))
            if row.state == JobState.FAILED:
                self._telemetry.attempts_failed.add(labels)
                runs.append((labels[0], RunOutcome.TIMED_OUT if info.reason == _TIMED_OUT else RunOutcome.FAILED))
                if (fields := self._line(Event.JOB_FAILED, row, info)) is not None:
                    self._log.warning(Event.JOB_FAILED, fields)
        self._count(runs)

    def tried(self, rows: Iterable[HoldRow]) -> None:
        """These attempts, failed or snoozed, were committed, and others follow."""
        runs: list[tuple[str, RunOutcome]] = []
        for row in rows:
            info = _read(row.error)
            labels = self._labels(row, info)
            if info.reason == _SNOOZED:
                self._telemetry.jobs_snoozed.add(labels[:-1])
                runs.append((labels[0], RunOutcome.SNOOZED))
                if (fields := self._line(Event.JOB_SNOOZED, row, info)) is not None:
                    self._log.info(Event.JOB_SNOOZED, fields)
                continue
            self._telemetry.attempts_failed.add(labels)
            runs.append((labels[0], RunOutcome.TIMED_OUT if info.reason == _TIMED_OUT else RunOutcome.RETRIED))
            if (fields := self._line(Event.ATTEMPT_FAILED, row, info)) is not None:
                self._log.info(Event.ATTEMPT_FAILED, fields)
        self._count(runs)

    def _count(self, runs: list[tuple[str, RunOutcome]]) -> None:
        """Runs by handler and outcome: the rows of one call are mostly alike."""
        for labels, count in Counter(runs).items():
            self._telemetry.handler_runs.add(labels, count)

    def _labels(self, row: FinalRow | HoldRow, info: ErrorInfo) -> tuple[str, ...]:
        # A job that is cancelled or expires may have any name.
        return self._telemetry.handler_label(row.handler), row.lane, Priority(row.priority).label, info.reason

    def _line(self, event: Event, row: FinalRow | HoldRow, info: ErrorInfo) -> dict[str, object] | None:
        """Fields of the line; ``None``: there have been enough lines."""
        name = self._telemetry.handler_label(row.handler)
        left_out = self._log_rate_limit.admit("" if name == OTHER else name, event)
        if left_out is None:
            return None
        return {
            "job": row.id,
            "handler": row.handler,
            "attempt": row.attempt,
            "reason": info.reason,
            "error": info.type,
            "message": info.message[:_MESSAGE_CHARS],
            **trace_fields_of(row.headers),
            **({"left_out": left_out} if left_out else {}),
        }


def _read(error: bytes | None) -> ErrorInfo:
    try:
        return decode_error(error or b"{}")
    except (msgspec.DecodeError, ValueError):  # written by a newer program
        return ErrorInfo(type="", message="", reason="unknown")
