"""How the tests are collected and shared: named folders exist, and the short way to the slow tests misses none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import SLOW_FILE
from tests.support import file_order

ROOT = Path(__file__).parents[2]


def test_the_folders_of_the_order_exist() -> None:
    named = {
        *file_order._LONGEST,
        *file_order._ONE_PROCESS,
        *file_order._WHOLE_FILES,
        *file_order._PARTS,
        *file_order._TOGETHER,
    }
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_wherever_a_process_begins_it_collects_each_file_once() -> None:
    places = file_order.places_of(ROOT / "tests")
    files = (ROOT / "tests").rglob("test_*.py")
    assert [path.name for path in files if sum(path.is_relative_to(place) for place in places) != 1] == []


def test_the_mark_slow_is_written_out_where_it_is_used() -> None:
    """With `-m "slow and ..."` a file without that text is not imported (tests/conftest.py)."""
    other_ways = re.compile(
        r"import .*\bpytestmark\b|import .*\b(slow|long)\b|\bmark import\b|mark\[|getattr\(pytest\.mark"
    )
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in files if other_ways.search(_code(path))] == []


def test_a_file_of_slow_tests_alone_is_marked_as_a_whole() -> None:
    """With `-m "not slow"` such a file is not imported (tests/conftest.py)."""
    tests, marked = re.compile(r"^(async )?def test_", re.MULTILINE), re.compile(r"^@pytest\.mark\.slow$", re.MULTILINE)
    texts = {path.name: _code(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    parts = {name: text for name, text in texts.items() if not SLOW_FILE.search(text.encode())}
    assert [name for name, text in parts.items() if 0 < len(tests.findall(text)) == len(marked.findall(text))] == []


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("pytestmark = pytest.mark.slow\n", True),
        ("X = 1\npytestmark = [pytest.mark.cluster, pytest.mark.slow]\n", True),
        ("pytestmark = [\n    pytest.mark.cluster,\n    pytest.mark.slow,\n]\n", True),
        ("pytestmark = [\n    pytest.mark.cluster,\n]\n\n\n@pytest.mark.slow\ndef test_x(): ...\n", False),
        ("pytestmark = pytest.mark.cluster\n\n\n@pytest.mark.slow\ndef test_x(): ...\n", False),
        ("    pytestmark = pytest.mark.slow\n", False),
    ],
)
def test_only_a_mark_of_the_whole_file_leaves_it_out(text: str, whole: bool) -> None:
    assert (SLOW_FILE.search(text.encode()) is not None) is whole


def test_a_long_test_is_slow_too() -> None:
    """`make test-fast` runs what is not slow, and `make test-long` what is both."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in files if "mark.long" in _code(path) and "mark.slow" not in _code(path)] == []


def _code(path: Path) -> str:
    return "" if path == Path(__file__) else path.read_text(encoding="utf-8")
