"""The order in which the processes of a run get the test files: the longest first, so that all processes end together.

pytest-xdist orders files by their number of tests. The longest tests stand in files with few of them, so they came last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    import pytest

_LONGEST = (
    "tests/chaos/",
    "tests/benchmarks/",
    "tests/integration/spark/steps/test_rollup.py",
    "tests/integration/django/",
    "tests/system/job_flow/",
    "tests/unit/agents/supervisor/",
    "tests/integration/agents/",
    "tests/integration/embedded/",
    "tests/unit/agents/execute/process_pool/",
    "tests/system/",
    "tests/simulation/",
    "tests/repository/",
    "tests/integration/spark/datasource/test_clusters.py",
    "tests/integration/spark/steps/",
    "tests/integration/client/",
    "tests/integration/testing/",
    "tests/integration/postgres/",
)
_ONE_PROCESS = ("tests/integration/django/",)
"""Folders whose files share what is expensive to set up: a project with its tables, and its agent."""


class FileOrder(LoadFileScheduling):  # type: ignore[misc]  # its base has no type
    """Whole files in the order of the collection; the files of some folders go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in _ONE_PROCESS if nodeid.startswith(folder)), nodeid.split("::", 1)[0])


def longest_first(items: list[pytest.Item]) -> None:
    """Bring the tests into the order of their files; the order within a file stays."""
    items.sort(key=lambda item: next((at for at, path in enumerate(_LONGEST) if item.nodeid.startswith(path)), 99))
