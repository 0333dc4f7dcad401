"""Pauses of a cluster in memory: the test of an application sees what a pause holds back."""

from __future__ import annotations

from datetime import timedelta

from jobmaster import JobState
from jobmaster.testing import Drained, Jobs
from tests.unit.testing import app


async def test_what_is_paused_is_accepted_and_runs_after_the_resume(jobs: Jobs) -> None:
    cluster = jobs.cluster
    await cluster.pause(handler=app.send_mail, reason="the provider is down")
    await app.sign_up("ann@example.org")
    doubled = await cluster.submit(app.double, {"value": 2})
    assert await jobs.drain() == Drained(succeeded=1, left=1)
    assert await doubled.result() == 4
    sent = jobs.assert_submitted(app.send_mail, to="ann@example.org")
    assert sent.state is JobState.SAVE_PENDING
    assert (await cluster.resume(handler=app.send_mail)).changed
    assert await jobs.drain() == Drained(succeeded=1)


async def test_lanes_priorities_and_tags_are_paused_too(jobs: Jobs) -> None:
    cluster = jobs.cluster
    await cluster.submit(app.double, {"value": 1}, priority="low")
    await cluster.submit(app.double, {"value": 2}, tags=["customer-7"])
    plain = await cluster.submit(app.double, {"value": 3})
    await cluster.pause(priority="low")
    await cluster.pause(tag="customer-7")
    assert await jobs.drain() == Drained(succeeded=1, left=2)
    assert await plain.result() == 6
    await cluster.resume(tag="customer-7")
    await cluster.pause(lane="default")
    assert await jobs.drain() == Drained(left=2)
    await cluster.resume(lane="default")
    assert await jobs.drain() == Drained(succeeded=1, left=1)
    await cluster.resume(priority="low")
    assert await jobs.drain() == Drained(succeeded=1)


async def test_a_pause_ends_by_itself_and_a_cancelled_job_ends_at_once(jobs: Jobs) -> None:
    cluster = jobs.cluster
    await cluster.pause(handler=app.double, until=timedelta(hours=1))
    later = await cluster.submit(app.double, {"value": 2}, after=2 * 3600)
    assert await jobs.drain() == Drained(left=1), "it is not due"
    assert await jobs.drain(due_within="3h") == Drained(succeeded=1), "the pause is over when it is due"
    assert await later.result() == 4
    stopped = await cluster.submit(app.double, {"value": 2})
    assert await stopped.cancel() is JobState.CANCELLED


def test_the_synchronous_cluster_pauses_the_same(jobs: Jobs) -> None:
    with jobs.sync_cluster as cluster:
        cluster.pause(handler=app.double)
        cluster.submit(app.double, {"value": 2})
        assert jobs.drain_sync() == Drained(left=1)
        assert [pause.value for pause in cluster.pauses()] == [app.handlers.of(app.double).name]  # type: ignore[union-attr]
        assert cluster.resume(handler=app.double).changed
        assert jobs.drain_sync() == Drained(succeeded=1)
