"""The check for unused names finds what is planted, leaves alone what is used, and finds nothing in this tree."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import unused
from tests.repository.unused import Module
from tests.support.patience import PATIENCE_SECONDS


def names(modules: dict[str, str]) -> list[str]:
    """What is unused in modules (path below ``jobmaster`` -> source); those in ``tests`` are tests."""
    product = [
        Module(f"jobmaster/{path}.py", source) for path, source in modules.items() if not path.startswith("tests/")
    ]
    tests = [Module(f"{path}.py", source) for path, source in modules.items() if path.startswith("tests/")]
    return [each.name for each in unused.unused_names(product, tests)]


USED = {
    "a function of its module": {"a": "def f(): ...\nf()"},
    "a function of another module": {"a": "def f(): ...", "b": "from jobmaster.a import f"},
    "a function of an imported module": {"a": "def f(): ...", "b": "from jobmaster import a\na.f()"},
    "a name that a package hands on": {
        "p/a": "def f(): ...",
        "p/__init__": "from jobmaster.p.a import f",
        "b": "from jobmaster.p import f",
    },
    "a name in a text": {"a": "def f(): ...", "b": "x('jobmaster.a:f')"},
    "a method": {"a": "class A:\n    def m(self): ...\nA().m()"},
    "a decorated function": {"a": "@register('x')\ndef f(): ..."},
    "an override of another project": {"a": "import click\nclass A(click.Group):\n    def get_command(self): ...\nA()"},
    "an override below one": {
        "a": "from pyspark.sql.datasource import R\nclass A(R): ...\nclass B(A):\n    def read(self): ...\nB()"
    },
    "a public method": {"__init__": "__all__ = ['A']\n__all__", "a": "class A:\n    def m(self): ..."},
    "a table that a test reads": {"specification/a": "N = 1", "tests/a": "from jobmaster.specification.a import N"},
}
UNUSED = {
    "a function": {"a": "def f(): ..."},
    "a constant": {"a": "F = 1\n'Says F.'"},
    "a class": {"a": "class F: ..."},
    "a private function": {"a": "def _f(): ..."},
    "a function that calls itself": {"a": "def f(): f()"},
    "a function with a namesake in another module": {
        "a": "def f(): ...",
        "b": "def f(): ...\nf()\n",
        "c": "print('f g')",
    },
    "a name that a package exports and no module uses": {
        "p/a": "def f(): ...",
        "p/__init__": "from jobmaster.p.a import f",
    },
    "a method": {"a": "class A:\n    def f(self): ...\nA"},
    "a method that a function is called like": {"a": "class A:\n    def f(self): ...\nA\ndef g(f): f()\ng"},
    "a property": {"a": "class A:\n    @property\n    def f(self): ...\nA"},
    "a function that only a test reads": {"a": "def f(): ...", "tests/a": "from jobmaster.a import f"},
    "a private method of a public class": {
        "__init__": "__all__ = ['A']\n__all__",
        "a": "class A:\n    def _f(self): ...",
    },
}


@pytest.mark.parametrize("case", USED)
def test_a_use_is_seen(case: str) -> None:
    assert names(USED[case]) == []


@pytest.mark.parametrize("case", UNUSED)
def test_a_name_without_a_use_is_found(case: str) -> None:
    assert [name.lower().lstrip("_") for name in names(UNUSED[case])] == ["f"]


def test_a_setting_that_only_its_own_section_checks_is_found() -> None:
    model = ast.parse(
        "class A:\n    read: int\n    own: int\n    idle: int\n"
        "    def __post_init__(self): self.idle\n    def f(self): self.own\n"
        "class B:\n    low: int\n    def of(self, name): return getattr(self, name)"
    )
    assert unused.unused_settings(model, [Module("a.py", "settings.read")]) == [("idle", 4)]


def test_a_statement_is_named_whole_or_by_folder_and_name() -> None:
    assert unused.unused_files(["outcomes/hold", "jobs/put", "claim"], {"outcomes/hold", "jobs/", "hold"}) == [
        "jobs/put",
        "claim",
    ]
    assert unused.unused_files(["jobs/put", "claim"], {"jobs/", "put", "claim"}) == []


def test_a_local_name_of_lua_that_nothing_reads_is_found() -> None:
    sources = {
        "prelude": "local A, B = 1, 2\nlocal function f() end -- B\n",
        "one": "local x = A\nlocal y = f(x)\nlocal A = 1\nreturn y",
    }
    assert unused.unused_locals(sources) == [("prelude", "B")]
    assert unused.unused_locals({**sources, "two": "local z = B"}) == [("two", "z")]


@pytest.mark.slow
@pytest.mark.long
def test_this_tree_has_no_unused_name_and_the_list_of_exceptions_is_short() -> None:
    """`make lint`, which the fast part has, says the same in its own process."""
    assert unused.report(unused.ROOT) == []
    assert len(unused.ALLOWED) <= 5


def test_the_step_of_the_linter_fails_with_name_file_line_and_remedy(tmp_path: Path) -> None:
    """In a tree of few files: the whole tree is checked above."""
    for name in ("jobmaster/clock.py", "jobmaster/settings/model.py", "tests/repository/unused.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(unused.ROOT / name, tmp_path / name)
    planted = {
        "jobmaster/clock.py": "\n\ndef planted() -> None: ...\n",
        "jobmaster/settings/model.py": "\n\nclass Planted(Section):\n    planted_seconds: int = 1\n\n\nPlanted()\n",
    }
    for name, text in planted.items():
        with (tmp_path / name).open("a") as file:
            file.write(text)
    for name in ("jobmaster/master/sql/jobs/planted_statement.sql", "jobmaster/agentstore/lua/planted_function.lua"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    answer = subprocess.run(
        [sys.executable, "-m", "tests.repository.unused"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert answer.returncode == 1
    line = len((tmp_path / "jobmaster/clock.py").read_text().splitlines())
    assert (
        f"jobmaster/clock.py:{line}: the name planted is used by nothing: use it in the product, delete it"
        in answer.stderr
    )
    assert "the setting planted_seconds is read by nothing" in answer.stderr
    assert "the statement jobs/planted_statement is called by nothing" in answer.stderr
    assert "the function planted_function is called by nothing" in answer.stderr
