"""Submits of an application in the memory of its test."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

import jobmaster
from jobmaster import (
    ClusterSettings,
    Conflict,
    Handlers,
    InputError,
    InvalidArguments,
    JobState,
    Unavailable,
    UnknownHandler,
    UnknownLane,
    WaitTimeout,
    call,
)
from jobmaster import connect_sync as imported_before
from jobmaster.model.errors import JobMasterError
from jobmaster.testing import Drained, Jobs
from tests.unit.testing import app
from tests.unit.testing.connection import RecordedConnection


async def test_what_the_application_submits_is_found_and_runs_on_request(jobs: Jobs) -> None:
    await app.sign_up("ann@example.org")
    sent = jobs.assert_submitted(app.send_mail, to="ann@example.org")
    assert (sent.state, sent.priority.label, sent.arguments) == (
        JobState.SAVE_PENDING,
        "high",
        {"to": "ann@example.org"},
    )
    jobs.assert_submitted(call(app.send_mail, "ann@example.org", text="welcome"))
    jobs.refute_submitted(app.send_mail, to="bob@example.org")
    jobs.refute_submitted(app.double)
    assert await jobs.drain() == Drained(succeeded=1)
    assert (sent.state, sent.attempt) == (JobState.SUCCEEDED, 1)
    assert await jobs.drain() == Drained()


async def test_an_assertion_that_fails_lists_what_was_submitted(jobs: Jobs) -> None:
    with pytest.raises(AssertionError, match="no job was submitted"):
        jobs.assert_submitted(app.send_mail)
    await app.sign_up("ann@example.org")
    with pytest.raises(AssertionError, match=r"to='bob'.*was not submitted; .*\n.*ann@example.org"):
        jobs.assert_submitted(app.send_mail, to="bob")
    with pytest.raises(AssertionError, match="was submitted; "):
        jobs.refute_submitted(app.send_mail)


async def test_an_assertion_about_what_cannot_be_is_an_error(jobs: Jobs) -> None:
    async def undeclared() -> None: ...

    with pytest.raises(UnknownHandler, match="undeclared"):
        jobs.refute_submitted(undeclared)
    with pytest.raises(UnknownHandler, match="send_post"):
        jobs.refute_submitted("send_post")
    with pytest.raises(InvalidArguments, match=r"no argument 'too'.*'to'"):
        jobs.refute_submitted(app.send_mail, too="ann")
    with pytest.raises(InvalidArguments, match="more are given"):
        jobs.refute_submitted(call(app.send_mail, "ann"), to="bob")
    with pytest.raises(InputError, match="within"):
        jobs.assert_submitted(app.send_mail, within="soon")
    with pytest.raises(InputError, match="due_within"):
        await jobs.drain(due_within=-1)
    with pytest.raises(InputError, match="one of them"):
        await jobs.drain(due_within=1, held=True)


async def test_jobs_that_are_due_later_run_when_they_are_asked_for(jobs: Jobs) -> None:
    await app.sign_up("ann@example.org", reminder=timedelta(minutes=30))
    assert await jobs.drain() == Drained(succeeded=1, left=1)
    assert await jobs.drain(due_within="10m") == Drained(left=1)
    assert await jobs.drain(due_within=timedelta(hours=1)) == Drained(succeeded=1)


async def test_further_attempts_run_at_their_times(jobs: Jobs) -> None:
    receipt = await jobs.cluster.submit(call(app.third_time))
    assert await jobs.drain() == Drained(left=1)
    assert (await receipt.get()).attempt == 1
    assert await jobs.drain(due_within="1h1s") == Drained(left=1)
    assert await jobs.drain(held=True) == Drained(succeeded=1)
    assert await receipt.result() == 3


async def test_a_handler_sees_the_time_at_which_its_job_is_due(jobs: Jobs) -> None:
    local = Handlers()

    @local.job
    async def later(again: bool) -> None:
        async with jobmaster.connect(handlers=local) as cluster:
            if again:
                await cluster.submit(call(later, again=False), after=600)

    async with jobmaster.connect(handlers=local) as cluster:
        first = await cluster.submit(call(later, again=True), after=3600)
    await jobs.drain(due_within=3700)
    job, second = jobs.all_submitted()
    assert job.id == first.id
    assert job.due_at is not None
    assert second.due_at is not None
    assert timedelta(seconds=599) < second.due_at - job.due_at < timedelta(seconds=605)


async def test_inline_jobs_run_in_their_submit(inline_jobs: Jobs) -> None:
    receipt = await inline_jobs.cluster.submit(call(app.numbers, 1))
    assert inline_jobs.assert_submitted(app.numbers, first=1).state is JobState.SUCCEEDED
    assert await receipt.result() == [1, 1]
    summary = await inline_jobs.cluster.submit_many([call(app.double, number) for number in range(3)])
    assert summary.submitted == len(inline_jobs.all_submitted(app.double)) == 3
    assert await inline_jobs.drain() == Drained()


async def test_inline_a_wait_runs_further_attempts_that_are_due_before_its_end(inline_jobs: Jobs) -> None:
    receipt = await inline_jobs.cluster.submit(call(app.third_time))
    with pytest.raises(WaitTimeout, match="due later than the time-out"):
        await receipt.result(timeout=0.05)
    assert await receipt.result(timeout=9000) == 3


async def test_a_handler_may_wait_for_jobs_that_it_submits(jobs: Jobs) -> None:
    receipt = await jobs.cluster.submit(call(app.parent, 3))
    await jobs.drain()
    assert await receipt.result() == 6
    with jobs.inline():
        assert await (await jobs.cluster.submit(call(app.parent, 4))).result() == 12


async def test_a_wait_for_a_job_that_nothing_runs_ends_with_an_explanation(jobs: Jobs) -> None:
    receipt = await jobs.cluster.submit(call(app.double, 1))
    with pytest.raises(WaitTimeout, match="drain"):
        await receipt.result(timeout=0.05)
    drained, result = await asyncio.gather(jobs.drain(), receipt.result(timeout=2))
    assert (drained.succeeded, result) == (1, 2)


async def _submit_and_fail(jobs: Jobs, connection: RecordedConnection, value: int) -> None:
    async with jobs.cluster.transaction(connection) as transaction:
        await transaction.submit(call(app.double, value))
        raise LookupError


async def test_only_a_committed_transaction_submits(jobs: Jobs) -> None:
    connection = RecordedConnection()
    with pytest.raises(LookupError):
        await _submit_and_fail(jobs, connection, 1)
    jobs.refute_submitted(app.double)
    async with jobs.cluster.transaction(connection) as transaction:
        receipt = await transaction.submit(call(app.double, 2))
        with pytest.raises(LookupError):
            await _submit_and_fail(jobs, connection, 3)
        jobs.refute_submitted(app.double)
    assert receipt.level.value == "transaction"
    assert [job.arguments for job in jobs.all_submitted()] == [{"value": 2}]
    assert await jobs.drain() == Drained(succeeded=1)


async def test_a_cluster_in_memory_gives_no_sql(jobs: Jobs) -> None:
    with pytest.raises(InputError, match=r"has no SQL.*jobmaster_cluster"):
        jobs.cluster.statement(call(app.double, 1))


async def test_checks_of_a_submit_are_those_of_a_cluster(jobs: Jobs) -> None:
    cluster = jobs.cluster
    with pytest.raises(InvalidArguments, match="expected int"):
        await cluster.submit(app.double, {"value": "1"})
    with pytest.raises(InputError, match="no option"):
        await cluster.submit(call(app.double, 1), prioritty="low")  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(UnknownLane, match="post"):
        await cluster.submit(call(app.double, 1), lane="post")
    first = await cluster.submit(call(app.double, 1), idempotency_key="a")
    again = await cluster.submit(call(app.double, 1), idempotency_key="a")
    assert (again.id, first.duplicate, again.duplicate) == (first.id, False, True)
    with pytest.raises(Conflict):
        await cluster.submit(call(app.double, 2), idempotency_key="a")
    assert len(jobs.all_submitted()) == 1


async def test_a_failure_is_counted_and_raised_on_request(jobs: Jobs) -> None:
    await jobs.cluster.submit(call(app.send_mail, "nobody"), max_attempts=1)
    assert await jobs.drain() == Drained(failed=1)
    (job,) = jobs.all_submitted()
    assert isinstance(job.raised, LookupError)
    await jobs.cluster.submit(call(app.send_mail, "nobody"), max_attempts=1)
    with pytest.raises(LookupError, match="no such person"):
        await jobs.drain(raise_errors=True)


async def test_a_handler_that_submits_itself_without_end_is_stopped(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.testing.memory.cluster.ATTEMPTS_MAX", 20)
    local = Handlers()

    @local.job(name="endless")
    async def endless() -> None:
        async with jobmaster.connect(handlers=local) as cluster:
            await cluster.submit(endless)

    async with jobmaster.connect(handlers=local) as cluster:
        await cluster.submit(endless)
    with pytest.raises(JobMasterError, match="handler 'endless' are still due"):
        await jobs.drain()


def test_plain_code_uses_the_synchronous_face(jobs: Jobs) -> None:
    with imported_before(ClusterSettings(), handlers=app.handlers) as cluster:
        receipt = cluster.submit(call(app.double, 4))
        assert jobs.drain_sync().succeeded == 1
        assert receipt.result(timeout=1) == 8
    receipt = jobs.sync_cluster.submit(call(app.double, 5))
    with jobs.inline():
        assert receipt.result() == 10


def test_a_submit_of_another_thread_is_waited_for(jobs: Jobs) -> None:
    thread = threading.Timer(0.05, lambda: jobs.sync_cluster.submit(call(app.double, 4)))
    thread.start()
    assert jobs.assert_submitted(app.double, value=4, within=5).arguments == {"value": 4}
    thread.join()
    with pytest.raises(AssertionError, match=r"within 0\.02 s"):
        jobs.assert_submitted(app.numbers, within="20ms")


kept = imported_before(ClusterSettings(data_dir="/nowhere"), handlers=app.handlers)
"""As a module of an application holds one; nothing serves it outside of the tests below."""


@pytest.mark.parametrize("value", [1, 2])
def test_a_cluster_of_a_module_serves_one_test_after_another(jobs: Jobs, value: int) -> None:
    kept.submit(call(app.double, value))
    assert [job.arguments for job in jobs.all_submitted()] == [{"value": value}]


def test_after_the_fixture_clusters_are_opened_as_before() -> None:
    from jobmaster import wiring

    assert wiring.open_cluster.__module__ == "jobmaster.wiring"
    with pytest.raises(Unavailable, match="no PostgreSQL server is running in /nowhere"):
        kept.submit(call(app.double, 3))


async def test_a_cluster_that_outlives_its_test_is_refused() -> None:
    ended = Jobs(ClusterSettings(), app.handlers)
    with ended.connected():
        cluster = await jobmaster.connect(ClusterSettings(), handlers=app.handlers)
    with pytest.raises(JobMasterError, match="a test that has ended"):
        await cluster.submit(call(app.double, 3))
