"""``${NAME}``, ``${NAME:-default}``, ``${file:path}``: replaced once, inside values, or refused with the place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobmaster.settings.loader import LoadedSettings

Load = Callable[..., LoadedSettings]
Complain = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("text", "env", "dsn"),
    [
        ("postgresql://${U}:${P}@h/d", {"U": "a", "P": "b"}, "postgresql://a:b@h/d"),
        ("postgresql://${H:-localhost}/d", {}, "postgresql://localhost/d"),
        ("postgresql://${H:-localhost}/d", {"H": ""}, "postgresql://localhost/d"),
        ("postgresql://${H:-localhost}/d", {"H": "x"}, "postgresql://x/d"),
        ("postgresql://h${X}/d", {"X": ""}, "postgresql://h/d"),
        ("postgresql://h${X:-}/d", {}, "postgresql://h/d"),
        ("postgresql://h/$${X}", {"X": "no"}, "postgresql://h/${X}"),
        ("postgresql://h/$X", {"X": "no"}, "postgresql://h/$X"),
        ("postgresql://h/${X:-a:-b}", {}, "postgresql://h/a:-b"),
    ],
)
@pytest.mark.parametrize("quote", ["'", '"', ""])
def test_references_are_filled(load: Load, text: str, env: dict[str, str], dsn: str, quote: str) -> None:
    assert load(f"master:\n  dsn: {quote}{text}{quote}\n", env).settings.master.dsn == dsn


def test_a_filled_scalar_takes_the_type_of_its_key(load: Load) -> None:
    env = {"N": "7", "T": "15s", "Z": "256KiB", "L": "no", "W": "master", "NOTHING": "null"}
    text = (
        "cluster: ${L}\nmaster: {pool_size: '${N}', dsn: '${NOTHING}'}\nleases: {lease: '${T}'}\n"
        "limits: {args: '${Z}'}\njobs: {durability: '${W}'}"
    )
    settings = load(text, env).settings
    assert (settings.cluster, settings.master.pool_size, settings.leases.lease_seconds) == ("no", 7, 15.0)
    assert (settings.limits.args_bytes, settings.jobs.durability, settings.master.dsn) == (262_144, "master", None)


def test_an_inserted_text_is_not_searched_for_references(load: Load) -> None:
    env = {"A": "postgresql://${B}", "B": "secret"}
    assert load("master: {dsn: '${A}'}", env).settings.master.dsn == "postgresql://${B}"
    assert load("master: {dsn: 'postgresql://${A}'}", {"A": "${A}"}).settings.master.dsn == "postgresql://${A}"


def test_an_inserted_text_never_becomes_structure(complain: Complain, load: Load) -> None:
    (problem,) = complain("cluster: ${A}", {"A": "x\nmaster: {pool_size: 99}"})
    assert "cluster: expected 1 to 48" in problem
    assert load("data_dir: ${A}", {"A": "x\nmaster: {pool_size: 99}"}).settings.master.pool_size == 4
    (problem,) = complain("handlers: ${A}", {"A": "[a, b]"})
    assert "expected a list" in problem


def test_references_in_keys_are_no_references(complain: Complain) -> None:
    (problem,) = complain("'${A}': 1", {"A": "cluster"})
    assert 'unknown key "${A}"' in problem


def test_a_file_is_read_without_its_last_line_end(load: Load, here: Path) -> None:
    (here / "pw").write_text("s3cret\r\n")
    (here / "deep").mkdir()
    (here / "deep" / "two").write_text("a\nb\n")
    assert load("master: {dsn: 'postgresql://u:${file:pw}@h'}").settings.master.dsn == "postgresql://u:s3cret@h"
    assert load(f"master: {{dsn: 'postgresql://u:${{file:{here}/pw}}@h'}}").settings.master.dsn is not None
    assert load("data_dir: ${file:deep/two}").settings.data_dir == "a\nb"


def test_relative_files_start_at_the_directory_of_the_configuration(here: Path) -> None:
    from jobmaster.settings.loader import load_settings

    (here / "conf").mkdir()
    (here / "conf" / "id").write_text("fromfile")
    (here / "conf" / "c.yaml").write_text("cluster: ${file:id}")
    loaded = load_settings(Path("conf/c.yaml"))
    assert loaded.settings.cluster == "fromfile"
    assert loaded.origins["cluster"].describe() == "conf/c.yaml:1:10 via ${file:id}"


def test_the_command_line_may_refer_to_files_and_variables_stay_as_they_are(load: Load, here: Path) -> None:
    (here / "pw").write_text("s3cret")
    loaded = load(None, {}, ["master.dsn=postgresql://u:${file:pw}@h"])
    assert loaded.settings.master.dsn == "postgresql://u:s3cret@h"
    assert load(None, {"JOBMASTER_CLUSTER": "x", "JOBMASTER_DATA_DIR": "${HOME}"}).settings.data_dir == "${HOME}"


def test_origins_name_the_reference_and_not_its_default(load: Load) -> None:
    origins = load("data_dir: ${A:-hidden}/${B}", {"B": "b"}).origins
    assert origins["data_dir"].describe() == "cluster.yaml:1:11 via the default of ${A}, ${B}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${GONE}", "the environment variable GONE is not set (set it, or write ${GONE:-default})"),
        ("x${GONE}y${OTHER}", "the environment variable GONE is not set"),
        ("${}", "a ${...} is not understood"),
        ("${1X}", "is not understood"),
        ("${A-b}", "is not understood"),
        ("${A:b}", "is not understood"),
        ("${ A }", "is not understood"),
        ("${A", "${ is not closed"),
        ("${A:-${B}}", "holds another ${"),
        ("${file:}", "${file:} names no file"),
        ("${file:gone}", "the file gone cannot be read: No such file or directory"),
        ("${file:.}", "is not a regular file"),
        ("${file:/dev/zero}", "/dev/zero is not a regular file"),
        ("${file:pipe}", "pipe is not a regular file"),
        ("${file:binary}", "binary is not UTF-8 text"),
        ("${file:large}", "large is larger than 64 KiB"),
        ("${file:a\\0b}", "control character"),
        ("${file:~nobody-of-that-name/x}", "cannot be read"),
    ],
)
def test_what_cannot_be_filled_is_refused_with_its_place(
    complain: Complain, here: Path, value: str, message: str
) -> None:
    os.mkfifo("pipe")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("large").write_bytes(b"x" * (64 * 1024 + 1))
    (problem,) = complain(f'cluster: a\ndata_dir: "{value}"\n')
    assert problem.startswith("cluster.yaml:2:11: data_dir: ")
    assert message in problem


@pytest.mark.parametrize(
    "text",
    [
        "leases: {lease: '${CANARY}'}",
        "cluster: '${CANARY}'",
        "cluster: 'x ${file:canary}'",
        "jobs: {durability: '${CANARY}'}",
        "handlers: ['${CANARY} x']",
        "handlers: '${CANARY}'",
        "master: '${CANARY}'",
        "limits: {args: '${CANARY}'}",
        "master: {dsn: 'mysql://u:${CANARY}@h'}",
        "master: {dsn: 'mysql://u:C4nary@h'}",
        "master: {dsn: 'u:C4nary@h/db'}",
        "master: {dns: 'postgresql://u:C4nary@h'}",
        "{'postgresql://u:C4nary@h': 1}",
        "master: 'postgresql://u:C4nary@h'",
        "master: {dsn: ['postgresql://u:C4nary@h']}",
        "stores: {default: {url: 'http://:C4nary@h'}}",
        "stores: {default: {url: 'C4nary@h', 'password=C4nary': 1}}",
        "leases: {lease: 'password=C4nary'}",
    ],
)
def test_no_error_shows_a_secret(complain: Complain, here: Path, text: str) -> None:
    (here / "canary").write_text("C4nary")
    shown = "\n".join(complain(text, {"CANARY": "C4nary"}))
    if "url: 'C4nary@h'" in text:
        shown = shown.replace('got "C4nary@h"', "")  # nothing marks this one as a password
    assert "C4nary" not in shown


def test_no_error_of_other_layers_shows_a_secret(complain: Complain) -> None:
    env = {"JOBMASTER_MASTER__DSN": "mysql://u:C4nary@h", "JOBMASTER_STORES__DEFAULT__URL": "http://:C4nary@h"}
    overrides = ["jobs.timeout=postgresql://u:C4nary@h", "postgresql://u:C4nary@h", "postgresql://u:C4nary@h=1"]
    overrides.append("agents.postgresql://u:C4nary@h.slots.x=1")
    assert "C4nary" not in "\n".join(complain("", env, overrides))
