"""Writes what the signals of tasks report into a file, because they are sent in another process."""

from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig


class ShelfConfig(AppConfig):
    name = "tests.integration.django.project.shelf"
    label = "shelf"

    def ready(self) -> None:
        from jobmaster.django.interface import task_finished, task_started

        task_started.connect(note)
        task_finished.connect(note)


def note(sender: object, task_result: Any, **_: Any) -> None:
    if task_result.args == ["the receivers read"]:
        from tests.integration.django.project.shelf.models import Book

        Book.objects.count()
    with open(os.environ["TEST_SIGNALS"], "a") as file:
        file.write(f"{task_result.id} {task_result.status}\n")
    if task_result.is_finished and task_result.args == ["the receiver fails"]:
        raise RuntimeError("a receiver of the project fails")
