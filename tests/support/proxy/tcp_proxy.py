"""A TCP proxy with faults: delay, jitter, small pieces, bandwidth, silence in one direction, half-open connections, resets,
and replies that are lost after their effect.

A client has proxies of its own, so that it can be cut off alone. The fault of a proxy can be changed at any time and holds
for open and for new connections. Bytes are never invented, reordered or sent twice: they are late, or the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from enum import StrEnum
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import msgspec

from tests.support.proxy.effect_watcher import EffectWatcher, PostgresEffectWatcher, RedisEffectWatcher

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_CONNECT_SECONDS = 5.0


class WireProtocol(StrEnum):
    """The protocol of a server."""

    POSTGRES = "postgres"
    REDIS = "redis"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a proxy does to its connections."""

    delay_seconds: float = 0.0
    """Every piece is this late, each way."""
    jitter_seconds: float = 0.0
    """... and up to so much later."""
    piece_bytes: int = 0
    """Bytes pass in pieces of a random length up to this. 0: as they arrive."""
    bytes_per_second: float = 0.0
    """0: no limit."""
    hold_up: bool = False
    """Nothing from client to server passes; both connections stay open."""
    hold_down: bool = False
    """Nothing from server to client passes: requests arrive, answers do not."""
    half_open: bool = False
    """The connection to the server is gone and the client's stays open; new connections are accepted and lead nowhere."""
    refuse: bool = False
    """New connections are reset at once."""
    drop_replies: int = 0
    """Number of replies that are lost after their effect, each together with its connection."""


HEALTHY = Fault()
SLOW = Fault(jitter_seconds=0.002, piece_bytes=2000)
"""Small pieces, a little late: answers come in parts, and at any moment of the caller."""
SILENT = Fault(hold_down=True)
"""Requests arrive; no answer comes."""
CUT = Fault(refuse=True)
"""With ``reset``: no connection is left, and none can be made."""


class TcpProxy:
    """One listening port on 127.0.0.1 and the server that it leads to.

    Args:
        upstream: path of a unix socket, or host:port.
        rng: for what a fault leaves to chance.
        fault: the fault at the start.
    """

    def __init__(self, protocol: WireProtocol, upstream: str, rng: random.Random, fault: Fault | None = None) -> None:
        self.upstream = upstream
        self.fault = fault or HEALTHY
        self.port = 0
        self.connections: set[ProxiedConnection] = set()
        self.counts = {"connections": 0, "replies_dropped": 0, "resets": 0}
        self.rng = rng
        self._protocol = protocol
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self) -> int:
        """Open the port; its number."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK * 4)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    @property
    def store_url(self) -> str:
        """For a client of a store."""
        return f"redis://127.0.0.1:{self.port}"

    def master_dsn(self, dsn: str) -> str:
        """The DSN of a server's unix socket, with this proxy in place of the socket."""
        parts = urlsplit(dsn)
        query = urlencode(
            {key: value for key, (value,) in parse_qs(parts.query).items() if key not in ("host", "port")}
        )
        return urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}", query=query))

    def cut(self) -> None:
        """End every connection and refuse new ones, until another fault is set."""
        self.set(CUT)
        self.reset()

    def watcher(self) -> EffectWatcher:
        """For the bytes of a new connection."""
        return PostgresEffectWatcher() if self._protocol is WireProtocol.POSTGRES else RedisEffectWatcher()

    def set(self, fault: Fault) -> None:
        """From now on this fault holds for every connection."""
        before, self.fault = self.fault, fault
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if fault.half_open:
            for connection in self.connections:
                connection.lose_server()
        elif before.half_open:
            self.reset(only_half_open=True)

    def reset(self, *, only_half_open: bool = False) -> None:
        """RST to both ends of every connection."""
        for connection in list(self.connections):
            if connection.half_open or not only_half_open:
                self.counts["resets"] += 1
                connection.reset()

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
        await asyncio.gather(*(connection.gone.wait() for connection in self.connections))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        connection = ProxiedConnection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            connection.gone.set()


class ProxiedConnection:
    """The connection of a client and the one to the server."""

    def __init__(self, proxy: TcpProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.half_open = False
        self.gone = asyncio.Event()
        self._proxy = proxy
        self._client = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._watcher = proxy.watcher()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Until one side ends; then both are reset."""
        if self._proxy.fault.refuse:
            self.reset()
            return
        if self._proxy.fault.half_open:
            self.half_open = True
            await self._ended.wait()
            return
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._server = await _connect(self._proxy.upstream)
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
        """The connection to the server ends; the client's stays open."""
        self.half_open = True
        if self._server is not None:
            _reset(self._server[1])

    def reset(self) -> None:
        """RST to both ends."""
        _reset(self._client[1])
        if self._server is not None:
            _reset(self._server[1])
        self._ended.set()

    async def _up(self) -> None:
        assert self._server is not None
        reader, writer = self._client[0], self._server[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(self._piece()):
                await self._shape(len(data), up=True)
                self._watcher.request(data)
                writer.write(data)
                await writer.drain()

    async def _down(self) -> None:
        assert self._server is not None
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(self._piece()):
                if self._watcher.reply(data) and self._proxy.take_reply():
                    return
                await self._shape(len(data), up=False)
                writer.write(data)
                await writer.drain()

    def _piece(self) -> int:
        piece_bytes = self._proxy.fault.piece_bytes
        return self._proxy.rng.randint(1, piece_bytes) if piece_bytes else _CHUNK

    async def _shape(self, size: int, *, up: bool) -> None:
        fault = self._proxy.fault
        if fault is HEALTHY:
            return
        pause = fault.delay_seconds + self._proxy.rng.random() * fault.jitter_seconds
        if fault.bytes_per_second:
            pause += size / fault.bytes_per_second
        if pause:
            await asyncio.sleep(pause)
        await self._proxy.passing(up=up)


def slow_store_proxy(url: str, *, seed: int = 0) -> TcpProxy:
    """A proxy before an embedded store, with the fault ``SLOW``."""
    return TcpProxy(WireProtocol.REDIS, socket_of(url), random.Random(seed), SLOW)


def socket_of(address: str) -> str:
    """Path of the unix socket that an embedded server's address names."""
    parts = urlsplit(address)
    if parts.scheme == "unix":
        return parts.path
    query = parse_qs(parts.query)
    return f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"


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
