"""The Python blocks of ``docs/django.md`` are the settings, the tasks and a view of a project."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.django.conftest import SETTINGS, Project
from tests.support.deployment import REPOSITORY
from tests.support.pages.page_runner import all_blocks

PAGE = REPOSITORY / "docs" / "django.md"
TASKS_PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"


def test_the_blocks_of_the_page_are_a_project(project: Project, tmp_path: Path) -> None:
    settings, tasks, use = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    # The rest of a project stands around the block, in place of its "...".
    (tmp_path / "page_settings.py").write_text(
        f"from {SETTINGS} import *\nothers = INSTALLED_APPS\n{settings}\n"
        "INSTALLED_APPS += [one for one in others if one not in INSTALLED_APPS] + ['shop']\n"
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(
        # What the page advises before Django 6.0.
        tasks.replace("from django.tasks import", f"from {TASKS_PACKAGE} import")
    )
    (tmp_path / "jobmaster.yaml").write_text(
        project.config.read_text().replace(project.cluster, f"{project.cluster}-page")
    )
    shop = copy.copy(project)
    shop.directory = tmp_path
    places = ["--settings=page_settings", f"--pythonpath={tmp_path}"]
    assert "no issues" in shop.done("check", *places)
    shop.done("jobmaster", "db", "migrate", *places)
    shown = "print(result.status, result.task.queue_name, result.task.priority, result.kwargs)"
    program = f"from shop.tasks import send_receipt\n{use}\n{shown}"
    printed = shop.done("shell", "-c", program, *places).splitlines()[-1]
    assert printed == "READY mails 20 {'order': 7}"


def test_the_recipe_submits_after_the_commit_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import transaction

    text = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    (snippet,) = [block.text for block in all_blocks(text) if "transaction.on_commit" in block.text]
    monkeypatch.setenv("JOBMASTER_CONFIG", str(project.config))
    names: dict[str, Any] = {"__name__": "the_recipe"}
    exec(compile(snippet, "recipes.md", "exec"), names)  # noqa: S102 (of a page)
    with names["cluster"] as cluster:
        names["order"](7)
        with transaction.atomic():
            names["order"](8)
            transaction.set_rollback(True)
        assert [job.arguments for job in cluster.jobs(handler="receipt.send")] == [{"order": 7}]
