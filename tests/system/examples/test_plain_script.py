"""``examples/plain_script``: a script without an event loop submits jobs and prints their results."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def count(example: Terminal, *paths: str) -> subprocess.CompletedProcess[str]:
    return example.run("count.py", *paths)


def test_it_prints_the_words_of_each_file(example: Terminal, tmp_path: Path) -> None:
    (tmp_path / "three").write_text("one two\nthree")
    (tmp_path / "none").write_text("")
    ran = count(example, str(tmp_path / "three"), str(tmp_path / "none"), "tasks.py")
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    words = len((example.folder / "tasks.py").read_text().split())
    assert lines == [["3", str(tmp_path / "three")], ["0", str(tmp_path / "none")], [str(words), "tasks.py"]]


def test_a_file_that_is_not_there_is_one_sentence(example: Terminal) -> None:
    ran = count(example, "nowhere.txt")
    assert ran.returncode == 1
    assert ran.stderr.startswith("nowhere.txt: ")
    assert "No such file" in ran.stderr
    assert "Traceback" not in ran.stderr
