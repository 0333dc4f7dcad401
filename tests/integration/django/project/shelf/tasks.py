"""Tasks of the project, after those of Django's own tests."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from jobmaster import Fail, JobContext, Retry, Snooze
from jobmaster.django import job_options
from jobmaster.django.interface import TaskContext
from tests.integration.django.project.settings import TASKS_PACKAGE
from tests.integration.django.project.shelf.models import Book

if TASKS_PACKAGE == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task


@task()
def noop_task(*args: Any, **kwargs: Any) -> None: ...


@task
def noop_task_from_bare_decorator(*args: Any, **kwargs: Any) -> None: ...


@task()
async def noop_task_async(*args: Any, **kwargs: Any) -> None: ...


@task()
def calculate_meaning_of_life() -> int:
    return 42


@task()
def echo(first: Any, /, second: Any = 2, *rest: Any, third: Any = 3, **more: Any) -> list[Any]:
    return [first, second, list(rest), third, more]


@task()
@job_options(max_attempts=1)
def failing_task_value_error() -> None:
    raise ValueError("This Task failed due to ValueError")


@task()
@job_options(max_attempts=1)
def failing_task_system_exit() -> None:
    raise SystemExit("This Task failed due to SystemExit")


@task()
@job_options(max_attempts=1)
def complex_exception() -> None:
    raise ValueError(ValueError("This task failed"))


@task()
@job_options(max_attempts=1)
def complex_return_value() -> Any:
    return lambda: True


@task(takes_context=True)
def get_task_id(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def check_context(context: TaskContext, attempt: int) -> None:
    assert isinstance(context, TaskContext)
    assert context.attempt == attempt


@task(takes_context=True)
@job_options(max_attempts=3, backoff=0, retry_on=OSError)
def third_time_lucky(context: TaskContext) -> int:
    if context.attempt < 3:
        raise Retry(after=0, reason=f"attempt {context.attempt} is not the third")
    return context.attempt


@task(takes_context=True)
@job_options(max_attempts=3)
def given_up_after_a_pause(context: TaskContext, path: str) -> None:
    """Its first run puts it off, the second ends it."""
    if not os.path.exists(path):
        open(path, "w").close()
        raise Snooze(0)
    raise Fail("not today")


class Hopeless(Exception):
    pass


@task()
@job_options(max_attempts=5, give_up_on=Hopeless)
def given_up_by_its_rules() -> None:
    raise Hopeless("in vain")


@task()
@job_options(max_attempts=5, retry_on=OSError)
async def given_up_by_its_rules_async() -> None:
    raise Hopeless("in vain")


def never(_: JobContext, error: Exception) -> bool:
    return False


@task()
@job_options(max_attempts=5, retry=never)
def given_up_by_its_policy() -> None:
    raise Hopeless("in vain")


def noted(job: JobContext, error: Exception) -> bool:
    """A policy that writes down each of its calls."""
    with open(os.environ["TEST_POLICY_CALLS"], "a", encoding="utf-8") as file:
        file.write(f"{job.job_id} {type(error).__name__}\n")
    return False


@task()
@job_options(max_attempts=5, retry=noted)
def fails_with_a_policy(seconds: float) -> None:
    raise Hopeless("in vain")


@task()
@job_options(max_attempts=5, retry=noted)
async def fails_with_a_policy_async(seconds: float) -> None:
    raise Hopeless("in vain")


@task()
@job_options(max_attempts=5, retry=noted, mode="process")
def fails_with_a_policy_in_a_process(seconds: float) -> None:
    raise Hopeless("in vain")


@task()
@job_options(max_attempts=5, retry=noted, timeout=0.5)
def too_slow_with_a_policy(seconds: float) -> None:
    time.sleep(seconds)


@task()
@job_options(max_attempts=5, retry=noted, timeout=0.5)
async def too_slow_with_a_policy_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task(takes_context=True)
@job_options(max_attempts=2, backoff=0, timeout=1.5)
def slow_at_first(context: TaskContext, seconds: float) -> None:
    if context.attempt == 1:
        time.sleep(seconds)


@task()
@job_options(max_attempts=1, timeout=0.5)
def too_slow(seconds: float) -> None:
    time.sleep(seconds)


@task()
@job_options(max_attempts=1, timeout=0.5)
async def too_slow_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task(priority=70, queue_name="mails")
def urgent_mail(to: str) -> str:
    return to


@task()
def add_book(title: str) -> int:
    return Book.objects.create(title=title).pk


@task()
async def add_book_async(title: str) -> list[Any]:
    book = await Book.objects.acreate(title=title)
    return [book.pk, await Book.objects.filter(title=title).acount()]
