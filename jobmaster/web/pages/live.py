"""``/stream``: the stream of samples, the same bytes for all viewers; and the same by polling, for proxies that buffer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from jobmaster.model.errors import InputError
from jobmaster.web.pages.sampler import Sampler, Tick

RETRY_MILLISECONDS = 3000
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_STALE = b"event: stale\ndata: \n\n"


def event_stream(sampler: Sampler, after: int | None) -> StreamingResponse:
    """Server-sent events: ``overview`` (HTML), ``map`` (JSON: the whole at first, then what has changed), ``stale``.

    Args:
        after: the last event that the viewer has seen; the stream goes on behind it when it is still kept.
    """
    return StreamingResponse(_events(sampler, after), media_type="text/event-stream", headers=_HEADERS)


async def _events(sampler: Sampler, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    kept = [tick.seq for tick in sampler.ticks]
    seen = after if after is not None and kept and kept[0] - 1 <= after <= kept[-1] else None
    whole = seen is None
    if whole and sampler.running and kept:
        seen = kept[-1] - 1
    async for tick in sampler.follow(seen):
        if tick is None:
            whole = True
            yield _STALE
            continue
        if whole and tick.seq != sampler.ticks[-1].seq:
            continue  # the snapshot is that of the newest tick
        yield tick_events(tick, sampler.snapshot() if whole else tick.delta)
        whole = False


def tick_events(tick: Tick, map_data: bytes) -> bytes:
    """The events of one tick; the id is that of the tick."""
    html = "".join(f"data: {line}\n" for line in tick.html.splitlines()).encode()
    return b"event: overview\n%s\nid: %d\nevent: map\ndata: %s\n\n" % (html, tick.seq, map_data)


async def polled(sampler: Sampler, since: str | None) -> Response:
    """``?since=N``: what has come after the sample N, as a JSON list of deltas; without it, or when N is not kept any more,
    a list with the whole.

    Raises:
        InputError: ``since`` is no number of a sample.
    """
    newest = await sampler.latest()
    if since is not None and not (since.isascii() and since.isdigit() and len(since) < 19):
        raise InputError(f"'since' must be the number of a sample, not {since!r:.60}")
    ticks = sampler.ticks
    if since is not None and ticks[0].seq - 1 <= int(since) <= newest.seq:
        parts = [tick.delta for tick in ticks if tick.seq > int(since)]
    else:
        parts = [sampler.snapshot()]
    return Response(b"[" + b",".join(parts) + b"]", media_type="application/json", headers=_HEADERS)


def history(sampler: Sampler) -> Response:
    """The map of the last 15 minutes: the oldest whole that is kept, and every change after it."""
    parts: list[bytes] = []
    for tick in sampler.ticks:
        if parts:
            parts.append(tick.delta)
        elif tick.keyframe is not None:
            parts.append(tick.keyframe)
    return Response(b"[" + b",".join(parts) + b"]", media_type="application/json", headers=_HEADERS)
