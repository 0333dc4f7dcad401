"""``manage.py jobmaster``, the system checks, and the project as it is seen by an agent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from jobmaster.embedded import PostgresServer
from jobmaster.model.job import Priority
from tests.integration.django.conftest import Project
from tests.support.deployment import RUN_AGENT


def test_a_command_has_the_configuration_of_the_backend(project: Project, agent: Path) -> None:
    listed = json.loads(project.done("jobmaster", "agent", "list", "-o", "json"))
    assert [one["state"] for one in listed] == ["ACTIVE"]
    assert project.cluster in project.done("jobmaster", "config", "show", "--backend", "after_commit")


def test_the_exit_code_is_that_of_the_command(project: Project) -> None:
    ran = project.manage("jobmaster", "job", "show", "0190a0b0-0000-7000-8000-000000000000")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith("error: there is no job 0190a0b0")


def test_help_is_that_of_the_program(project: Project) -> None:
    assert "Run, list and drain agents." in project.done("jobmaster", "--help")


def test_a_backend_that_does_not_exist_is_one_line(project: Project) -> None:
    ran = project.manage("jobmaster", "status", "--backend=other")
    assert ran.returncode == 78
    assert ran.stderr.splitlines() == [
        'error: TASKS has no JobMaster backend \'other\'; write "BACKEND": "jobmaster.django.JobMasterBackend"'
    ]


def test_a_command_from_code_runs_in_the_process(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    from django.core.management import CommandError, call_command

    call_command("jobmaster", "config", "show", "-o", "json")
    assert json.loads(capfd.readouterr().out)
    with pytest.raises(CommandError, match="job show nothing has failed"):
        call_command("jobmaster", "job", "show", "nothing")
    for options in ([], ["--set", "leases.lease=3s"]):
        with pytest.raises(CommandError, match="process of its own"):
            call_command("jobmaster", *options, "agent", *options, "run")


def test_an_agent_has_the_tasks_of_the_project_whatever_options_come_first(project: Project) -> None:
    from jobmaster.django.management.commands.jobmaster import command_line

    for options in ([], ["--set", "leases.lease=3s"], ["-v", "--set=leases.lease=3s"], ["--debug", "-o", "json"]):
        assert command_line([*options, "agent", *options, "run"])[0][-2:] == ["--handlers", "jobmaster.django.handlers"]
    for words in (["agent", "list"], ["status", "agent", "run"], ["--set", "agent", "run"]):
        assert "--handlers" not in command_line(words)[0]


def test_an_agent_publishes_every_task_of_the_project(tasks: Any, agent: Path) -> None:
    from jobmaster.django.handlers import handlers

    assert tasks.noop_task.module_path in handlers
    assert handlers.names() == sorted(handlers.names())
    assert all(name.startswith("tests.integration.django.project.shelf.tasks.") for name in handlers.names())
    assert handlers.get(tasks.third_time_lucky.module_path).options.max_attempts == 3  # type: ignore[union-attr]
    options = handlers.get(tasks.urgent_mail.module_path).options  # type: ignore[union-attr]
    assert (options.lane, options.priority) == ("mails", Priority.CRITICAL)


def test_without_a_project_an_agent_ends_with_one_sentence(project: Project, tmp_path: Path) -> None:
    environment = {k: v for k, v in project.environment.items() if k != "DJANGO_SETTINGS_MODULE"}
    ran = subprocess.run(
        [*RUN_AGENT, "--config", str(project.config), "--handlers", "jobmaster.django.handlers"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 78, ran.stdout + ran.stderr
    assert "$DJANGO_SETTINGS_MODULE is not set" in ran.stderr
    assert "manage.py jobmaster agent run" in ran.stderr


def test_a_module_of_tasks_that_cannot_be_imported_is_named_with_its_line(project: Project, tmp_path: Path) -> None:
    (tmp_path / "broken_app").mkdir()
    (tmp_path / "broken_app" / "__init__.py").touch()
    (tmp_path / "broken_app" / "tasks.py").write_text("\nimport nothing_of_that_name\n")
    (tmp_path / "broken_settings.py").write_text(
        f"from {project.variables['DJANGO_SETTINGS_MODULE']} import *\nINSTALLED_APPS += ['broken_app']\n"
    )
    ran = project.manage("jobmaster", "agent", "run", f"--pythonpath={tmp_path}", "--settings=broken_settings")
    assert ran.returncode == 78, ran.stdout + ran.stderr
    assert "jobmaster.django.handlers" in ran.stderr
    assert "nothing_of_that_name" in ran.stderr
    assert "tasks.py" in ran.stderr
    assert len(ran.stderr.splitlines()) <= 2


def test_a_process_that_was_forked_after_a_use_has_connections_of_its_own(project: Project) -> None:
    ran = project.manage("shell", "-c", FORKED)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.split()[-2:] == ["READY", "READY"]


FORKED = """
import os
from tests.integration.django.project.shelf.tasks import noop_task

print(noop_task.enqueue().status, flush=True)
if (child := os.fork()) == 0:
    result = noop_task.enqueue()
    print(result.status, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


# ---------------------------------------------------------------- checks


def messages(project: Project, **options: Any) -> list[str]:
    """Findings of a backend with these options, as ``manage.py check`` prints them."""
    from django.core.checks import run_checks
    from django.test import override_settings

    queues = options.pop("QUEUES", ["default"])
    own = {"BACKEND": "jobmaster.django.JobMasterBackend", "QUEUES": queues}
    own["OPTIONS"] = {"config": str(project.config), **options}
    with override_settings(TASKS={"default": own}):
        return [f"{one.id} {one.msg}" for one in run_checks() if (one.id or "").startswith("jobmaster.")]


def test_a_project_in_order_has_no_findings(project: Project) -> None:
    assert messages(project) == []
    assert "no issues" in project.done("check", "--database", "default")


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        (
            {"configg": "x"},
            "E001 TASKS[\"default\"][\"OPTIONS\"] has the unknown option 'configg': did you mean 'config'?",
        ),
        ({"database": "other"}, "is 'other', which is no alias of DATABASES"),
        ({"transactional": "yes"}, '["transactional"] must be True, False or None'),
        ({"durability": "best"}, "valid are store, store_fsync, master"),
        ({"overrides": "leases.lease=3s"}, '["overrides"] must be a list of texts'),
        ({"config": "/no/such/file.yaml"}, "E003"),
        ({"overrides": ["leases.leese=3s"]}, "leases.leese"),
        ({"modules": ["no.such.module"]}, 'E004 TASKS["default"]["OPTIONS"]["modules"]: \'no.such.module\' cannot be'),
        ({"QUEUES": ["Not A Lane"]}, 'E002 TASKS["default"]["QUEUES"]: \'Not A Lane\' is not the name of a lane'),
    ],
)
def test_what_is_wrong_is_one_finding_with_its_place(project: Project, options: dict[str, Any], finding: str) -> None:
    (found,) = messages(project, **options)
    assert finding in found


def test_wrong_options_do_not_hinder_the_import_of_tasks_and_are_named_when_they_are_needed(
    tasks: Any, project: Project
) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    own = {"default": {"BACKEND": "jobmaster.django.JobMasterBackend", "OPTIONS": {"lanes": 1}}}
    with override_settings(TASKS=own):
        task = tasks.task()(tasks.noop_task.func)
        with pytest.raises(ImproperlyConfigured, match="unknown option 'lanes'"):
            task.enqueue()


def test_a_database_that_is_not_the_masters_cannot_have_the_jobs_in_its_transactions(
    project: Project, postgres_server: PostgresServer
) -> None:
    from django.test import override_settings

    from jobmaster.django.checks import check_masters

    # A cluster of its own in another database of the same server.
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE django_elsewhere TEMPLATE template0")
    dsn = urlunsplit(urlsplit(postgres_server.dsn)._replace(path="/django_elsewhere"))
    overrides = [f"master.dsn={dsn}", f"cluster={project.cluster}-else"]
    project.done("jobmaster", *(word for one in overrides for word in ("--set", one)), "db", "migrate")
    for transactional, found in [(None, []), (False, []), (True, ["jobmaster.W006"])]:
        options = {"config": str(project.config), "transactional": transactional, "overrides": overrides}
        own = {"BACKEND": "jobmaster.django.JobMasterBackend", "OPTIONS": options}
        with override_settings(TASKS={"default": own}):
            assert [one.id for one in check_masters(["default"])] == found


def test_the_master_is_asked_for_its_database_alone(project: Project) -> None:
    wrong = {"TEST_CONFIG": str(project.directory / "away.yaml")}
    (project.directory / "away.yaml").write_text(
        project.config.read_text().replace(project.cluster, f"{project.cluster}-away")
    )
    assert project.manage("check", **wrong).returncode == 0
    ran = project.manage("check", "--database", "default", "--fail-level", "WARNING", **wrong)
    assert ran.returncode == 1
    assert "jobmaster.W005" in ran.stderr
    assert "does not exist" in ran.stderr
