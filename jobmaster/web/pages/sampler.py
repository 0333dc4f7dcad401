"""One sampler in a web process: it reads the cluster once an interval for all viewers, and not at all without viewers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from jobmaster.clock import Clock
from jobmaster.model.errors import JobMasterError, Unavailable
from jobmaster.web.pages.map_state import MapState
from jobmaster.web.pages.samples import Sample, Totals

INTERVAL_SECONDS = 1.0
LINGER_SECONDS = 5.0
"""How long the sampler reads on after the last viewer: a change of page is not the end of a visit."""
REST_RATIO = 4.0
"""A read that takes long is followed by a rest of so many times its duration, so that viewers never load a slow master."""
RING_SECONDS = 900.0
RING_TICKS = 900
KEYFRAME_TICKS = 60
FIRST_SECONDS = 10.0
"""How long a page waits for the first sample."""

_log = logging.getLogger(__name__)


class Tick(NamedTuple):
    """One sample, encoded once for all viewers."""

    seq: int
    totals: Totals
    delta: bytes
    """The map: what has changed since the tick before."""
    keyframe: bytes | None
    """The whole map, in some ticks."""
    html: str
    """The live part of the overview."""


class Sampler:
    """Samples of the last 15 minutes, as far as they were watched. Belongs to the event loop it is used in.

    Args:
        read: reads one sample.
        rest: gives the connections of ``read`` back; called when nothing is watched any more.
        draw: the live part of the overview as HTML, from the samples so far.
        stopping: the server stops; every ``follow`` ends.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Sample]],
        rest: Callable[[], Awaitable[None]],
        draw: Callable[[Sequence[Totals]], str],
        clock: Clock,
        stopping: asyncio.Event,
    ) -> None:
        self.failure: JobMasterError | None = None
        """Why the last read has failed; ``None``: it has not."""
        self._read = read
        self._rest = rest
        self._draw = draw
        self._clock = clock
        self._stopping = stopping
        self._ticks: deque[Tick] = deque(maxlen=RING_TICKS)
        self._newest: Sample | None = None
        self._map = MapState()
        # An id of an earlier process, which a browser may send, is below those of this one.
        self._seq = clock.wall_us() // 1000
        self._watched_until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def ticks(self) -> list[Tick]:
        """What is kept, the oldest first."""
        return list(self._ticks)

    @property
    def newest(self) -> Sample:
        """The newest sample whole; there is one once ``latest`` has returned."""
        assert self._newest is not None
        return self._newest

    @property
    def running(self) -> bool:
        """True while the cluster is read."""
        return self._task is not None and not self._task.done()

    async def latest(self) -> Tick:
        """The newest sample; reading begins when nothing has watched so far.

        Raises:
            JobMasterError: there is none, because the cluster cannot be read (Unavailable: not in time).
        """
        fresh_from = self._clock.boottime()
        if self.running and self._ticks and self.failure is None:
            self._watch()
            return self._ticks[-1]
        seq = self._seq
        self._watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                while self._seq == seq and self.failure is None:
                    await self._news.wait()
        if self.failure is not None:
            raise self.failure
        if self._seq == seq:
            waited = self._clock.boottime() - fresh_from
            raise Unavailable(f"the cluster could not be read within {waited:.0f} seconds", hint="load the page again")
        return self._ticks[-1]

    async def follow(self, after: int | None) -> AsyncIterator[Tick | None]:
        """Ticks as they come, from the one after ``after`` on; ``None`` means: a read has failed, or a tick was missed and
        the whole is needed. A slow viewer holds nothing back: it reads from the ring, and what has left the ring is missed.
        """
        last = self._seq if after is None else after
        while not self._stopping.is_set():
            self._watch()
            news = self._news
            waiting = [tick for tick in self._ticks if tick.seq > last]
            if waiting and waiting[0].seq != last + 1:
                yield None
            for tick in waiting:
                yield tick
                last = tick.seq
            if not waiting:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS / 2):
                        await news.wait()
                if self.failure is not None:
                    yield None

    def snapshot(self) -> bytes:
        """The whole map of the newest sample."""
        tick = self._ticks[-1]
        return self._map.snapshot(tick.seq, tick.totals.at_us // 1000)

    def _watch(self) -> None:
        self._watched_until = self._clock.boottime() + LINGER_SECONDS
        if not self.running and not self._stopping.is_set():
            self.failure = None
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while (began := self._clock.boottime()) < self._watched_until and not self._stopping.is_set():
                try:
                    self._take(await self._read())
                    self.failure = None
                except JobMasterError as error:
                    if self.failure is None:
                        _log.warning("the pages cannot read the cluster: %s", error)
                    self.failure = error
                self._announce()
                took = self._clock.boottime() - began
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(INTERVAL_SECONDS - took, took * REST_RATIO)):
                        await self._stopping.wait()
        finally:
            self._announce()
            await self._rest()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _take(self, sample: Sample) -> None:
        self._seq += 1
        self._newest = sample
        totals = sample.totals
        at_ms = totals.at_us // 1000
        delta = self._map.apply(self._seq, at_ms, sample.agents, sample.buckets)
        first = not self._ticks or self._seq % KEYFRAME_TICKS == 0
        keyframe = self._map.snapshot(self._seq, at_ms) if first else None
        while self._ticks and self._ticks[0].totals.at_us < totals.at_us - RING_SECONDS * 1e6:
            self._ticks.popleft()
        html = self._draw([*(tick.totals for tick in self._ticks), totals])
        self._ticks.append(Tick(self._seq, totals, delta, keyframe, html))
