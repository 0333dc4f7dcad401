"""Lines of CSV (RFC 4180) that a spreadsheet shows as text and does not compute."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes a cell that begins so for a formula, which may read other cells and send them away (OWASP, "CSV
Injection")."""
_GUARD = "'"
"""A spreadsheet shows what follows it as it is."""


def csv_line(values: Iterable[Any]) -> str:
    """One line with its end: nothing for ``None``, JSON for what has fields or items, text for other values.

    A text that could be a formula gets an apostrophe before it; numbers keep their sign.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow([_cell(value) for value in values])
    return line.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, dict | list | tuple):
        value = msgspec.json.encode(value).decode() if value else ""
    text = str(value)
    return _GUARD + text if text.startswith(FORMULA_STARTS) else text
