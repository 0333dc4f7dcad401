"""What ``python -m tests.newcomer`` needs at its end is looked for before it clones and installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.newcomer import ROOT


def newcomer(path: Path, *options: str) -> str:
    """Standard error of a newcomer that fails; ``path`` is where programs are found."""
    done = subprocess.run(
        [sys.executable, *options, "-m", "tests.newcomer"], cwd=ROOT, env={"PATH": str(path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "clone" not in done.stderr
    return done.stderr


def test_a_machine_without_chromium_is_told_so_before_anything_is_cloned(tmp_path: Path) -> None:
    pytest.importorskip("playwright")
    assert newcomer(tmp_path) == "FAILED: there is no chromium on the PATH: apt-get install chromium\n"


def test_a_python_without_playwright_is_told_which_one_has_it(tmp_path: Path) -> None:
    said = newcomer(tmp_path, "-S")  # without the packages of the environment
    assert said.startswith("FAILED: ")
    assert said.endswith("has no Playwright: make install, then .venv/bin/python -m tests.newcomer\n")
