"""The table of features: nothing is called working without a test that exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "features.md"
ORIGINS = {
    "JobMaster (.NET)",
    "Ratchet",
    "Faultline",
    "TIBCO distributed queue",
    "Sharded workers on Cassandra",
    "Beyond the five",
}
STATES = ("works", "planned", "not needed")
NUMBERED = {"J": 62, "R": 61, "F": 25, "T": 24, "C": 15}
"""Rows of the inventory of the origins, by letter."""


class Row(NamedTuple):
    """One feature."""

    origin: str
    feature: str
    state: str
    tests: tuple[str, ...]

    @property
    def word(self) -> str:
        """First word of the state."""
        return next((word for word in STATES if re.match(rf"{word}\b", self.state)), self.state)


def rows_of(text: str) -> list[Row]:
    """Rows of every table of the page, under their heading."""
    found, origin = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            origin = line[3:].strip()
        elif line.startswith("|") and not re.match(r"\| *(feature|---)", line):
            feature, state, tests = (cell.strip() for cell in line.strip().strip("|").split("|"))
            found.append(Row(origin, feature, state, tuple(re.findall(r"`([^`]+)`", tests))))
    return found


def fault(row: Row) -> str:
    """What is wrong with a row; empty when nothing is."""
    if row.word not in STATES:
        return f"{row.feature}: the state begins with none of {', '.join(STATES)}"
    if row.word == "planned":
        return ""
    if row.word == "not needed" and not row.tests:
        return "" if ":" in row.state else f"{row.feature}: no reason is given"
    if not row.tests:
        return f"{row.feature}: no test is named"
    missing = [test for test in row.tests if not is_test(test)]
    if missing:
        return f"{row.feature}: {', '.join(missing)} is no test"
    return f"{row.feature}: `make test` runs none of its tests" if all(map(is_long, row.tests)) else ""


def is_test(name: str) -> bool:
    """A file of tests, a directory with some, or one test in a file (``file::test``)."""
    file, _, test = name.partition("::")
    path = ROOT / file
    if path.is_dir():
        return not test and any(path.rglob("test_*.py"))
    if not (path.is_file() and path.name.startswith("test_")):
        return False
    return (
        not test
        or re.search(rf"^\s*(async )?def {re.escape(test)}\b", path.read_text(encoding="utf-8"), re.M) is not None
    )


def is_long(name: str) -> bool:
    """True for one test in a file that only `make test-long` runs, in all of its cases."""
    file, _, test = name.partition("::")
    marks = re.compile(rf"^@pytest\.mark\.long\n(@.*\n)*(async )?def {re.escape(test)}\b", re.M)
    return bool(test) and marks.search((ROOT / file).read_text(encoding="utf-8")) is not None


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def test_every_origin_has_its_table() -> None:
    assert {row.origin for row in ROWS} == ORIGINS
    assert len(ROWS) == len({(row.origin, row.feature) for row in ROWS})


def test_every_row_of_the_inventory_has_its_line_once() -> None:
    numbers = [match[1] for row in ROWS if (match := re.match(r"([A-Z]\d+)\. ", row.feature))]
    assert numbers == [f"{letter}{number}" for letter, last in NUMBERED.items() for number in range(1, last + 1)]


def test_what_works_names_its_test() -> None:
    assert [found for row in ROWS if (found := fault(row))] == []


def test_a_false_row_is_found() -> None:
    text = "## A\n| feature | state | test |\n| --- | --- | --- |\n"
    good = "| x | works | `tests/repository/documentation/test_features.py::test_a_false_row_is_found` |\n"
    assert [fault(row) for row in rows_of(text + good)] == [""]
    for bad in ("| x | works | |", "| x | works | `tests/repository/test_nothing.py` |", "| x | maybe | |",
                "| x | works | `tests/repository/documentation/test_features.py::test_nothing` |", "| x | works | `docs` |",
                "| x | works | `tests/benchmarks/test_commands.py::test_unit_costs_of_a_fleet` |",
                "| x | not needed | |"):  # fmt: skip
        assert [fault(row) for row in rows_of(text + bad)] != [""]
