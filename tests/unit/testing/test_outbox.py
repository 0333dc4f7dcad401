"""The outbox of a cluster in memory: messages of transactional handlers, and of the application."""

from __future__ import annotations

import pytest

import jobmaster
from jobmaster import ConfigError, Handlers, InputError, JobState, UnknownHandler
from jobmaster.testing import Jobs, job_context
from tests.unit.testing import app
from tests.unit.testing.connection import RecordedConnection


async def test_messages_are_sent_by_jobs_of_their_own_with_the_same_key_in_every_attempt(jobs: Jobs) -> None:
    jobs.give(connection=RecordedConnection())
    receipt = await jobs.cluster.submit(app.sells, {"order": 17})
    failed = await jobs.cluster.submit(app.sells, {"order": 18, "fails": True})
    await jobs.drain()
    assert await receipt.result() == "order:17"
    assert await jobs.cluster.state(failed) is JobState.FAILED
    sent = [view for view in await jobs.cluster.jobs() if view.handler == "outbox.webhooks"]
    assert len(sent) == 2, "none of the job that failed"
    assert {view.priority.label for view in sent} == {"high"}
    await jobs.drain(due_within="1m")
    results = [await jobs.cluster.result(view.id) for view in sent]
    assert ["order:17", {"order": 17}] in results
    # The key of a message goes back with its transaction, so a later attempt sends it.
    late = await jobs.cluster.submit(app.sells, {"order": 18})
    await jobs.drain()
    assert await late.result() == "order:18"
    sent = [view for view in await jobs.cluster.jobs() if view.handler == "outbox.webhooks"]
    assert [view.arguments["key"] for view in sent].count("order:18") == 1
    again = await jobs.cluster.submit(app.sells, {"order": 17})
    await jobs.drain()
    assert await again.result() == "order:17"
    assert len([view for view in await jobs.cluster.jobs() if view.handler == "outbox.webhooks"]) == 5, (
        "one key, one message"
    )


async def test_the_application_sends_in_its_own_transaction(jobs: Jobs) -> None:
    connection = RecordedConnection()
    async with jobmaster.connect(handlers=app.handlers) as cluster:
        async with cluster.transaction(connection) as tx:
            receipt = await tx.outbox.send("webhooks", {"order": 1}, key="k")
            assert await cluster.jobs() == []
        await jobs.drain(due_within="1m")
        assert await receipt.result() == ["k", {"order": 1}]
        with pytest.raises(InputError, match="belongs to a transaction"):
            await cluster.outbox.send("webhooks", {}, connection=None)
        async with cluster.transaction(connection) as tx:
            with pytest.raises(UnknownHandler):
                await tx.outbox.send("webhook", {})
            with pytest.raises(InputError, match="key of a message is empty"):
                await tx.outbox.send("webhooks", {}, key="")


def test_what_is_no_outbox() -> None:
    handlers = Handlers()
    with pytest.raises(ConfigError, match="'key' and 'payload'"):

        @handlers.outbox("a")
        async def without(payload: object) -> None: ...

    with pytest.raises(ConfigError, match="named after its destination"):
        handlers.outbox("a", name="b")
    with pytest.raises(InputError, match="destination of a message is empty"):
        handlers.outbox("")(app.webhooks)
    with pytest.raises(InputError, match="declare it with transactional=True"):
        _ = job_context().outbox
