"""What is imported when, and one sentence for what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deployment import ENVIRONMENT
from tests.support.patience import PATIENCE_SECONDS

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from jobmaster import ConfigError
try:
    from jobmaster.django import JobMasterBackend
except ConfigError as error:
    print(error)
"""


def printed(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_no_other_module_imports_django() -> None:
    program = (
        "import sys, jobmaster, jobmaster.wiring, jobmaster.cli.main, jobmaster.testing\n"
        "[getattr(jobmaster, name) for name in jobmaster.__all__]\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'django', 'django_tasks', 'asgiref'}))"
    )
    assert printed(program) == "[]"


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            ["django"],
            'jobmaster.django needs Django, which is not installed (pip install "jobmaster-cluster[django]")',
        ),
        (
            ["django.tasks", "django_tasks"],
            "this Django has no django.tasks, and its backport is not installed "
            '(use Django 6.0 or newer, or the backport: pip install "jobmaster-cluster[django]")',
        ),
    ],
)
def test_what_is_missing_is_named_with_its_command(missing: list[str], sentence: str) -> None:
    assert printed(WITHOUT.format(missing=missing)) == sentence
