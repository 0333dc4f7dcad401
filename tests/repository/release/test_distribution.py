"""Each text that tells to install this library has the name of the distribution, and its metadata agree with the tree."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from jobmaster import __version__
from jobmaster.distribution import DISTRIBUTION, install_command
from tests.repository.tree import ignored, tracked, walked

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TEXTS = {".html", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}
# `pip install jobmaster`, also with options, quotes and other packages before it, and `jobmaster[extra]` without a command.
_INSTALLED = re.compile(r"""pip3? +(?:install|download|uninstall)[^\n`]*?[ "']jobmaster(?![\w-])""")
_WITH_EXTRA = re.compile(r"""(?<![\w.])jobmaster\[[a-z]+(?:,[a-z]+)*\]""")
_METADATA = re.compile(r"""\b(?:version|distribution|metadata|requires)\(["']jobmaster["']\)""")
_NAMED = re.compile(rf"""{DISTRIBUTION}\[([a-z,]+)\]|install_command\(((?:["'][a-z]+["'](?:, )?)+)\)""")
ALLOWED = {
    "CHANGELOG.md": "tells how to remove the earlier name",
    "tests/repository/release/test_distribution.py": "this test",
}


def texts() -> dict[str, str]:
    """Every text of the project by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in tracked(ROOT) or walked([ROOT], ignored(ROOT))
        if path.suffix in TEXTS
    }


def wrong_names(text: str) -> list[str]:
    return [match[0] for pattern in (_INSTALLED, _WITH_EXTRA, _METADATA) for match in pattern.finditer(text)]


def test_no_text_recommends_to_install_the_project_of_the_same_name() -> None:
    found = {name: wrong_names(text) for name, text in texts().items() if name not in ALLOWED}
    found = {name: wrong for name, wrong in found.items() if wrong}
    assert found == {}, f"the distribution is {DISTRIBUTION}"


@pytest.mark.parametrize(
    "text",
    [
        "pip install jobmaster",
        'run: pip install -U "jobmaster[embedded]"',
        "python -m pip install --quiet arq jobmaster==0.2.0",
        "one extra: jobmaster[pipeline,java]",
        'version("jobmaster")',
    ],
)
def test_the_wrong_name_is_found(text: str) -> None:
    assert wrong_names(text)


@pytest.mark.parametrize(
    "text", [install_command(), install_command("embedded", "java"), f"pip uninstall {DISTRIBUTION}"]
)
def test_the_right_name_is_not(text: str) -> None:
    assert not wrong_names(text)


def test_the_name_and_the_version_have_one_value() -> None:
    assert (PROJECT["project"]["name"], PROJECT["project"]["version"]) == (DISTRIBUTION, __version__)
    assert version(DISTRIBUTION) == __version__, "the environment is older than the tree: make install"


def test_the_extra_all_has_every_extra() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    (everything,) = PROJECT["project"]["optional-dependencies"]["all"]
    assert everything.startswith(f"{DISTRIBUTION}[")
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == extras - {"all"}


def test_the_extra_django_brings_its_tasks_for_each_version_of_django_on_each_python() -> None:
    needed = {one.name: one for one in map(Requirement, PROJECT["project"]["optional-dependencies"]["django"])}
    assert "5.2" in needed["Django"].specifier, "this version has no django.tasks"
    assert needed["django-tasks"].marker is None


def test_extras_that_a_text_names_exist() -> None:
    known = set(PROJECT["project"]["optional-dependencies"])
    named = {
        (path, extra)
        for path, text in texts().items()
        for match in _NAMED.finditer(text)
        for extra in re.findall(r"[a-z]+", match[1] or match[2])
    }
    assert {extra for _, extra in named} >= {"embedded", "pipeline", "java"}
    assert {(path, extra) for path, extra in named if extra not in known} == set()
