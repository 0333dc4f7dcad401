"""One operation of the HTTP API: a function whose signature states what it takes and gives.

The path's parameters are the function's parameters of the same names; ``query`` and ``body`` are structs; the answer is the
return annotation. Requests are decoded by these types, and the OpenAPI document is generated from them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jobmaster.client.cluster import Cluster
from jobmaster.model.errors import InputError, OutcomeUnknown
from jobmaster.model.suggestion import did_you_mean
from jobmaster.rules.access import Scope
from jobmaster.web.answers import RequestRefused, answer_error, internal_error, slow_cluster
from jobmaster.web.authentication import Principal
from jobmaster.web.context import WebContext, context_of
from jobmaster.web.guard import GuardedRoute, principal_of

PREFIX = "/api/v1"
BODY_SECONDS = 20.0
"""How long the body of a request may take to come."""
CALL_SECONDS = 60.0
"""How long the cluster may take for one request. A wait has a limit of its own below this."""
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_JSON = "application/json"

_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parameters behind ``?``. A field that is a list may be given several times, or with commas."""

    whole: ClassVar[frozenset[str]] = frozenset()
    """Lists whose texts may contain commas."""


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the JSON bodies of requests."""


class Nothing(Query, frozen=True, kw_only=True):
    """No parameters."""


class Call(NamedTuple):
    """The surroundings of one request, for the functions of operations."""

    context: WebContext
    principal: Principal
    request: Request
    job_ids: list[bytes]
    """Jobs that the request stores, as soon as they have ids: the answer names them when the time limit ends it."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of the application."""
        return self.context.cluster

    @property
    def actor(self) -> str:
        """Name of the caller in the operator log."""
        return self.principal.actor

    async def note(self, action: str, subject: str, detail: Mapping[str, object]) -> None:
        """Write a line of the operator log, for an action that writes none itself."""
        await self.cluster.master.requests.note(self.actor, action, {subject: detail})

    def may(self, scope: Scope) -> bool:
        """Whether the caller has a scope beside that of the route."""
        return scope in self.principal.scopes


class Operation(NamedTuple):
    """A function as a route."""

    method: str
    path: str
    """Below ``PREFIX``, with ``{name}`` for parameters; ``{name:path}`` for one that may contain ``/``."""
    scope: Scope | None
    status: int
    function: Callable[..., Awaitable[Any]]
    parameters: Mapping[str, Any]
    """Parameters of the path: name -> type."""
    query: type[Query]
    body: Any
    """Type of the JSON body; ``None``: there is none."""
    answer: Any
    """Type of the JSON answer."""

    @property
    def name(self) -> str:
        """Name in the OpenAPI document."""
        return self.function.__name__

    def route(self) -> GuardedRoute:
        """The route that answers."""
        return GuardedRoute(PREFIX + self.path, self.answer_request, scope=self.scope, methods=[self.method])

    async def answer_request(self, request: Request) -> Response:
        """Decode the request, call the function, encode its answer."""
        given = {name: _parameter(name, kind, request.path_params[name]) for name, kind in self.parameters.items()}
        if self.query is not Nothing:
            given["query"] = decode_query(self.query, request)
        elif request.query_params:
            raise InputError("this takes no parameters behind '?'")
        if self.body is not None:
            given["body"] = decode_body(self.body, await read_body(request))
        call = Call(context_of(request), principal_of(request), request, [])
        try:
            async with asyncio.timeout(CALL_SECONDS):
                traces = call.cluster.traces
                with nullcontext() if traces is None else traces.continued(request.headers):
                    answer = await self.function(call, **given)
        except TimeoutError:
            silent = f"{request.method} {request.url.path}: no answer within {CALL_SECONDS:g} s"
            if self.method != "GET":
                # A write that was on its way when it was cut off may have been committed.
                return answer_error(OutcomeUnknown(silent, id_bytes=call.job_ids))
            _log.warning("%s", silent)
            return slow_cluster()
        except RecursionError:
            _log.exception("%s %s", request.method, request.url.path)
            return internal_error()
        if isinstance(answer, Response):
            # The body of a stream has no end, and a HEAD has no body.
            return Response(headers=answer.headers) if request.method == "HEAD" else answer
        return Response(msgspec.json.encode(answer), self.status, media_type=_JSON)


class Operations(list[Operation]):
    """Collects operations: ``@operations.get("/jobs", scope=Scope.VIEW)``."""

    def get(self, path: str, *, scope: Scope) -> Callable[[F], F]:
        """Declare an operation that reads."""
        return self._declare("GET", path, scope, 200)

    def post(self, path: str, *, scope: Scope, status: int = 200) -> Callable[[F], F]:
        """Declare an operation that changes something."""
        return self._declare("POST", path, scope, status)

    def put(self, path: str, *, scope: Scope) -> Callable[[F], F]:
        """Declare an operation that sets something."""
        return self._declare("PUT", path, scope, 200)

    def delete(self, path: str, *, scope: Scope) -> Callable[[F], F]:
        """Declare an operation that takes something away."""
        return self._declare("DELETE", path, scope, 200)

    def _declare(self, method: str, path: str, scope: Scope, status: int) -> Callable[[F], F]:
        def declare(function: F) -> F:
            hints = get_type_hints(function, include_extras=True)
            answer, query, body = hints.pop("return"), hints.pop("query", Nothing), hints.pop("body", None)
            hints.pop(next(iter(inspect.signature(function).parameters)))
            assert list(hints) == _PATH_PARAMETER.findall(path), f"{function.__name__}: other parameters than {path}"
            self.append(Operation(method, path, scope, status, function, hints, query, body, answer))
            return function

        return declare


async def read_body(request: Request) -> bytes:
    """The whole body, ``{}`` for none; its size is bounded by the guard."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.body()
    except TimeoutError:
        raise RequestRefused(408, "timeout", f"the body did not come within {BODY_SECONDS:g} s") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != _JSON:
        raise RequestRefused(415, "unsupported_media_type", "the body must be JSON", f"send Content-Type: {_JSON}")
    return body or b"{}"


def decode_body(kind: Any, data: bytes) -> Any:
    """The body as its type.

    Raises:
        RequestRefused: it is no JSON.
        InputError: it is JSON of another form.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestRefused(400, "bad_request", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestRefused(400, "bad_request", "the body is nested too deeply") from None


def decode_query(kind: type[Query], request: Request) -> Any:
    """The parameters behind ``?`` as their struct; ``InputError`` for one that there is not, or that has a wrong value."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for name in request.query_params:
        if name not in fields:
            hint = did_you_mean(name, fields) or f"there are {', '.join(fields)}"
            raise InputError(f"there is no parameter {name!r:.60}", hint=hint)
        given = request.query_params.getlist(name)
        if _is_list(fields[name].type):
            values[name] = given if name in kind.whole else [part for each in given for part in each.split(",")]
        elif len(given) > 1:
            raise InputError(f"parameter {name!r} is given {len(given)} times")
        else:
            values[name] = given[0]
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"a parameter: {error}") from None


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(get_origin(part) is list for part in get_args(kind))


def _parameter(name: str, kind: Any, text: str) -> Any:
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{name!r} in the path, {text!r:.60}: {error}") from None
