"""The order in which the processes of a run get the test files: the longest first, so that all processes end together.

pytest-xdist orders files by their number of tests. The longest tests stand in files with few of them, so they came last.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from xdist.scheduler import (  # type: ignore[import-untyped]  # it has no types
    LoadFileScheduling,
    LoadScopeScheduling,
)

if TYPE_CHECKING:
    import pytest

_LONGEST = (
    "tests/chaos/",
    "tests/system/outages/test_crash_points.py",
    "tests/benchmarks/",
    "tests/integration/spark/steps/test_rollup.py",
    "tests/integration/django/",
    "tests/system/job_flow/",
    "tests/unit/agents/supervisor/",
    "tests/integration/agents/",
    "tests/integration/embedded/",
    "tests/unit/agents/execute/process_pool/",
    "tests/system/outages/test_lost_replies.py",
    "tests/system/docs/",
    "tests/system/examples/",
    "tests/system/cli/",
    "tests/system/",
    "tests/simulation/",
    "tests/repository/",
    "tests/integration/spark/datasource/test_clusters.py",
    "tests/integration/spark/steps/",
    "tests/integration/client/",
    "tests/integration/testing/",
    "tests/integration/postgres/",
)
_ONE_PROCESS = ("tests/integration/django/", "tests/simulation/comparison/")
"""Folders whose files share what is expensive to set up: a project with its tables, and its agent; a migrated database."""
_WHOLE_FILES = (
    "tests/integration/store/test_sentinel.py",
    "tests/integration/store/test_server_cluster.py",
    "tests/repository/test_wheel.py",
    "tests/system/cli/test_live.py",
    "tests/system/cli/test_secrets.py",
    "tests/system/docs/test_programs.py",
    "tests/system/examples/",
    "tests/system/job_flow/test_end_to_end.py",
    "tests/system/outages/test_lost_replies.py",
    "tests/system/web/",
)
"""Files of slow tests that share a cluster: each process that runs one of the tests starts the cluster first."""
_PARTS = {"tests/system/outages/test_crash_points.py": 3}
"""The same, with so many tests that as many processes share them."""


class FileOrder(LoadFileScheduling):  # type: ignore[misc]  # its base has no type
    """Whole files in the order of the collection; the files of some folders go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _folder_of(nodeid) or nodeid.split("::", 1)[0]


class SetupOrder(LoadScopeScheduling):  # type: ignore[misc]  # its base has no type
    """Single tests in the order of the collection; tests that share a cluster go to one process, or to a few."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file in _PARTS:
            return f"{file} {zlib.crc32(nodeid.encode()) % _PARTS[file]}"
        return _folder_of(nodeid) or (file if file.startswith(_WHOLE_FILES) else nodeid)


def _folder_of(nodeid: str) -> str | None:
    return next((folder for folder in _ONE_PROCESS if nodeid.startswith(folder)), None)


def longest_first(items: list[pytest.Item]) -> None:
    """Bring the tests into the order of their files; the order within a file stays."""
    items.sort(key=lambda item: next((at for at, path in enumerate(_LONGEST) if item.nodeid.startswith(path)), 99))
