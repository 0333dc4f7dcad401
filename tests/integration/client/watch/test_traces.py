"""Submits inside spans, as a collector receives them and as the jobs carry them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.handlers import call
from jobmaster.model import ids
from jobmaster.model.errors import InputError
from jobmaster.settings.model import TraceExporter, Traces
from jobmaster.tracing.tracing import Tracing
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.servers.otlp_receiver import OtlpReceiver

GIVEN = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
async def tracing(collector: OtlpReceiver) -> AsyncIterator[Tracing]:
    made = Tracing(Traces(exporter=TraceExporter.OTLP, endpoint=collector.url), service="shop", instance="1")
    yield made
    await made.close()


@pytest.fixture
async def traced(client: ClientFixture, open_cluster: OpenCluster, tracing: Tracing) -> Cluster:
    return await open_cluster(traces=tracing)


async def parents(cluster: Cluster, *jobs: Any) -> set[tuple[str, str]]:
    """Trace and span that the jobs carry."""
    found = [(await cluster.get(job)).headers.traceparent or "" for job in jobs]
    return {(each[3:35], each[36:52]) for each in found}


async def test_every_way_of_a_submit_carries_the_span_of_its_call(
    client: ClientFixture, traced: Cluster, tracing: Tracing, collector: OtlpReceiver
) -> None:
    path = {"path": "a"}
    connection = await client.connect()
    with tracing.tracer.start_as_current_span("request"):
        here = tracing.context()
        plain = await traced.submit(resize, path)
        held = await traced.submit(resize, path, durability="master", tags=["a"])
        async with connection.transaction():
            within = await traced.submit(resize, path, connection=connection)
        statement, values = traced.statement(resize, path, paramstyle="numeric")
        in_sql = await connection.fetchval(statement, *values)
        bulk = await traced.submit_many([call(resize, "a"), call(resize, "b")])
        async with traced.batch("pictures") as batch:
            of_batch = await batch.submit_many([call(resize, "a")])
        ordered = await traced.submit(resize, path, traceparent=GIVEN, ordering_key="o")
    await connection.close()
    outside = await traced.submit(resize, path)
    with pytest.raises(InputError):
        await traced.submit("images.resiz", path)
    assert here is not None
    await tracing.close()
    spans = {each.id: each for each in collector.spans}
    request = collector.one("request")
    for job in (plain, held, within):
        ((trace, span),) = await parents(traced, job)
        assert (trace, spans[span].parent, spans[span].name) == (request.trace, request.id, "publish images.resize")
        assert spans[span].attributes["messaging.message.id"] == str(job.id)
    for jobs in (bulk.ids, of_batch.ids):
        ((trace, span),) = await parents(traced, *jobs)
        assert (trace, spans[span].name) == (request.trace, "publish")
        assert spans[span].attributes["messaging.batch.message_count"] == len(jobs)
    assert await parents(traced, in_sql) == {(request.trace, request.id)}
    assert await parents(traced, ordered) == {("a" * 32, "b" * 16)}
    ((trace, span),) = await parents(traced, outside)
    assert (spans[span].parent, trace == request.trace) == ("", False)
    refused = collector.one("publish images.resiz")
    assert (refused.failed, refused.attributes["error.type"]) == (True, "UnknownHandler")


async def test_a_submit_without_options_carries_its_span_on_the_quick_path(
    client: ClientFixture, traced: Cluster, tracing: Tracing, collector: OtlpReceiver
) -> None:
    await traced.submit(resize, {"path": "a"})  # finds the bucket
    submitter = traced._submitter
    assert submitter is not None
    with tracing.tracer.start_as_current_span("request"):
        started = submitter.start(resize, {"path": "b"})
        assert started is not None
        await started.placement
        with pytest.raises(InputError):
            submitter.start(resize, {"path": 1})
    job = ids.text(started.job_id)
    (carried,) = await parents(traced, job)
    await tracing.close()
    (span,) = [each for each in collector.spans if each.attributes.get("messaging.message.id") == job]
    assert (span.trace, span.id) == carried
    assert (span.parent, span.attributes["jobmaster.durability"]) == (collector.one("request").id, "store")
    (refused,) = [each for each in collector.named("publish images.resize") if each.failed]
    assert refused.attributes["error.type"] == "InvalidArguments"


async def test_a_submit_outside_of_the_sample_passes_on_that_it_is(
    client: ClientFixture, open_cluster: OpenCluster, collector: OtlpReceiver
) -> None:
    settings = Traces(exporter=TraceExporter.OTLP, endpoint=collector.url, sample=0.0)
    tracing = Tracing(settings, service="shop", instance="1")
    cluster = await open_cluster(traces=tracing)
    receipts = [await cluster.submit(resize, {"path": "a"}) for _ in range(2)]
    found = [(await cluster.get(each)).headers.traceparent or "" for each in receipts]
    assert len(set(found)) == 2
    assert [int(each[-2:], 16) & 1 for each in found] == [0, 0], "the flag of the sample"
    await tracing.close()
    assert collector.spans == []


async def test_the_same_workflow_in_another_span_is_the_same_one(traced: Cluster, tracing: Tracing) -> None:
    workflow = traced.workflows.new_id()
    for name in ("first", "second"):
        with tracing.tracer.start_as_current_span(name):
            assert await traced.workflows.start("x", call(resize, "a"), workflow_id=workflow) == workflow
