"""The application: pages and HTTP API of one cluster, for any ASGI server, alone or mounted under a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from jobmaster.client.cluster import Cluster
from jobmaster.clock import SystemClock
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.settings.model import Web
from jobmaster.web.answers import (
    PartlyStored,
    RequestRefused,
    internal_error,
    on_http_exception,
    on_library_error,
    on_partly_stored,
    on_refusal,
)
from jobmaster.web.api.routes import api_routes
from jobmaster.web.authentication import Access, Authenticate
from jobmaster.web.context import WebContext
from jobmaster.web.guard import HEADERS, Guard, GuardedRoute
from jobmaster.web.pages.routes import page_routes


def create_app(
    cluster: Cluster,
    settings: Web | None = None,
    *,
    read_only: bool = False,
    authenticate: Authenticate | None = None,
) -> Starlette:
    """The pages and the HTTP API of a cluster, as an application of ASGI.

    ::

        app.mount("/jobs", create_app(cluster, authenticate=who))

    Args:
        cluster: open for as long as the application is used, in the same event loop.
        settings: ``None``: the section ``web`` of the cluster's configuration.
        read_only: refuse every change, as ``web.read_only`` does. Without authentication that is always so.
        authenticate: the application's own way to know its callers.
    """
    settings = cluster.settings.web if settings is None else settings
    access = Access(settings, SystemClock(), authenticate)
    context = WebContext(cluster, read_only or settings.read_only or not access.configured)
    routes: list[BaseRoute] = [GuardedRoute("/live", _live, scope=None), *api_routes(), *page_routes()]
    _check_guarded(routes)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access, settings=settings, read_only=context.read_only)],
        exception_handlers={
            HTTPException: on_http_exception,
            RequestRefused: on_refusal,
            PartlyStored: on_partly_stored,
            JobMasterError: on_library_error,
            Exception: _on_defect,
        },
    )
    app.router.redirect_slashes = False
    app.state.web = context
    return app


def _check_guarded(routes: Iterable[BaseRoute]) -> None:
    for route in routes:
        if not isinstance(route, GuardedRoute):
            raise CodeError(f"{route!r} states no scope: every route of the web server is a GuardedRoute")


async def _live(_: Request) -> Response:
    """For probes. Calls no server, and shows nothing about the cluster."""
    return JSONResponse({"live": True})


async def _on_defect(_: Request, __: Exception) -> Response:
    """Outside the guard, so it has the headers of every answer itself. Starlette raises the error again, for the log."""
    answer = internal_error()
    answer.headers.update(HEADERS)
    return answer
