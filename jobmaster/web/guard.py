"""What every request passes before any route: the host that it names, its caller, its origin; and every answer: headers.

A route states the scope that its caller needs; the application refuses to start with one that states none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from jobmaster.model.errors import JobMasterError
from jobmaster.rules.access import Scope
from jobmaster.settings.model import Web
from jobmaster.web.answers import RequestRefused, answer_error, answer_refusal
from jobmaster.web.authentication import Access, Principal, is_known_host, require

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_BYTES_MAX = 16 * 1024 * 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer that has no other value for them."""


class GuardedRoute(Route):
    """A route for callers with a scope.

    Args:
        scope: ``None``: for everybody, known or not.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, scope: Scope | None, methods: Sequence[str] = ("GET",)
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods))
        self.scope = scope

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer, if the caller may."""
        require(principal_of(HTTPConnection(scope)), self.scope)
        await super().handle(scope, receive, send)


class Guard:
    """Middleware of ASGI around the application."""

    def __init__(self, app: ASGIApp, access: Access, settings: Web, *, read_only: bool) -> None:
        self._app = app
        self._access = access
        self._hosts = frozenset(settings.hosts)
        self._read_only = read_only

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there are no web sockets here"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            principal = await self._admitted(HTTPConnection(scope))
        except RequestRefused as refusal:
            await answer_refusal(refusal)(scope, receive, send_guarded)
            return
        except JobMasterError as error:  # of an application's own authentication
            await answer_error(error)(scope, receive, send_guarded)
            return
        scope["state"] = {**scope.get("state", {}), "principal": principal}
        await self._app(scope, _bounded(receive), send_guarded)

    async def _admitted(self, connection: HTTPConnection) -> Principal:
        host = _host_of(connection)
        if not is_known_host(host, self._hosts):
            raise RequestRefused(
                421, "unknown_host", f"this server is not known as {host!r:.100}", "add the name to web.hosts"
            )
        principal = await self._access.principal_of(connection)
        if connection.scope["method"] not in SAFE_METHODS:
            self._check_change(connection)
        return principal

    def _check_change(self, connection: HTTPConnection) -> None:
        """A change comes from this server's own pages, or from a program that is no browser."""
        if self._read_only or not self._access.configured:
            why = "web.read_only is set" if self._access.configured else "no authentication is configured"
            raise RequestRefused(
                403,
                "read_only",
                f"nothing can be changed here: {why}",
                None if self._access.configured else "give web.tokens (jobmaster web token NAME makes one)",
            )
        site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
        if site is not None:
            own = site in ("same-origin", "none")
        else:
            own = origin is None or _network_location(origin) == connection.headers.get("host", "").lower()
        if not own:
            raise RequestRefused(
                403, "cross_site", "the request comes from another site", "send it from a page of this server"
            )


def principal_of(connection: HTTPConnection) -> Principal:
    """The caller of a request that the guard has admitted."""
    principal: Principal = connection.state.principal
    return principal


def _network_location(origin: str) -> str | None:
    """Host and port of an origin; ``None``: it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_of(connection: HTTPConnection) -> str:
    """The host that a request names, without the port."""
    value = connection.headers.get("host", "")
    try:
        parsed = urlsplit(f"//{value}")
        host = parsed.hostname or ""
        _ = parsed.port
    except ValueError:
        host = ""
    if not host or parsed.netloc != value or "@" in value:
        raise RequestRefused(400, "bad_request", "the header Host is missing or malformed")
    return host


def _bounded(receive: Receive) -> Receive:
    """The body of a request up to ``BODY_BYTES_MAX``, whichever route reads it."""
    left = BODY_BYTES_MAX

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise RequestRefused(413, "too_large", f"the body has more than {BODY_BYTES_MAX} bytes")
        return message

    return bounded
