"""One acquisition of a named lock: taken, renewed in the background, given back.

The holder counts its term from the sending of the last accepted renewal, on CLOCK_BOOTTIME, and stops a tenth of the ttl
before its end; the master counts from the moment at which it wrote the row, which is later (``jobmaster.rules.lease``). So
jumps of the wall clock do not matter, only the rates of two clocks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from jobmaster.client.locks.options import LockOptions
from jobmaster.clock import Clock, new_id
from jobmaster.model.errors import JobMasterError, LockHeld, LockLost, OutcomeUnknown, Unavailable
from jobmaster.ports import LockAnswer, Locks
from jobmaster.rules.lease import Term, renewed

_log = logging.getLogger(__name__)

RENEW_SHARE = 1 / 3
"""Share of the ttl between two renewals."""
CALL_SHARE = 1 / 4
"""Share of the ttl after which a renewal without an answer is given up and sent again."""
RETRY_SHARE = 1 / 10
"""Share of the ttl between a failed renewal and the next one."""
TICK_SECONDS_MAX = 1.0
"""Longest time between two looks at the clock: timers do not run while the machine sleeps, CLOCK_BOOTTIME does."""
POLL_SECONDS = 0.05
POLL_SECONDS_MAX = 1.0
"""Pauses of a program that waits for a lock: the first one, doubled up to the longest."""
RELEASE_SECONDS = 5.0
"""How long giving a lock back may take; without an answer the lock ends with its ttl."""


class HeldLock:
    """A lock of this program, from its acquisition to its release. Used on one event loop; ``check`` in any thread.

    Args:
        options: checked ones.
    """

    def __init__(self, locks: Locks, options: LockOptions, clock: Clock) -> None:
        self._locks = locks
        self._options = options
        self._now = clock.boottime
        self._acquisition = new_id()
        self._term: Term | None = None
        self._trouble = ""
        self._in_doubt = False
        """The master may have given the lock to this acquisition, and the answer is not known."""
        self._keeping: asyncio.Task[None] | None = None
        self.fence = 0
        self.lost_because = ""
        """Why the lock is not held any more; empty while it is held."""

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._options.name

    # ------------------------------------------------------------ acquisition

    async def acquire(self) -> None:
        """Take the lock, within the time to wait.

        Raises:
            LockHeld: another program holds it.
            Unavailable: the master does not answer. The lock may be held until its ttl is over.
        """
        wait = self._options.wait_seconds
        until = None if wait is None else self._now() + wait
        pause = POLL_SECONDS
        try:
            while (failure := await self._attempt()) is not None:
                left = None if until is None else until - self._now()
                if left is not None and left <= 0:
                    raise failure
                drawn = pause * (1.0 - 0.5 * random.random())
                await asyncio.sleep(drawn if left is None else min(drawn, left))
                pause = min(pause * 2, POLL_SECONDS_MAX)
        except BaseException:
            if self._in_doubt:
                await self._give_back()
            raise

    async def _attempt(self) -> LockHeld | Unavailable | None:
        """Take the lock, or the reason why that failed."""
        name, _, ttl_seconds, _ = self._options
        sent = self._now()
        before, self._in_doubt = self._in_doubt, True
        try:
            answer = await self._locks.acquire(name, self._acquisition, self._options.label, ttl_seconds)
        except Unavailable as error:
            self._in_doubt = before or isinstance(error, OutcomeUnknown)
            return Unavailable(
                f"lock {name!r} was not acquired: {error.message}",
                hint=f"if the master has taken the lock for this program, it ends within {ttl_seconds:g} s",
            )
        if answer.fence is None:
            self._in_doubt = False
            return _held(name, answer)
        granted = renewed(None, sent, self._now(), ttl_seconds)
        if granted is None:
            return Unavailable(
                f"lock {name!r} was not acquired: the answer of the master took {self._now() - sent:.1f} s of its ttl of "
                f"{ttl_seconds:g} s",
                hint="give a longer ttl",
            )
        self.fence, self._term, self._in_doubt = answer.fence, granted, False
        return None

    # ------------------------------------------------------------ possession

    def keep(self, on_lost: Callable[[], None]) -> None:
        """Renew the lock in the background.

        Args:
            on_lost: called once, on this loop, when the lock is lost.
        """
        self._keeping = asyncio.ensure_future(self._keep(on_lost))

    def check(self) -> None:
        """Return while the lock is held.

        Raises:
            LockLost: it is not.
        """
        if not self.lost_because and (self._term is None or self._now() >= self._term.hard_until):
            self.lost_because = self._too_late()
        if self.lost_because:
            raise self.lost()

    def lost(self) -> LockLost:
        """The error of a lock that was lost."""
        return LockLost(
            f"lock {self.name!r} (fencing number {self.fence}) was lost: {self.lost_because}",
            hint="another program may hold it now: undo or repeat what was done under it",
        )

    def _too_late(self) -> str:
        why = f" ({self._trouble})" if self._trouble else ""
        return f"it was not renewed within its ttl of {self._options.ttl_seconds:g} s{why}"

    async def _keep(self, on_lost: Callable[[], None]) -> None:
        ttl_seconds, now = self._options.ttl_seconds, self._now
        assert self._term is not None
        sent = self._term.trusted_until - ttl_seconds
        next_at = sent + ttl_seconds * RENEW_SHARE
        renewal: asyncio.Task[bool] | None = None
        try:
            while True:
                if renewal is not None and (renewal.done() or now() - sent >= ttl_seconds * CALL_SHARE):
                    next_at = self._read(renewal, sent)
                    renewal = None
                if self.lost_because or now() >= self._term.hard_until:
                    self.lost_because = self.lost_because or self._too_late()
                    return on_lost()
                if renewal is None and now() >= next_at:
                    sent = now()
                    renewal = asyncio.ensure_future(self._locks.renew(self.name, self.fence, ttl_seconds))
                    renewal.add_done_callback(_noted)
                tick = min(TICK_SECONDS_MAX, ttl_seconds / 20, self._term.hard_until - now())
                if renewal is not None:
                    await asyncio.wait((renewal,), timeout=tick)
                else:
                    await asyncio.sleep(max(min(tick, next_at - now()), 0.0))
        finally:
            if renewal is not None:
                renewal.cancel()

    def _read(self, renewal: asyncio.Task[bool], sent: float) -> float:
        """Take note of a renewal; when to send the next one."""
        ttl_seconds, now = self._options.ttl_seconds, self._now()
        retry_at = now + ttl_seconds * RETRY_SHARE
        if not renewal.done():
            renewal.cancel()
            self._trouble = "the master does not answer"
            return retry_at
        try:
            accepted = renewal.result()
        except Exception as error:  # whatever it is: without an accepted renewal the term ends
            self._trouble = error.message if isinstance(error, JobMasterError) else repr(error)
            return retry_at
        if not accepted:
            self.lost_because = "another program has taken it, or an operator has released it"
            return retry_at
        granted = renewed(self._term, sent, now, ttl_seconds)
        if granted is None:
            self.lost_because = self._too_late()
            return retry_at
        self._term, self._trouble = granted, ""
        return sent + ttl_seconds * RENEW_SHARE

    # ------------------------------------------------------------ release

    async def close(self) -> None:
        """Stop the renewals and give the lock back. It is not held afterwards; what it was lost by before stays known."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait((keeping,))
        # Work that blocked the event loop, or a machine that slept: no renewal could notice it.
        if not self.lost_because and (self._term is None or self._now() >= self._term.hard_until):
            self.lost_because = self._too_late()
        if (
            not self.lost_because
        ):  # what is left of a lost one is less than the answer of a master that is away may take
            await self._give_back()

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._locks.release(self.name, self._acquisition)
        except (JobMasterError, TimeoutError) as error:
            _log.warning(
                "lock %r could not be given back, it ends within %g s: %s", self.name, self._options.ttl_seconds, error
            )


def _noted(renewal: asyncio.Task[bool]) -> None:
    """Read the error of a renewal that was given up, so that asyncio does not report it."""
    if not renewal.cancelled():
        renewal.exception()


def _held(name: str, answer: LockAnswer) -> LockHeld:
    held = answer.held
    if held is None or held.expires_at is None:
        return LockHeld(f"lock {name!r} is held by another program", hint="wait= waits for it")
    until = held.expires_at.isoformat(timespec="seconds").replace("+00:00", "Z")
    return LockHeld(
        f"lock {name!r} is held by {held.holder} until {until}",
        holder=held.holder,
        expires_at=held.expires_at,
        hint="the holder may renew it; wait= waits for it",
    )
