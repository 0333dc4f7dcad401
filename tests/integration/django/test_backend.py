"""Tasks on a cluster, after the tests of Django's own backends: enqueue, results, validation, signals."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from jobmaster import Fail, JobContext, Retry
from jobmaster.client.sync import SyncCluster
from jobmaster.clock import new_id
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.job import Priority
from tests.integration.django.conftest import Project
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until


def finished(result: Any) -> Any:
    """The result when the task has ended."""

    def ended() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(ended, 20, lambda: f"the end of {result}")
    return result


@contextmanager
def received(signal: Any) -> Iterator[list[Any]]:
    """Results that the signal was sent with."""
    got: list[Any] = []

    def receive(sender: object, task_result: Any, **_: Any) -> None:
        got.append((sender, task_result))

    signal.connect(receive)
    try:
        yield got
    finally:
        signal.disconnect(receive)


# ---------------------------------------------------------------- enqueue


def test_the_backend_is_that_of_the_settings(project: Project) -> None:
    from jobmaster.django import JobMasterBackend
    from jobmaster.django.interface import task_backends

    backend = task_backends["default"]
    assert isinstance(backend, JobMasterBackend)
    assert (backend.supports_defer, backend.supports_async_task) == (True, True)
    assert (backend.supports_get_result, backend.supports_priority) == (True, True)


@pytest.mark.parametrize("name", ["noop_task", "noop_task_async", "noop_task_from_bare_decorator"])
def test_enqueue(tasks: Any, agent: Path, name: str) -> None:
    from jobmaster.django.interface import TaskResultStatus

    task = getattr(tasks, name)
    result = task.enqueue(1, two=3)
    assert result.status == TaskResultStatus.READY
    assert (result.task, result.args, result.kwargs, result.attempts) == (task, [1], {"two": 3}, 0)
    assert len(result.id) < 64
    finished(result)
    assert result.status == TaskResultStatus.SUCCESSFUL, result
    assert result.return_value is None
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert (result.args, result.kwargs, result.attempts) == ([1], {"two": 3}, 1)


async def test_enqueue_from_a_coroutine(tasks: Any, agent: Path) -> None:
    for task in (tasks.noop_task, tasks.noop_task_async):
        result = await task.aenqueue()
        while not result.is_finished:
            await result.arefresh()
        assert (result.return_value, result.args, result.kwargs, result.attempts) == (None, [], {}, 1)


@pytest.mark.parametrize(
    ("args", "kwargs", "returned"),
    [
        ((1,), {}, [1, 2, [], 3, {}]),
        ((1, 5), {"third": 7}, [1, 5, [], 7, {}]),
        ((1,), {"second": 5, "x": [None, 1.5]}, [1, 5, [], 3, {"x": [None, 1.5]}]),
        ((1, 2, "a", "b"), {}, [1, 2, ["a", "b"], 3, {}]),
    ],
)
def test_arguments_arrive_as_they_were_given(
    tasks: Any, agent: Path, args: Any, kwargs: Any, returned: list[Any]
) -> None:
    result = tasks.echo.enqueue(*args, **kwargs)
    assert finished(result).return_value == returned
    again = tasks.echo.get_result(result.id)
    assert (again.args, again.kwargs) == (list(args), kwargs)


def test_arguments_that_are_no_json_are_refused_and_nothing_is_stored(tasks: Any, project: Project) -> None:
    before = project.done("jobmaster", "job", "list", "-o", "json")
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop_task.enqueue(datetime.now(UTC))
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop_task.enqueue(when={"x": object()})
    assert project.done("jobmaster", "job", "list", "-o", "json") == before


async def test_arguments_that_are_no_json_are_refused_in_a_coroutine(tasks: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        await tasks.noop_task.aenqueue(datetime.now(UTC))


def test_arguments_that_do_not_fit_the_function_are_refused_with_its_name(tasks: Any) -> None:
    with pytest.raises(TypeError, match=r"shelf\.tasks\.calculate_meaning_of_life\(\).*: too many positional"):
        tasks.calculate_meaning_of_life.enqueue(1)
    with pytest.raises(TypeError, match=r"tasks\.echo\(.*missing a required"):
        tasks.echo.enqueue()


def test_priority_queue_and_due_time_are_those_of_the_job(tasks: Any, project: Project) -> None:
    from django.utils import timezone

    due = timezone.now() + timedelta(hours=2)
    result = tasks.urgent_mail.using(run_after=due).enqueue("ann")
    job = tasks.urgent_mail.get_backend().cluster().client.get(result.id)
    assert (job.lane, job.priority.label, job.state.value) == ("mails", "critical", "HELD")
    assert job.due_us == int(due.timestamp()) * 1_000_000 + due.microsecond
    again = tasks.urgent_mail.get_result(result.id)
    assert again.task == result.task
    assert (again.task.priority, again.task.queue_name, again.task.run_after) == (70, "mails", due)
    assert again.status == "READY"


@pytest.mark.parametrize(
    ("priority", "label"),
    [
        (-100, "very_low"), (-61, "very_low"), (-60, "low"), (-21, "low"), (-20, "medium"), (0, "medium"), (19, "medium"),
        (20, "high"), (59, "high"), (60, "critical"), (100, "critical"),
    ],
)  # fmt: skip
def test_the_range_of_priorities_has_five_equal_parts(project: Project, priority: int, label: str) -> None:
    from jobmaster.django.results import level_of

    assert level_of(priority).label == label


def test_a_task_that_is_due_later_does_not_start_before(tasks: Any, agent: Path) -> None:
    from django.utils import timezone

    due = timezone.now() + timedelta(seconds=1)
    result = tasks.calculate_meaning_of_life.using(run_after=due).enqueue()
    assert finished(result).return_value == 42
    assert result.started_at >= due - timedelta(milliseconds=50)


def test_a_new_job_is_not_searched_for(tasks: Any, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id of the caller's own means a look into every bucket and a statement; that of a new task is known to be new."""
    from django.db import transaction

    from jobmaster.client.dedup import Deduplicator
    from jobmaster.master.queries import Queries

    searched: list[Any] = []
    for owner, name in ((Deduplicator, "receipt"), (Queries, "states")):
        monkeypatch.setattr(owner, name, lambda *args, **_: searched.append(args))
    tasks.noop_task.enqueue()
    tasks.noop_task.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue()
    with transaction.atomic():
        tasks.noop_task.enqueue()
        tasks.noop_task.using(backend="after_commit").enqueue()
    assert searched == []


def losing_answers(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """The next answers to submits are lost after the job was stored. Returns the ids that are sent."""
    sent: list[str] = []
    submit = SyncCluster.submit

    def lose(cluster: Any, *args: Any, **options: Any) -> Any:
        receipt = submit(cluster, *args, **options)
        sent.append(str(receipt.id))
        if len(sent) <= number:
            raise OutcomeUnknown("the answer was lost", id_bytes=[receipt.id_bytes])
        return receipt

    monkeypatch.setattr(SyncCluster, "submit", lose)
    return sent


@pytest.mark.parametrize("backend", ["default", "after_commit"])
def test_a_job_whose_answer_was_lost_is_sent_once_more_under_its_id(
    tasks: Any, agent: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    from django.db import transaction

    sent = losing_answers(monkeypatch, 1)
    if backend == "default":
        result = tasks.noop_task.enqueue("lost")
    else:
        with transaction.atomic():
            result = tasks.noop_task.using(backend=backend).enqueue("lost")
    assert sent == [result.id, result.id]
    assert result.enqueued_at is not None
    assert finished(result).attempts == 1


def test_a_job_whose_answers_are_all_lost_is_an_error_with_its_id(
    tasks: Any, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = losing_answers(monkeypatch, 2)
    with pytest.raises(OutcomeUnknown) as caught:
        tasks.noop_task.enqueue("lost twice")
    lost = str(UUID(bytes=caught.value.id_bytes[0]))
    assert sent == [lost, lost]
    assert finished(tasks.noop_task.get_result(lost)).status == "SUCCESSFUL"


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("name", "error"), [("failing_task_value_error", ValueError), ("failing_task_system_exit", SystemExit)]
)
def test_an_exception_is_an_error_of_the_result(tasks: Any, agent: Path, name: str, error: type[BaseException]) -> None:
    result = finished(getattr(tasks, name).enqueue())
    assert result.status == "FAILED"
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert result.errors[0].exception_class is error
    assert result.errors[0].traceback.endswith(f"{error.__name__}: This Task failed due to {error.__name__}\n")
    assert result.enqueued_at <= result.started_at <= result.finished_at


def test_a_nested_exception_is_an_error_of_the_result(tasks: Any, agent: Path) -> None:
    result = finished(tasks.complex_exception.enqueue())
    assert result.errors[0].exception_class is ValueError
    assert 'ValueError(ValueError("This task failed"))' in result.errors[0].traceback


def test_a_return_value_that_is_no_json_fails_the_task(tasks: Any, agent: Path) -> None:
    result = finished(tasks.complex_return_value.enqueue())
    assert (result.status, result.errors[0].exception_class, result._return_value) == ("FAILED", TypeError, None)
    assert "Unsupported type" in result.errors[0].traceback


def test_refresh_of_an_unchanged_result_changes_nothing(tasks: Any, agent: Path) -> None:
    result = finished(tasks.calculate_meaning_of_life.enqueue())
    original = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == original
    assert tasks.calculate_meaning_of_life.get_result(result.id) == result


async def test_results_in_a_coroutine(tasks: Any, agent: Path) -> None:
    from jobmaster.django.interface import TaskResultDoesNotExist

    result = await tasks.calculate_meaning_of_life.aenqueue()
    while not result.is_finished:
        await result.arefresh()
    assert (await tasks.calculate_meaning_of_life.aget_result(result.id)).return_value == 42
    with pytest.raises(TaskResultDoesNotExist):
        await tasks.noop_task.aget_result("123")


@pytest.mark.parametrize("wrong", ["123", 123, "", None, "0190a0b0-0000-7000-8000-000000000000"])
def test_a_result_that_does_not_exist(tasks: Any, wrong: Any) -> None:
    from jobmaster.django.interface import TaskResultDoesNotExist

    with pytest.raises(TaskResultDoesNotExist):
        tasks.noop_task.get_result(wrong)


def test_a_new_id_without_a_job_is_no_result_either(tasks: Any) -> None:
    from jobmaster.django.interface import TaskResultDoesNotExist

    with pytest.raises(TaskResultDoesNotExist):
        tasks.noop_task.get_result(new_id().hex())


def test_a_result_of_another_task_does_not_match(tasks: Any) -> None:
    result = tasks.noop_task_async.enqueue()
    with pytest.raises(Exception, match="Task does not match"):
        tasks.noop_task.get_result(result.id)


def test_a_job_of_another_program_is_no_task(tasks: Any, project: Project) -> None:
    from jobmaster.django.interface import InvalidTask

    client = tasks.noop_task.get_backend().cluster().client
    job_id = new_id()
    client.submit("reports.weekly", {}, allow_unregistered=True, after=3600, job_id=job_id)
    with pytest.raises(InvalidTask, match=r"'reports\.weekly' cannot be imported"):
        tasks.noop_task.get_backend().get_result(str(UUID(bytes=job_id)))


def test_a_program_without_django_submits_a_task_by_its_path(tasks: Any, agent: Path) -> None:
    client = tasks.echo.get_backend().cluster().client
    job_id = new_id()
    receipt = client.submit(tasks.echo.module_path, {"first": 1, "third": 9}, allow_unregistered=True, job_id=job_id)
    assert receipt.result(timeout=PATIENCE_SECONDS) == [1, 2, [], 9, {}]
    assert tasks.echo.get_backend().get_result(str(UUID(bytes=job_id))).kwargs == {"third": 9}


def test_a_program_without_django_submits_a_task_into_its_queue_with_its_priority(
    tasks: Any, agent: Path, project: Project
) -> None:
    shown = project.done("jobmaster", "job", "submit", tasks.urgent_mail.module_path, "to=ann", "-o", "json")
    result = finished(tasks.urgent_mail.get_result(json.loads(shown)["id"]))
    assert (result.task, result.return_value) == (tasks.urgent_mail, "ann")
    job = tasks.urgent_mail.get_backend().cluster().client.get(result.id)
    assert (job.lane, job.priority.label) == ("mails", "critical")


def test_a_job_in_a_lane_that_is_no_queue_of_the_backend_runs(tasks: Any, agent: Path) -> None:
    client = tasks.echo.get_backend().cluster().client
    receipt = client.submit(
        tasks.echo.module_path,
        {"first": 1},
        allow_unregistered=True,
        lane="mails",
        metadata={"django": '{"backend":"after_commit"}'},
    )
    assert receipt.result(timeout=PATIENCE_SECONDS) == [1, 2, [], 3, {}]
    assert tasks.echo.get_backend().get_result(str(receipt.id)).task.queue_name == "mails"


# ---------------------------------------------------------------- context, retries, signals


def test_a_task_has_its_context(tasks: Any, agent: Path) -> None:
    result = tasks.get_task_id.enqueue()
    assert finished(result).return_value == result.id
    assert finished(tasks.check_context.enqueue(1)).status == "SUCCESSFUL"


def test_a_task_is_tried_again_according_to_its_options(tasks: Any, agent: Path) -> None:
    result = finished(tasks.third_time_lucky.enqueue())
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 3)
    assert [error.exception_class for error in result.errors] == [Retry, Retry]
    assert "attempt 1 is not the third" in result.errors[0].traceback
    assert result.started_at < result.last_attempted_at < result.finished_at


def test_the_signal_of_an_enqueued_task(tasks: Any) -> None:
    from jobmaster.django import JobMasterBackend
    from jobmaster.django.interface import task_enqueued

    with received(task_enqueued) as got:
        result = tasks.noop_task.enqueue()
    assert got == [(JobMasterBackend, result)]


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("calculate_meaning_of_life", ["RUNNING", "SUCCESSFUL"]),
        ("noop_task_async", ["RUNNING", "SUCCESSFUL"]),
        ("failing_task_value_error", ["RUNNING", "FAILED"]),
        ("third_time_lucky", ["RUNNING", "RUNNING", "RUNNING", "SUCCESSFUL"]),
    ],
)
def test_an_agent_sends_the_signals_of_start_and_end(
    tasks: Any, agent: Path, project: Project, name: str, states: list[str]
) -> None:
    """An attempt that is followed by another one has a start and no end."""
    result = finished(getattr(tasks, name).enqueue())
    lines = [line.split() for line in project.signals.read_text().splitlines()]
    assert [state for job, state in lines if job == result.id] == states


def signals_of(project: Project, result: Any, number: int) -> list[str]:
    """The statuses of the signals of a task, when there are so many."""

    def sent() -> list[str]:
        lines = [line.split() for line in project.signals.read_text().splitlines()]
        return [status for job, status in lines if job == result.id]

    wait_until(lambda: len(sent()) >= number, 20, lambda: f"{number} signals of {result.id}, not {sent()}")
    return sent()


@pytest.mark.parametrize("name", ["noop_task", "noop_task_async"])
def test_receivers_may_use_the_database(tasks: Any, agent: Path, project: Project, name: str) -> None:
    result = finished(getattr(tasks, name).enqueue("the receivers read"))
    assert (result.status, result.attempts, result.errors) == ("SUCCESSFUL", 1, [])
    assert signals_of(project, result, 2) == ["RUNNING", "SUCCESSFUL"]


@pytest.mark.parametrize("name", ["given_up_by_its_rules", "given_up_by_its_rules_async", "given_up_by_its_policy"])
def test_a_task_that_its_rules_give_up_has_ended(tasks: Any, agent: Path, project: Project, name: str) -> None:
    result = finished(getattr(tasks, name).enqueue())
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert [error.exception_class for error in result.errors] == [tasks.Hopeless]
    assert signals_of(project, result, 2) == ["RUNNING", "FAILED"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails_with_a_policy", "Hopeless"),
        ("fails_with_a_policy_async", "Hopeless"),
        ("fails_with_a_policy_in_a_process", "Hopeless"),
        ("too_slow_with_a_policy", "TimeoutError"),
        ("too_slow_with_a_policy_async", "TimeoutError"),
    ],
)
def test_a_policy_is_called_once_for_an_attempt(
    tasks: Any, agent: Path, project: Project, name: str, error: str
) -> None:
    """The task needs its answer for its signals, and the agent for the record."""
    result = finished(getattr(tasks, name).enqueue(1.5))
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert signals_of(project, result, 2) == ["RUNNING", "FAILED"]
    calls = [line.split() for line in project.policy_calls.read_text().splitlines()]
    assert [kind for job, kind in calls if job == result.id] == [error]


def test_an_answer_of_a_policy_is_kept_for_the_second_call_alone(project: Project) -> None:
    from jobmaster.django.execution import _ANSWERS_MAX, _CalledOnce

    asked: list[int] = []

    def policy(ctx: JobContext, error: Exception) -> float:
        asked.append(ctx.token)
        if ctx.token == 2:
            raise LookupError("broken")
        return 1.5

    def run(token: int) -> JobContext[Any]:
        return JobContext(
            job_id_bytes=bytes(16), token=token, handler="h", lane="default", priority=Priority.MEDIUM, attempt=1,
            max_attempts=2,
        )  # fmt: skip

    once = _CalledOnce(policy)
    assert [once(run(1), ValueError()) for _ in range(3)] == [1.5] * 3
    assert asked == [1, 1], "the third call is about another run under the same token"
    for _ in range(2):
        with pytest.raises(LookupError, match="broken"):
            once(run(2), ValueError())
    assert asked == [1, 1, 2]
    for token in range(3, 3 + 2 * _ANSWERS_MAX):
        once(run(token), ValueError())
    assert len(once._answers) == _ANSWERS_MAX


@pytest.mark.parametrize("name", ["too_slow", "too_slow_async"])
def test_a_task_that_is_given_up_at_its_timeout_has_failed(
    tasks: Any, agent: Path, project: Project, name: str
) -> None:
    result = finished(getattr(tasks, name).enqueue(2))
    assert result.status == "FAILED"
    assert [error.exception_class_path for error in result.errors] == ["jobmaster.JobFailed"]
    assert signals_of(project, result, 2) == ["RUNNING", "FAILED"]


def test_what_runs_on_after_its_timeout_is_not_the_end_of_the_task(tasks: Any, agent: Path, project: Project) -> None:
    result = tasks.slow_at_first.enqueue(3)
    assert finished(result).status == "SUCCESSFUL"
    other = finished(tasks.too_slow.enqueue(4))  # its thread ends later than the first one of `result`
    assert signals_of(project, other, 2) == ["RUNNING", "FAILED"]
    assert signals_of(project, result, 3) == ["RUNNING", "RUNNING", "SUCCESSFUL"]


@pytest.mark.parametrize(
    ("deadline", "max_attempts", "name", "sent"),
    [
        (inf, 1, "noop_task", []),
        (0.0, 1, "noop_task", ["FAILED"]),
        (0.0, 2, "noop_task", []),
        (0.0, 5, "given_up_by_its_policy", ["FAILED"]),
    ],
)
def test_an_attempt_that_the_agent_has_stopped_is_the_end_only_at_its_last_timeout(
    tasks: Any, agent: Path, deadline: float, max_attempts: int, name: str, sent: list[str]
) -> None:
    """A job that is cancelled or given back has no end here, whatever its function returns."""
    from jobmaster.django.handlers import handlers
    from jobmaster.django.interface import task_finished

    handler = handlers.get(getattr(tasks, name).module_path)
    assert handler is not None
    context: JobContext[Any] = JobContext(
        job_id_bytes=new_id(), token=1, handler=handler.name, lane="default", priority=Priority.MEDIUM, attempt=1,
        max_attempts=max_attempts, deadline_boottime=deadline, cancelled=True,
    )  # fmt: skip
    with received(task_finished) as got, suppress(tasks.Hopeless):
        handler.function(context)
    assert [result.status for _, result in got] == sent
    assert all(result.errors[0].exception_class is TimeoutError for _, result in got)


def test_a_receiver_that_fails_does_not_run_a_task_again_that_is_done(tasks: Any, agent: Path) -> None:
    result = finished(tasks.noop_task.enqueue("the receiver fails"))
    assert (result.status, result.attempts, result.errors) == ("SUCCESSFUL", 1, [])


def test_a_task_that_ends_itself_and_one_that_is_put_off(
    tasks: Any, agent: Path, project: Project, tmp_path: Path
) -> None:
    result = finished(tasks.given_up_after_a_pause.enqueue(str(tmp_path / "seen")))
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert [error.exception_class for error in result.errors] == [Fail]
    lines = [line.split() for line in project.signals.read_text().splitlines()]
    assert [state for job, state in lines if job == result.id] == ["RUNNING", "RUNNING", "FAILED"]


# ---------------------------------------------------------------- validation


def test_a_function_that_no_agent_could_import_is_no_task(tasks: Any) -> None:
    from jobmaster.django.interface import InvalidTask

    with pytest.raises(InvalidTask, match="module level"):
        tasks.task()(lambda: None)


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_a_priority_out_of_range_is_refused(tasks: Any, priority: float) -> None:
    from jobmaster.django.interface import InvalidTask

    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        tasks.noop_task.using(priority=priority)


def test_an_unknown_queue_is_refused(tasks: Any) -> None:
    from jobmaster.django.interface import InvalidTask

    with pytest.raises(InvalidTask, match="Queue 'elsewhere' is not valid"):
        tasks.noop_task.using(queue_name="elsewhere")


def test_a_naive_due_time_is_refused(tasks: Any) -> None:
    from jobmaster.django.interface import InvalidTask

    with pytest.raises(InvalidTask, match="aware"):
        tasks.noop_task.using(run_after=datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None))


def test_a_queue_that_cannot_be_a_lane_is_refused(tasks: Any, project: Project) -> None:
    from django.test import override_settings

    from jobmaster.django.interface import InvalidTask

    own = {"default": {"BACKEND": "jobmaster.django.JobMasterBackend", "QUEUES": []}}
    with override_settings(TASKS=own), pytest.raises(InvalidTask, match="'Not A Lane' is the job's lane"):
        tasks.noop_task.using(queue_name="Not A Lane")


def ctx_is_taken(ctx: str) -> None: ...


def test_a_parameter_named_ctx_is_refused(tasks: Any) -> None:
    from jobmaster.django.interface import InvalidTask

    with pytest.raises(InvalidTask, match="the parameter 'ctx' needs another name"):
        tasks.task()(ctx_is_taken)
