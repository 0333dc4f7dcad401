"""Submits of an application in the memory of its test."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

import jobmaster
from jobmaster import (
    Cluster,
    ClusterSettings,
    ConfigError,
    Conflict,
    Handlers,
    InputError,
    InvalidArguments,
    JobState,
    SyncCluster,
    Unavailable,
    UnknownHandler,
    UnknownLane,
    WaitTimeout,
    call,
)
from jobmaster import connect_sync as imported_before
from jobmaster.client.sync import disconnect_all
from jobmaster.clock import SystemClock
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


async def test_inline_waits_at_the_same_time_leave_the_clock_as_it_was(inline_jobs: Jobs) -> None:
    local, begun = Handlers(), asyncio.Event()
    clock, present = inline_jobs.memory.rows.clock, SystemClock()

    @local.job
    async def short() -> int:
        await begun.wait()
        return clock.wall_us() - present.wall_us()

    @local.job
    async def long() -> int:
        begun.set()
        await asyncio.sleep(0.05)
        return clock.wall_us() - present.wall_us()

    async with jobmaster.connect(handlers=local) as cluster:
        receipts = [await cluster.submit(short, after=3600), await cluster.submit(long, after=7200)]
        ahead = await asyncio.gather(*(receipt.result(timeout=9000) for receipt in receipts))
    assert [round(one / 3600e6, 1) for one in ahead] == [2, 2]
    assert abs(clock.wall_us() - present.wall_us()) < 60_000_000


@pytest.mark.parametrize("handler", [app.numbers, app.send_mail])
async def test_inline_submits_at_the_same_time_return_with_their_own_jobs_done(
    inline_jobs: Jobs, handler: Callable[..., object]
) -> None:
    cluster = inline_jobs.cluster

    async def submitted(number: int) -> JobState:
        given = {"first": number} if handler is app.numbers else {"to": str(number)}
        receipt = await cluster.submit(handler, given)
        return next(job for job in inline_jobs.all_submitted() if job.id == receipt.id).state

    assert await asyncio.gather(*(submitted(number) for number in range(5))) == [JobState.SUCCEEDED] * 5


async def test_inline_submits_at_the_same_time_run_their_own_jobs_alone(inline_jobs: Jobs) -> None:
    local, lock, ran = Handlers(), asyncio.Lock(), []

    @local.job(priority="high")
    async def locking() -> None:
        async with lock:
            ran.append("locking")

    @local.job
    async def plain() -> None:
        ran.append("plain")

    async with jobmaster.connect(handlers=local) as cluster:

        async def holds_the_lock() -> None:
            async with lock:
                await cluster.submit(plain)

        async with asyncio.timeout(4):
            await asyncio.gather(holds_the_lock(), cluster.submit(locking))
    assert sorted(ran) == ["locking", "plain"]


async def test_inline_a_second_submit_with_the_same_key_waits_for_the_job_that_runs(inline_jobs: Jobs) -> None:
    local = Handlers()

    @local.job
    async def takes_a_while() -> None:
        await asyncio.sleep(0.05)

    async with jobmaster.connect(handlers=local) as cluster:

        async def submitted() -> JobState:
            await cluster.submit(takes_a_while, idempotency_key="a")
            return inline_jobs.all_submitted()[0].state

        assert set(await asyncio.gather(submitted(), submitted())) == {JobState.SUCCEEDED}


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_inline_what_a_handler_submits_runs_after_it_and_before_the_submit_returns(
    inline_jobs: Jobs, mode: str
) -> None:
    local, ran = Handlers(), []

    @local.job
    async def second() -> None:
        ran.append("second")

    @local.job
    async def first() -> None:
        async with jobmaster.connect(handlers=local) as inner:
            await inner.submit(second)
        ran.append("first")

    @local.job
    def first_in_a_thread() -> None:
        inline_jobs.sync_cluster.submit(second)
        ran.append("first")

    async with jobmaster.connect(handlers=local) as cluster:
        await cluster.submit(first if mode == "async" else first_in_a_thread)
        assert ran == ["first", "second"]
        later = await cluster.submit(first if mode == "async" else first_in_a_thread, after=60)
        await later.wait(timeout=100)
    assert ran == ["first", "second"] * 2


async def test_inline_what_a_handler_has_left_behind_submits_as_other_code_does(inline_jobs: Jobs) -> None:
    local, go = Handlers(), asyncio.Event()
    left: list[asyncio.Task[JobState]] = []

    async with jobmaster.connect(handlers=local) as cluster:

        @local.job
        async def other() -> None: ...

        @local.job
        async def leaves_a_task() -> None:
            async def later() -> JobState:
                await go.wait()
                await cluster.submit(other)
                return inline_jobs.all_submitted(other)[0].state

            left.append(asyncio.create_task(later()))

        await cluster.submit(leaves_a_task)
        go.set()
        assert await left[0] is JobState.SUCCEEDED


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


async def test_a_handler_that_is_declared_after_the_connect_runs_too(jobs: Jobs) -> None:
    async with jobmaster.connect(handlers=Handlers()) as cluster:

        @cluster.job
        async def first() -> None: ...

        await cluster.submit(first)
        assert await jobs.drain() == Drained(succeeded=1)

        @cluster.job(name="second")
        async def second() -> None: ...

        await cluster.submit("second")
        jobs.assert_submitted("second")
        assert await jobs.drain() == Drained(succeeded=1)


async def test_two_registries_that_mean_different_functions_by_a_name_are_refused(jobs: Jobs) -> None:
    local = Handlers()

    @local.job(name="tests.unit.testing.app.double")
    async def other() -> None: ...

    await jobs.cluster.submit(call(app.double, 1))
    with pytest.raises(ConfigError, match=r"two functions are declared as handler 'tests\.unit\.testing\.app\.double'"):
        await jobmaster.connect(handlers=local)


async def test_the_registry_of_the_fixture_is_not_changed() -> None:
    own, other = Handlers(), Handlers()

    @own.job
    async def declared() -> int:
        return 1

    @other.job
    async def foreign() -> None: ...

    kit = Jobs(ClusterSettings(), own)
    with kit.connected():
        async with jobmaster.connect(handlers=other) as cluster:
            await cluster.submit(foreign)
        await kit.cluster.submit(declared)
        await kit.cluster.submit(call(app.send_mail, "ann"))
        assert await kit.drain() == Drained(succeeded=3)
        assert {"foreign", "declared", "send_mail"} <= {name.rpartition(".")[2] for name in kit.memory.handlers.names()}
    assert (len(own), len(other)) == (1, 1)


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


def test_a_cluster_that_is_connected_already_is_moved_to_memory_and_back() -> None:
    outer, inner = Jobs(ClusterSettings(), app.handlers), Jobs(ClusterSettings(), app.handlers)
    with outer.connected():
        held = imported_before(ClusterSettings(), handlers=app.handlers)
        held.submit(call(app.double, 1))
        with inner.connected():
            held.submit(call(app.double, 2))
        held.submit(call(app.double, 3))
    assert [job.arguments["value"] for job in outer.all_submitted()] == [1, 3]
    assert [job.arguments["value"] for job in inner.all_submitted()] == [2]
    held.close()


def test_a_cluster_that_cannot_be_closed_is_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    outer = Jobs(ClusterSettings(), app.handlers)

    async def gone() -> None:
        raise OSError("the server is gone")

    async def opened() -> Cluster:
        cluster = outer.memory.open()
        cluster._on_close = gone
        return cluster

    held = SyncCluster(opened, handlers=app.handlers)
    held.submit(call(app.double, 1))
    with Jobs(ClusterSettings(), app.handlers).connected():
        assert "a cluster could not be closed: OSError: the server is gone" in caplog.text
    held.submit(call(app.double, 2))
    assert len(outer.all_submitted()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(jobs: Jobs) -> None:
    with imported_before(ClusterSettings(), handlers=app.handlers) as held:
        held.submit(call(app.double, 1))
        child = multiprocessing.get_context("fork").Process(target=disconnect_all)
        child.start()
        child.join(10)
        assert child.exitcode == 0
        held.submit(call(app.double, 2))
    assert len(jobs.all_submitted()) == 2


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
