"""The list of the project's files, with other files in the tree and files that vanish meanwhile."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import tree


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A tree of git's with one tracked file, one left over, and one in a cache."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    for name in ("kept/a.py", "kept/scratch.py", "__pycache__/a.pyc", "gone.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for words in (("init", "-q"), ("add", "kept/a.py", "gone.py")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "gone.py").unlink()
    return tmp_path


def test_what_git_does_not_track_or_what_is_gone_does_not_count(repository: Path) -> None:
    assert tree.tracked(repository) == [repository / "kept" / "a.py"]
    assert tree.head(repository) == "", "nothing was committed"


def test_a_variable_of_a_hook_does_not_lead_to_another_tree(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / "nowhere"))
    assert tree.tracked(repository) == [repository / "kept" / "a.py"]


def test_a_folder_inside_another_repository_is_walked(repository: Path) -> None:
    assert tree.tracked(repository / "kept") is None
    found = tree.walked([repository], [".git", "__pycache__"])
    assert found == [repository / "kept" / "a.py", repository / "kept" / "scratch.py"]


def test_a_folder_of_which_only_caches_are_left_is_not_there(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    for name in ("left/__pycache__/a.pyc", "used/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert [tree.there(tmp_path, tmp_path / name) for name in ("left", "used", "used/a.py", "no")] == [
        False,
        True,
        True,
        False,
    ]


def test_what_vanishes_on_the_way_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cache", "stays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").touch()
    real = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "cache":
            shutil.rmtree(path)
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert tree.walked([tmp_path], []) == [tmp_path / "stays" / "a.py"]
