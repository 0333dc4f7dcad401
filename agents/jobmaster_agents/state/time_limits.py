"""Time limits of a claimed job that give it to another agent: those of its submit, else those of its handler.

An agent knows them of each copy in memory, from the entry and from the handler that it has. Nothing is read for a job that
has neither headers nor a handler with such an option.
"""

from __future__ import annotations

import msgspec

from jobmaster.codec import decode_headers
from jobmaster.model.job import Delivery, Headers
from jobmaster.model.trace_context import trace_id_of
from jobmaster_agents.state.job_table import ClaimedJob

_NO_HEADERS = Headers()
_TRACED = b'"traceparent":"'


def read_headers(data: bytes) -> Headers | None:
    """``None`` when they cannot be read."""
    if not data:
        return _NO_HEADERS
    try:
        return decode_headers(data)
    except (msgspec.DecodeError, ValueError):
        return None


def headers_of(job: ClaimedJob) -> Headers:
    """Decoded headers (most jobs have none). Unreadable ones count as none: such a job is never started."""
    headers = job.headers
    if headers is None:
        headers = job.headers = read_headers(job.entry.headers) or _NO_HEADERS
    return headers


def trace_fields_of(headers: bytes) -> dict[str, object]:
    """``trace_id`` for a log line about a job with these encoded headers: the trace of its submit. Nothing without one."""
    if _TRACED not in headers:
        return {}
    trace_id = trace_id_of((read_headers(headers) or _NO_HEADERS).traceparent)
    return {} if trace_id is None else {"trace_id": trace_id}


def accept_seconds(job: ClaimedJob) -> float | None:
    """How long the copy may wait for its start; ``None``: as long as it takes."""
    own = headers_of(job).accept_seconds if job.entry.headers else None
    if own is None and job.handler is not None:
        own = job.handler.options.accept_seconds
    return own or None


def complete_seconds(job: ClaimedJob) -> float | None:
    """How long its run may last; ``None``: as long as it takes, as for each job that must not be started twice, or that has a
    limit: a slow run that goes on beside the next one could not be counted."""
    options = None if job.handler is None else job.handler.options
    if options is not None and (options.limits or options.is_ordered):
        return None
    own = headers_of(job).complete_seconds if job.entry.headers else None
    if own is None and options is not None:
        own = options.complete_seconds
    if not own or headers_of(job).at_most_once or (options is not None and options.delivery is Delivery.AT_MOST_ONCE):
        return None
    return own


def cancels_slow(job: ClaimedJob) -> bool:
    """True when a run is to be stopped as soon as another agent has the job."""
    own = headers_of(job).cancel_slow if job.entry.headers else None
    return bool(own) if own is not None else job.handler is not None and job.handler.options.cancel_slow
