"""``async with cluster.lock(name)``: the body runs while the lock is held, and is cancelled when the lock is lost."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.model.errors import InputError


class Lock:
    """A named lock of the cluster. Made by ``Cluster.lock``; usable once.

    ::

        async with cluster.lock("nightly-import", ttl=60) as lock:
            await import_rates(fence=lock.fence)

    ``async with`` raises ``LockHeld``, or ``Unavailable`` when the master does not answer. When the lock is lost, the body is
    cancelled, and the statement raises ``LockLost``; an error that the body raises itself comes first.
    """

    def __init__(self, held: HeldLock) -> None:
        self._held = held
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._inside = False
        self._cancelled = False

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._held.name

    @property
    def fence(self) -> int:
        """Fencing number: higher than that of every earlier holder of this lock. A system that keeps the highest number it
        has seen can refuse the writes of a holder that has lost the lock."""
        return self._held.fence

    def check(self) -> None:
        """Return while the lock is held; for code that blocks the event loop, or that runs in threads.

        Raises:
            LockLost: it is not.
        """
        self._held.check()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise InputError(
                f"lock {self.name!r} has been used", hint="call cluster.lock() again for another acquisition"
            )
        self._task = asyncio.current_task()
        assert self._task is not None
        await self._held.acquire()
        self._cancelling = self._task.cancelling()
        self._inside = True
        self._held.keep(self._on_lost)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False  # no cancellation from here on
        await self._held.close()
        if not self._held.lost_because:
            return
        assert self._task is not None
        if self._cancelled and self._task.uncancel() > self._cancelling:
            return  # cancelled from outside, too
        if error is None or (self._cancelled and isinstance(error, asyncio.CancelledError)):
            raise self._held.lost() from error
        error.add_note(str(self._held.lost()))

    def _on_lost(self) -> None:
        if self._inside and self._task is not None:
            self._cancelled = True
            self._task.cancel()
