"""Jobs and the ledger in the admin: lists, pages, filters, and nothing that changes a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.django.conftest import Project
from tests.integration.django.test_backend import finished

JOBS = "/admin/jobmaster/job/"
LEDGER = "/admin/jobmaster/ledgerline/"


@pytest.fixture(scope="module")
def browser(project: Project) -> Any:
    """A superuser's browser."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def page(browser: Any, address: str, status: int = 200) -> str:
    response = browser.get(address)
    assert response.status_code == status, response.content.decode()
    return str(response.content.decode())


def test_the_list_shows_jobs_and_a_page_shows_everything(browser: Any, tasks: Any, agent: Path) -> None:
    result = finished(tasks.failing_task_value_error.enqueue())
    assert result.id in page(browser, JOBS)
    shown = page(browser, f"{JOBS}{result.id}/change/")
    for text in (
        "FAILED",
        "failing_task_value_error",
        "This Task failed due to ValueError",
        "Traceback",
        "failed (token",
    ):
        assert text in shown
    assert 'name="_save"' not in shown


def test_arguments_and_results_of_all_kinds_of_json_are_shown(browser: Any, tasks: Any, agent: Path) -> None:
    result = finished(tasks.echo.enqueue("text", None, [1, {"a": "<b>"}]))
    shown = page(browser, f"{JOBS}{result.id}/change/")
    assert "&quot;first&quot;: &quot;text&quot;" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    text = finished(tasks.get_task_id.enqueue())
    assert f"&quot;{text.id}&quot;" in page(browser, f"{JOBS}{text.id}/change/")


def test_a_search_is_by_id_by_its_beginning_and_by_handler(browser: Any, tasks: Any) -> None:
    from datetime import timedelta

    from django.utils import timezone

    later = tasks.noop_task.using(run_after=timezone.now() + timedelta(hours=1))
    one, other = later.enqueue(), later.enqueue()
    assert other.id not in page(browser, f"{JOBS}?q={one.id}")
    assert one.id in page(browser, f"{JOBS}?q={one.id}")
    assert one.id in page(browser, f"{JOBS}?q={one.id[:13]}")
    assert one.id in page(browser, f"{JOBS}?q={tasks.noop_task.module_path}")
    assert one.id not in page(browser, f"{JOBS}?q=nothing.of.that.name")
    assert one.id not in page(browser, f"{JOBS}?q=%27%3B--")


def test_filters(browser: Any, tasks: Any, agent: Path) -> None:
    result = finished(tasks.calculate_meaning_of_life.enqueue())
    assert result.id in page(browser, f"{JOBS}?state__exact=SUCCEEDED&created=hour")
    assert result.id not in page(browser, f"{JOBS}?state__exact=HELD")
    assert result.id not in page(browser, f"{JOBS}?priority__exact=low")
    assert result.id in page(browser, f"{JOBS}?created=all")


def test_a_list_is_of_the_last_day_unless_another_time_is_chosen(browser: Any, project: Project, tasks: Any) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        page(browser, JOBS)
    on_jobs = [one["sql"] for one in queries.captured_queries if '"jobs"' in one["sql"]]
    assert len(on_jobs) == 2, "the count and the rows"
    assert all('"id" >= ' in sql for sql in on_jobs)
    assert "LIMIT 10000" in on_jobs[0]
    assert '"args"' not in on_jobs[1]
    with CaptureQueriesContext(connection) as queries:
        page(browser, f"{JOBS}?created=all&o=7")
    orders = [one["sql"].rsplit("ORDER BY", 1)[-1] for one in queries.captured_queries if "ORDER BY" in one["sql"]]
    assert len(orders) == 1
    assert orders[0].split(" LIMIT ")[0].endswith('."jobs"."id" DESC'), "a limit comes with the second page"
    assert "," not in orders[0]


def test_a_search_for_a_handler_is_of_the_chosen_time_and_one_for_an_id_of_any(browser: Any, tasks: Any) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    result = tasks.noop_task.enqueue()
    for term, bounds in [(tasks.noop_task.module_path, 1), (result.id, 2), (result.id[:8], 2)]:
        with CaptureQueriesContext(connection) as queries:
            page(browser, f"{JOBS}?q={term}&created=week")
        on_jobs = [one["sql"] for one in queries.captured_queries if '"jobs"' in one["sql"]]
        assert len(on_jobs) == 2
        assert all(sql.count('"id" >= ') + sql.count('"id" <= ') == bounds for sql in on_jobs), on_jobs


def test_a_slow_list_ends_with_one_sentence(browser: Any, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobmaster.django import admin

    monkeypatch.setattr(admin, "QUERY_SECONDS", 0.1)
    with locked(project):
        shown = page(browser, JOBS, 503)
    assert "has not answered within 0.1 s" in shown
    assert "Choose a shorter time" in shown


@contextmanager
def locked(project: Project) -> Iterator[None]:
    """No query reads jobs meanwhile."""
    with psycopg.connect(project.dsn) as connection:
        connection.execute(f"LOCK TABLE jobmaster_{project.cluster.replace('-', '_')}.job IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


def test_the_ledger_has_a_line_for_each_attempt(browser: Any, tasks: Any, agent: Path) -> None:
    result = finished(tasks.third_time_lucky.enqueue())
    assert page(browser, f"{LEDGER}?q={result.id}").count(f"/job/{result.id}/change/") == 3
    response = browser.get(f"{LEDGER}{result.id}/change/")
    assert (response.status_code, response["Location"]) == (302, f"{JOBS}{result.id}/change/")
    assert page(browser, f"{JOBS}{result.id}/change/").count("is not the third") == 2


@pytest.mark.parametrize("place", [JOBS, LEDGER])
def test_nothing_can_be_changed(browser: Any, tasks: Any, place: str) -> None:
    result = tasks.noop_task.enqueue()
    assert browser.get(f"{place}add/").status_code == 403
    assert browser.post(f"{place}add/", {"id": result.id}).status_code == 403
    assert browser.get(f"{place}{result.id}/delete/").status_code == 403
    assert browser.post(f"{place}{result.id}/delete/", {"post": "yes"}).status_code == 403
    if place == JOBS:
        assert browser.post(f"{place}{result.id}/change/", {"state": "HELD"}).status_code == 403
    shown = page(browser, place)
    assert "delete_selected" not in shown
    assert "/add/" not in shown.split('id="content"')[-1]


def test_django_makes_no_migration_and_the_permission_is_to_view(project: Project) -> None:
    from django.contrib.auth.models import Permission

    assert "No changes detected" in project.done("makemigrations", "--check", "--dry-run")
    named = Permission.objects.filter(content_type__app_label="jobmaster").values_list("codename", flat=True)
    assert sorted(named) == ["view_job", "view_ledgerline"]


def test_without_a_database_that_leads_to_the_master_there_are_no_pages(project: Project) -> None:
    databases = json.loads(project.variables["TEST_DATABASES"])
    databases["default"]["HOST"] = "192.0.2.1"
    ran = project.manage(
        "shell", "-c", "from django.contrib import admin; print(sorted(m.__name__ for m in admin.site._registry))",
        TEST_DATABASES=json.dumps(databases),
    )  # fmt: skip
    assert "['Group', 'User']" in ran.stdout, ran.stdout + ran.stderr
