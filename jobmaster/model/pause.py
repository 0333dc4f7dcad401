"""Pauses: what shall not start."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from jobmaster.model.job_view import moment


class PauseKind(StrEnum):
    """What a pause covers."""

    HANDLER = "handler"
    """The jobs of one handler."""
    LANE = "lane"
    """Every job of one lane."""
    PRIORITY = "priority"
    """Every job of one priority, by its name."""
    TAG = "tag"
    """The jobs that have one tag."""
    BREAKER = "breaker"
    """The jobs of the handlers of one circuit breaker, by the name of its resource. Not by an operator's pause: while the
    breaker is open or half-open."""
    SCHEDULE = "schedule"
    """The fires of one schedule. Part of the schedule, and not of the pauses in force, which are about jobs."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause in force: no job that it covers starts. Times are microseconds since 1970 by the master's clock; the properties
    with ``_at`` are the same times as aware ``datetime`` in UTC."""

    kind: PauseKind
    value: str
    """Name of the handler or lane, name of the priority, or tag."""
    actor: str
    """The operator who has paused it, or has changed the pause last."""
    reason: str
    since_us: int
    until_us: int | None = None
    """``None``: until it is resumed."""
    left_seconds: float | None = None
    """Time to the end when it was read; ``None`` without an end."""
    handlers: tuple[str, ...] = ()
    """Of a breaker: the handlers whose jobs it holds."""
    trials: tuple[bytes, ...] = ()
    """Of a half-open breaker: the jobs that may start all the same."""

    @property
    def subject(self) -> str:
        """What is paused, as text: ``handler 'images.resize'``."""
        return subject_of(self.kind, self.value)

    @property
    def since_at(self) -> datetime | None:
        """When it began."""
        return moment(self.since_us)

    @property
    def until_at(self) -> datetime | None:
        """When it ends; ``None``: when it is resumed."""
        return moment(self.until_us)

    def covers(self, handler: str, lane: str, priority: str, tags: tuple[str, ...] = ()) -> bool:
        """True when a job with these properties does not start."""
        if self.kind is PauseKind.TAG:
            return self.value in tags
        if self.kind is PauseKind.BREAKER:
            return handler in self.handlers
        return self.value == {PauseKind.HANDLER: handler, PauseKind.LANE: lane, PauseKind.PRIORITY: priority}[self.kind]


def subject_of(kind: PauseKind, value: str) -> str:
    """What a pause covers, as text."""
    return f"{kind} {value}" if kind is PauseKind.PRIORITY else f"{kind} {value!r}"


class PausesInForce(NamedTuple):
    """The pauses of a cluster at one moment."""

    version: int
    """Grows with every pause and every resume."""
    pauses: tuple[Pause, ...]
    cancelled_ranges: frozenset[bytes] = frozenset()
    """First 12 bytes of the ids of jobs whose batch was cancelled, of each range of such a batch that has not ended."""


class PauseFollower(NamedTuple):
    """A living agent that runs jobs."""

    id: bytes
    name: str
    host: str
    pid: int
    obeys: bool
    """It has applied the version of the pauses that was asked about."""


class PauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a pause or a resume has brought about."""

    kind: PauseKind
    value: str
    version: int | None
    """Version of the pauses with this change, 0 of a schedule; ``None``: there was no such pause, and nothing was changed."""
    until_us: int | None = None
    """End of the pause by the master's clock, microseconds since 1970; ``None`` without one, and after a resume."""
    agents: int = 0
    """Living agents that run jobs."""
    obeying: int = 0
    """Those of them that have confirmed the change."""
    seconds: float = 0.0
    """Time from the change to this answer."""

    @property
    def changed(self) -> bool:
        """False when there was nothing to resume."""
        return self.version is not None

    @property
    def until_at(self) -> datetime | None:
        """End of the pause (aware, UTC)."""
        return moment(self.until_us)
