"""Figures for people, without Spark."""

from __future__ import annotations


def duration(microseconds: float | None) -> str:
    """Microseconds for people."""
    if microseconds is None:
        return "-"
    for size, unit in ((86_400e6, "d"), (3600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.0f} µs"
