"""Named locks and actions that run once, as they are listed."""

from __future__ import annotations

from datetime import datetime

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


class OnceView(msgspec.Struct, frozen=True, kw_only=True):
    """An action that has been done once for a version."""

    name: str
    version: str
    holder: str
    """Host and process that did it."""
    done_us: int
    """Microseconds since 1970 by the master's clock."""

    @property
    def done_at(self) -> datetime | None:
        """Time of the record, aware, in UTC."""
        return moment(self.done_us)
