"""Lines and numbers about runs whose handler is slow, or whose retry policy does not work; within bounds for each handler."""

from __future__ import annotations

from collections.abc import Callable

from jobmaster.model.job import Priority
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.log_rate_limit import LogRateLimit
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.time_limits import trace_fields_of


class HandlerLog:
    """Logs and counts.

    Args:
        now: seconds on a clock that only goes forward.
    """

    def __init__(self, telemetry: Telemetry, log: EventLog, now: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._log = log
        self._log_rate_limit = LogRateLimit(now)

    def overdue(self, job: ClaimedJob, seconds: float) -> None:
        """An attempt has run for so long, and that is more than ``warn_after`` of its handler."""
        owned = job.claimed_list.owned
        name = self._telemetry.handler_label(job.entry.handler)
        self._telemetry.attempts_overdue.add((name, owned.lane, Priority(owned.priority).label))
        if (fields := self._fields(job, Event.ATTEMPT_OVERDUE)) is not None:
            self._log.warning(Event.ATTEMPT_OVERDUE, {**fields, "seconds": seconds})

    def policy_problem(self, job: ClaimedJob, why: str) -> None:
        """The answer of a handler's ``retry`` did not count, so its other rules decided."""
        if (fields := self._fields(job, Event.RETRY_POLICY_FAILED)) is not None:
            self._log.warning(Event.RETRY_POLICY_FAILED, {**fields, "reason": why})

    def _fields(self, job: ClaimedJob, event: Event) -> dict[str, object] | None:
        """Fields of a line about this job; ``None``: there have been enough lines."""
        entry = job.entry
        left_out = self._log_rate_limit.admit(entry.handler, event)
        if left_out is None:
            return None
        whose: dict[str, object] = {"job": entry.id, "handler": entry.handler, "attempt": entry.attempt + 1}
        whose |= trace_fields_of(entry.headers)
        return {**whose, "left_out": left_out} if left_out else whose
