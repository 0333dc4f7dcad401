"""Hostile and broken files: one clear problem each, and nothing is expanded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobmaster.model.errors import ConfigError
from jobmaster.settings.config_file import FILE_BYTES_MAX
from jobmaster.settings.loader import LoadedSettings, load_settings
from jobmaster.settings.model import ClusterSettings

Load = Callable[..., LoadedSettings]
Complain = Callable[..., list[str]]


def test_a_bomb_of_aliases_is_refused_without_being_expanded(complain: Complain) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    problems = complain("\n".join(lines))
    assert any("1:5: a0: anchors" in problem for problem in problems)
    assert sum("aliases" in problem for problem in problems) == 110


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_a_bomb_of_depth_is_refused(complain: Complain, opening: str) -> None:
    problems = complain(opening * 20_000)
    assert "nested more than 16 deep" in problems[-1]


def test_a_bomb_of_keys_is_refused(complain: Complain) -> None:
    problems = complain("[" + "a," * 30_000 + "]")
    assert "more than 20000 keys and values" in problems[-1]


def test_a_file_that_is_too_large_is_refused_by_its_size(complain: Complain) -> None:
    (problem,) = complain("#" * (FILE_BYTES_MAX + 1))
    assert problem == "cluster.yaml: this file is larger than 256 KiB (a configuration is a few KiB of YAML)"


def test_a_file_of_exactly_the_limit_is_read(load: Load) -> None:
    assert load("#" * FILE_BYTES_MAX).settings == ClusterSettings()


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"cluster: a\nmaster: \xff\n", "2:9", "this is not UTF-8: byte 0xff"),
        ("# \u00e5\u00e4\ncluster: a".encode() + b"\xe5", "2:11", "byte 0xe5"),
        (b"\xef\xbb\xbfcluster: \xff", "1:11", "byte 0xff"),
        ("cluster: a".encode("utf-16"), "1:1", "byte 0xff"),
        (b"cluster: a\nx: \x00b\n", "2:4", "the character NUL is not allowed"),
        (b"cluster: \x1b[31m\n", "1:10", "U+001B"),
        (b"cluster: \xc2\x80\n", "1:10", "U+0080"),
    ],
)
def test_bytes_that_are_no_text_have_a_place(complain: Complain, content: bytes, place: str, message: str) -> None:
    (problem,) = complain(content)
    assert problem.startswith(f"cluster.yaml:{place}: ")
    assert message in problem


def test_a_byte_order_mark_and_windows_line_ends_are_read(load: Load) -> None:
    loaded = load(b"\xef\xbb\xbfcluster: a\r\nhandlers: [b]\r\n")
    assert (loaded.settings.cluster, loaded.settings.handlers) == ("a", ["b"])
    assert str(loaded.origins["handlers[0]"]) == "cluster.yaml:2:12"


def _only_problem(path: Path, env: dict[str, str] | None = None, *, named: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(path if named else None, env or {})
    (problem,) = caught.value.problems
    return problem


def test_a_directory_a_pipe_and_a_missing_file_are_named(here: Path) -> None:
    os.mkfifo("pipe.yaml")
    Path("folder.yaml").mkdir()
    assert _only_problem(Path("folder.yaml")).startswith("folder.yaml: this is a directory")
    assert _only_problem(Path("pipe.yaml")) == "pipe.yaml: this is not a regular file"
    assert _only_problem(Path("gone.yaml")).startswith("gone.yaml: this file does not exist (write one with:")
    assert "cannot be read: File name too long" in _only_problem(Path("x" * 300))
    assert "its name is invalid" in _only_problem(Path("a\0b"))


def test_an_unreadable_file_is_named(here: Path, as_unprivileged: Callable[[Callable[[], str]], str]) -> None:
    secret = Path("secret.yaml")
    secret.write_text("cluster: a")
    secret.chmod(0)
    problem = as_unprivileged(lambda: _only_problem(Path("secret.yaml")))
    assert problem == "secret.yaml: this file cannot be read: Permission denied (check its path and permissions)"


def test_a_named_file_is_never_silently_skipped(here: Path) -> None:
    named = _only_problem(Path(), {"JOBMASTER_CONFIG": "gone.yaml"}, named=False)
    assert named.startswith("gone.yaml: this file does not exist; $JOBMASTER_CONFIG names it")
    Path("jobmaster.yaml").symlink_to("nowhere.yaml")
    assert _only_problem(Path(), named=False).startswith("jobmaster.yaml: this file does not exist")
