"""Exponential back-off: how long to wait after the n-th failure in a row, and which of these failures are logged.

The caller counts failures, keeps its own first and longest delay, and adds jitter if many callers may fail together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import inf

_EXPONENT_MAX = 64
"""Keeps the power finite, however many failures there are."""


def backoff_delay(failures: int, first: float, longest: float = inf, factor: float = 2.0) -> float:
    """Seconds to wait after a failure: ``first * factor**(failures - 1)``, at most ``longest``.

    Args:
        failures: failures in a row, >= 1.
    """
    return min(first * factor ** min(failures - 1, _EXPONENT_MAX), longest)


def backoff_delays(first: float, longest: float) -> Iterator[float]:
    """The delays after the 1st, 2nd, 3rd ... failure in a row, in seconds; without end."""
    return (backoff_delay(failures, first, longest) for failures in count(1))


def is_logged(failures: int) -> bool:
    """True for the 1st, 2nd, 4th, 8th ... failure in a row: a long outage writes a few lines, not one per try."""
    return failures & (failures - 1) == 0
