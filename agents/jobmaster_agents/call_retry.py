"""Retries of idempotent calls: the caller does not see an outage, the call returns when the server has answered.

Between two tries stand a growing pause and the lease. The lease is checked before every try, because a try may itself take
longer than the lease: nothing is sent to the master after the moment at which this process promised to stop.

A time-out may mean that the call was too large. A caller that can send less sets ``timeouts=False`` and halves its batch
(``outcomes.batch_write``).

``Refused`` at run time (rights revoked, password rotated, schema changed) is an outage that needs an operator. To exit would
only restart the agent in a circle, and each restart would count as a rescue of every job. So the call is repeated as after an
outage, and logged at the 1st, 2nd, 4th, 8th ... failure. A caller whose batch may contain a row that is to blame sets
``refusals=False``; with ``rows=True`` a missing table or a missing right, which no row causes, is still repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TypeVar

from jobmaster.clock import Clock
from jobmaster.model.errors import AccessRefused, InputError, JobMasterError, Refused, SchemaMismatch, Unavailable
from jobmaster.rules.backoff import backoff_delay, is_logged
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.progress import Progress

BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 2.0
JITTER = 0.2
"""Share by which a delay is shortened at random."""

_T = TypeVar("_T")


class RepeatedLog:
    """Logs failures of one kind at the 1st, 2nd, 4th ... in a row, however many callers fail.

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
        """Count a failure; log it if its number is one of those."""
        self._failures += 1
        if is_logged(self._failures):
            fields = {"what": self._what, "failures": self._failures, "reason": str(error)}
            write = self._log.warning if isinstance(error, Unavailable) else self._log.error
            write(Event.CALL_FAILED, fields)


class Backoff:
    """Pauses that grow up to a limit.

    Args:
        what: what fails, for the log.
        repeated_log: shared by callers of the same server: together they write one line where each would write its own.
    """

    def __init__(self, what: str, log: EventLog, repeated_log: RepeatedLog | None = None) -> None:
        self._repeated_log = repeated_log or RepeatedLog(what, log)
        self.failures = 0

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        if self.failures:
            self.failures = 0
            self._repeated_log.succeeded()

    def seconds(self, error: JobMasterError) -> float:
        """Count a failure; how long to wait now."""
        self.failures += 1
        self._repeated_log.failed(error)
        delay = backoff_delay(self.failures, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX)
        return delay * (1.0 - JITTER * random.random())

    async def pause(self, error: JobMasterError) -> None:
        """Count a failure and wait."""
        await asyncio.sleep(self.seconds(error))


class UntilAnswered:
    """Calls to the master, within the lease."""

    def __init__(self, ownership: Ownership, clock: Clock, log: EventLog, progress: Progress) -> None:
        self._ownership = ownership
        self._now = clock.boottime
        self.log = log
        self.progress = progress

    async def may_commit(self) -> None:
        """Wait for a lease that allows to commit. Never returns once the process is fenced."""
        while not self._ownership.may_commit(self._now()):
            with self.progress.waiting:
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
        """Answer of ``call``, which is repeated after ``Unavailable`` and ``OutcomeUnknown``.

        Args:
            refusals: repeat it after ``Refused`` and ``InputError`` too.
            rows: without ``refusals``, repeat it after refusals that no row can cause.
            timeouts: repeat it unchanged after a time-out of the master.

        Raises:
            Refused, InputError: only with ``refusals=False``.
            Unavailable: a time-out, only with ``timeouts=False``.
            CodeError: an invariant of our own is broken.
        """
        backoff = Backoff(what, self.log)
        while True:
            await self.may_commit()
            self.progress.note()
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
