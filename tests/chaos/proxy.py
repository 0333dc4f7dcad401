"""A TCP proxy with faults: delay, jitter, bandwidth, silence in one direction, half-open connections, resets, and replies
that are lost after their effect.

Every client gets routes of its own, so that one agent can be cut off alone. A route's fault can be changed at any time
and holds for open and for new connections. Nothing is ever invented, reordered or sent twice: bytes are late, or the
connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from enum import StrEnum

import msgspec

from tests.chaos.wire import PostgresWatcher, RedisWatcher, Watcher

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_CONNECT_SECONDS = 5.0


class Speech(StrEnum):
    """What is spoken on a route."""

    POSTGRES = "postgres"
    REDIS = "redis"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a route does to its connections."""

    delay_seconds: float = 0.0
    """Every piece is this late, each way."""
    jitter_seconds: float = 0.0
    """... and up to so much later."""
    bytes_per_second: float = 0.0
    """0: as fast as it goes."""
    hold_up: bool = False
    """Nothing from client to server passes; nobody is told."""
    hold_down: bool = False
    """Nothing from server to client passes: requests arrive, answers vanish."""
    half_open: bool = False
    """The server's end is gone and the client does not know; new connections are accepted and lead nowhere."""
    refuse: bool = False
    """New connections are reset at once."""
    drop_replies: int = 0
    """So many replies are lost after their effect, each together with its connection."""


HEALTHY = Fault()


class Route:
    """One listening port and where it leads."""

    def __init__(self, name: str, speech: Speech, upstream: str, rng: random.Random) -> None:
        self.name = name
        self.upstream = upstream
        self.fault = HEALTHY
        self.links: set[Link] = set()
        self.counts = {"connections": 0, "replies_dropped": 0, "resets": 0}
        self.rng = rng
        self._speech = speech
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        """The port, on 127.0.0.1."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK * 4)
        return int(self._server.sockets[0].getsockname()[1])

    def watcher(self) -> Watcher:
        return PostgresWatcher() if self._speech is Speech.POSTGRES else RedisWatcher()

    def set(self, fault: Fault) -> None:
        """From now on, for every connection."""
        before, self.fault = self.fault, fault
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if fault.half_open:
            for link in self.links:
                link.lose_server()
        elif before.half_open:
            self.reset(only_half_open=True)

    def reset(self, *, only_half_open: bool = False) -> None:
        """RST to both ends of every connection."""
        for link in list(self.links):
            if link.half_open or not only_half_open:
                self.counts["resets"] += 1
                link.reset()

    async def passing(self, *, up: bool) -> Fault:
        """Wait until something may pass in this direction; the fault that holds then."""
        while (self.fault.hold_up if up else self.fault.hold_down) or self.fault.half_open:
            await self._changed.wait()
        return self.fault

    def take_reply(self) -> bool:
        """True when a reply with an effect is to be lost; counts it."""
        if self.fault.drop_replies <= 0:
            return False
        self.fault = msgspec.structs.replace(self.fault, drop_replies=self.fault.drop_replies - 1)
        self.counts["replies_dropped"] += 1
        return True

    async def close(self) -> None:
        """Close the port and reset what is open."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await asyncio.gather(*(link.gone.wait() for link in self.links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        link = Link(self, reader, writer)
        self.links.add(link)
        try:
            await link.run()
        finally:
            self.links.discard(link)
            link.gone.set()


class Link:
    """One client's connection and its other half."""

    def __init__(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.half_open = False
        self.gone = asyncio.Event()
        self._route = route
        self._client = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._watcher = route.watcher()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Until one side ends; then both are reset."""
        if self._route.fault.refuse:
            self.reset()
            return
        if self._route.fault.half_open:
            self.half_open = True
            await self._ended.wait()
            return
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._server = await _connect(self._route.upstream)
        except (OSError, TimeoutError):
            self.reset()
            return
        pumps = [asyncio.create_task(self._up()), asyncio.create_task(self._down())]
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait([*pumps, ended], return_when=asyncio.FIRST_COMPLETED)
        if self.half_open:
            await self._ended.wait()
        for task in (*pumps, ended):
            task.cancel()
        await asyncio.gather(*pumps, ended, return_exceptions=True)
        self.reset()

    def lose_server(self) -> None:
        """The server's end goes; the client is not told."""
        self.half_open = True
        if self._server is not None:
            _reset(self._server[1])

    def reset(self) -> None:
        """Both ends, without a farewell."""
        _reset(self._client[1])
        if self._server is not None:
            _reset(self._server[1])
        self._ended.set()

    async def _up(self) -> None:
        assert self._server is not None
        reader, writer = self._client[0], self._server[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._shape(len(data), up=True)
                self._watcher.request(data)
                writer.write(data)
                await writer.drain()

    async def _down(self) -> None:
        assert self._server is not None
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._watcher.reply(data) and self._route.take_reply():
                    return
                await self._shape(len(data), up=False)
                writer.write(data)
                await writer.drain()

    async def _shape(self, size: int, *, up: bool) -> None:
        fault = self._route.fault
        if fault is HEALTHY:
            return
        pause = fault.delay_seconds + self._route.rng.random() * fault.jitter_seconds
        if fault.bytes_per_second:
            pause += size / fault.bytes_per_second
        if pause:
            await asyncio.sleep(pause)
        await self._route.passing(up=up)


async def _connect(upstream: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if upstream.startswith("/"):
        return await asyncio.open_unix_connection(upstream, limit=_CHUNK * 4)
    host, port = upstream.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port), limit=_CHUNK * 4)


def _reset(writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
