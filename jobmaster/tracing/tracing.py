"""The tracer of one program, the exporter behind it, and the spans of submits.

A program with a tracer provider of its own keeps it. Otherwise spans go to a provider that is made here from the settings.
Spans are exported by a daemon thread; a full queue drops them. So a collector that does not answer delays no job, and the end
of the program by ``CLOSE_SECONDS`` at most.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState
from opentelemetry.util.types import AttributeValue

from jobmaster.model.trace_context import TraceContext, is_state
from jobmaster.settings.model import TraceExporter, Traces
from jobmaster.tracing import attributes as names

LIBRARY = "jobmaster"
CLOSE_SECONDS = 2.0
"""For the last spans, at the end of a program."""
_PATH = "/v1/traces"
_FIELDS = TraceContextTextMapPropagator()


class Tracing:
    """Spans of one program, and their export.

    Args:
        service, instance: see ``open_tracing``.
    """

    def __init__(self, settings: Traces, *, service: str, instance: str) -> None:
        self.settings = settings
        self._provider: TracerProvider | None = None
        provider: trace.TracerProvider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider) and settings.exporter is not TraceExporter.NONE:
            provider = self._provider = _own_provider(settings, service, instance)
        self.tracer = provider.get_tracer(LIBRARY)

    def share(self) -> None:
        """Make the provider that was made here that of the process, for the spans of handlers. For processes of our own."""
        if self._provider is not None:
            trace.set_tracer_provider(self._provider)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Export what is left, for so many seconds at most."""
        if (provider := self._provider) is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            provider.shutdown()
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:
                pass  # the time was over, and the loop is closed

        # No executor: its threads are awaited at the end of the process.
        threading.Thread(target=shut_down, name="jobmaster-traces-close", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------ submits

    @staticmethod
    def context() -> TraceContext | None:
        """The current span as the headers of a job have it; ``None`` without one."""
        return context_of(trace.get_current_span())

    def begin(self, handler: str | None) -> PublishSpan:
        """Begin the span of one call that submits jobs. It is the current one inside a ``with`` of it, which ends it, too.

        Args:
            handler: ``None``: jobs of several handlers.
        """
        name, attributes = _producing(handler)
        return PublishSpan(self.tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes))

    def fired(self, handler: str, schedule: str, nominal_us: int) -> PublishSpan:
        """Begin the span of a fire of a schedule, which begins a trace."""
        name, attributes = _producing(handler)
        span = self.tracer.start_span(
            name,
            context=otel_context.Context(),
            kind=SpanKind.PRODUCER,
            attributes={**attributes, names.SCHEDULE: schedule, names.NOMINAL: nominal_us},
        )
        return PublishSpan(span)

    @staticmethod
    @contextmanager
    def continued(headers: Mapping[str, str]) -> Iterator[None]:
        """What is submitted inside belongs to the trace that the headers of a request name, if they name one."""
        if trace.get_current_span().get_span_context().is_valid:  # the application has instrumented its server
            yield
            return
        token = otel_context.attach(_FIELDS.extract(headers))
        try:
            yield
        finally:
            otel_context.detach(token)


class PublishSpan:
    """The span of a call that submits jobs, or of a fire."""

    __slots__ = ("_span", "_token", "recorded")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[otel_context.Context] | None = None
        self.recorded = span.is_recording()
        """False: the span is not in the sample, and its end need not be told."""

    @property
    def context(self) -> TraceContext | None:
        """The span as the headers of a job have it."""
        return context_of(self._span)

    def __enter__(self) -> Self:
        self._token = attach(self._span)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        if error is not None:
            self.failed(error)
        else:
            self.end()

    def end(self) -> None:
        """The jobs are stored."""
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """The call has raised this."""
        fail(self._span, type(error).__qualname__)
        self._span.end()

    def stored(self, job_id: str, level: str) -> None:
        """The job is stored."""
        self._span.set_attribute(names.MESSAGE_ID, job_id)
        self._span.set_attribute(names.DURABILITY, level)

    def counted(self, jobs: int) -> None:
        """So many jobs are stored."""
        self._span.set_attribute(names.MESSAGE_COUNT, jobs)


@lru_cache(maxsize=1000)
def _producing(handler: str | None) -> tuple[str, Mapping[str, AttributeValue]]:
    """Name and attributes of the span of a submit; made once for each handler, because every submit needs them."""
    found: dict[str, AttributeValue] = {
        names.SYSTEM: names.SYSTEM_VALUE,
        names.OPERATION_NAME: names.PUBLISH,
        names.OPERATION_TYPE: names.SEND,
    }
    if handler is None:
        return names.PUBLISH, found
    found[names.HANDLER] = handler
    return f"{names.PUBLISH} {handler}", found


def fail(span: Span, error_type: str) -> None:
    """Mark a span as failed."""
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, error_type))


# ---------------------------------------------------------------- contexts


def context_of(span: Span) -> TraceContext | None:
    """A span as the headers of a job have it; ``None`` for no span."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    state = context.trace_state.to_header() if context.trace_state else ""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return TraceContext(parent, state if state and is_state(state) else None)


def span_context_of(carried: TraceContext) -> SpanContext:
    """The span that a job carries."""
    _, trace_id, span_id, flags = carried.traceparent.split("-")
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=TraceState.from_header([carried.tracestate]) if carried.tracestate else TraceState(),
    )


def start_run(tracer: trace.Tracer, name: str, carried: TraceContext | None, *, links: bool) -> Span:
    """The span of a run.

    Args:
        carried: what the job carries; ``None``: the run begins a trace.
        links: begin a trace of its own with a link to it, instead of a child.
    """
    parent = otel_context.Context()
    remote = None if carried is None else span_context_of(carried)
    if remote is not None and not links:
        parent = trace.set_span_in_context(NonRecordingSpan(remote), parent)
    return tracer.start_span(
        name, context=parent, kind=SpanKind.CONSUMER, links=[Link(remote)] if links and remote is not None else []
    )


def attach(span: Span) -> Token[otel_context.Context]:
    """Make a span the current one here; ``detach`` takes what this returns."""
    return otel_context.attach(trace.set_span_in_context(span))


def attach_carried(carried: TraceContext) -> None:
    """Make a span of another process the current one here."""
    attach(NonRecordingSpan(span_context_of(carried)))


detach = otel_context.detach


# ---------------------------------------------------------------- export


def _own_provider(settings: Traces, service: str, instance: str) -> TracerProvider:
    found = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in found
    given: dict[str, AttributeValue] = {} if named else {"service.name": service}
    if "service.instance.id=" not in found:
        given["service.instance.id"] = instance
    provider = TracerProvider(
        sampler=None if settings.sample is None else ParentBased(TraceIdRatioBased(settings.sample)),
        resource=Resource.create(given),
        shutdown_on_exit=False,  # `close` does it, in a bounded time
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(settings)))
    return provider


def _exporter(settings: Traces) -> SpanExporter:
    if settings.exporter is TraceExporter.CONSOLE:
        return ConsoleSpanExporter(out=sys.stderr, formatter=_one_line)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    endpoint = settings.endpoint
    if endpoint is not None and urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + _PATH
    return OTLPSpanExporter(endpoint=endpoint)


def _one_line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"
