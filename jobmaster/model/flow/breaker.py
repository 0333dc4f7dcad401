"""Circuit breakers: states, rules and what a cluster knows about one."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.job_view import moment


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "CLOSED"
    """Jobs start."""
    OPEN = "OPEN"
    """Jobs wait in the master."""
    HALF_OPEN = "HALF_OPEN"
    """A bounded number of jobs, the *trials*, start; the others wait."""


class BreakerRule(NamedTuple):
    """When a breaker opens, and how it closes."""

    name: str
    """The resource."""
    failures: float
    """Share of failed runs, above 0 and at most 1."""
    window_seconds: float
    min_calls: int
    open_seconds: float
    half_open: int
    """Greatest number of trials."""


class BreakerChange(NamedTuple):
    """A change of state that a statement has made."""

    name: str
    state: BreakerState
    reason: str
    version: int
    """Version of the pauses from which agents obey it."""


class TrialResult(NamedTuple):
    """End of a run that was a trial."""

    name: str
    job_id: bytes
    attempt: int
    """Attempts that the job had used up before the run."""
    failed: bool


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker of a cluster. Times are microseconds since 1970 by the master's clock; the properties with ``_at`` are the
    same times as aware ``datetime`` in UTC."""

    name: str
    """The resource."""
    state: BreakerState
    failures: float
    """Share of failed runs from which it opens."""
    window_seconds: float
    min_calls: int
    open_seconds: float
    half_open: int
    """Greatest number of trials."""
    handlers: tuple[str, ...]
    """Handlers that name it."""
    calls: int
    """Runs in the window that count."""
    failed: int
    """Those of them that have failed."""
    trial_jobs: tuple[UUID, ...] = ()
    """Jobs that are trials and have not ended."""
    succeeded: int = 0
    """Trials that have succeeded since it became half-open."""
    changed_us: int
    """When it has got its state."""
    until_us: int | None = None
    """When an open breaker becomes half-open; ``None``: when it is closed by an operator, or it is not open."""
    actor: str = ""
    reason: str = ""
    epoch: int = 0
    """Grows with every change of the state."""

    @property
    def changed_at(self) -> datetime | None:
        """When it has got its state."""
        return moment(self.changed_us)

    @property
    def until_at(self) -> datetime | None:
        """When it becomes half-open."""
        return moment(self.until_us)
