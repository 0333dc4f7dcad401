"""Events over HTTP: a page of what the master has recorded, and a stream of server-sent events that can be resumed.

The id of an event in the stream is its cursor, so a browser (``EventSource``) or another program that connects again with
``Last-Event-ID`` misses nothing and gets nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from jobmaster.client.events.cursor import START
from jobmaster.client.events.stream import PAGE_EVENTS, EventStream
from jobmaster.model.errors import JobMasterError
from jobmaster.model.event import ClusterEvent
from jobmaster.rules.access import Scope
from jobmaster.web.answers import RequestRefused, detail_of
from jobmaster.web.api.jobs import error_record
from jobmaster.web.api.operation import Call, Operations, Query
from jobmaster.web.api.records import EventPage, EventRecord, record_of

OPERATIONS = Operations()

PAGE_SECONDS = 10.0
"""No further look for events of a page begins after this time."""
STREAMS_MAX = 20
"""Streams of one server. Each reads the master on its own, at most a tenth of the time."""
SIGN_SECONDS = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""
RETRY_MS = 3000
"""How long a browser waits until it connects again."""

_log = logging.getLogger(__name__)


class EventFiltersQuery(Query, frozen=True, kw_only=True):
    """Which events, and from where on."""

    after: str | None = None
    """The cursor to continue from; ``start``: all that the master has. Default: of a page ``start``, of a stream: what comes
    from now on."""
    kinds: list[str] | None = None
    handler: list[str] | None = None
    tag: str | None = None
    batch: str | None = None
    workflow: str | None = None
    tenant: str | None = None


class EventsQuery(EventFiltersQuery, frozen=True, kw_only=True):
    """The same for a page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


@OPERATIONS.get("/events", scope=Scope.VIEW)
async def list_events(call: Call, query: EventsQuery) -> EventPage:
    """A page of what the master has recorded, the oldest first: ends of jobs and of attempts, changes of buckets, fires of
    schedules, acts of operators. A page may have fewer events than ``limit``, or none, while ``more`` is true: continue from
    its ``cursor``."""
    filters = _filters(query)
    # Only kinds and handlers are chosen by the master; of other filters a small page may hold no event.
    page_events = query.limit + 1 if filters.keys() <= {"kinds", "handler"} else PAGE_EVENTS
    stream = call.cluster.events(query.after or START, follow=False, **filters).bounded(PAGE_SECONDS, page_events)
    events: list[EventRecord] = []
    full = False
    async for event in stream:
        if len(events) == query.limit:
            full = True
            break
        events.append(_record(call, event))
    cursor = events[-1].cursor if full else stream.cursor
    return EventPage(events=events, cursor=cursor, more=full or stream.more)


@OPERATIONS.get("/events/stream", scope=Scope.VIEW)
async def stream_events(call: Call, query: EventFiltersQuery) -> StreamingResponse:
    """The same as server-sent events (``text/event-stream``), without an end: ``id`` is the cursor, ``event`` the kind,
    ``data`` the event. ``Last-Event-ID`` counts before ``after``. An ``error`` event ends the stream."""
    after = call.request.headers.get("last-event-id") or query.after
    stream = call.cluster.events(after, **_filters(query))
    streams = call.context.streams
    if len(streams) >= STREAMS_MAX:
        raise RequestRefused(
            429,
            "too_many_streams",
            f"{STREAMS_MAX} streams of events are open",
            "try again later",
            {"Retry-After": "30"},
        )
    if call.request.method != "HEAD":  # that one is answered without the stream
        streams.add(stream)
    return _Streamed(_server_sent(call, stream), lambda: streams.discard(stream))


class _Streamed(StreamingResponse):
    """A stream that has its place among those of the server from before the first wait until its answer has ended, also when
    the caller has left before the first line."""

    def __init__(self, lines: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._release = release

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


def _filters(query: EventFiltersQuery) -> Any:
    names = ("kinds", "handler", "tag", "batch", "workflow", "tenant")
    return {name: value for name in names if (value := getattr(query, name)) is not None}


async def _server_sent(call: Call, stream: EventStream) -> AsyncIterator[bytes]:
    """The lines of the stream, until the server stops or the caller leaves."""
    stopping = asyncio.ensure_future(call.context.stopping.wait())
    following = asyncio.ensure_future(anext(stream))
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:
            await asyncio.wait((following, stopping), timeout=SIGN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return
            if not following.done():
                yield b": no news\n\n"
                continue
            try:
                event = following.result()
            except JobMasterError as error:
                _log.info("a stream of events ends: %s", error)
                yield b"event: error\ndata: " + msgspec.json.encode(detail_of(error)) + b"\n\n"
                return
            data = msgspec.json.encode(_record(call, event))
            yield f"id: {event.cursor}\nevent: {event.kind.value}\ndata: ".encode() + data + b"\n\n"
            following = asyncio.ensure_future(anext(stream))
    finally:
        for task in (stopping, following):
            task.cancel()
            with suppress(asyncio.CancelledError, JobMasterError):
                await task


def _record(call: Call, event: ClusterEvent) -> EventRecord:
    return record_of(EventRecord, event, error=error_record(call, getattr(event, "error", None)))
