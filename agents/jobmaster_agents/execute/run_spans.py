"""The span of each run: begun where the handler is called, ended with the outcome of the run.

It stands between the builder of outcomes and their writer, and around every handler, only in an agent with traces: others are
not slowed. The span of a run that its agent did not survive is lost; the next run has one of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from opentelemetry.trace import Span

from jobmaster.clock import Clock
from jobmaster.handlers import Handler, JobContext
from jobmaster.model.ids import created_ms, text
from jobmaster.model.job import ErrorInfo, FinalRow, Headers, HoldRow, Priority
from jobmaster.model.trace_context import TraceContext, trace_id_of
from jobmaster.settings.model import RunParent
from jobmaster.tracing import attributes as names
from jobmaster.tracing.tracing import Tracing, attach, context_of, detach, fail, start_run
from jobmaster_agents.outcomes.outcome_builder import OutcomeSink
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, JobTable
from jobmaster_agents.state.time_limits import headers_of

_ERROR = msgspec.json.Decoder(ErrorInfo)
_SNOOZED = "snoozed"
_LEFT_MAX = 10_000
"""Spans of runs that nothing has ended, above which those of settled jobs are dropped."""


class RunSpans:
    """A sink of outcomes that passes every outcome on, and middleware of every handler.

    Args:
        agent_id: of the agent, 16 bytes.
    """

    def __init__(self, tracing: Tracing, agent_id: bytes, sink: OutcomeSink, job_table: JobTable, clock: Clock) -> None:
        self._tracer = tracing.tracer
        self._links = tracing.settings.parent is RunParent.LINK
        self._sink = sink
        self._job_table = job_table
        self._now = clock.boottime
        self._agent = text(agent_id)
        self._open: dict[ClaimedJob, Span] = {}

    def surround(self, handlers: Mapping[str, Handler]) -> None:
        """Have a span around each of these handlers, outside of its middleware."""
        for handler in handlers.values():
            handler.surround((self.around, *handler.around))

    # ------------------------------------------------------------ the beginning

    async def around(self, context: JobContext, run: Callable[[], Awaitable[object]]) -> object:
        """Middleware: the span is the current one in the handler."""
        job = self._job_table.get(context.job_id_bytes)
        if job is None or job.entry.token != context.token:
            return await run()
        token = attach(self._begin(job, context.headers))
        try:
            return await run()
        finally:
            detach(token)
            if job.phase is JobPhase.GONE:
                self.left(job)

    def begin_elsewhere(self, job: ClaimedJob) -> TraceContext | None:
        """Begin the span of a run in a worker process; what that process is to continue."""
        return context_of(self._begin(job, headers_of(job)))

    def _begin(self, job: ClaimedJob, headers: Headers) -> Span:
        entry, owned = job.entry, job.claimed_list.owned
        parent = headers.traceparent
        carried = None if parent is None or trace_id_of(parent) is None else TraceContext(parent, headers.tracestate)
        span = start_run(
            self._tracer, f"{names.PROCESS} {entry.handler}", carried, links=self._links or headers.trace_linked
        )
        if span.is_recording():
            now_us = job.claimed_list.clock_us + int(self._now() * 1e6)
            waited_us = now_us - (entry.due_us or created_ms(entry.id) * 1000)
            span.set_attributes(
                {
                    names.SYSTEM: names.SYSTEM_VALUE,
                    names.OPERATION_NAME: names.PROCESS,
                    names.OPERATION_TYPE: names.PROCESS,
                    names.DESTINATION: owned.lane,
                    names.MESSAGE_ID: text(entry.id),
                    names.CLIENT_ID: self._agent,
                    names.AGENT: self._agent,
                    names.BUCKET: text(owned.fence.bucket_id),
                    names.HANDLER: entry.handler,
                    names.PRIORITY: Priority(owned.priority).label,
                    names.ATTEMPT: entry.attempt + 1,
                    names.RESCUES: entry.rescues,
                    names.QUEUE_WAIT: max(waited_us, 0) / 1e6,
                }
            )
            if headers.schedule is not None:
                span.set_attribute(names.SCHEDULE, headers.schedule)
        if len(self._open) >= _LEFT_MAX:
            for each in [each for each in self._open if each.phase is JobPhase.GONE]:
                del self._open[each]
        self._open[job] = span
        return span

    # ------------------------------------------------------------ the end

    def final(self, job: ClaimedJob) -> None:
        """The job has ended: end the span of its run, and pass the outcome on."""
        if (span := self._open.pop(job, None)) is not None:
            row = job.row
            assert isinstance(row, FinalRow)
            _end(span, str(row.state).lower(), row.error)
        self._sink.final(job)

    def hold(self, job: ClaimedJob, *, here: bool) -> None:
        """The job waits again: end the span of its run, and pass the outcome on."""
        if (span := self._open.pop(job, None)) is not None:
            row = job.row
            assert isinstance(row, HoldRow)
            _end(span, "released" if row.error is None else "retry", row.error)
        self._sink.hold(job, here=here)

    def succeeded(self, job: ClaimedJob) -> None:
        """Its attempt has recorded a success itself."""
        if (span := self._open.pop(job, None)) is not None:
            _end(span, "succeeded", None)

    def left(self, job: ClaimedJob) -> None:
        """The run is over without an outcome of this agent: another assignment has the job, or a confirmation will end it."""
        if (span := self._open.pop(job, None)) is not None:
            _end(span, "superseded" if job.phase is JobPhase.GONE else "unconfirmed", None)


def _end(span: Span, outcome: str, error: bytes | None) -> None:
    if span.is_recording():
        if error is not None:
            info = _ERROR.decode(error)
            span.set_attribute(names.REASON, info.reason)
            if info.reason == _SNOOZED:
                outcome = _SNOOZED
            elif outcome != "cancelled":
                fail(span, info.type)
        span.set_attribute(names.OUTCOME, outcome)
    span.end()
