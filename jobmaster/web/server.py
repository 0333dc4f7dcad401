"""``jobmaster web``: the application in a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from jobmaster.model.errors import ConfigError
from jobmaster.settings.model import ClusterSettings, Web
from jobmaster.web.app import create_app
from jobmaster.web.authentication import is_loopback
from jobmaster.web.context import WebContext
from jobmaster.wiring import open_cluster

GRACE_SECONDS = 2
"""How long requests under way may take when the server stops; streams end at once."""
KEEP_ALIVE_SECONDS = 30
CONNECTIONS_MAX = 1000


class _Server(uvicorn.Server):
    """Without signal handlers of its own, which raise the signal again after the stop: the cluster would not be closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def check_exposure(settings: Web) -> None:
    """Check before the start that no stranger is served.

    Raises:
        ConfigError: the address is not of this machine alone, and there is no token.
    """
    if not settings.tokens and not is_loopback(settings.host):
        raise ConfigError(
            f"web.host is {settings.host}, which other machines reach, and web.tokens is empty",
            hint="make a token with `jobmaster web token NAME`, or listen on 127.0.0.1",
        )


async def serve(settings: ClusterSettings, *, read_only: bool, started: Callable[[str], None]) -> None:
    """Serve until a SIGTERM or a Ctrl-C.

    Args:
        started: called with the server's URL when it listens.

    Raises:
        ConfigError: see ``check_exposure``; or the address cannot be listened on.
        Unavailable: the master cannot be reached.
    """
    check_exposure(settings.web)
    listener = _listener(settings.web)
    with listener:
        async with await open_cluster(settings) as cluster:
            app = create_app(cluster, read_only=read_only)
            context: WebContext = app.state.web
            proxies = settings.web.proxies
            server = _Server(
                uvicorn.Config(
                    app,
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    proxy_headers=bool(proxies),
                    forwarded_allow_ips=proxies or None,
                    timeout_graceful_shutdown=GRACE_SECONDS,
                    timeout_keep_alive=KEEP_ALIVE_SECONDS,
                    limit_concurrency=CONNECTIONS_MAX,
                    ws="none",
                )
            )

            def stop() -> None:
                server.force_exit = server.should_exit  # the second signal
                server.should_exit = True
                context.stopping.set()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            started(_url_of(settings.web.host, listener.getsockname()[1]))
            await server.serve(sockets=[listener])


def _listener(settings: Web) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"the web server cannot listen on {settings.host} port {settings.port}: {error.strerror or error}",
            hint="give another web.port (0 is any free one), or --port",
        ) from error
    listener.setblocking(False)
    return listener


def _url_of(host: str, port: int) -> str:
    place = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{place}:{port}"
