"""The numbers and the health of one agent process over HTTP, on 127.0.0.1 alone: ``/metrics``, ``/live``, ``/ready``.

The agent's own loop answers, so ``/live`` says that it turns by answering at all. Nothing here asks a store or the master:
a probe is cheap, and an outage of a server ends no healthy process (Celery's probes, which go through the broker, do both).
Every connection carries one request, is bounded in bytes and time, and there are few at once: who cannot speak HTTP costs
the agent a socket for some seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import CONTENT_TYPE, Telemetry
from jobmaster_agents.events import Event, EventLog

HOST = "127.0.0.1"
PORT_MAX = 65535
HEAD_BYTES_MAX = 8192
REQUEST_SECONDS = 5.0
"""How long a request may take to arrive, and its answer to be taken."""
CONNECTIONS_MAX = 32
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_HINT = "give another port with observability.metrics_port, or 0 for any free one"


class Answer(NamedTuple):
    """One HTTP answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Serving:
    """The HTTP server of one process.

    Args:
        why_not_ready: asked at the moment of the probe; ``None``: give it work.
        remark: what a process that is ready has to say about it.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        why_not_ready: Callable[[], str | None],
        log: EventLog,
        remark: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._telemetry = telemetry
        self._why_not_ready = why_not_ready
        self._remark = remark
        self._log = log
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._routes: dict[str, Callable[[], Answer]] = {
            "/metrics": self._metrics,
            "/live": self._live,
            "/ready": self._ready,
        }
        self.port = 0

    async def start(self, port: int) -> None:
        """Listen on a port, 0 = any free one.

        Raises:
            Unavailable: the port is taken (perhaps only until a neighbour has left: the supervisor tries again).
        """
        try:
            self._server = await asyncio.start_server(self._connected, HOST, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise Unavailable(_taken(port, error), hint=_HINT) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._log.info(Event.METRICS_SERVED, {"url": f"http://{HOST}:{self.port}/metrics", "port": self.port})

    async def close(self) -> None:
        """Stop listening and cut who is still there."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # ------------------------------------------------------------ one connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(await self._exchange(reader))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # who does not ask gets no answer
        except asyncio.CancelledError:
            pass  # the process leaves; nobody waits for this task
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _encoded(_said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _encoded(_said(HTTPStatus.BAD_REQUEST), with_body=True)
        method, target, _ = words
        return _encoded(self.answer(method, target), with_body=method != "HEAD")

    def answer(self, method: str, target: str) -> Answer:
        """What a request is answered."""
        route = self._routes.get(target.split("?", 1)[0])
        if route is None:
            return _said(HTTPStatus.NOT_FOUND, f"here are {', '.join(self._routes)}")
        if method not in ("GET", "HEAD"):
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD alone")
        return route()

    # ------------------------------------------------------------ the three answers

    def _metrics(self) -> Answer:
        return Answer(HTTPStatus.OK, CONTENT_TYPE, self._telemetry.exposition())

    def _live(self) -> Answer:
        return _state(HTTPStatus.OK, {"live": True})

    def _ready(self) -> Answer:
        why_not = self._why_not_ready()
        if why_not is None:
            remark = self._remark()
            return _state(HTTPStatus.OK, {"ready": True} if remark is None else {"ready": True, "remark": remark})
        return _state(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": why_not})


def _state(status: HTTPStatus, body: dict[str, object]) -> Answer:
    return Answer(status, _JSON, json.dumps(body).encode() + b"\n")


def _said(status: HTTPStatus, more: str = "") -> Answer:
    return Answer(status, _TEXT, (f"{status.phrase}: {more}\n" if more else f"{status.phrase}\n").encode())


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n"
    )
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET, HEAD\r\n"
    return head.encode() + b"\r\n" + (answer.body if with_body else b"")


# ---------------------------------------------------------------- ports


def port_of(settings: ClusterSettings, index: int) -> int | None:
    """Port of the ``index``-th process of one supervisor; ``None`` = serve nothing."""
    first = settings.observability.metrics_port
    return first + index if first else first


def check_ports(settings: ClusterSettings, processes: int) -> None:
    """See once, before any process is started, that each can have its port.

    Raises:
        ConfigError: a port is taken, or there are not so many.
    """
    if not settings.observability.metrics_port:
        return
    for index in range(processes):
        port = port_of(settings, index) or 0
        if port > PORT_MAX:
            raise ConfigError(
                f"observability.metrics_port is {settings.observability.metrics_port}, and {processes} processes take one "
                f"port each: there is no port {port}",
                hint=_HINT,
            )
        with socket.socket() as probe:
            # As the server does: old connections may linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise ConfigError(_taken(port, error), hint=_HINT) from error


def _taken(port: int, error: OSError) -> str:
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"metrics and probes cannot be served on {HOST} port {port}: {why[:1].lower()}{why[1:]}"
