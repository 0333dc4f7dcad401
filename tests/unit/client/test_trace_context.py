"""The trace context of a submit as an option and in the headers; and what is loaded where traces are off."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from jobmaster.client.options import check_submit_options
from jobmaster.codec import decode_headers, encode_fire_headers, encode_headers, encode_trace
from jobmaster.model.errors import InputError
from jobmaster.model.job import Headers
from jobmaster.model.schedule import Schedule
from jobmaster.model.trace_context import CONTEXT_BYTES_MAX, STATE_CHARS_MAX, TraceContext, trace_id_of
from jobmaster.settings.model import Limits, TraceExporter, Traces
from tests.support.deployment import ENVIRONMENT, REPOSITORY

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def headers_of(**given: Any) -> Headers:
    options: Any = given
    return decode_headers(check_submit_options(options, Limits(), 1_000_000_000_000_000).headers)


def test_a_trace_context_stands_in_the_headers_and_a_delayed_job_is_marked() -> None:
    assert headers_of(traceparent=PARENT) == Headers(traceparent=PARENT)
    found = headers_of(traceparent=PARENT, tracestate="one=1", after=60)
    assert (found.tracestate, found.trace_linked) == ("one=1", True)
    assert trace_id_of(found.traceparent) == "a" * 32
    assert trace_id_of(None) is None
    assert trace_id_of("anything") is None


@pytest.mark.parametrize(
    "options",
    [
        {"traceparent": "00-1-2-3"},
        {"traceparent": PARENT.upper()},
        {"traceparent": f"01{PARENT[2:]}"},
        {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"},
        {"traceparent": f"00-{'a' * 32}-{'0' * 16}-01"},
        {"traceparent": 7},
        {"tracestate": "one=1"},
        {"traceparent": PARENT, "tracestate": 'one="1"'},
        {"traceparent": PARENT, "tracestate": "x" * 513},
    ],
    ids=str,
)
def test_a_context_of_another_form_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"'trace(parent|state)'"):
        headers_of(**options)


@pytest.mark.parametrize("state", [None, "one=1", "x" * STATE_CHARS_MAX])
def test_a_plain_submit_writes_its_context_as_the_encoder_of_headers_does(state: str | None) -> None:
    encoded = encode_trace(TraceContext(PARENT, state))
    assert encoded == encode_headers(Headers(traceparent=PARENT, tracestate=state))
    assert len(encoded) <= CONTEXT_BYTES_MAX
    assert encode_trace(None) == b""


def test_the_job_of_a_fire_carries_the_span_of_the_fire() -> None:
    schedule = Schedule(
        name="nightly", expression="@daily", handler="report", headers=encode_headers(Headers(tags=("a",)))
    )
    fired = decode_headers(encode_fire_headers(schedule, 5, 6, TraceContext(PARENT, "one=1")))
    assert (fired.traceparent, fired.tracestate, fired.tags, fired.schedule) == (PARENT, "one=1", ("a",), "nightly")
    assert decode_headers(encode_fire_headers(schedule, 5, 6)).traceparent is None


def test_the_link_of_a_trace_is_made_of_the_template() -> None:
    settings = Traces(link="https://traces.example.org/trace/{trace_id}?x=1")
    assert settings.link_of("ab") == "https://traces.example.org/trace/ab?x=1"
    assert settings.link_of(None) is None
    assert Traces(exporter=TraceExporter.OTLP).link_of("ab") is None


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_of_traces_is_imported_where_they_are_off() -> None:
    """The library of the agent store imports OpenTelemetry's metrics by itself, where they are installed."""
    off = "import sys, jobmaster.wiring, jobmaster_agents.run_agent, jobmaster_agents.execute.process_pool.worker_main"
    loaded = run(f"{off}; print(*sys.modules)").split()
    assert "jobmaster_agents.run_agent" in loaded
    parts = (
        "jobmaster.tracing.",
        "jobmaster_agents.execute.run_spans",
        "opentelemetry.exporter",
        "opentelemetry.sdk.trace",
    )
    assert [name for name in loaded if name.startswith(parts)] == []


def test_the_provider_of_the_application_is_used_and_none_is_set_for_it() -> None:
    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from jobmaster.settings.model import TraceExporter, Traces
from jobmaster.tracing import open_tracing
ours = open_tracing(Traces(exporter=TraceExporter.CONSOLE), service="s", instance="i")
before = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
own = TracerProvider()
trace.set_tracer_provider(own)
theirs = open_tracing(Traces(exporter=TraceExporter.CONSOLE, sample=0.0), service="s", instance="i")
span = theirs.tracer.start_span("x")
print(before, ours._provider is not None, theirs._provider is None, span.is_recording())
"""
    assert run(program) == "True True True True"
