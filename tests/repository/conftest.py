"""Marks failures of a run during which the tree changed: files were listed before a pull and read after it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.repository.tree import head

ROOT = Path(__file__).parents[2]
BEGAN = head(ROOT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section to the report of a failure."""
    report = yield
    if report.failed and (now := head(ROOT)) != BEGAN:
        report.sections.append(("the tree", f"it was at {BEGAN} when this run began, and is at {now}: run it again"))
    return report
