"""Calls of a cluster about named locks, and about actions that run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobmaster.client.calls.parts import ClusterParts
from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.once import run_once
from jobmaster.client.locks.options import (
    LISTED_MAX,
    LOCK_CHARS_MAX,
    TTL_SECONDS,
    LockOptions,
    Seconds,
    check_lock_name,
    lock_options,
    wait_seconds,
)
from jobmaster.handlers import check_name
from jobmaster.handlers.once import once_action
from jobmaster.model.flow.lock import LockView, OnceView


class LockCalls(ClusterParts):
    """Part of ``Cluster``."""

    def lock(
        self, name: str, /, *, ttl: Seconds = TTL_SECONDS, wait: Seconds | None = 0.0, label: str | None = None
    ) -> Lock:
        """A named lock of the whole cluster, for ``async with``: at most one program holds it.

        Args:
            name: 1 to 200 printable characters; not beginning with ``once/``.
            ttl: 1 s to a day: how long a dead holder blocks the others. A living one renews the lock every third of it.
            wait: seconds to wait for another holder; 0: fail at once; ``None``: no limit. There is no queue: the first
                attempt after the release gets the lock, and attempts are up to 1 s apart.
            label: what the lock is held for, beside host and process; at most 100 characters.

        Raises:
            InputError: one of these cannot be meant. For the errors of ``async with`` see ``Lock``.
        """
        return Lock(self._held_lock(lock_options(name, ttl, wait, label)))

    def _held_lock(self, options: LockOptions) -> HeldLock:
        self._refuse_closed()
        return HeldLock(self.master.locks, options, self._clock)

    async def locks(self, name: str | None = None) -> list[LockView]:
        """Locks that have a holder now, by name; at most 1000. With ``name``: that one, if it has a holder."""
        return await self.master.locks.held(LISTED_MAX, None if name is None else check_lock_name(name))

    async def release_lock(self, name: str, *, actor: str = "client") -> LockView | None:
        """Take a lock from its holder, with a line in the operator's log. The holder notices it with its next renewal,
        within a third of the ttl; until then both may work. The lock as it was; ``None``: it was free."""
        return await self.master.locks.revoke(check_lock_name(name), check_name(actor, "'actor'", LOCK_CHARS_MAX))

    async def once(self, name: str, version: str, action: Callable[[], Any], /, *, wait: Seconds | None = None) -> bool:
        """Run ``action()`` once per cluster and version; wait while another program runs it. True when it ran here.

        The action of a process that dies, or loses the lock of the action, runs again elsewhere: it must be repeatable.

        Args:
            name: 1 to 90 printable characters.
            version: the same.
            action: a coroutine function, or a plain one, which runs in a thread.
            wait: seconds to wait for the other program; ``None``: no limit.

        Raises:
            LockHeld: another program runs it, and the time to wait is over.
            LockLost: its lock was lost while it ran here; it has not been recorded.
            Exception: what the action raised; it has not been recorded.
        """
        self._refuse_closed()
        limit = wait_seconds(wait)
        return await run_once(self.master.locks, self._clock, once_action(name, version, action), wait_seconds=limit)

    async def once_actions(self) -> list[OnceView]:
        """Actions that run once: those that run, then failed ones, then done ones; of each the latest first. At most 1000."""
        return await self.master.locks.actions(LISTED_MAX)
