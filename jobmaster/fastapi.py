"""A cluster for web applications: FastAPI's, and Starlette's, of which alone this module needs something.

::

    app = FastAPI(lifespan=jobmaster_lifespan(handlers=handlers))
    handle_errors(app)
    Jobs = Annotated[Cluster, Depends(get_cluster)]

    @app.post("/thumbnails", status_code=202)
    async def thumbnail(order: Order, jobs: Jobs) -> JobReceipt[Size]:
        return await jobs.submit(call(make_thumbnail, order))
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.sync import SyncReceipt
from jobmaster.distribution import install_command
from jobmaster.handlers import Handlers
from jobmaster.model.errors import (
    BucketsFull,
    ClockSkew,
    ConfigError,
    Conflict,
    InputError,
    JobMasterError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnknownHandler,
    UnknownLane,
    Unserved,
    WaitTimeout,
)
from jobmaster.model.job_view import JobView
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import connect

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
except ModuleNotFoundError:
    raise ConfigError("jobmaster.fastapi needs Starlette", hint=install_command("fastapi")) from None

try:
    from fastapi.encoders import ENCODERS_BY_TYPE
    from pydantic import TypeAdapter
except ModuleNotFoundError:
    pass  # an application of Starlette alone
else:
    # For routes without a response type, whose values FastAPI looks up here.
    for kind in (JobReceipt, SyncReceipt, JobView):
        ENCODERS_BY_TYPE[kind] = partial(TypeAdapter(kind).dump_python, mode="json")

__all__ = ["get_cluster", "handle_errors", "jobmaster_lifespan"]

STATE = "jobmaster_cluster"
"""Name of the cluster in the state of the lifespan: ``request.state.jobmaster_cluster``."""
RETRY_AFTER_SECONDS = 5

_LATER = "the job cannot be taken now; send the request again later"
_UNKNOWN = "whether the job was taken is not known"
_GOES_ON = "the job has not ended in time; it goes on"
STATUS: dict[type[JobMasterError], int] = {
    # Mistakes of the application, not of the request: they stay errors of the server.
    UnknownHandler: 500, UnknownLane: 500, ClockSkew: 500,
    InputError: 422, NotFound: 404, Conflict: 409,
    WaitTimeout: 504,
    Unavailable: 503, BucketsFull: 503, Unserved: 503,
}  # fmt: skip
"""Error -> HTTP status; the nearest class counts. Errors that are not listed are errors of the server (500)."""

_log = logging.getLogger(__name__)

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
AppLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def jobmaster_lifespan(
    config: str | Path | ClusterSettings | None = None,
    /,
    *,
    handlers: Handlers | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    inner: AppLifespan | None = None,
) -> Lifespan:
    """A lifespan that opens a cluster when the application starts, and closes it when the application ends.

    The other arguments are those of ``jobmaster.connect``. The configuration is read, and the cluster opened, at the start.

    Args:
        inner: the application's own lifespan; it is entered after the cluster is open, and may use it:
            ``app.state.jobmaster_cluster``. What it yields joins the state.

    Raises:
        ConfigError, Unavailable: (at the start) the application then does not start.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(connect(config, handlers=handlers, env=env, overrides=overrides))
            setattr(app.state, STATE, cluster)
            state: dict[str, Any] = {STATE: cluster}
            if inner is not None:
                own: Mapping[str, Any] | None = await stack.enter_async_context(inner(app))
                state.update(own or {})
            yield state

    return lifespan


def get_cluster(connection: HTTPConnection) -> Cluster:
    """The application's cluster, for ``Annotated[Cluster, Depends(get_cluster)]`` in routes and web sockets.

    Raises:
        ConfigError: the application was started without ``jobmaster_lifespan``.
    """
    cluster = getattr(connection.state, STATE, None)
    if cluster is None:
        raise ConfigError(
            "this application has no cluster",
            hint="give it lifespan=jobmaster_lifespan(...); in a test, enter the client: with TestClient(app) as client",
        )
    found: Cluster = cluster
    return found


def handle_errors(app: Starlette, *, retry_after: int = RETRY_AFTER_SECONDS) -> None:
    """Answer requests with the HTTP status of the ``JobMasterError`` that ended them; see ``STATUS``.

    The body is FastAPI's: ``{"detail": "..."}``. It has the error's sentence for statuses below 500. The other sentences name
    servers, so they go to the log alone.

    Args:
        retry_after: seconds in the header ``Retry-After`` of status 503.
    """

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, JobMasterError)
        status = status_of(error)
        if status == 500 or not isinstance(request, Request):  # a web socket has no status
            raise error
        if status < 500:
            return JSONResponse({"detail": error.message}, status)
        _log.warning("%s %s: %s", request.method, request.url.path, error)
        if isinstance(error, WaitTimeout):
            return JSONResponse({"detail": _GOES_ON}, status)
        detail = _UNKNOWN if isinstance(error, OutcomeUnknown) else _LATER
        return JSONResponse({"detail": detail}, status, {"Retry-After": str(retry_after)})

    app.add_exception_handler(JobMasterError, answer)


def status_of(error: JobMasterError) -> int:
    """The HTTP status for an error; 500 for one that no request causes and no wait mends."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
