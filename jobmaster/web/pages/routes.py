"""The routes of the pages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jobmaster.rules.access import Scope
from jobmaster.web.context import context_of
from jobmaster.web.guard import GuardedRoute


def page_routes() -> list[GuardedRoute]:
    """The routes of the pages."""
    return [GuardedRoute("/", _start, scope=Scope.VIEW)]


async def _start(request: Request) -> Response:
    return PlainTextResponse(f"jobmaster: {context_of(request).cluster.settings.cluster}\n")
