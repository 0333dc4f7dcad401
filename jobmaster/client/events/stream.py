"""Events that the master has recorded, each once, from any place on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from jobmaster.client.events.cursor import START, cursor_of, place_of
from jobmaster.client.events.filters import EventChooser
from jobmaster.clock import Clock
from jobmaster.model.errors import InputError, Unavailable
from jobmaster.model.event import ClusterEvent
from jobmaster.ports import ClientEvents, EventPlace
from jobmaster.rules.backoff import backoff_delay

PAGE_EVENTS = 20_000
"""Events of one statement."""
INTERVAL_SECONDS = 2.0
REST = 9.0
"""A reader rests so many times as long as its last look has taken: it uses a tenth of one connection."""
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 0.5, 15.0

_log = logging.getLogger(__name__)


class EventStream:
    """``async for event in cluster.events(after=cursor)``: what the master has recorded, each event once, in the order of its
    transactions. ``event.cursor`` is the place after it: a reader that keeps the cursor of the last event that it has worked
    off continues there, and misses nothing.

    An event comes when every transaction that began before that of the event has ended, so an open transaction on the
    master's database holds the stream back. Each look reads the rows that the master has attached, so looks are ``interval``
    apart, and at least nine times as long as the last one has taken. While the master does not answer, a stream that
    follows waits.

    Made by ``Cluster.events``. Belongs to one event loop.
    """

    def __init__(
        self,
        events: ClientEvents,
        clock: Clock,
        chooser: EventChooser,
        after: str | None,
        *,
        follow: bool,
        interval: float,
        accept_failover: bool,
        refuse_closed: Callable[[], None],
    ) -> None:
        if type(interval) not in (int, float) or not 0.1 <= interval < math.inf:
            raise InputError(f"'interval' must be seconds, at least 0.1, not {interval!r}")
        self._events = events
        self._clock = clock
        self._chooser = chooser
        self._refuse_closed = refuse_closed
        self._follow = follow
        self._interval = float(interval)
        self._accept_failover = accept_failover
        self._page_events = PAGE_EVENTS
        self._ends: float | None = None
        self._from_start = after == START
        self._place = None if after is None or self._from_start else place_of(after)
        self._waiting: deque[tuple[EventPlace, ClusterEvent]] = deque()
        self._after_page: EventPlace | None = None
        self._more = True
        self._looked = False
        self._rest_until = 0.0
        self._failures = 0

    @property
    def cursor(self) -> str | None:
        """The place after the last event that was given, or after what was read behind it and does not fit the filters;
        ``None`` before the first look."""
        return None if self._place is None else cursor_of(self._place)

    def bounded(self, seconds: float, page_events: int = PAGE_EVENTS) -> Self:
        """The same stream, for a server that answers with a page of events: no further look begins ``seconds`` from now, and
        another stream goes on from ``cursor``. The first look is always made, so each such stream comes further.

        Args:
            page_events: events of one look, at least 1. Each look reads all rows that the master has attached, so several
                small ones take longer than one.
        """
        self._ends, self._page_events = self._clock.boottime() + seconds, page_events
        return self

    @property
    def more(self) -> bool:
        """Further events were recorded already: true of a stream that has ended because its time was over."""
        return self._more

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClusterEvent:
        """The next event; waits for it if the stream follows.

        Raises:
            Refused: the cursor is of another server, or events behind it have left the master.
            Unavailable: the master does not answer, and the stream does not follow.
        """
        while True:
            while self._waiting:
                place, event = self._waiting[0]
                admitted = await self._chooser.admits(event)
                self._waiting.popleft()
                self._place = place
                if admitted:
                    return msgspec.structs.replace(event, cursor=cursor_of(self._place))
            if self._after_page is not None:
                self._place, self._after_page = self._after_page, None
            if self._looked and not self._more:
                if not self._follow:
                    raise StopAsyncIteration
                await asyncio.sleep(max(self._rest_until - self._clock.boottime(), 0.0))
            if self._looked and self._ends is not None and self._clock.boottime() >= self._ends:
                raise StopAsyncIteration
            await self._look()

    async def _look(self) -> None:
        """Read a page."""
        self._refuse_closed()
        began = self._clock.boottime()
        try:
            if self._place is None:
                self._place = await self._events.place(start=self._from_start)
            elif self._accept_failover:
                now = await self._events.place(start=False)
                if now.timeline != self._place.timeline:
                    self._place = self._place._replace(timeline=now.timeline)
                    if now.xid < self._place.xid:
                        self._place = self._place._replace(xid=now.xid, key="")
                self._accept_failover = False
            chosen = self._chooser.chosen
            page = await self._events.read(self._place, chosen.kinds, chosen.handlers, self._page_events)
        except Unavailable as error:
            if not self._follow:
                raise
            self._failures += 1
            if self._failures == 1:
                _log.warning("the stream of events waits: %s", error)
            await asyncio.sleep(backoff_delay(self._failures, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX))
            return
        self._failures = 0
        now_seconds = self._clock.boottime()
        self._rest_until = now_seconds + max(self._interval, REST * (now_seconds - began))
        self._waiting.extend(page.events)
        self._after_page, self._more, self._looked = page.place, page.more, True
