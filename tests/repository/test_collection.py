"""How the tests are collected and shared: named folders exist, and the short way to the slow tests misses none."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import file_order

ROOT = Path(__file__).parents[2]


def test_the_folders_of_the_order_exist() -> None:
    named = {*file_order._LONGEST, *file_order._ONE_PROCESS, *file_order._WHOLE_FILES, *file_order._PARTS}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_mark_slow_is_written_out_where_it_is_used() -> None:
    """With `-m "slow and ..."` a file without that text is not imported (tests/conftest.py)."""
    other_ways = re.compile(
        r"import .*\bpytestmark\b|import .*\b(slow|long)\b|\bmark import\b|mark\[|getattr\(pytest\.mark"
    )
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in files if other_ways.search(_code(path))] == []


def test_a_long_test_is_slow_too() -> None:
    """`make test-fast` runs what is not slow, and `make test-long` what is both."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in files if "mark.long" in _code(path) and "mark.slow" not in _code(path)] == []


def _code(path: Path) -> str:
    return "" if path == Path(__file__) else path.read_text(encoding="utf-8")
