"""Settings of the project; the tests name its servers in the environment."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

TASKS_PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
SECRET_KEY = "only for tests"
DEBUG = True
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.integration.django.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "jobmaster.django",
    "tests.integration.django.project.shelf",
    # The backport is an application; Django's own tasks are none.
    *(["django_tasks"] if TASKS_PACKAGE == "django_tasks" else []),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, Any] = json.loads(os.environ["TEST_DATABASES"])
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "jobmaster.django.JobMasterBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"config": os.environ["TEST_CONFIG"]},
    },
    "after_commit": {
        "BACKEND": "jobmaster.django.JobMasterBackend",
        "OPTIONS": {"config": os.environ["TEST_CONFIG"], "transactional": False},
    },
    "immediate": {
        "BACKEND": f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend",
        "QUEUES": [],
    },
}
