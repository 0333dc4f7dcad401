"""Every operation of the HTTP API."""

from __future__ import annotations

from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from jobmaster.rules.access import Scope
from jobmaster.web.api import control, events, flow, inspecting, jobs, operating, servers, submitting
from jobmaster.web.api.openapi import openapi_json
from jobmaster.web.api.operation import PREFIX, Operation
from jobmaster.web.guard import GuardedRoute

OPERATIONS: tuple[Operation, ...] = (
    *submitting.OPERATIONS,
    *jobs.OPERATIONS,
    *flow.OPERATIONS,
    *control.OPERATIONS,
    *operating.OPERATIONS,
    *servers.OPERATIONS,
    *inspecting.OPERATIONS,
    *events.OPERATIONS,
)


@cache
def openapi_document() -> bytes:
    """The OpenAPI document of all of them. Made at its first use: it reads the sources of the types."""
    return openapi_json(OPERATIONS)


def api_routes() -> list[GuardedRoute]:
    """The routes of the API, and its OpenAPI document."""
    return [
        GuardedRoute(f"{PREFIX}/openapi.json", _openapi, scope=Scope.VIEW),
        *(operation.route() for operation in OPERATIONS),
    ]


async def _openapi(_: Request) -> Response:
    return Response(openapi_document(), media_type="application/json")
