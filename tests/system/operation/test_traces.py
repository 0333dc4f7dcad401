"""Traces of real agents, as a collector receives them: over processes, attempts, a rescue; and a collector that hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.handlers import call
from jobmaster.model.job import JobState
from jobmaster.tracing.tracing import CLOSE_SECONDS, Tracing
from jobmaster.wiring import open_cluster
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.waiting import eventually
from tests.system.handlers.traced_jobs import (
    child,
    fails,
    handlers,
    isolated,
    parent,
    second_time,
    sends,
    sends_isolated,
    threaded,
    too_long,
    until_file,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PRODUCER, CONSUMER = 4, 5
HANDLERS = (threaded, isolated, sends, sends_isolated, second_time, too_long)


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def traced(deployment: Deployment, collector: OtlpReceiver) -> Deployment:
    deployment.document["handlers"] = ["tests.system.handlers.traced_jobs"]
    deployment.document["observability"]["traces"] = {
        "exporter": "otlp",
        "endpoint": collector.url,
        "link": "https://traces.example.org/{trace_id}",
    }
    return deployment


def tracing_of(cluster: Cluster) -> Tracing:
    found = cluster.traces
    assert isinstance(found, Tracing)
    return found


def check_the_way(collector: OtlpReceiver, trace_id: str, job_id: str) -> None:
    """From the request through the run to the job that the handler has submitted, and into each kind of handler."""
    submitted, run = collector.one("publish parent"), collector.one("process parent")
    assert (submitted.kind, run.kind) == (PRODUCER, CONSUMER)
    assert submitted.parent == collector.one("request").id
    assert (run.trace, run.parent) == (trace_id, submitted.id)
    assert submitted.attributes["messaging.message.id"] == run.attributes["messaging.message.id"] == job_id
    assert run.service == "jobmaster-agent"
    assert run.attributes["jobmaster.outcome"] == "succeeded"
    assert run.attributes["messaging.destination.name"] == "default"
    assert run.attributes["jobmaster.attempt"] == 1
    assert 0 <= run.attributes["jobmaster.queue_wait_seconds"] < PATIENCE_SECONDS
    assert len(run.attributes["jobmaster.agent"]) == len(run.attributes["jobmaster.bucket"]) == 36
    inner = collector.one("inner")
    assert inner.parent == run.id
    children = collector.named("process child")
    (own_child,) = [each for each in collector.named("publish child") if each.parent == inner.id]
    assert [each.trace for each in children if each.parent == own_child.id] == [trace_id]
    for mode in ("thread", "process"):
        handler = "threaded" if mode == "thread" else "isolated"
        run = collector.one(f"process {handler}")
        assert run.trace == trace_id
        assert collector.one(f"inner of the {mode}").parent == run.id


def check_outcomes(collector: OtlpReceiver) -> None:
    """Each attempt has a span, with what became of it."""
    messages = collector.named("process outbox.webhooks")
    senders = [collector.one("process sends"), collector.one("process sends_isolated")]
    assert {each.parent for each in messages} == {each.id for each in senders}
    first, second = collector.named("process second_time")
    assert first.parent == second.parent == collector.one("publish second_time").id
    assert [each.attributes["jobmaster.outcome"] for each in (first, second)] == ["retry", "succeeded"]
    assert [each.attributes["jobmaster.attempt"] for each in (first, second)] == [1, 2]
    assert (first.failed, second.failed) == (True, False)
    late = collector.one("process too_long")
    assert (late.failed, late.attributes["error.type"]) == (True, "Timeout")
    failed = collector.one("process fails")
    assert (failed.attributes["error.type"], failed.attributes["jobmaster.outcome"]) == ("ValueError", "failed")
    assert "hidden words" not in str(collector.spans), "no span has arguments, or a message that quotes them"


def check_many(collector: OtlpReceiver, trace_id: str) -> None:
    """A delayed job has a link; those of a bulk and of a workflow are in the trace; SQL has named one itself."""
    children = collector.named("process child")
    (delayed,) = [each for each in children if each.links]
    assert delayed.trace != trace_id
    assert delayed.parent == ""
    assert delayed.links[0][0] == trace_id
    (many,) = [each for each in collector.named("publish") if each.attributes["messaging.batch.message_count"] == 3]
    assert len([each for each in children if each.parent == many.id]) == 3
    (steps,) = [each for each in collector.named("publish") if each.attributes["messaging.batch.message_count"] == 1]
    assert [each.trace for each in children if each.parent == steps.id] == [trace_id]
    assert [each.parent for each in children if each.trace == "a" * 32] == ["b" * 16]


def check_lines(collector: OtlpReceiver, agent: AgentProcess, trace_id: str) -> None:
    """Lines of handlers name their span."""
    lines = {line["message"]: line for line in agent.events if str(line.get("message", "")).startswith("in the ")}
    for place, span in (
        ("parent", collector.one("process parent")),
        ("thread", collector.one("inner of the thread")),
        ("process", collector.one("inner of the process")),
    ):
        line = lines[f"in the {place}"]
        assert (line["trace_id"], line["span_id"]) == (trace_id, span.id)


async def test_a_trace_goes_from_the_submit_through_the_runs_to_the_jobs_that_they_submit(
    deployment: Deployment, collector: OtlpReceiver
) -> None:
    traced(deployment, collector)
    agent = await deployment.start_agent()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        with tracing_of(cluster).tracer.start_as_current_span("request") as request:
            trace_id = f"{request.get_span_context().trace_id:032x}"
            receipts: list[JobReceipt[Any]] = [
                await cluster.submit(call(parent, str(deployment.config))),
                *[await cluster.submit(each) for each in HANDLERS],
                await cluster.submit(call(fails, "hidden words")),
                await cluster.submit(child, after=0.5, tags=["delayed"]),
            ]
            bulk = await cluster.submit_many([call(child) for _ in range(3)])
            workflow = await cluster.workflows.start("steps", call(child))
        given = f"00-{'a' * 32}-{'b' * 16}-01"
        sql = json.dumps({"traceparent": given, "allow_unregistered": True})
        rows = await deployment.fetch("SELECT submit('child', '{}', $1)", sql)
        await cluster.wait_all([*receipts, *bulk.ids, rows[0][0]], timeout=PATIENCE_SECONDS)
        await cluster.workflows.wait(workflow, timeout=PATIENCE_SECONDS)
        views = [await cluster.get(receipt) for receipt in receipts]
        assert {view.trace_id for view in views} == {trace_id}
        shown = json.loads(deployment.run("job", "show", str(receipts[0].id), "-o", "json").stdout)
        assert (shown["trace_id"], shown["trace"]) == (trace_id, f"https://traces.example.org/{trace_id}")

        async def child_of_the_parent() -> bool:
            return (await deployment.states()).get("SUCCEEDED", 0) == 15

        await eventually(child_of_the_parent, PATIENCE_SECONDS, "the job that the handler has submitted")
    assert await agent.terminate() == 0

    check_the_way(collector, trace_id, str(receipts[0].id))
    check_outcomes(collector)
    check_many(collector, trace_id)
    check_lines(collector, agent, trace_id)


async def test_the_run_after_a_rescue_has_a_span_of_its_own_in_the_same_trace(
    deployment: Deployment, collector: OtlpReceiver
) -> None:
    traced(deployment, collector).document["observability"]["traces"]["calls"] = True
    deployment.shorten_lease()
    victim = await deployment.start_agent()
    path, gate = deployment.path("w"), deployment.path("gate")
    async with await open_cluster(deployment.settings, handlers) as cluster:
        with tracing_of(cluster).tracer.start_as_current_span("request"):
            receipt = await cluster.submit(call(until_file, str(path), str(gate)))

        async def began() -> bool:
            return path.exists()

        await eventually(began, PATIENCE_SECONDS, "the first run")
        helper = await deployment.start_agent()
        victim.kill_all()
        Path(gate).touch()
        assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
    assert await helper.terminate() == 0
    run, submitted = collector.one("process until_file"), collector.one("publish until_file")
    assert (run.trace, run.parent) == (submitted.trace, submitted.id)
    assert (run.attributes["jobmaster.rescues"], run.attributes["jobmaster.outcome"]) == (1, "succeeded")
    calls = [each for each in collector.spans if each.name.startswith(("store.", "master outcomes."))]
    assert {"store.claim", "master outcomes.persist"} <= {each.name for each in calls}
    assert {each.parent for each in calls} == {""}, "the agent's own calls are traces of their own"


async def test_a_collector_that_never_answers_delays_neither_jobs_nor_a_drain(deployment: Deployment) -> None:
    with OtlpReceiver(answers=False) as silent:
        agent = await traced(deployment, silent).start_agent()
        async with await open_cluster(deployment.settings, handlers) as cluster:
            receipts = [await cluster.submit(child) for _ in range(30)]
            await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)

            async def exporting() -> bool:
                return silent.requests > 0

            await eventually(exporting, PATIENCE_SECONDS, "a request that waits for its answer")
            receipts = [await cluster.submit(child) for _ in range(30)]
            await cluster.wait_all(receipts, timeout=PATIENCE_SECONDS)
            assert await agent.terminate() == 0
            (stopped,) = [line for line in agent.events if line.get("event") == "agent_stopped"]
            assert stopped["left_behind"] is False
            began = time.monotonic()
        assert time.monotonic() - began < CLOSE_SECONDS + 8, "the exporter's own limit is ten seconds a request"
