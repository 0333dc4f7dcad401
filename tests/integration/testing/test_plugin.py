"""The plugin in projects of its own: what it imports, and what it says when something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = "[tool.pytest.ini_options]\n"


def pytest_in(folder: Path, test: str, *options: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest on one test module."""
    (folder / "pyproject.toml").write_text(f"{PROJECT}{settings}")
    (folder / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_imported_before_a_fixture_is_asked_for(tmp_path: Path) -> None:
    test = """
import sys

def test_lean():
    loaded = [name for name in sys.modules if name.startswith("jobmaster")]
    assert sorted(loaded) == ["jobmaster", "jobmaster.testing", "jobmaster.testing.plugin"]
    assert "asyncpg" not in sys.modules and "redis" not in sys.modules
"""
    ran = pytest_in(tmp_path, test)
    assert "1 passed" in ran.stdout, ran.stdout


def test_the_real_cluster_without_a_plugin_for_async_tests_is_explained(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "def test_it(jobmaster_cluster): ...\n", "-p", "no:asyncio", "-p", "no:anyio")
    assert "pip install pytest-asyncio" in ran.stdout, ran.stdout
    assert "1 error" in ran.stdout


def test_jobs_need_no_plugin_for_async_tests(tmp_path: Path) -> None:
    test = """
from jobmaster import Handlers, call
handlers = Handlers()

@handlers.job
async def add(first: int, second: int) -> int:
    return first + second

def test_it(jobs):
    receipt = jobs.sync_cluster.submit(call(add, 1, 2))
    jobs.assert_submitted(add, first=1)
    assert jobs.drain_sync().succeeded == 1
    assert receipt.result() == 3
"""
    ran = pytest_in(tmp_path, test, "-p", "no:asyncio", "-p", "no:anyio")
    assert "1 passed" in ran.stdout, ran.stdout


def test_a_module_of_handlers_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "def test_it(jobs): ...\n", settings='jobmaster_handlers = ["shop.jobs"]\n')
    assert "handlers 'shop.jobs': there is no module 'shop'" in ran.stdout, ran.stdout


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [pytest.param(("-p", "no:asyncio"), marks=pytest.mark.long), ("-o", "asyncio_mode=strict")],
    ids=["alone", "beside pytest-asyncio"],
)
def test_the_real_cluster_runs_under_anyio(tmp_path: Path, options: tuple[str, str]) -> None:
    test = """
import asyncio
import pytest
from jobmaster import Handlers, call
handlers = Handlers()
LOOPS = []

@handlers.job
async def add(first: int, second: int) -> int:
    LOOPS.append(asyncio.get_running_loop())
    return first + second

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def jobmaster_handlers():
    return handlers

@pytest.mark.anyio
async def test_it(jobmaster_cluster):
    receipt = await jobmaster_cluster.submit(call(add, 1, 2))
    assert (await jobmaster_cluster.drain()).succeeded == 1
    assert await receipt.result(timeout=60) == 3
    assert LOOPS == [asyncio.get_running_loop()]
"""
    ran = pytest_in(tmp_path, test, *options)
    assert "1 passed" in ran.stdout, ran.stdout


@pytest.mark.parametrize("options", [("-o", "asyncio_mode=auto"), ("--asyncio-mode=auto",)])
@pytest.mark.slow
def test_two_plugins_that_would_use_two_event_loops_are_explained(tmp_path: Path, options: tuple[str, ...]) -> None:
    test = """
import pytest

@pytest.mark.anyio
async def test_it(jobmaster_cluster): ...
"""
    ran = pytest_in(tmp_path, test, *options)
    assert "set asyncio_mode = strict, or remove the marker anyio" in ran.stdout, ran.stdout


def test_the_real_cluster_under_anyio_needs_its_marker(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "def test_it(jobmaster_cluster): ...\n", "-p", "no:asyncio")
    assert "pytest.mark.anyio" in ran.stdout, ran.stdout
