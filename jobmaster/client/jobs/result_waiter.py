"""Waiting for jobs: notified by the stores, without polling.

Agents publish on their store the ids that just got a row or an outcome in the master. One subscription per store serves
every waiter; it is established before a row is read, so nothing is missed between the two. A slow re-read every few
seconds covers lost messages and lost subscriptions. A master that does not answer ends no wait before its time is over:
jobs go on without it, and their outcomes are there when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from itertools import islice
from typing import cast

from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.client.jobs.existence import Existence, ExistenceCheck, not_found
from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError, Unavailable, WaitTimeout
from jobmaster.model.job import JobState
from jobmaster.ports import FIND_IDS_MAX, FinishedStore, Queries
from jobmaster.rules.backoff import backoff_delays

REREAD_SECONDS = 3.0
REREAD_JOBS_PER_SECOND = 5000
"""Many jobs are re-read less often, so that waiting for a million of them does not keep the master busy."""
STANDING_SECONDS = 1.0
"""How long a first wait lets the subscriptions come up before it goes on with re-reading alone."""
IDLE_SECONDS = 30.0
"""A subscription without waiters for this long is closed."""
STATES_PER_QUERY = 1000
CAUSES_MAX = 3
"""Reasons that the error of a wait names."""
READ_SECONDS = 1.0
"""How much longer than the wait itself its last reading may take; a frozen server would hold it for ever."""
EXISTENCE_SECONDS, EXISTENCE_AGAIN_SECONDS = 0.5, 10.0
"""How long a wait goes on before it looks for a job that has shown no sign of itself, and before it looks again."""
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 5.0

_log = logging.getLogger(__name__)


class _Watch:
    """One waiter, and which of its ids were published."""

    __slots__ = ("event", "touched")

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.touched: set[bytes] = set()


class _Times:
    """When a wait is over, and when the jobs that it has not seen are looked for."""

    __slots__ = ("check_at", "ends", "timeout")

    def __init__(self, ends: float | None, timeout: float | None, check_at: float) -> None:
        self.ends = ends
        self.timeout = timeout
        self.check_at = check_at


class ResultWaiter:
    """Shared subscriptions and the waiters on them. Belongs to one event loop."""

    def __init__(
        self, queries: Queries, stores: Mapping[str, FinishedStore], clock: Clock, existence: ExistenceCheck
    ) -> None:
        self._queries = queries
        self._stores = stores
        self._clock = clock
        self._existence = existence
        self._waiters: dict[bytes, list[_Watch]] = {}
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._standing: dict[str, asyncio.Event] = {}
        self._needed_at = 0.0
        self._unanswered = ""
        """Error text of the last failed read; empty after a successful one."""
        self._closed = False
        self._states: Coalescer[bytes, JobState | None] = Coalescer(
            self._read_states, chunk=STATES_PER_QUERY, calls_max=2, pending_limit=PendingLimit()
        )

    async def until(
        self,
        job_ids: Iterable[bytes],
        reached: Callable[[JobState | None], bool],
        timeout: float | None,
        doubtful: Iterable[bytes] = (),
    ) -> dict[bytes, JobState | None]:
        """Wait until every job's state satisfies ``reached``; the states.

        Args:
            doubtful: those of the jobs that may not exist.

        Raises:
            WaitTimeout: the time is over; the jobs go on.
            NotFound: a doubtful job exists nowhere.
        """
        found: dict[bytes, JobState | None] = {}
        async with aclosing(self.each(job_ids, reached, timeout, doubtful)) as batches:
            async for batch in batches:
                found |= batch
        return found

    async def each(
        self,
        job_ids: Iterable[bytes],
        reached: Callable[[JobState | None], bool],
        timeout: float | None,
        doubtful: Iterable[bytes] = (),
    ) -> AsyncGenerator[dict[bytes, JobState | None], None]:
        """``until`` as it goes on: the states of jobs that satisfy ``reached``, each job once, some together. Close it with
        ``aclose``."""
        watched = frozenset(job_ids)
        pending = set(watched)
        now = self._clock.boottime()
        times = _Times(None if timeout is None else now + timeout, timeout, now + EXISTENCE_SECONDS)
        unseen = pending & set(doubtful)
        waiter = _Watch()
        for job_id in watched:
            self._waiters.setdefault(job_id, []).append(waiter)
        try:
            await self._listen(timeout)
            read = set(pending)
            while pending:
                waiter.event.clear()
                waiter.touched -= read
                states = await self._look(read, times.ends)
                unseen -= {job_id for job_id, state in states.items() if state is not None}
                found = {job_id: state for job_id, state in states.items() if reached(state)}
                pending.difference_update(found)
                if found:
                    yield found
                if not pending:
                    return
                if self._closed:
                    raise Unavailable(
                        "the cluster was closed during the wait", hint="the jobs go on; wait with a new one"
                    )
                read = await self._next_read(waiter, pending, unseen, times)
        finally:
            self._needed_at = self._clock.boottime()
            for job_id in watched:
                self._forget(job_id, waiter)

    async def close(self) -> None:
        """End the subscriptions and the reads; callers that still wait get an error."""
        self._closed = True
        self._wake_all()
        for task in self._listeners.values():
            task.cancel()
        await asyncio.gather(*self._listeners.values(), return_exceptions=True)
        self._listeners.clear()
        await self._states.close()
        await self._existence.close()

    async def _next_read(self, waiter: _Watch, pending: set[bytes], unseen: set[bytes], times: _Times) -> set[bytes]:
        """Ids to read next: those published, or all of them when none was published for a while.

        Args:
            unseen: those of which neither a row nor a copy has been seen, and which may not exist.
        """
        wait_seconds = max(REREAD_SECONDS, len(pending) / REREAD_JOBS_PER_SECOND)
        now = self._clock.boottime()
        too_late = times.ends is not None and now >= times.ends
        if unseen and (too_late or now >= times.check_at):
            await self._refuse_missing(unseen, times)
        if times.ends is not None:
            if too_late:
                raise await self._too_late(pending, times.timeout)
            wait_seconds = min(wait_seconds, max(times.ends - now, 0.0))
        if unseen:
            wait_seconds = min(wait_seconds, max(times.check_at - now, 0.0))
        try:
            async with asyncio.timeout(wait_seconds):
                await waiter.event.wait()
        except TimeoutError:
            return set(pending)
        return (waiter.touched & pending) or set(pending)

    async def _refuse_missing(self, unseen: set[bytes], times: _Times) -> None:
        """Look for some of the jobs everywhere. Those that are found are no longer unseen.

        Raises:
            NotFound: some exist nowhere.
        """
        looked_for = list(islice(unseen, FIND_IDS_MAX))
        try:
            async with asyncio.timeout(None if times.ends is None else READ_SECONDS):
                shown = await self._existence.of(looked_for)
        except TimeoutError:
            shown = {}
        missing = [job_id for job_id, existence in shown.items() if existence is Existence.NOWHERE]
        if missing:
            raise not_found(missing)
        unseen.difference_update(job_id for job_id, existence in shown.items() if existence is Existence.FOUND)
        times.check_at = self._clock.boottime() + EXISTENCE_AGAIN_SECONDS

    async def _too_late(self, pending: set[bytes], timeout: float | None) -> WaitTimeout:
        """The error, with the reason why the jobs wait, as far as the master shows it."""
        message = f"{len(pending)} of the jobs did not get there within {timeout:g} s"
        if self._unanswered:
            return WaitTimeout(f"{message} (the master does not answer: {self._unanswered})")
        try:
            async with asyncio.timeout(READ_SECONDS):
                unserved_causes = await self._queries.unserved_causes(sorted(pending)[:STATES_PER_QUERY])
        except (JobMasterError, TimeoutError):
            return WaitTimeout(message)
        held_up = Counter(unserved_causes.values()).most_common(CAUSES_MAX)
        message += "".join(f"; {count} of them: {cause.reason}" for cause, count in held_up)
        return WaitTimeout(message, hint=held_up[0][0].remedy if held_up else None)

    async def _look(self, job_ids: set[bytes], ends: float | None) -> dict[bytes, JobState | None]:
        """States of the jobs; none when the master does not answer."""
        try:
            async with asyncio.timeout(
                None if ends is None else max(ends - self._clock.boottime(), 0.0) + READ_SECONDS
            ):
                states = await self._states_of(job_ids)
        except (Unavailable, TimeoutError) as error:
            if not self._unanswered:
                _log.warning("waiting goes on although the master does not answer: %s", error)
            self._unanswered = str(error) or "no answer in time"
            return {}
        self._unanswered = ""
        return states

    async def _states_of(self, job_ids: set[bytes]) -> dict[bytes, JobState | None]:
        futures = {job_id: self._states.put(job_id, 16) for job_id in job_ids}
        try:
            return {job_id: await future for job_id, future in futures.items()}
        finally:
            for future in futures.values():
                future.cancel()

    async def _read_states(self, job_ids: list[bytes]) -> list[JobState | Exception | None]:
        states = await self._queries.states(list(dict.fromkeys(job_ids)))
        return [states.get(job_id) for job_id in job_ids]

    # ------------------------------------------------------------ subscriptions

    async def _listen(self, timeout: float | None) -> None:
        """Subscribe to every store, and give the subscriptions a moment to stand."""
        for name, store in self._stores.items():
            task = self._listeners.get(name)
            if task is None or task.done():
                self._standing[name] = asyncio.Event()
                self._listeners[name] = asyncio.get_running_loop().create_task(self._listen_to(name, store))
        waits = [event for event in self._standing.values() if not event.is_set()]
        if not waits:
            return
        patience = STANDING_SECONDS if timeout is None else min(STANDING_SECONDS, timeout)
        try:
            async with asyncio.timeout(patience):
                for event in waits:
                    await event.wait()
        except TimeoutError:
            _log.info("not every store takes a subscription; waiting goes on by re-reading")

    async def _listen_to(self, name: str, store: FinishedStore) -> None:
        pauses = backoff_delays(_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX)
        while True:
            try:
                # The port promises an iterator; generators must be closed where they are abandoned.
                async with aclosing(cast(AsyncGenerator[bytes, None], store.finished())) as news:
                    async for job_id in news:
                        if not job_id:
                            pauses = backoff_delays(_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX)
                            self._standing[name].set()
                            self._wake_all()
                            continue
                        for waiter in self._waiters.get(job_id, ()):
                            waiter.touched.add(job_id)
                            waiter.event.set()
                        if not self._waiters and self._clock.boottime() - self._needed_at > IDLE_SECONDS:
                            return
            except JobMasterError as error:
                _log.info("store %s: its news stopped: %s", name, error)
            self._standing[name].clear()
            await asyncio.sleep(next(pauses))

    def _wake_all(self) -> None:
        """Something may have been missed before the subscription stood."""
        for job_id, waiters in self._waiters.items():
            for waiter in waiters:
                waiter.touched.add(job_id)
                waiter.event.set()

    def _forget(self, job_id: bytes, waiter: _Watch) -> None:
        waiters = self._waiters[job_id]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[job_id]
