"""Unique keys of a cluster in memory."""

from __future__ import annotations

import asyncio

import pytest

import jobmaster
from jobmaster import JobState, NotUnique, SubmitAnswer, Unique
from jobmaster.testing import Drained, Jobs
from tests.unit.testing import app
from tests.unit.testing.connection import RecordedConnection

MAIL = {"to": "ann@example.org"}


@pytest.fixture
async def cluster(jobs: Jobs) -> jobmaster.Cluster:
    """A cluster of the application."""
    return await jobmaster.connect(handlers=app.handlers)


async def test_a_key_is_held_while_its_job_lives(jobs: Jobs, cluster: jobmaster.Cluster) -> None:
    receipts = await asyncio.gather(*(cluster.submit(app.send_mail, MAIL, unique=Unique(key="k")) for _ in range(5)))
    assert len({receipt.id for receipt in receipts}) == 1
    assert sorted(receipt.answer.value for receipt in receipts) == ["created", *["existing"] * 4]
    with pytest.raises(NotUnique) as raised:
        await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k", on_conflict="reject"))
    assert raised.value.holder == receipts[0].id
    assert await jobs.drain() == Drained(succeeded=1)
    assert (await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k"))).answer is SubmitAnswer.CREATED


async def test_a_replaced_job_is_cancelled_and_names_the_other(jobs: Jobs, cluster: jobmaster.Cluster) -> None:
    first = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k"), after=60)
    second = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k", on_conflict="replace"), after=60)
    old = await first.get()
    assert (second.answer, old.state, old.superseded_by) == (SubmitAnswer.REPLACED, JobState.CANCELLED, second.id)


async def test_windows_outlive_their_jobs_and_debounce_moves_a_job(jobs: Jobs, cluster: jobmaster.Cluster) -> None:
    first = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="w", window=3600))
    assert await jobs.drain() == Drained(succeeded=1)
    assert (await cluster.submit(app.send_mail, MAIL, unique=Unique(key="w", window=3600))).id == first.id
    held = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="d", debounce=100), after=10)
    moved = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="d", debounce=100), after=50)
    view = await held.get()
    assert (moved.id, moved.answer) == (held.id, SubmitAnswer.DEBOUNCED)
    assert view.due_at is not None
    assert (view.due_at - view.created_at).total_seconds() > 40


async def test_a_key_in_a_transaction_is_free_again_after_its_rollback(jobs: Jobs, cluster: jobmaster.Cluster) -> None:
    connection = RecordedConnection()

    async def fail() -> None:
        async with cluster.transaction(connection) as tx:
            undone = await tx.submit(app.send_mail, MAIL, unique=Unique(key="k"))
            assert (await tx.submit(app.send_mail, MAIL, unique=Unique(key="k"))).id == undone.id
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k"))).answer is SubmitAnswer.CREATED


async def test_a_held_key_is_listed_and_released(jobs: Jobs, cluster: jobmaster.Cluster) -> None:
    first = await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k"), after=60)
    assert [each.job for each in await cluster.inspect.unique_keys(key="k")] == [first.id]
    handler = (await cluster.inspect.unique_keys())[0].handler
    await cluster.operate.release_unique_key(handler, "k")
    assert await cluster.inspect.unique_keys() == []
    assert (await cluster.submit(app.send_mail, MAIL, unique=Unique(key="k"))).answer is SubmitAnswer.CREATED
