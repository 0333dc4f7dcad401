"""``with cluster.lock(name)`` in plain code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.options import LockOptions
from jobmaster.model.errors import InputError

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

CallCluster = Callable[[Callable[["Cluster"], Coroutine[Any, Any, HeldLock]]], HeldLock]


class SyncLock:
    """A named lock of the cluster, for plain code. Made by ``SyncCluster.lock``; usable once.

    ::

        with cluster.lock("nightly-import", ttl=60) as lock:
            for page in pages:
                lock.check()
                store(page, fence=lock.fence)

    A thread cannot be cancelled: when the lock is lost, the body goes on until it calls ``check``, and the statement raises
    ``LockLost`` at its end.
    """

    def __init__(self, call: CallCluster, options: LockOptions) -> None:
        self._call = call
        self._options = options
        self._used = False
        self._held: HeldLock | None = None

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._options.name

    @property
    def fence(self) -> int:
        """Fencing number: higher than that of every earlier holder of this lock; 0 before the lock is held."""
        return 0 if self._held is None else self._held.fence

    def check(self) -> None:
        """Return while the lock is held.

        Raises:
            LockLost: it is not.
        """
        self._entered().check()

    def __enter__(self) -> Self:
        if self._used:
            raise InputError(
                f"lock {self.name!r} has been used", hint="call cluster.lock() again for another acquisition"
            )
        self._used = True

        async def acquired(cluster: Cluster) -> HeldLock:
            held = cluster._held_lock(self._options)
            await held.acquire()
            held.keep(lambda: None)
            return held

        self._held = self._call(acquired)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = self._entered()

        async def closed(_: Cluster) -> HeldLock:
            await held.close()
            return held

        self._call(closed)
        if held.lost_because:
            if error is None:
                raise held.lost()
            error.add_note(str(held.lost()))

    def _entered(self) -> HeldLock:
        if self._held is None:
            raise InputError(f"lock {self.name!r} is not held", hint="use it in a with statement")
        return self._held
