"""Two versions of the program, each as a wheel in an environment of its own."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EARLIER = "b55220aa8eb8"
"""Where no tag is: a commit with the store protocol of today whose last migration is 0079."""
INSTALL_SECONDS = 900.0


class UpgradeFailed(Exception):
    """What the upgrade should do and did not; or why it cannot be tried. The text is one sentence."""


class Version(NamedTuple):
    """An installed program."""

    name: str
    """``old`` or ``new``."""
    commit: str
    python: Path
    last_migration: int


def ran(*argv: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> bytes:
    """Standard output of a program that has to succeed.

    Raises:
        UpgradeFailed: it did not.
    """
    done = subprocess.run(
        [str(each) for each in argv], cwd=cwd, env=env, capture_output=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode != 0:
        raise UpgradeFailed(
            f"{' '.join(map(str, argv[:4]))}: exit code {done.returncode}: {done.stderr[-600:].decode()}"
        )
    return done.stdout


def earlier_commit(named: str | None) -> str:
    """The commit of the earlier release: what is named, else the newest tag before this commit, else ``EARLIER``.

    Raises:
        UpgradeFailed: this repository does not have it.
    """
    wanted = named
    if wanted is None:
        try:
            wanted = ran("git", "describe", "--tags", "--abbrev=0", "HEAD^").decode().strip()
        except UpgradeFailed:
            wanted = EARLIER
    try:
        return ran("git", "rev-parse", "--verify", "--short=12", f"{wanted}^{{commit}}").decode().strip()
    except UpgradeFailed:
        raise UpgradeFailed(
            f"this repository has no commit {wanted}: a shallow clone lacks it (git fetch --unshallow), "
            "or name another one with --from"
        ) from None


def installed(name: str, commit: str | None, folder: Path) -> Version:
    """The wheel of a commit, or of this tree, with the dependencies that were pinned for it, in a new environment."""
    tree = ROOT
    if commit is not None:
        tree = folder / f"{name}-tree"
        with tarfile.open(fileobj=io.BytesIO(ran("git", "archive", commit))) as archive:
            archive.extractall(tree, filter="data")
    dist = folder / f"{name}-dist"
    ran(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", dist, cwd=tree)
    (wheel,) = dist.glob("*.whl")
    environment = folder / f"{name}-environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pins = folder / f"{name}-pins.txt"
    lock = (tree / "requirements" / "lock.txt").read_text(encoding="utf-8")
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==[^\s\\]+", lock, re.MULTILINE)) + "\n")
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
    ran(python, *pip, "install", "--constraint", pins, wheel, cwd=folder)
    migrations = sorted((tree / "master_schema" / "migrations").glob("*.sql"))
    head = ran("git", "rev-parse", "--short=12", "HEAD").decode().strip()
    return Version(name, commit or head, python, int(migrations[-1].name[:4]))
