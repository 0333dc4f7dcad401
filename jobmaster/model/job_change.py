"""A change of a job that waits: what is to be changed, and whether that took effect before the job started."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from jobmaster.model.job import JobState, Priority
from jobmaster.model.job_view import moment


class ChangeEffect(StrEnum):
    """Whether a change took effect."""

    CHANGED = "CHANGED"
    """Before the job started: it waits with the new values."""
    ALREADY_CLAIMED = "ALREADY_CLAIMED"
    """Too late: an agent has the job in memory and starts it when a slot is free. Nothing was changed."""
    ALREADY_STARTED = "ALREADY_STARTED"
    """Too late: the job runs, or waits for its confirmation. Nothing was changed."""
    ALREADY_ENDED = "ALREADY_ENDED"
    """Too late: the job has ended. Nothing was changed."""


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a change of one job: whether it took effect, and the job as it is after it."""

    id_bytes: bytes
    """The id as its 16 bytes."""
    effect: ChangeEffect
    state: JobState
    """State of the job now; ``HELD`` when the change took effect."""
    due_us: int | None
    """When it may run, microseconds since 1970; ``None`` = at once."""
    priority: Priority
    lane: str
    unserved: bool = False
    """The change took effect, and no agent has a bucket of the job's lane and priority now."""

    @property
    def id(self) -> UUID:
        """The job's id, a UUIDv7."""
        return UUID(bytes=self.id_bytes)

    @property
    def changed(self) -> bool:
        """True when the change took effect before the job started."""
        return self.effect is ChangeEffect.CHANGED

    @property
    def due_at(self) -> datetime | None:
        """When it may run (aware, UTC); ``None`` = at once."""
        return moment(self.due_us)


CHANGE_ACTIONS = frozenset({"job run-now", "job reschedule", "job reprioritise", "job move", "job change"})
"""Names of changes in the operator log; see ``NewValues.action``."""


class NewValues(NamedTuple):
    """What a change sets; ``None`` leaves a value as it is."""

    due_us: int | None = None
    """Microseconds since 1970; 0 = now."""
    priority: int | None = None
    lane: str | None = None

    @property
    def action(self) -> str:
        """The name of the change in the operator log."""
        match self:
            case (0, None, None):
                return "job run-now"
            case (_, None, None):
                return "job reschedule"
            case (None, _, None):
                return "job reprioritise"
            case (None, None, _):
                return "job move"
        return "job change"


class ChangedRow(NamedTuple):
    """The row of a job after a change."""

    state: JobState
    due_us: int
    priority: int
    lane: str
    handler: str
