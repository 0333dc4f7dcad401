"""Named locks of a cluster in memory, and actions that run once there."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from jobmaster.clock import Clock
from jobmaster.model.flow.lock import ATTEMPT_ENDED, LockView, OnceState, OnceView
from jobmaster.ports import LockAnswer

NEVER_BEGUN = ("", -1, 0)


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
        self._actions: dict[tuple[str, str], OnceView] = {}
        self._begun: dict[tuple[str, str], tuple[str, int, int]] = {}
        """Lock and fencing number of the last attempt (0: it has failed), and failures."""

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
        found = self._actions.get((name, version))
        return found is not None and found.state is OnceState.DONE

    async def begin(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock begins to run the action."""
        with self._guard:
            row = self._rows.get(lock_name)
            if row is None or row.fence != fence:
                return False
            _, _, failures = self._begun.get((name, version), NEVER_BEGUN)
            self._begun[name, version] = (lock_name, fence, failures)
            self._put(name, version, row.label, OnceState.RUNNING, failures)
            return True

    async def fail(self, name: str, version: str, fence: int, error: str) -> None:
        """Record why an attempt failed, unless another one has begun."""
        with self._guard:
            lock_name, last, failures = self._begun.get((name, version), NEVER_BEGUN)
            if last == fence:
                self._begun[name, version] = (lock_name, 0, failures + 1)
                self._put(name, version, self._actions[name, version].holder, OnceState.FAILED, failures + 1, error)

    def _put(
        self, name: str, version: str, holder: str, state: OnceState, failures: int = 0, error: str | None = None
    ) -> None:
        self._actions.pop((name, version), None)  # the latest is the last
        self._actions[name, version] = OnceView(
            name=name, version=version, holder=holder, state=state, failures=failures, error=error,
            changed_us=self._clock.wall_us(),
        )  # fmt: skip

    async def record(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock has done the action."""
        with self._guard:
            row = self._rows.get(lock_name)
            if row is None or row.fence != fence:
                return False
            self._put(name, version, row.label, OnceState.DONE)
            return True

    async def actions(self, limit: int) -> list[OnceView]:
        """Actions that run, then those that have failed, then those that have been done; of each the latest first."""
        order = list(OnceState)
        with self._guard:
            found = [self._as_it_is(each) for each in reversed(self._actions.values())]
        return sorted(found, key=lambda each: order.index(each.state))[:limit]

    def _as_it_is(self, view: OnceView) -> OnceView:
        if view.state is not OnceState.RUNNING:
            return view
        lock_name, fence, _ = self._begun[view.name, view.version]
        row = self._held(lock_name)
        if row is not None and row.fence == fence:
            return view
        return msgspec.structs.replace(view, state=OnceState.FAILED, error=ATTEMPT_ENDED)

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
