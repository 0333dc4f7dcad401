"""The values that ``accept_time`` and ``complete_time`` of a job may have."""

from __future__ import annotations

from datetime import timedelta

TIME_LIMIT_SECONDS_MIN = 0.000001
TIME_LIMIT_SECONDS_MAX = 3660 * 86_400
"""Ten years. A limit is added to the master's clock, and the master has no time after the year 294276."""


def time_limit(value: object, name: str) -> float:
    """A limit in seconds; 0 = no limit.

    Raises:
        ValueError: it is no number and no timedelta, or out of the range. The message names the option and the range.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"{name} must be a number of seconds or a timedelta, not {value!r:.80}")
    if not (seconds == 0 or TIME_LIMIT_SECONDS_MIN <= seconds <= TIME_LIMIT_SECONDS_MAX):
        raise ValueError(
            f"{name} must be 0 (no limit), or {TIME_LIMIT_SECONDS_MIN:.6f} to {TIME_LIMIT_SECONDS_MAX} seconds, "
            f"not {value!r:.80}"
        )
    return float(seconds)
