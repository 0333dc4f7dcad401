"""Tasks and the transactions of the project's database; connections of the jobs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from jobmaster.model.errors import Unavailable
from tests.integration.django.conftest import Project
from tests.integration.django.test_backend import finished, received
from tests.support.waiting import wait_until


def jobs_of(project: Project, title: str) -> int:
    """Jobs in the master whose arguments name the title."""
    with psycopg.connect(project.dsn) as connection:
        found = connection.execute(
            f"SELECT count(*) FROM jobmaster_{project.cluster.replace('-', '_')}.jobs WHERE args->>'title' = %s",
            [title],
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_in_the_masters_database_the_job_is_a_row_of_the_transaction(tasks: Any, agent: Path, project: Project) -> None:
    from django.db import connection, transaction

    with transaction.atomic():
        result = tasks.add_book.enqueue("Dune")
        assert result.enqueued_at is not None
        assert connection.run_on_commit == [], "nothing is left to be done after the commit"
        assert jobs_of(project, "Dune") == 0
    assert jobs_of(project, "Dune") == 1
    assert finished(result).return_value > 0
    assert (result.args, result.kwargs, result.attempts) == (["Dune"], {}, 1)


def test_a_rollback_takes_the_row_along(tasks: Any, project: Project) -> None:
    from django.db import transaction

    with transaction.atomic():
        kept = tasks.add_book.enqueue("kept")
        with transaction.atomic():
            tasks.add_book.enqueue("of the savepoint")
            transaction.set_rollback(True)
    with transaction.atomic():
        tasks.add_book.enqueue("of the transaction")
        transaction.set_rollback(True)
    assert [jobs_of(project, title) for title in ("kept", "of the savepoint", "of the transaction")] == [1, 0, 0]
    assert tasks.add_book.get_result(kept.id).id == kept.id


def test_the_row_has_the_options_of_the_task(tasks: Any, project: Project) -> None:
    from django.db import transaction
    from django.utils import timezone

    due = timezone.now() + timedelta(hours=3)
    with transaction.atomic():
        result = tasks.urgent_mail.using(run_after=due).enqueue("eve")
    again = tasks.urgent_mail.get_result(result.id)
    assert again.task == result.task
    job = tasks.urgent_mail.get_backend().cluster().client.get(result.id)
    assert (job.lane, job.priority.label, job.due_at, job.state.value) == ("mails", "critical", due, "HELD")


async def test_a_coroutine_enqueues_outside_the_transaction_of_its_threads(tasks: Any, agent: Path) -> None:
    from asgiref.sync import sync_to_async
    from django.db import connections, transaction

    def within() -> Any:
        with transaction.atomic():
            return tasks.add_book.enqueue("in a thread")

    result = await sync_to_async(within)()
    assert (await sync_to_async(finished)(result)).status == "SUCCESSFUL"
    await sync_to_async(connections.close_all)()


def test_whether_a_database_is_the_masters(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobmaster.django.options import BackendOptions
    from jobmaster.django.same_database import is_master

    settings = BackendOptions(str(project.config)).load()
    assert is_master("default", settings)
    place = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "db.example", "PORT": 5433}
    for dsn, changes, same in [
        ("postgresql://u:p@db.example:5433/shop", {}, True),
        ("postgresql://other@DB.example:5433/shop?sslmode=require", {}, True),
        ("postgresql://u@db.example:5433/shop2", {}, False),
        ("postgresql://u@db.example/shop", {}, False),
        ("postgresql://u@db.example/shop", {"PORT": ""}, True),
        ("postgresql://u@other.example:5433/shop", {}, False),
        ("postgresql://u@127.0.0.1/shop", {"HOST": "localhost", "PORT": "5432"}, True),
        ("postgresql://u:p@db.example:5433,db2.example:5433/shop", {}, False),
        ("postgresql://u:p@db.example,db2.example:5433/shop", {}, False),
        ("postgresql:///shop?host=/run/pg", {"HOST": "/run/pg/", "PORT": ""}, True),
        ("postgresql://u:p@db.example:5433/shop", {"ENGINE": "django.db.backends.sqlite3"}, False),
    ]:
        master = msgspec.structs.replace(settings.master, dsn=dsn)
        monkeypatch.setattr("django.conf.settings.DATABASES", {"default": {**place, **changes}})
        assert is_master("default", msgspec.structs.replace(settings, master=master)) is same, (dsn, changes)


def test_elsewhere_than_in_the_master_a_task_waits_for_the_commit(tasks: Any, agent: Path) -> None:
    from django.db import transaction

    from jobmaster.django.interface import TaskResultDoesNotExist, task_enqueued

    with received(task_enqueued) as got:
        with transaction.atomic():
            result = tasks.add_book.using(backend="after_commit").enqueue("Kim")
            assert (result.enqueued_at, got) == (None, [])
            with pytest.raises(TaskResultDoesNotExist):
                result.refresh()
        assert (result.enqueued_at is not None, len(got)) == (True, 1)
    assert finished(result).status == "SUCCESSFUL"


def test_after_a_rollback_nothing_is_enqueued(tasks: Any, project: Project) -> None:
    from django.db import transaction

    with transaction.atomic():
        tasks.add_book.using(backend="after_commit").enqueue("rolled back")
        transaction.set_rollback(True)
    assert jobs_of(project, "rolled back") == 0


def test_wrong_arguments_are_refused_before_the_commit(tasks: Any) -> None:
    from django.db import transaction

    with transaction.atomic(), pytest.raises(TypeError, match="missing a required argument"):
        tasks.add_book.using(backend="after_commit").enqueue()


def test_without_a_transaction_a_task_is_enqueued_at_once(tasks: Any, agent: Path) -> None:
    result = tasks.add_book.using(backend="after_commit").enqueue("Emma")
    assert result.enqueued_at is not None
    assert finished(result).return_value > 0


def test_a_cluster_that_does_not_answer_is_one_error_with_its_place(tasks: Any, project: Project) -> None:
    from django.test import override_settings

    own = {
        "default": {
            "BACKEND": "jobmaster.django.JobMasterBackend",
            "OPTIONS": {
                "config": str(project.config),
                "overrides": ["master.dsn=postgresql://u:p@127.0.0.1:1/x", "master.connect_timeout=1s"],
            },
        }
    }
    with override_settings(TASKS=own), pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        tasks.noop_task.enqueue()


def test_jobs_leave_no_connection_of_the_project_open(tasks: Any, agent: Path, project: Project) -> None:
    """Django's default closes a connection after each request, and so after each job: in threads, and of coroutines."""
    from django.db import connections

    results = [tasks.add_book.enqueue(f"plain {n}") for n in range(20)]
    results += [tasks.add_book_async.enqueue(f"async {n}") for n in range(20)]
    for result in results:
        assert finished(result).status == "SUCCESSFUL", result.errors
    connections.close_all()
    with psycopg.connect(project.dsn, autocommit=True) as connection:

        def left() -> int:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '' "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchone()
            assert found is not None
            return int(found[0])

        wait_until(lambda: left() == 0, 10, lambda: f"the end of {left()} connections")
