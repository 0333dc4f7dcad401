"""One Django project for the tests of a process: real servers, its tables, and an agent started by its manage.py.

Django keeps its settings for the whole process, so the project is set up once.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import psycopg
import pytest
import yaml

from jobmaster.embedded import PostgresServer, ValkeyServer
from tests.support.deployment import REPOSITORY
from tests.support.forked_commands import Program, run_command
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

pytest.importorskip("django", reason="the extra `django` is not installed")

SETTINGS = "tests.integration.django.project.settings"
MANAGE = str(Path(__file__).parent / "project" / "manage.py")
MANAGE_PROGRAM = Program(
    MANAGE,
    (
        "django.core.management", "django.core.management.commands.check", "django.core.management.commands.migrate",
        "django.core.management.commands.shell", "django.db.backends.postgresql.base", "django.template.engine",
        "django.forms", "django.urls", "django.views.generic", "django.test.signals", "psycopg",
    ),
)  # fmt: skip
"""What can be imported without a project."""


class Project:
    """The project from outside: its environment, and commands of its manage.py."""

    def __init__(self, directory: Path, dsn: str, store_url: str) -> None:
        self.directory = directory
        self.dsn = dsn
        self.cluster = f"django-{secrets.token_hex(4)}"
        self.config = directory / "jobmaster.yaml"
        self.signals = directory / "signals"
        """Lines of job and status, one for each signal of a task's start and end."""
        self.policy_calls = directory / "policy_calls"
        """Lines of job and error, one for each call of a retry policy."""
        document = {
            "cluster": self.cluster,
            "master": {"dsn": dsn},
            "stores": {"default": {"url": store_url}},
            "agents": {"default": {"lanes": {"default": {}, "mails": {}}}},
            "jobs": {"max_attempts": 2, "backoff": "0s"},
            "observability": {"log_format": "json"},
        }
        self.config.write_text(yaml.safe_dump(document))
        parts = urlsplit(dsn)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.lstrip("/"),
            "USER": parts.username or "",
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname or _socket_of(dsn),
            "PORT": str(parts.port or ""),
        }
        self.variables = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "TEST_DATABASES": json.dumps({"default": database}),
            "TEST_CONFIG": str(self.config),
            "TEST_SIGNALS": str(self.signals),
            "TEST_POLICY_CALLS": str(self.policy_calls),
        }

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'agents'}"}

    def manage(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """One command of manage.py, run elsewhere than in the project's folder."""
        environment = {**self.environment, **variables}
        return run_command(
            arguments, env=environment, cwd=self.directory, seconds=PATIENCE_SECONDS, program=MANAGE_PROGRAM
        )

    def done(self, *arguments: str) -> str:
        ran = self.manage(*arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


def _socket_of(dsn: str) -> str:
    return parse_qs(urlsplit(dsn).query).get("host", [""])[0]


@pytest.fixture(scope="session")
def project(
    postgres_server: PostgresServer, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The project with its tables and a migrated cluster; Django is set up in this process, too."""
    name = f"django_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    dsn = urlunsplit(urlsplit(postgres_server.dsn)._replace(path=f"/{name}"))
    made = Project(tmp_path_factory.mktemp("django"), dsn, valkey_server.url)
    made.done("migrate", "--run-syncdb", "-v", "0")
    made.done("jobmaster", "db", "migrate")
    os.environ.update(made.variables)
    import django

    django.setup()
    yield made
    from django.db import connections

    from jobmaster.django.open_clusters import OPEN

    OPEN.close()
    connections.close_all()
    for variable in made.variables:
        del os.environ[variable]


@pytest.fixture(scope="session")
def agent(project: Project) -> Iterator[Path]:
    """``manage.py jobmaster agent run``; its log."""
    log = project.directory / "agent.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, MANAGE, "jobmaster", "agent", "run", "--leave-with-stdin"],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,
            cwd=project.directory,
            env=project.environment,
        )
    wait_until(lambda: process.poll() is not None or "agent_started" in log.read_text(), 30, log.read_text)
    assert process.poll() is None, log.read_text()
    yield log
    process.terminate()
    process.wait(PATIENCE_SECONDS)
    assert process.stdin is not None
    process.stdin.close()


@pytest.fixture
def tasks(project: Project) -> Any:
    """The module of the project's tasks."""
    from tests.integration.django.project.shelf import tasks

    return tasks
