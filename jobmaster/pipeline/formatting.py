"""Figures as people read them; no Spark is needed to say them."""

from __future__ import annotations

from collections.abc import Sequence


def gini(values: Sequence[float]) -> float:
    """0 when all are equal, towards 1 when one has everything."""
    ordered = sorted(values)
    total, count = sum(ordered), len(ordered)
    if not total:
        return 0.0
    return sum((2 * (at + 1) - count - 1) * value for at, value in enumerate(ordered)) / (count * total)


def duration(microseconds: float | None) -> str:
    """Microseconds for people."""
    if microseconds is None:
        return "-"
    for size, unit in ((86_400e6, "d"), (3600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.0f} µs"
