"""Whether an agent makes progress: the condition for the renewal of its lease.

A heartbeat which only proves that its own timer fires proves nothing. So two things are checked before each renewal:

* the event loop has turned: a callback went through its ready queue, like all other work;
* no task that promised progress is silent. Such a task notes progress in every turn of its loop and before every try of a
  call. Two kinds of waiting are no silence: an idle task promises nothing (``waiting``), and a call of a server ends by its
  own time limit, after which it is tried again. What is left is a task that hangs although the loop turns: in a lock, in a
  call whose time limit has failed, in a loop that never ends.

The tasks of ``BucketWorker`` promise progress: claimers, wake listener, due fetchers, outcome writers, acknowledger, bucket
enqueuer, fenced starts, kept outcomes and their replay, cancellation. Slots, threads and worker processes do not: what they
wait for is the handler of a user, which has a time limit of its own. Periodic tasks (heartbeat, rescue, leader, anti-entropy)
do not either: no job of a healthy bucket waits for one of them, and a heartbeat that hangs ends the lease by itself.

One silence only withholds renewals. They are tried again until the lease ends, so a process that was stopped for a while
and goes on has time to note progress before anything happens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobmaster.settings.model import ClusterSettings

SILENCE_LEASES = 6.0
"""A task may be silent for so many leases,"""
SILENCE_SECONDS_MIN = 30.0
"""and for so long at least: a blocking pop of an idle store takes 5 s, whatever the settings are,"""
SILENCE_CALLS = 10.0
"""and for so many calls of a server that each take the longest time they may: one step of a task makes a few."""


def silence_seconds(settings: ClusterSettings) -> float:
    """How long a task that promised progress may be silent."""
    master = settings.master
    calls = [
        2.0 * master.statement_timeout_seconds + master.connect_timeout_seconds
    ]  # (a connection is waited for, too)
    calls += [store.call_timeout_seconds + store.connect_timeout_seconds for store in settings.stores.values()]
    leases = SILENCE_LEASES * settings.leases.lease_seconds
    return max(leases, SILENCE_CALLS * max(calls), SILENCE_SECONDS_MIN)


def _running_task() -> asyncio.Task[Any] | None:
    """``None`` where no loop runs: a coroutine that is closed after its loop has ended leaves its blocks there."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _Watched:
    """A task that promised progress."""

    __slots__ = ("name", "noted_at")

    def __init__(self, name: str, noted_at: float) -> None:
        self.name = name
        self.noted_at = noted_at
        """Infinite while it waits."""


class _Waiting:
    """While this is entered, the running task promises nothing."""

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> None:
        self._progress.note(math.inf)

    def __exit__(self, *_: object) -> None:
        self._progress.note()


class Progress:
    """The progress of one process.

    Args:
        now: the clock of the lease, in seconds.
        silence_seconds: how long a task that promised progress may be silent.
    """

    def __init__(self, now: Callable[[], float], silence_seconds: float = math.inf) -> None:
        self._now = now
        self._silence_seconds = silence_seconds
        self._turns = 0
        self._attested = -1
        self._watched: dict[asyncio.Task[Any] | None, _Watched] = {}
        self.waiting = _Waiting(self)
        """``with progress.waiting:`` around a wait of the running task that may take for ever: for work, for a lease."""

    def expect_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next turn of the loop count."""
        loop.call_soon(self._turned)

    def _turned(self) -> None:
        self._turns += 1

    @contextmanager
    def expect(self, name: str) -> Iterator[None]:
        """The running task promises to note progress, until this is left. (Tasks that it starts promise nothing by that.)"""
        task = _running_task()
        self._watched[task] = _Watched(name, self._now())
        try:
            yield
        finally:
            del self._watched[task]

    def note(self, at: float | None = None) -> None:
        """The running task has made progress, just now or ``at``; nothing when it promised none."""
        watched = self._watched.get(_running_task())
        if watched is not None:
            watched.noted_at = self._now() if at is None else at

    def attest(self, now: float) -> str | None:
        """``None`` when the loop has turned since the last attestation and no task is overdue; otherwise what is wrong."""
        if self._turns == self._attested:
            return "the event loop has not turned"
        for watched in self._watched.values():
            if (silent := now - watched.noted_at) > self._silence_seconds:
                return f"{watched.name} has made no progress for {silent:.1f} s"
        self._attested = self._turns
        return None
