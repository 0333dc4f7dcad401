"""Actions that run once per cluster and version, under a lock of their own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from jobmaster.client.locks.held_lock import POLL_SECONDS, POLL_SECONDS_MAX, HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.options import ONCE_PREFIX, LockOptions, holder_label
from jobmaster.clock import Clock
from jobmaster.handlers.once import OnceAction
from jobmaster.model.errors import JobMasterError, LockHeld, LockLost, OutcomeUnknown, Unavailable
from jobmaster.ports import Locks

ONCE_TTL_SECONDS = 30.0
"""How long the action of a dead process blocks its repetition."""
_RECORD_AGAIN_SECONDS = 0.5
_NOTE_SECONDS = 5.0


async def run_once(
    locks: Locks,
    clock: Clock,
    action: OnceAction,
    *,
    wait_seconds: float | None = None,
    on_wait: Callable[[LockHeld | None], None] = lambda _: None,
) -> bool:
    """Run the action, unless it has been done for its version; wait while another program runs it.

    Args:
        wait_seconds: for the other program; ``None``: without a limit.
        on_wait: called with the error that names the other program, and with ``None`` when the action starts here.

    Returns:
        True when it ran here.

    Raises:
        LockHeld: another program runs it, and the time to wait is over.
        LockLost: it ran here, and another program may run it again.
        Unavailable: the master does not answer.
        Exception: what the action raised; it has not been done.
    """
    name = f"{ONCE_PREFIX}{action.name}/{action.version}"
    until = None if wait_seconds is None else clock.boottime() + wait_seconds
    pause = POLL_SECONDS
    while not await locks.is_done(action.name, action.version):
        async with AsyncExitStack() as stack:
            options = LockOptions(name, holder_label(None), ONCE_TTL_SECONDS, 0.0)
            try:
                lock = await stack.enter_async_context(Lock(HeldLock(locks, options, clock)))
            except LockHeld as held:
                if until is not None and clock.boottime() >= until:
                    raise
                on_wait(held)
            else:
                if await locks.is_done(action.name, action.version):  # by the holder before
                    return False
                if not await locks.begin(action.name, action.version, lock.name, lock.fence):
                    raise LockLost(
                        f"lock {name!r} was lost before action {action.name!r} began", hint="it is tried again"
                    )
                on_wait(None)
                try:
                    await _called(action.function)
                except Exception as error:
                    await _note_failure(locks, action, lock, error)
                    raise
                await _record(locks, action, lock)
                return True
        await asyncio.sleep(pause * (1.0 - 0.5 * random.random()))
        pause = min(pause * 2, POLL_SECONDS_MAX)
    return False


async def _called(function: Callable[[], Any]) -> None:
    """A plain function runs in a thread. A thread cannot be cancelled, so the caller waits for its end: the lock is given
    back after it."""
    if inspect.iscoroutinefunction(function):
        await function()
        return
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
    if inspect.isawaitable(result):
        await result


async def _note_failure(locks: Locks, action: OnceAction, lock: Lock, error: Exception) -> None:
    """For the list of actions. Without an answer of the master the list shows an attempt that has ended."""
    with contextlib.suppress(JobMasterError, TimeoutError):
        async with asyncio.timeout(_NOTE_SECONDS):
            await locks.fail(action.name, action.version, lock.fence, f"{type(error).__name__}: {error}")


async def _record(locks: Locks, action: OnceAction, lock: Lock) -> None:
    """Record the action, while the lock is held: a lost answer is followed by the same statement."""
    while True:
        try:
            if not await locks.record(action.name, action.version, lock.name, lock.fence):
                raise LockLost(
                    f"action {action.name!r} {action.version} ran, and its lock was lost before that was recorded",
                    hint="it runs again",
                )
        except (OutcomeUnknown, Unavailable):
            await asyncio.sleep(_RECORD_AGAIN_SECONDS)  # a lock that is lost meanwhile cancels this
        else:
            return
