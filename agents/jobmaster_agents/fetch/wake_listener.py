"""One blocking pop over the wake keys of all buckets wakes the claimer of the bucket that has something new.

A token is a hint and may be lost with a connection. Every job is claimed all the same, because every claimer is woken after
each interruption, and now and then without one.
"""

from __future__ import annotations

import asyncio

from jobmaster.model.errors import Refused, Unavailable
from jobmaster.ports import WakeStore
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.state.progress import Progress


class WakeListener:
    """One blocking pop for all buckets of the process."""

    wake_seconds = 5.0
    """Time-out of the blocking pop, which only serves to notice a dead connection. Every claimer is woken at least so often:
    a server that has not noticed a dead connection sends the next token into it, and while other buckets get tokens no pop
    times out."""

    def __init__(
        self,
        store: WakeStore,
        claimers: dict[bytes, Claimer],
        progress: Progress,
        log: EventLog | None = None,
    ) -> None:
        self._store = store
        self._claimers = claimers
        self._progress = progress
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._backoff = Backoff("wait_wake", log or EventLog())

    def changed(self) -> None:
        """The set of buckets has changed: a pop over the old set is given up."""
        if not self._change.done():
            self._change.set_result(None)

    async def run(self) -> None:
        """Wait for wake tokens until cancelled."""
        time = asyncio.get_running_loop().time
        all_woken = time()
        with self._progress.expect("the wake listener"):
            while True:
                self._progress.note()
                woken = await self._next()
                if woken is None or time() - all_woken >= self.wake_seconds:
                    all_woken = time()
                    # Time-out, change or broken connection: a popped token may be lost, so every claimer is woken once.
                    for claimer in list(self._claimers.values()):
                        claimer.wake()

    async def _next(self) -> bytes | None:
        """The bucket that was woken; ``None``: any may have something new."""
        buckets = await self._buckets()
        try:
            woken = await self._wait(buckets)
            self._backoff.succeeded()
        except (Unavailable, Refused) as error:
            await self._backoff.pause(error)
            return None
        return woken

    async def _buckets(self) -> list[bytes]:
        """The buckets that are served; waits while there are none."""
        while True:
            if self._change.done():
                await asyncio.sleep(0)  # several buckets opened in one go are one change
                self._change = asyncio.get_running_loop().create_future()
            if buckets := [bucket_id for bucket_id, claimer in self._claimers.items() if not claimer.ended]:
                return buckets
            with self._progress.waiting:
                await asyncio.wait((self._change,))

    async def _wait(self, buckets: list[bytes]) -> bytes | None:
        """The bucket that was woken; ``None`` after the time-out or when the set of buckets has changed."""
        pop = asyncio.ensure_future(self._pop(buckets))
        try:
            await asyncio.wait((pop, self._change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not pop.done():
                pop.cancel()  # drops its connection; the next pop must not begin before that is over
                await asyncio.wait((pop,))
        return None if pop.cancelled() else pop.result()

    async def _pop(self, buckets: list[bytes]) -> bytes | None:
        """The bucket that was woken. Its claimer is woken here: until the task that waits for this one goes on, a loop that
        runs jobs may have had three turns of milliseconds."""
        woken = await self._store.wait_wake(buckets, self.wake_seconds)
        if woken is not None and (claimer := self._claimers.get(woken)) is not None:
            claimer.wake()
        return woken
