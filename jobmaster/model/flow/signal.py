"""Signals: what a job waits for before it runs, and what is sent."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from jobmaster.model.job_view import moment


class Recipients(StrEnum):
    """Which of the jobs that wait for a key receive a signal."""

    ALL = "all"
    ONE = "one"
    """The one that was submitted first, by its id."""


class OnTimeout(StrEnum):
    """What becomes of a job whose signal has not come in time."""

    EXPIRE = "expire"
    """It ends as EXPIRED."""
    RUN = "run"
    """It runs, and its context has no signal."""


class SignalStatus(StrEnum):
    """How the master has taken a signal."""

    SENT = "sent"
    REPEATED = "repeated"
    """Its id was sent before; the answer is that of then."""
    CONFLICT = "conflict"
    """Its id was sent before with another key, payload or recipients."""
    FULL = "full"
    """Too many signals are kept; nothing was sent."""


class OutgoingSignal(NamedTuple):
    """A signal on its way to the master; the first parameters of its statement."""

    id: bytes
    key: str
    payload: bytes
    """JSON."""
    recipients: str
    keep_seconds: float
    """0 = it is not kept."""


class SignalStep(NamedTuple):
    """Answer to a signal, or to the next portion of one."""

    status: SignalStatus
    delivered: int
    """Jobs that it has reached so far."""
    finished: bool
    """False: more jobs may wait for it; the same is sent again."""
    kept_until_us: int | None


class SignalSent(msgspec.Struct, frozen=True, kw_only=True):
    """What a signal has reached."""

    id_bytes: bytes
    """The id of the signal; to send it again without delivering it twice."""
    key: str
    delivered: int
    """Jobs that waited for it, and are due now."""
    kept_until_us: int | None
    """Until when it is kept for jobs to come, microseconds since 1970 by the master's clock; ``None``: it is not kept."""
    repeated: bool
    """This id was sent before, and nothing new was delivered."""


class KeptSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is kept for jobs to come."""

    id_bytes: bytes
    key: str
    recipients: Recipients
    payload_json: bytes
    actor: str
    sent_us: int
    kept_until_us: int
    delivered: int
    """Jobs that waited for it when it was sent."""

    @property
    def sent_at(self) -> datetime | None:
        """When it was sent, aware, in UTC."""
        return moment(self.sent_us)

    @property
    def kept_until(self) -> datetime | None:
        """Until when it is kept, aware, in UTC."""
        return moment(self.kept_until_us)


class WaitingJobs(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs wait for the signal of a key."""

    key: str
    jobs: int
    since_us: int
    """Since when the one that has waited longest, microseconds since 1970 by the master's clock."""

    @property
    def since(self) -> datetime | None:
        """Since when the one that has waited longest, aware, in UTC."""
        return moment(self.since_us)
