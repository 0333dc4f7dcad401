"""The result of a check of the doctor."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """How to mend it."""
