"""Spans of the agent's own calls to the master and to its store, for debugging (``observability.traces.calls``)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

from opentelemetry.trace import SpanKind, Tracer

from jobmaster.ports import WorkerMaster, WorkerStore
from jobmaster.tracing.tracing import Tracing, fail

P = ParamSpec("P")
T = TypeVar("T")
MASTER, STORE = "master", "store"


class TracedCalls:
    """Stands before a port: each of its coroutines has a span, and everything else is the port's own."""

    def __init__(self, port: object, name: str, tracer: Tracer) -> None:
        self._port = port
        self._name = name
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if inspect.iscoroutinefunction(found):
            found = _traced(found, f"{self._name}.{name}", self._tracer)
            setattr(self, name, found)
        return found


class TracedParts:
    """Stands before the parts of a master."""

    def __init__(self, master: object, tracer: Tracer) -> None:
        self._master = master
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        traced = TracedCalls(getattr(self._master, name), f"{MASTER} {name}", self._tracer)
        setattr(self, name, traced)
        return traced


def with_spans(master: WorkerMaster, store: WorkerStore, tracing: Tracing) -> tuple[WorkerMaster, WorkerStore]:
    """The same ports, with a span around each call."""
    tracer = tracing.tracer
    return cast("WorkerMaster", TracedParts(master, tracer)), cast("WorkerStore", TracedCalls(store, STORE, tracer))


def _traced(call: Callable[P, Awaitable[T]], name: str, tracer: Tracer) -> Callable[P, Awaitable[T]]:
    @functools.wraps(call)
    async def traced(*args: P.args, **kwargs: P.kwargs) -> T:
        with tracer.start_as_current_span(
            name, kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                return await call(*args, **kwargs)
            except BaseException as error:  # its text may hold values of a row
                fail(span, type(error).__qualname__)
                raise

    return traced
