"""Asking again until the answer is known: for calls that are idempotent by identity, name or content.

Who insists is never told of an outage; he waits. Two things stand between two tries: a growing pause, and the lease,
which is read again before every single try, so that nothing is sent to the master after the moment this process promised to
stop (a try may itself have taken longer than the lease).

What the master did not finish in its time may have been too much at once: who can send less asks for that to be told
(``timeouts=False``) and halves it (``halving``).

A ``Refused`` while working (rights revoked, password rotated, schema changed under us) is an outage that needs a person:
leaving would only make a circle of restarts in which every job counts a rescue. So it is asked again like an outage, and
said aloud in the log at the 1st, 2nd, 4th, 8th ... time. Where one row among many may be to blame, the caller wants to know:
``refusals=False``; with ``rows=True`` only then, for a table that is gone or a right that is missing is no row's fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TypeVar

from jobmaster.clock import Clock
from jobmaster.model.errors import AccessRefused, InputError, JobMasterError, Refused, SchemaMismatch, Unavailable
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership

BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 2.0

_T = TypeVar("_T")


class Told:
    """What is said of failures of one kind: a log line at the 1st, 2nd, 4th ... in a row, however many callers fail.

    Args:
        what: what fails, for the log.
    """

    def __init__(self, what: str, log: EventLog) -> None:
        self._what = what
        self._log = log
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self._failures = 0

    def failed(self, error: JobMasterError) -> None:
        """Count a failure, and say so if it is one of those that are told."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            fields = {"what": self._what, "failures": self._failures, "reason": str(error)}
            tell = self._log.warning if isinstance(error, Unavailable) else self._log.error
            tell(Event.CALL_FAILED, fields)


class Backoff:
    """Pauses that grow up to a limit.

    Args:
        what: what fails, for the log.
        told: shared by callers that all ask the same server: together they write one line where each would write its own.
    """

    def __init__(self, what: str, log: EventLog, told: Told | None = None) -> None:
        self._told = told or Told(what, log)
        self.failures = 0

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        if self.failures:
            self.failures = 0
            self._told.succeeded()

    def seconds(self, error: JobMasterError) -> float:
        """Note a failure; how long to wait now."""
        self.failures += 1
        self._told.failed(error)
        delay = min(BACKOFF_SECONDS * 2.0 ** min(self.failures - 1, 10), BACKOFF_SECONDS_MAX)
        return delay * (1.0 - 0.2 * random.random())

    async def pause(self, error: JobMasterError) -> None:
        """Note a failure and wait."""
        await asyncio.sleep(self.seconds(error))


class UntilAnswered:
    """Calls to the master, within the lease."""

    def __init__(self, ownership: Ownership, clock: Clock, log: EventLog) -> None:
        self._ownership = ownership
        self._now = clock.boottime
        self.log = log

    async def may_commit(self) -> None:
        """Wait for a lease that allows to commit. Never returns once the process is fenced."""
        while not self._ownership.may_commit(self._now()):
            await self._ownership.wait_trusted()

    async def __call__(
        self,
        what: str,
        call: Callable[[], Coroutine[object, object, _T]],
        *,
        refusals: bool = True,
        rows: bool = False,
        timeouts: bool = True,
    ) -> _T:
        """Answer of ``call``, asked again after ``Unavailable`` and ``OutcomeUnknown``.

        Args:
            refusals: ask again after ``Refused`` and ``InputError`` too.
            rows: and, without ``refusals``, after those that no row can be to blame for.
            timeouts: ask again, as much at once, for what the master did not finish in its time.

        Raises:
            Refused, InputError: only with ``refusals=False``.
            Unavailable: a time-out, only with ``timeouts=False``.
            CodeError: an invariant of our own is broken.
        """
        backoff = Backoff(what, self.log)
        while True:
            await self.may_commit()
            try:
                return await call()
            except Unavailable as error:
                if error.timed_out and not timeouts:
                    raise
                await backoff.pause(error)
            except (Refused, InputError) as error:
                if not refusals and not (rows and isinstance(error, SchemaMismatch | AccessRefused)):
                    raise
                await backoff.pause(error)
