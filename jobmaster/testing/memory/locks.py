"""Named locks of a cluster in memory, and actions that run once there."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from jobmaster.clock import Clock
from jobmaster.model.lock import LockView, OnceView
from jobmaster.ports import LockAnswer


@dataclass
class _Row:
    acquisition: bytes
    label: str
    fence: int
    acquired: float
    expires: float
    """Both in CLOCK_BOOTTIME seconds: the wall clock of a cluster in memory is ahead while a later job runs."""


class MemoryLocks:
    """``jobmaster.ports.Locks`` in memory. Clusters on several event loops and threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._fence = 0
        self._rows: dict[str, _Row] = {}
        self._done: dict[tuple[str, str], OnceView] = {}

    async def acquire(self, name: str, acquisition: bytes, label: str, ttl_seconds: float) -> LockAnswer:
        """Take the lock when it is free; its fencing number, or its holder."""
        now = self._clock.boottime()
        with self._guard:
            row = self._held(name)
            if row is not None and row.acquisition != acquisition:
                return LockAnswer(None, self._view(name, row))
            if row is None:
                self._fence += 1
                row = self._rows[name] = _Row(acquisition, label, self._fence, now, now)
            row.expires = now + ttl_seconds
            return LockAnswer(row.fence, None)

    async def renew(self, name: str, fence: int, ttl_seconds: float) -> bool:
        """Extend the lock."""
        with self._guard:
            row = self._rows.get(name)
            if row is None or row.fence != fence:
                return False
            row.expires = self._clock.boottime() + ttl_seconds
            return True

    async def release(self, name: str, acquisition: bytes) -> None:
        """Give the lock back."""
        with self._guard:
            row = self._rows.get(name)
            if row is not None and row.acquisition == acquisition:
                del self._rows[name]

    async def revoke(self, name: str, actor: str) -> LockView | None:
        """Take the lock from its holder."""
        with self._guard:
            row = self._held(name)
            if row is None:
                return None
            del self._rows[name]
            return self._view(name, row)

    async def held(self, limit: int, name: str | None = None) -> list[LockView]:
        """Locks that have a holder, by name; or the one of a name."""
        with self._guard:
            names = sorted(self._rows) if name is None else [name]
            held = [(each, row) for each in names if (row := self._held(each)) is not None]
            return [self._view(each, row) for each, row in held[:limit]]

    async def is_done(self, name: str, version: str) -> bool:
        """Whether an action has been done for this version."""
        return (name, version) in self._done

    async def record(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock has done the action."""
        with self._guard:
            row = self._rows.get(lock_name)
            if row is None or row.fence != fence:
                return False
            self._done[name, version] = OnceView(
                name=name, version=version, holder=row.label, done_us=self._clock.wall_us()
            )
            return True

    async def done(self, limit: int) -> list[OnceView]:
        """Actions that have been done, the latest first."""
        return list(reversed(self._done.values()))[:limit]

    def _held(self, name: str) -> _Row | None:
        row = self._rows.get(name)
        return None if row is None or row.expires < self._clock.boottime() else row

    def _view(self, name: str, row: _Row) -> LockView:
        wall_us, now = self._clock.wall_us(), self._clock.boottime()
        return LockView(
            name=name,
            holder=row.label,
            fence=row.fence,
            acquired_us=wall_us + int((row.acquired - now) * 1e6),
            expires_us=wall_us + int((row.expires - now) * 1e6),
        )
