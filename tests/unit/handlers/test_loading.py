"""Handlers by module path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobmaster.handlers import load_handlers
from jobmaster.model.errors import ConfigError

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    names: list[str] = []

    def write_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)

    yield write_module
    for name in names:
        sys.modules.pop(name, None)


REGISTRY = (
    "from jobmaster import Handlers\n{0} = Handlers()\n@{0}.job(name='{1}')\nasync def {2}(a: int) -> None: ...\n"
)


def test_a_module_gives_every_registry_in_it_and_an_attribute_only_that_one(write: Write) -> None:
    write("jm_two", REGISTRY.format("one", "a", "f") + REGISTRY.format("two", "b", "g"))
    assert load_handlers(["jm_two"]).names() == ["a", "b"]
    assert load_handlers(["jm_two:two"]).names() == ["b"]
    assert load_handlers([]).names() == []


def test_two_functions_of_one_name_in_two_modules_are_refused(write: Write) -> None:
    write("jm_a", REGISTRY.format("one", "same", "f"))
    write("jm_b", REGISTRY.format("one", "same", "g"))
    with pytest.raises(ConfigError, match=r"two functions are declared as handler 'same': jm_a\.f and jm_b\.g"):
        load_handlers(["jm_a", "jm_b"])


def test_a_registry_imported_twice_is_one(write: Write) -> None:
    write("jm_a", REGISTRY.format("one", "same", "f"))
    write("jm_c", "from jm_a import one\n")
    assert load_handlers(["jm_a", "jm_c"]).names() == ["same"]


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("", "jm_x.inner", "there is no module 'jm_x.inner'"),
        ("", "jm_nowhere", "there is no module 'jm_nowhere'"),
        ("import jm_not_there\n", "jm_x", "No module named 'jm_not_there'.*jm_x.py.*line 1"),
        ("\n1 / 0\n", "jm_x", "ZeroDivisionError: division by zero.*jm_x.py.*line 2"),
        ("def (:\n", "jm_x", "SyntaxError"),
        ("raise SystemExit(3)\n", "jm_x", "SystemExit"),
        ("x = 1\n", "jm_x", "holds no jobmaster.Handlers"),
        ("handlers = 1\n", "jm_x:handler", "no attribute 'handler'.*did you mean 'handlers'"),
        ("handlers = 1\n", "jm_x:handlers", "it is a int"),
        ("from jobmaster import Handlers\nh = Handlers()\n@h.job\ndef f(*a): ...\n", "jm_x", r"jm_x.*\*a"),
    ],
)
def test_a_module_that_cannot_be_used_is_one_clear_error(write: Write, text: str, path: str, words: str) -> None:
    write("jm_x", text)
    with pytest.raises(ConfigError, match=words):
        load_handlers([path])
