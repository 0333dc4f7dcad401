"""Which bucket an agent serves next when it cannot serve all: priority, lifted by waiting.

Effective level = priority + waited / age_boost (Ratchet's age boost, continuous instead of in steps, so that two jobs of
one class never overtake each other). With a boost of 15 minutes a ``low`` job that waited 46 minutes goes before a fresh
``critical`` one; a boost of 0 turns it off.
"""

from __future__ import annotations


def effective_level(priority: int, waited_seconds: float, age_boost_seconds: float) -> float:
    """Level by which buckets are compared; higher goes first."""
    if age_boost_seconds <= 0.0:
        return float(priority)
    return priority + max(waited_seconds, 0.0) / age_boost_seconds
