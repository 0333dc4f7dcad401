"""Latency histograms with logarithmic bins: they merge by addition, and a quantile has an error of at most one per cent.

Stored percentiles cannot be merged. Sketches with a bounded error of the *rank* were tried: at the 99th percentile of a
skewed distribution their value was off by a third. Bin ``b`` counts values in ``(1.02**(b-1), 1.02**b]`` us, so any engine
can merge and read the histograms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GAMMA = 1.02


def bin_of(microseconds: Column) -> Column:
    """Bin of a duration; less than a microsecond counts as one."""
    from pyspark.sql import functions as F

    return F.ceil(F.log(F.greatest(microseconds, F.lit(1))) / F.lit(math.log(GAMMA))).cast("int")


def value_of(bin_: int) -> float:
    """The microseconds that represent a bin: the same relative distance to both ends."""
    return float(2 * GAMMA**bin_ / (GAMMA + 1))


def quantiles(bins: Iterable[tuple[int, int]], wanted: Sequence[float]) -> list[float | None]:
    """Microseconds at some quantiles.

    Args:
        bins: ``(bin, count)``; a bin may come more than once.
        wanted: shares from 0 to 1.

    Returns:
        One value each; ``None`` for an empty histogram.
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


def quantile_bins(histograms: DataFrame, keys: Sequence[str], shares: Sequence[float]) -> DataFrame:
    """Bins of some quantiles of many histograms, computed by Spark: few rows where the histograms themselves are many.

    Args:
        histograms: ``keys``, ``bin``, ``jobs``; a bin may come more than once.

    Returns:
        ``keys``, ``jobs`` (of the whole histogram), and a column ``q0``, ``q1`` ... for each share.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    merged = histograms.groupBy(*keys, "bin").agg(F.sum("jobs").alias("jobs"))
    whole = Window.partitionBy(*keys)
    passed = F.sum("jobs").over(whole.orderBy("bin")).alias("passed")
    ranked = merged.select(*keys, "bin", "jobs", passed, F.sum("jobs").over(whole).alias("total"))
    columns = [
        F.min(F.when(F.col("passed") >= F.ceil(F.lit(share) * F.col("total")), F.col("bin"))).alias(f"q{at}")
        for at, share in enumerate(shares)
    ]
    return ranked.groupBy(*keys).agg(F.max("total").alias("jobs"), *columns)


def bins_within(microseconds: float) -> int:
    """The highest bin whose values are all within a bound. Values up to two per cent below the bound may be in the next."""
    # A bound that is itself the end of a bin must not lose it to rounding.
    return math.floor(math.log(max(microseconds, 1.0)) / math.log(GAMMA) + 1e-9)


def gini(values: Sequence[float]) -> float:
    """Gini coefficient: 0 for equal values, near 1 when one value has the whole sum."""
    ordered = sorted(values)
    total, count = sum(ordered), len(ordered)
    if not total:
        return 0.0
    return sum((2 * (at + 1) - count - 1) * value for at, value in enumerate(ordered)) / (count * total)
