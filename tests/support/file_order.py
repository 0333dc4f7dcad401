"""The order in which the processes of a run get the test files: the longest first, so that all processes end together.

pytest-xdist orders files by their number of tests. The longest tests stand in files with few of them, so they came last.
"""

from __future__ import annotations

import zlib
from pathlib import Path
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
    "tests/integration/spark/steps/figures/test_rollup.py",
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
    "tests/repository/release/test_wheel.py",
    "tests/system/cli/test_live.py",
    "tests/system/cli/test_secrets.py",
    "tests/system/docs/test_programs.py",
    "tests/system/examples/",
    "tests/system/job_flow/test_end_to_end.py",
    "tests/system/outages/test_lost_replies.py",
    "tests/system/web/",
)
"""Files of slow tests that share a cluster: each process that runs one of the tests starts the cluster first."""
_TOGETHER = {"tests/repository/release/test_public_names.py": "tests/repository/documentation/test_api_reference.py"}
"""Files that share what another file has read: the source of the whole package, by griffe."""
_DIVIDED = ("integration", "system", "unit")
"""Folders of most files."""
_PARTS = {"tests/system/outages/test_crash_points.py": 3}
"""The same, with so many tests that as many processes share them."""


class FileOrder(LoadFileScheduling):  # type: ignore[misc]  # its base has no type
    """Whole files in the order of the collection; the files of some folders go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return _folder_of(nodeid) or _TOGETHER.get(file, file)


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
    """Bring the tests into the order of their files, whatever order they were collected in; within a file it stays."""
    items.sort(key=lambda item: (_rank(item.nodeid), item.nodeid.split("::", 1)[0]))


def _rank(nodeid: str) -> int:
    return next((at for at, path in enumerate(_LONGEST) if nodeid.startswith(path)), len(_LONGEST))


def collect_from_own_place(config: pytest.Config) -> None:
    """Each process of a run that collects everything begins with other folders, and then goes round.

    All processes import all test files. In a new checkout the first import of a file compiles it. Processes that went the
    same way at the same speed would all compile the same file at the same time, and none would find it compiled.
    """
    if config.args_source is not config.ArgsSource.TESTPATHS:
        return
    places = [str(place) for path in config.args for place in places_of(config.rootpath / path)]
    worker = config.workerinput  # type: ignore[attr-defined]  # xdist adds it
    start = len(places) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args[:] = places[start:] + places[:start]


def places_of(tests: Path) -> list[Path]:
    """Folders and files that have all test files below a folder, each in one of them."""
    folders = [tests, *(tests / name for name in _DIVIDED)]
    return sorted(
        place
        for folder in folders
        for place in folder.iterdir()
        if place not in folders and ((place.is_dir() and any(place.rglob("test_*.py"))) or place.match("test_*.py"))
    )
