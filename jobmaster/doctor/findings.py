"""Results of the doctor's checks."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class CheckStatus(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """One check with its result."""

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""
    """The remedy."""
