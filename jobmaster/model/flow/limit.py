"""Limits: how many jobs may run at once, and how many may start in a time, in the whole cluster."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from jobmaster.model.job_view import moment

LimitKey = tuple[str, str]
"""Name and key of a limit."""


class LimitUse(NamedTuple):
    """What one job takes of a limit while it runs."""

    name: str
    key: str
    """Each key of a limit has permits and a rate of its own; empty: the limit has one key."""
    weight: int
    """Permits, and starts of the rate. A job that is heavier than the limit takes all of it."""


class LimitValues(NamedTuple):
    """The numbers of a limit; at least one of ``running`` and ``rate`` is given."""

    name: str
    running: int | None
    """Jobs that may run at once."""
    rate: float | None
    """Starts a second."""
    burst: float | None
    """Starts that may come at once after a pause; ``None`` without a rate."""


class FullLimit(NamedTuple):
    """Why a job has no permit."""

    name: str
    key: str
    wait_seconds: float
    """Until the rate allows the next start; 0: unknown."""


class LoanQuestion(NamedTuple):
    """What an agent asks about permits that it starts jobs with by itself."""

    name: str
    key: str
    keeps: int
    """Permits that it keeps, whatever the answer: it has no more in use until it knows it."""
    wanted: int
    """Permits that it could use."""
    sequence: int
    """Number of the question; greater than that of the one before."""


class Loan(NamedTuple):
    """Permits that the master has lent to an agent."""

    name: str
    key: str
    permits: int
    """What it has from now on."""
    share: int
    """How many of them it may use; what is more it gives back as its jobs end. 0: it asks for each start."""


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as it was when it was read."""

    name: str
    running: int | None
    """Jobs that may run at once, of each key; ``None``: any number."""
    rate: float | None
    """Starts a second, of each key; ``None``: any number."""
    burst: float | None
    """Starts that may come at once after a pause."""
    declared: bool
    """An agent has declared it in code."""
    declared_running: int | None
    declared_rate: float | None
    declared_burst: float | None
    set_us: int | None
    """When an operator has set values that stand over those of the code (microseconds since 1970); ``None``: they count."""
    set_by: str
    set_reason: str
    taken: int
    """Permits of running jobs, of all keys together."""
    keys: int
    """Keys with a running job."""
    fullest_key: str
    """The key with the most permits taken."""
    fullest: int
    """Permits that are taken of it."""

    @property
    def set_at(self) -> datetime | None:
        """When an operator has set values, aware, in UTC."""
        return moment(self.set_us)
