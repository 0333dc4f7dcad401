"""Every fault set is explored to its end and breaks no promise; crash points, and what the page says about it."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.model.__main__ import PAGE
from tests.model.ablations import ABLATIONS
from tests.model.bucket_protocol import BucketProtocol
from tests.model.crash_points import NO_STEP, STEPS, point_of
from tests.model.explorer import Report, explore
from tests.model.fault_sets import FAULT_SETS

_SHARE = 0.8
CORE = [name for name, each in FAULT_SETS.items() if each.core]
_LARGE_STATES = 30_000
OTHERS = [
    pytest.param(name, marks=[pytest.mark.long] if each.states >= _LARGE_STATES else [])
    for name, each in FAULT_SETS.items()
    if not each.core
]


@cache
def report_of(name: str) -> Report:
    return explore(BucketProtocol(FAULT_SETS[name].scope))


def assert_holds(name: str) -> None:
    report = report_of(name)
    assert report.violation is None, f"{name}: {report.violation}"
    assert not report.cut
    assert report.states >= _SHARE * FAULT_SETS[name].states, "it explores less than it did: the model has lost steps"


@pytest.mark.parametrize("name", CORE)
def test_protocol_holds(name: str) -> None:
    assert_holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_protocol_holds_under_more(name: str) -> None:
    assert_holds(name)


def test_every_crash_point_is_a_step_or_has_a_reason() -> None:
    taken = {point_of(step) for name in CORE for step in report_of(name).names} - {""}
    assert {where.split(" ", 1)[0] for where in STEPS.values()} == taken
    assert not STEPS.keys() & NO_STEP.keys()
    assert all(NO_STEP.values())


def test_crash_points_are_numbered_without_a_gap() -> None:
    """Each operation has its letter and counts from 0: a point that is left out shows."""
    for letter in {point[0] for point in STEPS | NO_STEP}:
        numbers = sorted(int(point[1]) for point in STEPS | NO_STEP if point[0] == letter)
        assert numbers == list(range(len(numbers))), letter


def _rows_of(part: str) -> list[list[str]]:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- made by python -m tests.model: {part} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[word.strip() for word in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_shows_these_fault_sets() -> None:
    expected = [[each.name, each.about, f"{each.states:,}", "holds"] for each in FAULT_SETS.values()]
    assert _rows_of("fault sets") == expected, "run python -m tests.model --write"


def test_the_page_shows_these_ablations() -> None:
    expected = [[each.name, each.fault_set, f"{each.states:,}", each.kind] for each in ABLATIONS.values()]
    assert _rows_of("ablations") == expected, "run python -m tests.model --write"
