"""Named locks, and actions that run once."""

from __future__ import annotations

from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.model.flow.lock import ATTEMPT_ENDED, LockView, OnceState, OnceView
from jobmaster.ports import LockAnswer

ERROR_CHARS_MAX = 1000


class Locks:
    """``jobmaster.ports.Locks`` on PostgreSQL."""

    def __init__(self, control: StatementRunner) -> None:
        self._control = control

    async def acquire(self, name: str, acquisition: bytes, label: str, ttl_seconds: float) -> LockAnswer:
        """Take the lock when it is free; its fencing number, or its holder."""
        rows = await self._control.write("locks/acquire", name, acquisition, label, ttl_seconds)
        if not rows:
            return LockAnswer(None, None)
        held = _lock(rows[0])
        return LockAnswer(held.fence, None) if rows[0]["taken"] else LockAnswer(None, held)

    async def renew(self, name: str, fence: int, ttl_seconds: float) -> bool:
        """Extend the lock; False when this number does not hold it any more."""
        return bool(await self._control.write("locks/renew", name, fence, ttl_seconds))

    async def release(self, name: str, acquisition: bytes) -> None:
        """Give the lock back, if this acquisition holds it."""
        await self._control.write("locks/release", name, acquisition)

    async def revoke(self, name: str, actor: str) -> LockView | None:
        """Take the lock from its holder, with a line in the operator's log; the lock as it was, ``None``: it was free."""
        rows = await self._control.write("locks/revoke", name, actor)
        return _lock(rows[0]) if rows else None

    async def held(self, limit: int, name: str | None = None) -> list[LockView]:
        """Locks that have a holder, by name; or the one of a name."""
        return [_lock(row) for row in await self._control.read("locks/held", limit, name)]

    async def is_done(self, name: str, version: str) -> bool:
        """Whether an action has been done for this version."""
        return bool(await self._control.read("once/done", name, version))

    async def begin(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock begins to run the action; False when it is not the holder any more."""
        return bool(await self._control.write("once/begin", name, version, lock_name, fence))

    async def fail(self, name: str, version: str, fence: int, error: str) -> None:
        """Record why an attempt failed, unless another one has begun."""
        await self._control.write("once/fail", name, version, fence, error.replace("\0", "")[:ERROR_CHARS_MAX])

    async def record(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock has done the action; False when it is not the holder any more."""
        return bool(await self._control.write("once/record", name, version, lock_name, fence))

    async def actions(self, limit: int) -> list[OnceView]:
        """Actions that run, then those that have failed, then those that have been done; of each the latest first."""
        return [
            OnceView(
                name=row["name"],
                version=row["version"],
                holder=row["label"],
                state=OnceState(row["state"]),
                failures=row["failures"],
                error=row["error"] or (ATTEMPT_ENDED if row["state"] == OnceState.FAILED else None),
                changed_us=to_us(row["changed_at"]),
            )
            for row in await self._control.read("once/list", limit)
        ]


def _lock(row: Row) -> LockView:
    return LockView(
        name=row["name"],
        holder=row["label"],
        fence=row["fence"],
        acquired_us=to_us(row["acquired_at"]),
        expires_us=to_us(row["expires_at"]),
    )
