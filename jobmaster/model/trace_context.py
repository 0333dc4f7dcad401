"""W3C trace context: the place of a submit in a trace, as the headers of its job keep it.

Source of the form: W3C Recommendation "Trace Context", https://www.w3.org/TR/trace-context/. No library is needed to read it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from jobmaster.model.errors import InputError

STATE_CHARS_MAX = 512
"""What the Recommendation asks programs to pass on."""
CONTEXT_BYTES_MAX = 620
"""Of the JSON of one with its names, at most, rounded up."""
_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(r"[ !#-\[\]-~]{1,512}")
"""Printable ASCII without quote and backslash: the JSON of the headers has no escapes in it, so the master finds its end."""


class TraceContext(NamedTuple):
    """The span that a job is submitted in, and what vendors have noted about its trace."""

    traceparent: str
    tracestate: str | None = None


def checked_context(traceparent: object, tracestate: object = None) -> TraceContext:
    """A trace context that was given as texts.

    Raises:
        InputError: one of them has another form, or ``tracestate`` stands alone.
    """
    if not isinstance(traceparent, str) or not _PARENT.fullmatch(traceparent):
        raise InputError(
            f"'traceparent' is no W3C trace context: {traceparent!r:.100}",
            hint="such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
    if tracestate is not None and not is_state(tracestate):
        raise InputError(
            f"'tracestate' must be at most {STATE_CHARS_MAX} printable ASCII characters without quotes and backslashes, "
            f"not {tracestate!r:.100}"
        )
    return TraceContext(traceparent, str(tracestate) if tracestate else None)


def is_state(text: object) -> bool:
    """True for a ``tracestate`` that the headers of a job can keep."""
    return isinstance(text, str) and (not text or _STATE.fullmatch(text) is not None)


def trace_id_of(traceparent: str | None) -> str | None:
    """The id of the trace, 32 hexadecimal digits; ``None`` without one, or for text of another form."""
    if traceparent is None or not _PARENT.fullmatch(traceparent):
        return None
    return traceparent[3:35]
