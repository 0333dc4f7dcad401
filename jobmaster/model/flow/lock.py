"""Named locks and actions that run once, as they are listed."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from jobmaster.model.job_view import moment


class LockView(msgspec.Struct, frozen=True, kw_only=True):
    """A lock as it was when it was read. Times are microseconds since 1970 by the master's clock."""

    name: str
    holder: str
    """Host, process and label of the holder."""
    fence: int
    """Fencing number of the holder: higher than that of every earlier one."""
    acquired_us: int
    expires_us: int
    """End of the lock, unless the holder renews it before."""

    @property
    def acquired_at(self) -> datetime | None:
        """Time of the acquisition, aware, in UTC."""
        return moment(self.acquired_us)

    @property
    def expires_at(self) -> datetime | None:
        """End of the lock unless it is renewed, aware, in UTC."""
        return moment(self.expires_us)


ATTEMPT_ENDED = "its program ended, or lost the lock, before the action was done"
"""Why an attempt failed that left no error of its own."""


class OnceState(StrEnum):
    """State of a version of an action that runs once."""

    RUNNING = "running"
    """A program runs it, and holds its lock."""
    FAILED = "failed"
    """Its last attempt raised, or its program ended or lost the lock; it is tried again."""
    DONE = "done"
    """It never runs again."""


class OnceView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an action that runs once."""

    name: str
    version: str
    holder: str
    """Host and process that did it, run it, or tried it last."""
    state: OnceState
    failures: int = 0
    """Attempts that raised; 0 once it is done."""
    error: str | None = None
    """Why the last attempt failed."""
    changed_us: int
    """When it was done, begun, or failed: microseconds since 1970 by the master's clock."""

    @property
    def changed_at(self) -> datetime | None:
        """When it was done, begun, or failed; aware, in UTC."""
        return moment(self.changed_us)
