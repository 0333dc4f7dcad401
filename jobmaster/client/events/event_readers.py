"""``Cluster.listen`` and ``Cluster.events``: readers of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from jobmaster.client.events.filters import EventChooser, EventFilters, checked_filters
from jobmaster.client.events.listener import Listener
from jobmaster.client.events.stream import INTERVAL_SECONDS, EventStream
from jobmaster.clock import Clock
from jobmaster.handlers import Handlers
from jobmaster.model.event import LIVE_KINDS, RECORDED_KINDS
from jobmaster.ports import ClientMaster, ClientStore


class EventReaders:
    """Makes readers of the events of a cluster. Made by ``Cluster``."""

    def __init__(
        self,
        master: ClientMaster,
        stores: Mapping[str, ClientStore],
        handlers: Handlers,
        clock: Clock,
        refuse_closed: Callable[[], None],
    ) -> None:
        self._master = master
        self._stores = stores
        self._handlers = handlers
        self._clock = clock
        self._refuse_closed = refuse_closed

    def listen(self, **filters: Unpack[EventFilters]) -> Listener:
        """Jobs as they start, wait again and end: ``async for event in cluster.listen(tag="orders")``; see ``Listener``.

        Args:
            filters: see ``EventFilters``.

        Raises:
            InputError: a filter that no event can fit.
        """
        self._refuse_closed()
        chosen = checked_filters(filters, self._handlers, LIVE_KINDS, "listen()")
        chooser = EventChooser(chosen, self._master.batches)
        return Listener(self._master.events, self._stores, self._clock, chooser, self._refuse_closed)

    def events(
        self,
        after: str | None = None,
        *,
        follow: bool = True,
        interval: float = INTERVAL_SECONDS,
        accept_failover: bool = False,
        **filters: Unpack[EventFilters],
    ) -> EventStream:
        """What the master has recorded, each event once, from any place on: ends of jobs and of attempts, changes of buckets,
        fires of schedules, acts of operators; see ``EventStream``.

        Args:
            after: the cursor to continue from; ``"start"``: all that the master has; ``None``: from now on.
            follow: wait for events to come; otherwise the stream ends with the last one.
            interval: seconds between two looks; a look that takes long is followed by a longer rest.
            accept_failover: continue although a standby has taken over since. Without a synchronous standby, events may be
                missed.
            filters: see ``EventFilters``.

        Raises:
            InputError: no cursor, or a filter that no event can fit. For errors of ``async for`` see ``EventStream``.
        """
        self._refuse_closed()
        chosen = checked_filters(filters, self._handlers, RECORDED_KINDS, "events()")
        return EventStream(
            self._master.events,
            self._clock,
            EventChooser(chosen, self._master.batches),
            after,
            follow=follow,
            interval=interval,
            accept_failover=accept_failover,
            refuse_closed=self._refuse_closed,
        )
