"""What one agent process answers over HTTP: ``/metrics``, ``/live``, ``/startup``, ``/ready``, ``/drain``, ``/scale``.

The server listens on the loopback address, unless ``observability.metrics_host`` names another one: there is no password, and
the answers show the amount of work and the names of handlers.

The agent's own event loop answers, so any answer of ``/live`` proves that the loop turns. No probe calls a store or the
master: a probe is cheap, and an outage of a server ends no healthy process (Celery's probes, which go through the broker,
have both faults). ``/scale`` is no probe: it may call both, every five seconds at most. Every connection carries one request,
is limited in bytes and time, and there are few at once: a peer that does not speak HTTP costs the agent a socket for some
seconds.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl

from jobmaster.model.errors import ConfigError, JobMasterError, Unavailable
from jobmaster.model.job import Priority
from jobmaster.monitoring.probe_address import port_of, url_of
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

PORT_MAX = 65535
HEAD_BYTES_MAX = 8192
REQUEST_SECONDS = 5.0
"""Time limit for receiving a request and sending its answer."""
CONNECTIONS_MAX = 32
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_HINT = (
    "give this kind of agents a port of its own with agents.<name>.metrics_port, or all of them another one with "
    "observability.metrics_port; 0 is any free one"
)
_HOST_HINT = "mend observability.metrics_host: 127.0.0.1 is this machine alone, 0.0.0.0 every address"


class HttpRequest(NamedTuple):
    """What an answer depends on."""

    query: str
    accept: str


class HttpResponse(NamedTuple):
    """One HTTP answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Health(Protocol):
    """State that the probes read, each at the moment of the probe."""

    def why_not_started(self) -> str | None:
        """Why the start is not complete; ``None`` for good after the buckets were opened."""

    def why_not_ready(self) -> str | None:
        """Why the agent takes no work; ``None`` when it does."""

    def remark(self) -> str | None:
        """Remark of a process that is ready, if any."""

    def draining(self) -> Mapping[str, object]:
        """Progress of the graceful exit."""

    async def scale(self, lane: str | None, priority: Priority | None) -> Mapping[str, object]:
        """Figures of the cluster for an autoscaler; ``JobMasterError``: there are none now."""
        ...


Route = Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]


class HttpServer:
    """The HTTP server of one process."""

    def __init__(self, telemetry: Telemetry, health: Health, log: EventLog) -> None:
        self._telemetry = telemetry
        self._health = health
        self._log = log
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._routes: dict[str, Route] = {
            "/metrics": self._metrics,
            "/live": self._live,
            "/startup": self._startup,
            "/ready": self._ready,
            "/drain": self._drain,
            "/scale": self._scale,
        }
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen on a port of an address, 0 = any free one.

        Raises:
            Unavailable: the port is taken (perhaps only until a neighbour has left: the supervisor tries again).
        """
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise Unavailable(_taken(host, port, error), hint=_hint(error)) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._log.info(Event.METRICS_SERVED, {"url": f"{url_of(host, self.port)}/metrics", "port": self.port})

    async def close(self) -> None:
        """Stop listening and close open connections."""
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
            pass  # no complete request in time
        except asyncio.CancelledError:
            pass  # the process exits; ``close`` waits for this task only to end
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _encoded(_text_answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _encoded(_text_answer(HTTPStatus.BAD_REQUEST), with_body=True)
        method, target, _ = words
        answer = await self._answer(method, target, _accept_of(head))
        return _encoded(answer, with_body=method != "HEAD")

    async def _answer(self, method: str, target: str, accept: str) -> HttpResponse:
        path, _, query = target.partition("?")
        route = self._routes.get(path)
        if route is None:
            return _text_answer(HTTPStatus.NOT_FOUND, f"here are {', '.join(self._routes)}")
        if method not in ("GET", "HEAD"):
            return _text_answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD alone")
        answer = route(HttpRequest(query, accept))
        return answer if isinstance(answer, HttpResponse) else await answer

    # ------------------------------------------------------------ the answers

    def _metrics(self, request: HttpRequest) -> HttpResponse:
        text, content_type = self._telemetry.negotiated(request.accept)
        return HttpResponse(HTTPStatus.OK, content_type, text)

    def _live(self, request: HttpRequest) -> HttpResponse:
        return _state(HTTPStatus.OK, {"live": True})

    def _startup(self, request: HttpRequest) -> HttpResponse:
        why_not = self._health.why_not_started()
        if why_not is None:
            return _state(HTTPStatus.OK, {"started": True})
        return _state(HTTPStatus.SERVICE_UNAVAILABLE, {"started": False, "reason": why_not})

    def _drain(self, request: HttpRequest) -> HttpResponse:
        return _state(HTTPStatus.OK, dict(self._health.draining()))

    async def _scale(self, request: HttpRequest) -> HttpResponse:
        wanted = dict(parse_qsl(request.query, keep_blank_values=True))
        lane, label = wanted.pop("lane", None), wanted.pop("priority", None)
        if wanted:
            return _state(HTTPStatus.BAD_REQUEST, {"error": f"unknown {', '.join(wanted)}; known are lane, priority"})
        try:
            priority = None if label is None else Priority.parse(label)
        except ValueError as error:
            return _state(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        try:
            return _state(HTTPStatus.OK, dict(await self._health.scale(lane, priority)))
        except JobMasterError as error:
            return _state(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})

    def _ready(self, request: HttpRequest) -> HttpResponse:
        why_not = self._health.why_not_ready()
        if why_not is None:
            remark = self._health.remark()
            return _state(HTTPStatus.OK, {"ready": True} if remark is None else {"ready": True, "remark": remark})
        return _state(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": why_not})


def _accept_of(head: bytes) -> str:
    """The header ``Accept`` of a request."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"accept":
            return value.strip().decode("latin-1")
    return ""


def _state(status: HTTPStatus, body: dict[str, object]) -> HttpResponse:
    return HttpResponse(status, _JSON, json.dumps(body).encode() + b"\n")


def _text_answer(status: HTTPStatus, more: str = "") -> HttpResponse:
    return HttpResponse(status, _TEXT, (f"{status.phrase}: {more}\n" if more else f"{status.phrase}\n").encode())


def _encoded(answer: HttpResponse, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n"
    )
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET, HEAD\r\n"
    return head.encode() + b"\r\n" + (answer.body if with_body else b"")


# ---------------------------------------------------------------- ports


def check_ports(settings: ClusterSettings, agent: str, processes: int) -> None:
    """Check before the start of any process that each port is free.

    Raises:
        ConfigError: a port is taken or out of range, or the address does not belong to this machine.
    """
    host = settings.observability.metrics_host
    for index in range(processes):
        port = port_of(settings, agent, index)
        if not port:
            return
        if port > PORT_MAX:
            raise ConfigError(
                f"metrics_port is {port - index}, and {processes} processes take one port each: there is no port {port}",
                hint=_HINT,
            )
        try:
            for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                with socket.socket(family, kind) as probe:
                    # As the server does: old connections may linger, and :: is for IPv6 alone.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind(address)
        except OSError as error:
            raise ConfigError(_taken(host, port, error), hint=_hint(error)) from error


def _hint(error: OSError) -> str:
    return _HINT if error.errno in (errno.EADDRINUSE, errno.EACCES) else _HOST_HINT


def _taken(host: str, port: int, error: OSError) -> str:
    why = error.strerror if isinstance(error, socket.gaierror) or not error.errno else os.strerror(error.errno)
    why = why or str(error)
    return f"metrics and probes cannot be served on {host} port {port}: {why[:1].lower()}{why[1:]}"
