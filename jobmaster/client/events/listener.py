"""Events of jobs as agents publish them.

Agents publish on their stores the ids of jobs that have just got a row or an outcome in the master. A listener reads the rows
of these ids, many in one statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from itertools import islice
from types import TracebackType
from typing import Self, cast

from jobmaster.client.events.filters import EventChooser
from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.model.event import ClusterEvent, EventKind, MissedEvents
from jobmaster.model.job import JobState
from jobmaster.ports import ClientEvents, FinishedStore
from jobmaster.rules.backoff import backoff_delay

BUFFER_JOBS = 10_000
"""Published jobs that wait for a slow reader; of further ones the oldest are dropped."""
KNOWN_JOBS = 10_000
"""Jobs whose last event is remembered: an id is published more than once."""
READ_JOBS = 500
"""Rows of one statement."""
STANDING_SECONDS = 5.0
_CLOSED_SECONDS = 5.0
"""How often a listener without news looks whether its cluster was closed."""
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 0.1, 5.0

_log = logging.getLogger(__name__)


class Listener:
    """``async for event in cluster.listen(tag="orders")``: jobs as they start, are retried and end, a moment afterwards.

    ::

        async with cluster.listen(handler="pay") as events:  # from here on
            receipt = await cluster.submit("pay", {"order": 17})
            async for event in events:
                ...

    It is for screens and caches, and no record: of changes of a job that follow each other quickly only the last is given;
    what ends without an agent (a job that is cancelled or expires while it waits in the master) is not given; and a reader
    that is more than 10,000 jobs behind loses the oldest and gets ``MissedEvents`` in their place, as after a broken
    subscription.
    ``Cluster.events`` gives every end, once. Costs agents nothing, and the master one read of each published job.

    Made by ``Cluster.listen``. Belongs to one event loop; for one reader.
    """

    def __init__(
        self,
        events: ClientEvents,
        stores: Mapping[str, FinishedStore],
        clock: Clock,
        chooser: EventChooser,
        refuse_closed: Callable[[], None],
    ) -> None:
        self._events = events
        self._stores = stores
        self._clock = clock
        self._chooser = chooser
        self._refuse_closed = refuse_closed
        self._published: dict[bytes, None] = {}
        """Ids that wait to be read, the oldest first."""
        self._dropped = 0
        self._broken = False
        self._news = asyncio.Event()
        self._known: dict[bytes, tuple[int, JobState]] = {}
        self._ready: deque[ClusterEvent] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._standing: dict[str, asyncio.Event] = {}
        self._failures = 0

    async def __aenter__(self) -> Self:
        """Subscribe. Returns when every store has confirmed it, at the latest after 5 seconds."""
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[ClusterEvent]:
        return self._iterate()

    async def aclose(self) -> None:
        """End the subscriptions."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> None:
        if self._tasks:
            return
        await self._events.changed([])  # refused at once where there are no events
        for name, store in self._stores.items():
            self._standing[name] = asyncio.Event()
            self._tasks.append(asyncio.get_running_loop().create_task(self._listen_to(name, store)))
        try:
            async with asyncio.timeout(STANDING_SECONDS):
                for event in self._standing.values():
                    await event.wait()
        except TimeoutError:
            _log.warning("not every store has taken the subscription; its events follow when it has")

    async def _iterate(self) -> AsyncGenerator[ClusterEvent, None]:
        opened_here = not self._tasks
        await self._open()
        try:
            while True:
                while self._ready:
                    yield self._ready.popleft()
                if not self._published and not self._dropped and not self._broken:
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_CLOSED_SECONDS):
                            await self._news.wait()
                self._refuse_closed()
                await self._read()
        finally:
            if opened_here:
                await self.aclose()

    async def _read(self) -> None:
        """Read rows of published jobs; their events become ready."""
        if self._dropped or self._broken:
            count = None if self._broken else self._dropped
            self._dropped, self._broken = 0, False
            self._ready.append(MissedEvents(kind=EventKind.MISSED, at_us=self._clock.wall_us(), count=count))
            return
        ids = list(islice(self._published, READ_JOBS))
        if not ids:
            return
        for job_id in ids:
            del self._published[job_id]
        try:
            found = await self._events.changed(ids)
            wanted = [one for one in found if await self._chooser.admits(one.event)]
        except Unavailable as error:
            self._published = {**dict.fromkeys(ids), **self._published}
            self._bound()
            self._failures += 1
            if self._failures == 1:
                _log.warning("events wait: %s", error)
            await asyncio.sleep(backoff_delay(self._failures, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX))
            return
        self._failures = 0
        for state, event in sorted(wanted, key=lambda one: one.event.at_us):
            if self._known.pop(event.id_bytes, None) != (event.token, state):
                self._ready.append(event)
            self._known[event.id_bytes] = event.token, state
        while len(self._known) > KNOWN_JOBS:
            del self._known[next(iter(self._known))]

    async def _listen_to(self, name: str, store: FinishedStore) -> None:
        failures, stood = 0, False
        while True:
            try:
                # The port promises an iterator; generators must be closed where they are abandoned.
                async with aclosing(cast(AsyncGenerator[bytes, None], store.finished())) as news:
                    async for job_id in news:
                        if job_id:
                            self._published.pop(job_id, None)
                            self._published[job_id] = None
                            self._bound()
                        else:
                            self._broken |= stood
                            failures, stood = 0, True
                            self._standing[name].set()
                        self._news.set()
            except JobMasterError as error:
                _log.info("store %s: its news stopped: %s", name, error)
            failures += 1
            await asyncio.sleep(backoff_delay(failures, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX))

    def _bound(self) -> None:
        while len(self._published) > BUFFER_JOBS:
            del self._published[next(iter(self._published))]
            self._dropped += 1
