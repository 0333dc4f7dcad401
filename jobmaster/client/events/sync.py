"""Events for code without an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from jobmaster.client.events.filters import EventFilters
from jobmaster.client.events.listener import Listener
from jobmaster.client.events.stream import INTERVAL_SECONDS, EventStream
from jobmaster.model.event import ClusterEvent

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.sync import SyncCluster


class SyncEventReaders:
    """Makes readers of the events of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def listen(self, **filters: Unpack[EventFilters]) -> SyncListener:
        """See ``EventReaders.listen``."""

        async def made(cluster: Cluster) -> Listener:
            return cluster.listen(**filters)

        return SyncListener(self._cluster, self._cluster._call(made))

    def events(
        self,
        after: str | None = None,
        *,
        follow: bool = True,
        interval: float = INTERVAL_SECONDS,
        accept_failover: bool = False,
        **filters: Unpack[EventFilters],
    ) -> SyncEventStream:
        """See ``EventReaders.events``."""

        async def made(cluster: Cluster) -> EventStream:
            return cluster.events(after, follow=follow, interval=interval, accept_failover=accept_failover, **filters)

        return SyncEventStream(self._cluster, self._cluster._call(made))


class SyncEventStream:
    """``EventStream`` without ``await``. Made by ``SyncCluster.events``."""

    def __init__(self, cluster: SyncCluster, stream: EventStream) -> None:
        self._cluster = cluster
        self._stream = stream

    @property
    def cursor(self) -> str | None:
        """See ``EventStream.cursor``."""
        return self._stream.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ClusterEvent:
        event = self._cluster._call(lambda _: _next(self._stream))
        if event is None:
            raise StopIteration
        return event


class SyncListener:
    """``Listener`` without ``await``, for ``with``. Made by ``SyncCluster.listen``."""

    def __init__(self, cluster: SyncCluster, listener: Listener) -> None:
        self._cluster = cluster
        self._listener = listener

    def __enter__(self) -> Self:
        """See ``Listener``."""
        self._cluster._call(lambda _: self._listener.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster._call(lambda _: self._listener.aclose())

    def __iter__(self) -> Iterator[ClusterEvent]:
        stream = cast("AsyncGenerator[ClusterEvent, None]", aiter(self._listener))
        try:
            while (event := self._cluster._call(lambda _: _next(stream))) is not None:
                yield event
        finally:
            self._cluster._call(lambda _: stream.aclose())


async def _next(events: AsyncIterator[ClusterEvent]) -> ClusterEvent | None:
    return await anext(events, None)
