"""Latencies as histograms with logarithmic bins: they merge by adding, and a quantile is off by at most one per cent.

A stored percentile cannot be merged with another one, and sketches that bound the error of the *rank* were tried: at the
99th percentile of a skewed distribution theirs was a third off. Here bin ``b`` holds what lies in ``(1.02**(b-1), 1.02**b]``
microseconds, so any engine can add histograms up and read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

GAMMA = 1.02


def bin_of(microseconds: Column) -> Column:
    """Bin of a duration; what is below a microsecond counts as one."""
    from pyspark.sql import functions as F

    return F.ceil(F.log(F.greatest(microseconds, F.lit(1))) / F.lit(math.log(GAMMA))).cast("int")


def value_of(bin_: int) -> float:
    """The microseconds that a bin stands for: equally far, relatively, from both of its ends."""
    return float(2 * GAMMA**bin_ / (GAMMA + 1))


def quantiles(bins: Iterable[tuple[int, int]], wanted: Sequence[float]) -> list[float | None]:
    """Microseconds at some quantiles.

    Args:
        bins: ``(bin, count)``; a bin may come more than once.
        wanted: shares from 0 to 1.

    Returns:
        One value each; ``None`` where nothing was counted.
    """
    counts: dict[int, int] = {}
    for bin_, count in bins:
        counts[bin_] = counts.get(bin_, 0) + count
    total = sum(counts.values())
    ordered = sorted(counts)
    found: list[float | None] = []
    for share in wanted:
        rank, passed, value = max(1, math.ceil(share * total)), 0, None
        for bin_ in ordered:
            passed += counts[bin_]
            if passed >= rank:
                value = value_of(bin_)
                break
        found.append(value)
    return found


def gini(values: Sequence[float]) -> float:
    """0 when all are equal, towards 1 when one has everything."""
    ordered = sorted(values)
    total, count = sum(ordered), len(ordered)
    if not total:
        return 0.0
    return sum((2 * (at + 1) - count - 1) * value for at, value in enumerate(ordered)) / (count * total)
